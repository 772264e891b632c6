"""Pointwise functions of sparse tensors. A function that maps zero to zero is applied to the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import flat_places
from ._tensor import SparseTensor, unsupported

__all__ = ["FORMS", "added", "is_number"]

# The names of the functions that map zero to zero. A linear one gives the same tensor whether or not the
# values of equal places are added first, so its argument is not coalesced.
_LINEAR = "neg negative positive conj conj_physical deg2rad rad2deg"
_NONLINEAR = """
    abs absolute angle arcsin arcsinh arctan arctanh asin asinh atan atanh ceil erf erfinv expm1 floor frac
    isinf isnan isneginf isposinf log1p nan_to_num relu round sgn sign signbit sin sinh sqrt square tan tanh
    trunc
"""


def is_number(x: Any) -> bool:
    """Is it a number, or a dense tensor of no dimensions?"""
    return isinstance(x, (bool, int, float, complex)) or (isinstance(x, Tensor) and x.dim() == 0)


def _coalesced(x: SparseTensor) -> Any:
    return x.coalesce() if isinstance(x, CooTensor) else x


def _unary(name: str, linear: bool) -> Callable[..., Any]:
    function = getattr(tt, name)

    def form(input: Any, *args: Any, **kwargs: Any) -> Any:
        source = input if linear else _coalesced(input)
        return source._like(function(source._data, *args, **kwargs))

    return form


def _same_shape(name: str, a: Any, b: Any) -> None:
    if tuple(a.shape) != tuple(b.shape):
        raise RuntimeError(
            f"{name}: expected tensors of the same size, got {list(a.shape)} and {list(b.shape)}"
        )
    if a.device != b.device:
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, {a.device} and {b.device}!"
        )


def _in_layout(result: CooTensor, like: SparseTensor) -> Any:
    return result if isinstance(like, CooTensor) else result.to_sparse(layout=like.layout)


def added(a: SparseTensor, b: SparseTensor, alpha: Any = 1) -> Any:
    """a + alpha * b, in a's layout."""
    _same_shape("add", a, b)
    first, second = a.to_sparse_coo(), b.to_sparse_coo()
    if first.sparse_dim() != second.sparse_dim():
        raise RuntimeError(
            f"add: both tensors must have the same number of sparse dimensions, got "
            f"{first.sparse_dim()} and {second.sparse_dim()}"
        )
    dtype = tt.promote_types(a.dtype, b.dtype)
    other = second._data if alpha == 1 else second._data * alpha
    total = CooTensor(
        tt.cat([first._places, second._places], 1),
        tt.cat([first._data.to(dtype), other.to(dtype)]),
        a._shape,
        False,
        first._inside and second._inside,
    )
    both = first.is_coalesced() and second.is_coalesced()
    return _in_layout(total.coalesce() if both else total, a)


def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        return added(input, other, alpha)
    compressed = isinstance(input, CompressedTensor)
    if compressed and isinstance(other, Tensor):
        _same_shape("add", input, other)
        return tt.add(input.to_dense(), other, alpha=alpha)
    if isinstance(input, SparseTensor):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if not isinstance(input, Tensor):
        raise RuntimeError("add: a number and a sparse tensor cannot be added; call to_dense()")
    _same_shape("add", input, other)
    return tt.add(input, other.to_dense(), alpha=alpha)


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return add(input, other, alpha=-alpha)


def mul(input: Any, other: Any) -> Any:
    if not isinstance(input, SparseTensor):
        input, other = other, input
    if is_number(other):
        return input._like(input._data * other)
    if isinstance(other, SparseTensor):
        return _common(input, other)
    if tuple(tt.broadcast_shapes(tuple(other.shape), input._shape)) != input._shape:
        raise RuntimeError(
            f"mul: a dense tensor of shape {list(other.shape)} does not broadcast to the shape "
            f"{list(input._shape)} of the sparse tensor"
        )
    wide = other.reshape((*(1,) * (input.ndim - other.dim()), *other.shape))
    return input._like(input._data * input._at_places(wide))


def _common(a: SparseTensor, b: SparseTensor) -> Any:
    """The product of two sparse tensors: the places that both have. Waits for their number."""
    _same_shape("mul", a, b)
    first, second = a.to_sparse_coo().coalesce(), b.to_sparse_coo().coalesce()
    if first.sparse_dim() != second.sparse_dim():
        raise RuntimeError("mul: both tensors must have the same number of sparse dimensions")
    if second._nnz() == 0:
        first, second = second, first
    if first._nnz() == 0:
        nothing = first._data * second._data[:0]
        return _in_layout(CooTensor(first._places, nothing, a._shape, True, True), a)
    left = flat_places(first._places, first._sizes, True)
    right = flat_places(second._places, first._sizes, True)
    at = tt.searchsorted(right, left).clamp(max=right.shape[0] - 1)
    kept = (right.index_select(0, at) == left).nonzero().reshape(-1)
    values = first._data.index_select(0, kept) * second._data.index_select(0, at.index_select(0, kept))
    return _in_layout(CooTensor(first._places.index_select(1, kept), values, a._shape, True, True), a)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if not isinstance(input, SparseTensor) or not is_number(other):
        raise RuntimeError(
            "Sparse division requires a scalar or zero-dim dense tensor divisor (got shape "
            f"{list(getattr(other, 'shape', []))} for divisor)"
        )
    source = input if rounding_mode is None else _coalesced(input)
    return source._like(tt.div(source._data, other, rounding_mode=rounding_mode))


def floor_divide(input: Any, other: Any) -> Any:
    return div(input, other, rounding_mode="floor")


def pow(input: Any, exponent: Any) -> Any:
    if not isinstance(input, SparseTensor):
        unsupported("pow", exponent)
    if not isinstance(exponent, (int, float)) or exponent <= 0:
        raise RuntimeError(
            "pow: the exponent of a sparse tensor must be a positive number, because 0 must stay "
            "0; call to_dense()"
        )
    source = _coalesced(input)
    return source._like(source._data**exponent)


def _in_place(name: str, form: Callable[..., Any]) -> Callable[..., Any]:
    def change(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, SparseTensor):
            unsupported(name, args[0] if args else kwargs["other"])
        return input._become(form(input, *args, **kwargs), name)

    return change


def _add_at_places(dense: Tensor, coo: CooTensor, alpha: Any) -> None:
    """Adds alpha * coo to a contiguous tensor in place: the work depends on the number of places."""
    count = coo.sparse_dim()
    rows = dense if count == 1 else dense.view((math.prod(coo._sizes), *dense.shape[count:]))
    places = flat_places(coo._places, coo._sizes, coo._inside)
    rows.index_add_(0, places, coo._data if alpha == 1 else coo._data * alpha)


def _into_dense(name: str) -> Callable[..., Any]:
    """add_ or sub_ of a sparse tensor to a sparse or to a dense one."""
    of_sparse = _in_place(name, _ARITHMETIC[name[:-1]])

    def change(input: Any, other: Any, *, alpha: Any = 1) -> Any:
        if isinstance(input, SparseTensor):
            return of_sparse(input, other, alpha=alpha)
        _same_shape(name, input, other)
        if isinstance(other, CooTensor) and input.is_contiguous() and input.dtype == other.dtype != tt.bool:
            _add_at_places(input, other, -alpha if name == "sub_" else alpha)
            return input
        return getattr(input, name)(other.to_dense(), alpha=alpha)

    return change


def zero_(input: Any) -> Any:
    return input._become(zeros_like(input), "zero_")


def copy_(input: Any, src: Any, non_blocking: bool = False) -> Any:
    if not (isinstance(input, SparseTensor) and isinstance(src, SparseTensor)):
        raise RuntimeError("copy_() between dense and sparse Tensors is not implemented; call to_dense()")
    return input._become(src.to(input.device).clone(), "copy_")


def zeros_like(
    input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Any:
    values, count = input._data, len(input._batch) + input.sparse_dim()
    nothing = tt.zeros(
        (0, *input._shape[count:]),
        dtype=dtype or values.dtype,
        device=device or values.device,
        requires_grad=requires_grad,
    )
    places = tt.zeros(count, 0, dtype=tt.int64, device=nothing.device)
    return _in_layout(CooTensor(places, nothing, input._shape, True, True), input)


def _cast(dtype: Any) -> Callable[..., Any]:
    return lambda input: input.to(dtype)


_CASTS = {
    "float": tt.float32, "double": tt.float64, "half": tt.float16, "bfloat16": tt.bfloat16,
    "int": tt.int32, "long": tt.int64, "short": tt.int16, "char": tt.int8, "byte": tt.uint8,
    "bool": tt.bool, "cfloat": tt.complex64, "cdouble": tt.complex128,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": add, "sub": sub, "subtract": sub, "mul": mul, "multiply": mul, "div": div, "divide": div,
    "true_divide": div, "floor_divide": floor_divide, "pow": pow,
    **{name: _unary(name, True) for name in _LINEAR.split()},
    **{name: _unary(name, False) for name in _NONLINEAR.split()},
}  # fmt: skip
FORMS: dict[str, Callable[..., Any]] = {
    **_ARITHMETIC,
    "zero_": zero_,
    "copy_": copy_,
    "zeros_like": zeros_like,
    "empty_like": zeros_like,
    **{f"{name}_": _in_place(f"{name}_", form) for name, form in _ARITHMETIC.items()},
    **{name: _cast(dtype) for name, dtype in _CASTS.items()},
    "add_": _into_dense("add_"),
    "sub_": _into_dense("sub_"),
}
