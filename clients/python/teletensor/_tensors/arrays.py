"""Conversion between tensors and NumPy arrays for files and for other libraries. NumPy has no bfloat16:
such values are arrays of uint16 with the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .._functions.arrays.creation import empty_strided
from .convert import _download, _send, resolve_device, tensor
from .tensor import Tensor

__all__ = ["DTYPES", "array_of", "name_of", "tensor_of", "without_data"]

# teletensor's dtype names to NumPy dtypes, little-endian as in files.
DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype("?"),
    "uint8": np.dtype("u1"),
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "complex64": np.dtype("<c8"),
    "complex128": np.dtype("<c16"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
}

_NAMES = {numpy: name for name, numpy in DTYPES.items() if name != "bfloat16"}


def name_of(dtype: np.dtype[Any]) -> str | None:
    """Returns teletensor's name of a NumPy dtype in either byte order, or None if there is no such
    dtype."""
    return _NAMES.get(dtype.newbyteorder("<"))


def array_of(t: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    """Returns (the name of the dtype, the values in row-major order). Waits for the values."""
    name = t.dtype.name
    t = t.detach()
    if name == "bfloat16":
        return name, np.asarray(_download(t, DTYPES[name]), order="C")
    return name, np.asarray(t.numpy(), order="C")


def without_data(dtype: str, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Returns a tensor of dtype `dtype` (a name) on the device meta."""
    return empty_strided(shape, stride, dtype=getattr(_core, dtype), device="meta")


def tensor_of(name: str, array: np.ndarray[Any, Any], device: Any = None) -> Tensor:
    """Returns the tensor of dtype `name` with the values of `array`: the inverse of array_of."""
    if name == "bfloat16":
        return _send(None, array, resolve_device(device), _core.bfloat16)
    return tensor(array, device=device)
