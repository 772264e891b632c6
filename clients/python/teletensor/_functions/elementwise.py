"""Elementwise functions and activations whose call forms differ from the catalog's."""

from __future__ import annotations

import math
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .typeinfo import is_inexact, result_type, type_name

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
    if rounding_mode not in (None, "trunc", "floor"):
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but "
                           f"found '{rounding_mode}'")
    if rounding_mode == "trunc" and isinstance(other, Tensor) and other.numel() != 1 and (
            result_type(input, other) in (_core.float16, _core.bfloat16)):
        return ops["trunc"](ops["div"](input, other))  # the quotient is rounded to 16 bits first
    return ops["div"](input, other, rounding_mode)


def _integers_close(input: Tensor, other: Tensor, rtol: float, atol: float) -> Tensor:
    """isclose for integers: the difference is computed exactly, as uint64, for all integer dtypes; the
    bound is float64."""
    bound = ops["abs"](other.to(_core.float64)) * rtol + atol
    if input.dtype != _core.uint64:
        input, other = input.to(_core.int64), other.to(_core.int64)
    distance = (ops["maximum"](input, other).to(_core.uint64)
                - ops["minimum"](input, other).to(_core.uint64))
    return ops["logical_and"](ops["le"](distance, ops["floor"](bound).to(_core.uint64)),
                              ops["eq"](bound, bound))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Tensor:
    """|input - other| <= atol + rtol * |other|, elementwise. RuntimeError if the dtypes differ."""
    if input.dtype != other.dtype:
        raise RuntimeError(f"{type_name(input.dtype)} did not match {type_name(other.dtype)}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not value >= 0:
            raise RuntimeError(f"{name} must be greater than or equal to zero, but got {value}")
    if not is_inexact(input):
        return _integers_close(input, other, rtol, atol)
    near = ops["le"](ops["abs"](input - other), ops["abs"](other) * rtol + atol)
    near = ops["logical_or"](near, ops["eq"](input, other))
    near = ops["logical_and"](near, ops["logical_or"](
        ops["eq"](input, other), ops["isfinite"](other)))
    if equal_nan:
        near = ops["logical_or"](near, ops["logical_and"](ops["isnan"](input), ops["isnan"](other)))
    return near
