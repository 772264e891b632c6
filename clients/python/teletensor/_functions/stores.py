"""Helpers that functions which write into a tensor share."""

from __future__ import annotations

from .. import _core
from .._core import Tensor, ops

__all__ = ["real", "stored"]


def stored(x: Tensor, value: Tensor) -> Tensor:
    """Writes value into x and returns x; raises an error, as in-place functions do, if the dtype of x
    cannot hold value's."""
    if value.dtype.is_floating_point and not x.dtype.is_floating_point:
        raise RuntimeError(f"result type {value.dtype.name} can't be cast to the desired output type "
                           f"{x.dtype.name}")
    if tuple(value._shape) != tuple(x._shape):
        raise RuntimeError(f"output with shape {list(x._shape)} doesn't match the broadcast shape "
                           f"{list(value._shape)}")
    return ops["copy_"](x, value)


def real(x: Tensor) -> Tensor:
    """x, converted to the default dtype if it is an integer or bool tensor."""
    exact = x.dtype.is_floating_point or x.dtype.is_complex
    return x if exact else ops["cast"](x, _core.default_dtype())
