"""Elementwise functions and activations whose call forms differ from the catalog's."""

from __future__ import annotations

import math
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .typeinfo import result_type

__all__ = ["div", "isclose", "log_softmax", "nan_to_num", "positive", "sinc", "softmax"]


def nan_to_num(input: Tensor, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Tensor:
    """Replaces NaN and infinities by finite numbers (0 and the largest and smallest of the dtype, unless
    given); of complex numbers, in each part."""
    if input.dtype.is_complex:
        return ops["complex"](*(ops["nan_to_num"](ops[part](input), nan, posinf, neginf)
                                for part in ("real", "imag")))
    return ops["nan_to_num"](input, nan, posinf, neginf)


def positive(input: Tensor) -> Tensor:
    """Returns the tensor itself; RuntimeError for bool tensors."""
    if input.dtype == _core.bool:
        raise NotImplementedError("The `+` operator, on a bool tensor is not supported.")
    return input


def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    if input.dtype.is_complex:
        angle = ops["mul"](input, math.pi)
        return ops["where"](ops["eq"](input, 0), 1, ops["div"](ops["sin"](angle), angle))
    return ops["sinc"](input)


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(input), divided by its sum along dim."""
    return ops["softmax"](input, dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along dim."""
    return ops["log_softmax"](input, dim, dtype)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode "floor" or "trunc" rounds the quotient."""
    if rounding_mode is None:
        return ops["div"](input, other)
    if rounding_mode == "floor":
        return ops["floor_divide"](input, other)
    if rounding_mode != "trunc":
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but "
                           f"found '{rounding_mode}'")
    if isinstance(input, Tensor) and not input.dtype.is_floating_point and (
            not isinstance(other, float) and not (
                isinstance(other, Tensor) and other.dtype.is_floating_point)):
        whole = ops["sub"](input, ops["fmod"](input, other))
        return ops["floor_divide"](whole, other)
    return ops["trunc"](ops["div"](input, other))


def _integers_close(input: Tensor, other: Tensor, rtol: float, atol: float) -> Tensor:
    """isclose for integers: the difference is computed exactly, as uint64, for all integer dtypes; the
    bound is float64."""
    bound = ops["abs"](other.to(_core.float64)) * rtol + atol
    if _core.uint64 not in (input.dtype, other.dtype):
        input, other = input.to(_core.int64), other.to(_core.int64)
    distance = (ops["maximum"](input, other).to(_core.uint64)
                - ops["minimum"](input, other).to(_core.uint64))
    return ops["logical_and"](ops["le"](distance, ops["floor"](bound).to(_core.uint64)),
                              ops["eq"](bound, bound))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Tensor:
    """|input - other| <= atol + rtol * |other|, elementwise."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value < 0:
            raise RuntimeError(f"{name} must be greater than or equal to zero, but got {value}")
    inexact = [x.dtype.is_floating_point or x.dtype.is_complex for x in (input, other)]
    if not any(inexact):
        if input.dtype == other.dtype or _core.uint64 not in (input.dtype, other.dtype):
            return _integers_close(input, other, rtol, atol)
        input, other = input.to(_core.float64), other.to(_core.float64)
    elif not inexact[0] and input.dtype == _core.bool:
        input = input.to(_core.uint8)  # a difference is not defined for bool
    elif not inexact[1]:
        other = other.to(result_type(input, other) if other.dim() > 0 else _core.float64)
    near = ops["le"](ops["abs"](input - other), ops["abs"](other) * rtol + atol)
    near = ops["logical_or"](near, ops["eq"](input, other))
    near = ops["logical_and"](near, ops["logical_or"](
        ops["eq"](input, other), ops["isfinite"](other)))
    if equal_nan:
        near = ops["logical_or"](near, ops["logical_and"](ops["isnan"](input), ops["isnan"](other)))
    return near
