"""Elementwise functions that are short expressions of other ops."""

from __future__ import annotations

from typing import Any

from .. import _core, return_types
from .._core import Tensor, ops
from .common import function_only
from .stores import stored

__all__ = [
    "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "dist", "float_power", "float_power_",
    "frexp", "isneginf", "isposinf", "ldexp", "ldexp_", "round", "round_", "rsub", "threshold",
    "threshold_",
]


def _bound(name: str, argument: str, given: Any) -> None:
    if given is None:
        raise TypeError(f"{name}(): argument '{argument}' must be Tensor or Number, not NoneType")


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """The larger of input and min; NaN where either is NaN."""
    _bound("clamp_min", "min", min)
    if isinstance(min, Tensor) and min.dtype == input.dtype == _core.bool:
        return ops["maximum"](input, min)
    return ops["clamp"](input, min, None)


def clamp_min_(input: Tensor, min: Any) -> Tensor:
    """clamp_min in place."""
    return ops["clamp_"](input, min, None)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """The smaller of input and max; NaN where either is NaN."""
    _bound("clamp_max", "max", max)
    if isinstance(max, Tensor) and max.dtype == input.dtype == _core.bool:
        return ops["minimum"](input, max)
    return ops["clamp"](input, None, max)


def clamp_max_(input: Tensor, max: Any) -> Tensor:
    """clamp_max in place."""
    return ops["clamp_"](input, None, max)


def dist(input: Tensor, other: Tensor, p: Any = 2) -> Tensor:
    """The p-norm of input - other."""
    return ops["norm"](input - other, p, None, False, None)


def float_power(input: Any, exponent: Any) -> Tensor:
    """input to the power of exponent in float64, or in complex128 if either is complex."""
    both = (input, exponent)
    for v in both:
        if isinstance(v, str):
            raise TypeError("float_power(): arguments must be Tensor or Number, not str")
    if any(v.dtype.is_complex if isinstance(v, Tensor) else isinstance(v, complex) for v in both):
        dtype = _core.complex128
    else:
        dtype = _core.float64
    return ops["pow"](*(ops["cast"](v, dtype) if isinstance(v, Tensor) else
                        complex(v) if dtype.is_complex else float(v) for v in both))


def float_power_(input: Tensor, exponent: Any) -> Tensor:
    """float_power in place, for tensors of float64 and complex128."""
    result = float_power(input, exponent)
    if input.dtype != result.dtype:
        raise RuntimeError(f"the base given to float_power_ has dtype {input.dtype.name} but the "
                           f"operation's result requires dtype {result.dtype.name}")
    return stored(input, result)


def frexp(input: Tensor) -> return_types.frexp:
    """The mantissa and the exponent of input = mantissa * 2 ** exponent."""
    return return_types.frexp(*ops["frexp"](input))


def isposinf(input: Tensor) -> Tensor:
    """True where an element is plus infinity."""
    return ops["eq"](input, float("inf"))


def isneginf(input: Tensor) -> Tensor:
    """True where an element is minus infinity."""
    return ops["eq"](input, float("-inf"))


def _two_to(exponent: Any, input: Any) -> Tensor:
    """2 ** exponent; for integer exponents in input's dtype if that is a floating-point dtype."""
    power = ops["pow"](2.0, exponent)
    integral = isinstance(exponent, Tensor) and not (
        exponent.dtype.is_floating_point or exponent.dtype.is_complex)
    if integral and isinstance(input, Tensor) and input.dtype.is_floating_point:
        return ops["cast"](power, input.dtype)
    return power


def ldexp(input: Any, other: Any) -> Tensor:
    """input * 2 ** other."""
    return ops["mul"](input, _two_to(other, input))


def ldexp_(input: Tensor, other: Any) -> Tensor:
    """ldexp in place."""
    return ops["mul_"](input, _two_to(other, input))


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounds to the nearest integer, or to `decimals` decimal places; halves are rounded to even."""
    if decimals == 0:
        return ops["round"](input)
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f"round with decimals is not implemented for {input.dtype.name}")
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return ops["div"](ops["round"](input * scale), scale)
    return ops["mul"](ops["round"](ops["div"](input, scale)), scale)


def round_(input: Tensor, *, decimals: int = 0) -> Tensor:
    """round in place."""
    return ops["round_"](input) if decimals == 0 else stored(input, round(input, decimals=decimals))


@function_only
def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return ops["sub"](other, input, alpha)


@function_only
def threshold(input: Tensor, threshold: Any, value: Any) -> Tensor:
    """input where it is above the threshold, and value elsewhere."""
    return ops["where"](ops["le"](input, threshold), ops["cast"](ops["full"](
        value, (), None, input.device), input.dtype), input)


@function_only
def threshold_(input: Tensor, threshold: Any, value: Any) -> Tensor:
    """threshold in place."""
    return ops["masked_fill_"](input, ops["le"](input, threshold), value)
