"""Tensors as NumPy arrays for files and for other libraries; bfloat16, which NumPy lacks, as the
uint16 of its bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import teletensor as tt

from ._tensor import Tensor

__all__ = ["DTYPES", "array_of", "tensor_of"]

# Name of the dtype here -> NumPy's, little-endian as in files.
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


def array_of(tensor: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    """(name of the dtype, values in row-major order). Waits for them."""
    name = str(tensor.dtype).rpartition(".")[2]
    tensor = tensor.detach()
    if name == "bfloat16":
        # Every bfloat16 is a float32 whose lower half is zero.
        wide = np.asarray(tensor.to(tt.float32).numpy(), order="C")
        return name, np.asarray(wide.view(np.uint32) >> 16, dtype=np.uint16)
    return name, np.asarray(tensor.numpy(), order="C")


def tensor_of(name: str, array: np.ndarray[Any, Any], device: Any = None) -> Tensor:
    """The tensor of dtype `name` that array_of turned into `array`."""
    if name == "bfloat16":
        wide = (array.astype(np.uint32) << 16).view(np.float32)
        return tt.tensor(wide, device=device).to(tt.bfloat16)
    return tt.tensor(array, device=device)
