"""What functions that write into a tensor share."""

from __future__ import annotations

from .. import _core
from .._core import Tensor, ops

__all__ = ["real", "stored"]


def stored(x: Tensor, value: Tensor) -> Tensor:
    """x with value written into it, refused as in-place forms are where the dtype cannot hold it."""
    if value.dtype.is_floating_point and not x.dtype.is_floating_point:
        raise RuntimeError(f"result type {value.dtype.name} can't be cast to the desired output type "
                           f"{x.dtype.name}")
    if tuple(value._shape) != tuple(x._shape):
        raise RuntimeError(f"output with shape {list(x._shape)} doesn't match the broadcast shape "
                           f"{list(value._shape)}")
    return ops["copy_"](x, value)


def real(x: Tensor) -> Tensor:
    """x in the default dtype where it is an integer or a bool."""
    exact = x.dtype.is_floating_point or x.dtype.is_complex
    return x if exact else ops["cast"](x, _core.default_dtype())
