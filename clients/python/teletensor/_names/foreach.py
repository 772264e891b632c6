"""PyTorch's functions of lists of tensors, which optimizers and libraries call: `_foreach_add(tensors, 1)`
and its form in place, `_foreach_add_`. Each is the method of that name for every tensor of the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._core import Tensor

_Function = Callable[..., Any]

# Name: its parameters after the first, each with PyTorch's names for it.
_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero
""".split()
_BINARY = "add clamp_max clamp_min div maximum minimum mul sub".split()
_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys([*_UNARY, "clone", "max"], ()), **dict.fromkeys(_BINARY, ("other scalar scalars",)),
    "addcdiv": ("tensor1", "tensor2", "value scalars"), "addcmul": ("tensor1", "tensor2", "value scalars"),
    "copy": ("src",), "lerp": ("tensors1", "weight weights"), "mm": ("mat2",), "norm": ("ord",),
    "pow": ("exponent",),
}  # fmt: skip
_ONLY_NEW = {"clone", "max", "mm", "norm"}  # these have no form in place
_ONLY_IN_PLACE = {"copy", "zero"}


def _each(name: str, tensors: Sequence[Any], value: Any) -> Iterator[Any]:
    """The value for each tensor: its element of a list, or the value itself."""
    if not isinstance(value, (list, tuple)):
        return iter([value] * len(tensors))
    if len(value) != len(tensors):
        raise RuntimeError(f"_foreach_{name}: the lists have {len(tensors)} and {len(value)} elements")
    return iter(value)


def _call(name: str, tensor: Any, in_place: bool, values: list[Any], options: dict[str, Any]) -> Any:
    if name in ("addcdiv", "addcmul") and len(values) == 3:
        options["value"] = values.pop()
    if name in ("clamp_max", "clamp_min", "maximum", "minimum"):
        options["min" if name in ("clamp_min", "maximum") else "max"] = values.pop()
        name = "clamp"
    if not isinstance(tensor, Tensor):  # only pow takes a number as its base
        return Tensor.__rpow__(values[0], tensor)
    return getattr(tensor, name + "_" * in_place)(*values, **options)


def _bound(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The values of the parameters after the first, which are taken out of kwargs."""
    values = list(args)
    parameters = _PARAMETERS[name]
    if len(values) > len(parameters):
        raise TypeError(f"_foreach_{name}() takes {1 + len(parameters)} arguments, {1 + len(values)} were "
                        "given")
    for names in parameters[len(values):]:
        found = [each for each in names.split() if each in kwargs]
        if found:
            values.append(kwargs.pop(found[0]))
    return values


def _made(name: str, in_place: bool) -> _Function:
    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        values = _bound(name, args, kwargs)
        if len(values) == 3 and isinstance(values[2], Tensor):  # factors, whose values are waited for
            values[2] = values[2].tolist()
        tensors = self if isinstance(self, (list, tuple)) else [self] * len(values[0])
        columns = [_each(name, tensors, value) for value in values]
        return [_call(name, tensor, in_place, rest, dict(kwargs))
                for tensor, *rest in zip(tensors, *columns, strict=True)]

    function.__name__ = function.__qualname__ = f"_foreach_{name}{'_' * in_place}"
    function.__doc__ = f"{name} of each tensor of a list{', in place' * in_place}."
    return function


_functions = {
    made.__name__: made
    for name in _PARAMETERS
    for in_place in (False, True)
    if name not in (_ONLY_NEW if in_place else _ONLY_IN_PLACE)
    for made in (_made(name, in_place),)
}
globals().update(_functions)
__all__ = list(_functions)
