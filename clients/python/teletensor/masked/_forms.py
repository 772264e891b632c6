"""Functions of masked tensors: elementwise ones, reductions, and those that apply to elements and mask
alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from . import _reductions
from ._tensor import MaskedTensor

__all__ = ["FORMS"]

_UNARY = """
    abs absolute acos arccos acosh arccosh angle asin arcsin asinh arcsinh atan arctan atanh arctanh
    bitwise_not ceil clamp clip conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix
    floor frac lgamma log log10 log1p log2 logit i0 isnan nan_to_num neg negative positive pow rad2deg
    reciprocal round rsqrt sigmoid sign sgn signbit sin sinc sinh sqrt square tan tanh trunc
""".split()
_BINARY = """
    add atan2 arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift div divide
    floor_divide fmod logaddexp logaddexp2 mul multiply nextafter remainder sub subtract true_divide eq ne
    le ge greater greater_equal gt less_equal lt less maximum minimum fmax fmin not_equal
""".split()
_ALIKE = """
    select transpose split t expand view reshape cat unsqueeze stack permute chunk flatten squeeze
    index_select unbind swapaxes movedim expand_as
""".split()
_REDUCTIONS = "sum mean amin amax argmin argmax prod norm var std median logsumexp".split()
_NORMAL = "softmax log_softmax softmin cumsum cumprod".split()


def _each(x: Any, part: Callable[[MaskedTensor], Tensor]) -> Any:
    """The argument with its masked tensors replaced by one of their parts."""
    if isinstance(x, MaskedTensor):
        return part(x)
    return type(x)(_each(e, part) for e in x) if type(x) in (list, tuple) else x


def _data(x: Any) -> Any:
    return _each(x, lambda m: m._data)


def _mask(x: Any) -> Any:
    return _each(x, lambda m: m._mask)


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(tt, name)

    def form(input: MaskedTensor, *args: Any, **kwargs: Any) -> MaskedTensor:
        if any(isinstance(x, (Tensor, MaskedTensor)) for x in (*args, *kwargs.values())):
            raise TypeError("MaskedTensor unary ops do not support additional Tensor arguments")
        return MaskedTensor._of(function(input._data, *args, **kwargs), input._mask)

    return form


def _same_mask(a: Any, b: Any) -> Tensor:
    """The mask of the result. Waits if both are masked tensors with different mask tensors."""
    first = a if isinstance(a, MaskedTensor) else b
    if (
        isinstance(a, MaskedTensor)
        and isinstance(b, MaskedTensor)
        and a._mask is not b._mask
        and not (a.shape == b.shape and tt.equal(a._mask, b._mask))
    ):
        raise ValueError("Input masks must match")
    mask: Tensor = first._mask
    return mask


def _binary(name: str) -> Callable[..., Any]:
    function = getattr(tt, name)

    def form(input: Any, other: Any, **kwargs: Any) -> MaskedTensor:
        mask = _same_mask(input, other)
        found = function(_data(input), _data(other), **kwargs)
        return MaskedTensor._of(found, mask.expand(found.shape))

    return form


def _in_place(name: str, form: Callable[..., Any]) -> Callable[..., Any]:
    def change(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, MaskedTensor):
            raise NotImplementedError(
                f"{name}(): a masked tensor cannot be written into a tensor; call to_tensor(value)"
            )
        found = form(input, *args, **kwargs)
        if found.shape != input.shape:
            raise RuntimeError(
                f"{name}(): the result has shape {list(found.shape)}, and the tensor has shape "
                f"{list(input.shape)}"
            )
        input._data.copy_(found._data)
        return input

    return change


def _alike(name: str) -> Callable[..., Any]:
    function: Any = getattr(Tensor, name, None) or getattr(tt, name)

    def call(args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def form(*args: Any, **kwargs: Any) -> Any:
        data = call(_data(args), _each(kwargs, lambda m: m._data))
        masks = call(_mask(args), kwargs)
        if isinstance(data, (list, tuple)):
            return tuple(MaskedTensor._of(x, m) for x, m in zip(data, masks, strict=True))
        return MaskedTensor._of(data, masks)

    return form


def _any(mask: Tensor, dim: Any, keepdim: bool) -> Tensor:
    for d in reversed(_reductions._dims(dim, mask.dim())):
        mask = mask.any(d, keepdim)
    return mask


def _reduction(name: str) -> Callable[..., Any]:
    function = getattr(_reductions, name)

    def form(
        input: MaskedTensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, **more: Any
    ) -> MaskedTensor:
        if name == "norm" and "p" in more:
            more["ord"] = 2.0 if more["p"] == "fro" else more["p"]
            del more["p"]
        found = function(input, dim=dim, keepdim=keepdim, dtype=dtype, **more)
        return MaskedTensor._of(found, _any(input._mask, dim, keepdim))

    return form


def all(input: MaskedTensor, dim: Any = None, keepdim: bool = False) -> MaskedTensor:
    given = input._data.masked_fill(~input._mask, True)
    found = given.all() if dim is None else given.all(dim, keepdim)
    return MaskedTensor._of(found, _any(input._mask, dim, keepdim))


def _normal(name: str) -> Callable[..., Any]:
    function = getattr(_reductions, name)

    def form(input: MaskedTensor, dim: int, *, dtype: Any = None, **_: Any) -> MaskedTensor:
        return MaskedTensor._of(function(input, dim, dtype=dtype), input._mask)

    return form


def where(condition: Tensor, input: Any, other: Any) -> MaskedTensor:
    if isinstance(condition, MaskedTensor):  # the method has the condition as its second argument
        condition, input = input, condition
    masks = [
        x._mask
        if isinstance(x, MaskedTensor)
        else tt.ones(condition.shape, dtype=tt.bool, device=condition.device)
        for x in (input, other)
    ]
    return MaskedTensor._of(tt.where(condition, _data(input), _data(other)), tt.where(condition, *masks))


def getitem(input: MaskedTensor, index: Any) -> MaskedTensor:
    at = _each(index, lambda m: m._data)
    return MaskedTensor._of(input._data[at], input._mask[at])


def contiguous(input: MaskedTensor) -> MaskedTensor:
    return MaskedTensor._of(input._data.contiguous(), input._mask.contiguous())


def ones_like(input: MaskedTensor, **options: Any) -> MaskedTensor:
    return MaskedTensor._of(tt.ones_like(input._data, **options), input._mask)


def zeros_like(input: MaskedTensor, **options: Any) -> MaskedTensor:
    return MaskedTensor._of(tt.zeros_like(input._data, **options), input._mask)


_CASTS = {"float": tt.float32, "double": tt.float64, "half": tt.float16, "int": tt.int32, "long": tt.int64,
          "bool": tt.bool, "short": tt.int16, "char": tt.int8}  # fmt: skip


def _cast(dtype: Any) -> Callable[..., Any]:
    return lambda input: input.to(dtype)


_ELEMENTWISE = {**{n: _unary(n) for n in _UNARY if hasattr(tt, n)},
                **{n: _binary(n) for n in _BINARY if hasattr(tt, n)}}  # fmt: skip
FORMS: dict[str, Callable[..., Any]] = {
    **_ELEMENTWISE,
    **{f"{name}_": _in_place(f"{name}_", form) for name, form in _ELEMENTWISE.items()},
    **{name: _alike(name) for name in _ALIKE},
    **{name: _reduction(name) for name in _REDUCTIONS},
    **{name: _normal(name) for name in _NORMAL},
    **{name: _cast(dtype) for name, dtype in _CASTS.items()},
    "all": all,
    "where": where,
    "getitem": getitem,
    "contiguous": contiguous,
    "ones_like": ones_like,
    "zeros_like": zeros_like,
}


def _operator(name: str, reflected: bool = False) -> Any:
    form = FORMS[name]

    def operate(self: MaskedTensor, *others: Any) -> Any:
        if name != "getitem" and any(
            not isinstance(x, (MaskedTensor, Tensor, bool, int, float)) for x in others
        ):
            return NotImplemented
        return form(*others, self) if reflected else form(self, *others)

    return operate


for _name, _form in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}.items():  # fmt: skip
    setattr(MaskedTensor, f"__{_name}__", _operator(_form))
    setattr(MaskedTensor, f"__r{_name}__", _operator(_form, True))
    setattr(MaskedTensor, f"__i{_name}__", _operator(_form + "_"))
for _name, _form in {"invert": "bitwise_not", "pos": "positive"}.items():
    setattr(MaskedTensor, f"__{_name}__", _operator(_form))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "pow", "getitem"):
    setattr(MaskedTensor, f"__{_name}__", _operator(_name))
