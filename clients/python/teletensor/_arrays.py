"""Tensors as NumPy arrays for files and for other libraries; bfloat16, which NumPy lacks, as the
uint16 of its bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._convert import _download, _send, resolve_device, tensor
from ._session import current_session
from ._tensor import Tensor

__all__ = ["DTYPES", "array_of", "name_of", "tensor_of"]

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

_NAMES = {numpy: name for name, numpy in DTYPES.items() if name != "bfloat16"}


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The name here of a NumPy dtype, of either byte order; None: it has no counterpart."""
    return _NAMES.get(dtype.newbyteorder("<"))


def array_of(t: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    """(name of the dtype, values in row-major order). Waits for them."""
    name = t.dtype.name
    t = t.detach()
    if name == "bfloat16":
        return name, np.asarray(_download(t, DTYPES[name]), order="C")
    return name, np.asarray(t.numpy(), order="C")


def tensor_of(name: str, array: np.ndarray[Any, Any], device: Any = None) -> Tensor:
    """The tensor of dtype `name` that array_of turned into `array`."""
    if name == "bfloat16":
        session = current_session()
        return _send(session, array, resolve_device(session, device), _core.bfloat16)
    return tensor(array, device=device)
