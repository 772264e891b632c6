"""Elements of tensors as bytes, both ways, for the PyTorch extension."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .. import _core
from .._sessions.session import owner_of
from .._tensors.convert import _download, _send

# Unsigned integers, and for 16 bytes complex numbers, that have an element's bits.
_BITS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}

began_in = 0  # the process that first used the device


def read(tensor: _core.Tensor) -> Any:
    """The elements, row-major. Waits."""
    return _download(tensor, _BITS[tensor.element_size()])


def upload(session: Any, view: memoryview, dtype: _core.dtype, device: _core.device) -> _core.Tensor:
    """A new tensor of one dimension. The daemon has the bytes, or a copy of them, on return."""
    array = np.frombuffer(view, dtype=_BITS[dtype.itemsize])
    return _send(owner_of(session), array, device, dtype)


def place(session: Any) -> _core.device:
    """Where the tensors of the device "tt" lie: the daemon's first GPU, or its CPU. `_core` asks when the
    device is first used."""
    global began_in
    began_in = began_in or os.getpid()
    gpus = owner_of(session)._gpus
    return _core.device(gpus[0].name if gpus else "cpu")
