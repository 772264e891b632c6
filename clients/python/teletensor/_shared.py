"""Memory of the daemon, mapped into this process: for clients on its machine, over its UNIX socket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from ._errors import OutOfMemoryError, SessionLostError, TeletensorError

__all__ = ["Sharing", "memory_of"]

_LEAST = 1 << 20  # bytes; what is not larger is quicker in a message, and the daemon shares none of it
_LEAST_SENT = 4 << 20  # bytes of an upload
_WAY = 2 << 20  # bytes of memory that an upload goes by; new ones cost as much time as 10 MiB sent
_KEPT_OF = 64 * _WAY  # bytes of a quota of which so much may stay a second for the next upload
_MOST = 128  # arrays at once: each holds a descriptor of this process


class _Plain(bytearray):
    """Memory of shared_empty() where the daemon shares none."""


def memory_of(array: np.ndarray[Any, Any]) -> Any:
    """What shared_empty() made and the array lies in; None for other arrays."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    ours = isinstance(base, _Plain) or (isinstance(base, _core.Mapping) and base.readable)
    return base if ours else None


class Sharing:
    """What one session has mapped. With TELETENSOR_SHARED_MEMORY=0 in the environment: nothing."""

    def __init__(self, address: _core.ShareAddress | None, quota: int) -> None:
        on = os.environ.get("TELETENSOR_SHARED_MEMORY", "1") != "0"
        self._address = address if on else None
        self._keeps = not 0 < quota < _KEPT_OF  # 0: as much as there is
        self._ways: dict[str, _core.Mapping] = {}  # "kept": of the last upload

    @property
    def available(self) -> bool:
        """The daemon has offered it."""
        return self._address is not None

    def take(self, seq: int, size: int) -> np.ndarray[Any, Any] | None:
        """The bytes of bulk fetch `seq`, without a copy; None: they have to come by the stream."""
        if self._address is None or size <= _LEAST or self._address.live >= _MOST:
            return None
        mapping = _core.Mapping.take(self._address, seq, size)
        if mapping is None:
            return None
        return np.frombuffer(mapping, np.uint8)

    def take_gpu(self, seq: int, size: int) -> tuple[int, int, bytes]:
        """Bulk fetch `seq` in memory of its GPU: descriptors of it and of its hold, the GPU's UUID."""
        assert self._address is not None
        return _core.take_gpu(self._address, seq, size)

    def memory(self, size: int) -> Any:
        """New memory that the daemon can read, or (where that cannot be) this process's own."""
        if self._address is None or self._address.live >= _MOST:
            return _Plain(size)
        try:
            mapping = _core.Mapping.open(self._address, size)
        except OutOfMemoryError:
            raise
        except (RuntimeError, TeletensorError):
            return _Plain(size)
        return mapping

    def upload(self, core: _core.Session, array: np.ndarray[Any, Any], dtype: _core.dtype,
               device: _core.device, shape: Sequence[int]) -> _core.Tensor | None:
        """A tensor with a copy of the array, which the daemon has made; None: use the stream, which also
        says what is wrong."""
        if self._address is None:
            return None
        memory: Any = memory_of(array)
        if not isinstance(memory, _core.Mapping) or not memory.readable_at(self._address):
            return self._send(core, array, dtype, device, shape)
        buffer: Any = memory
        start = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        at = array.__array_interface__["data"][0] - start
        try:
            made: _core.Tensor = memory.upload(
                self._address, core, dtype, device, shape, at, array.nbytes)
        except SessionLostError:  # or it is moving: then the stream finds where it is
            return None
        return made

    def _send(self, core: _core.Session, array: np.ndarray[Any, Any], dtype: _core.dtype,
              device: _core.device, shape: Sequence[int]) -> _core.Tensor | None:
        """By way of a little memory; None: use the stream, which also says what is wrong."""
        assert self._address is not None
        if array.nbytes < _LEAST_SENT or self._address.live >= _MOST:
            return None
        data = memoryview(array.reshape(-1)).cast("B")
        made: _core.Tensor | None = None
        while made is None:
            kept = self._ways.pop("kept", None)
            try:
                way = kept or _core.Mapping.open(self._address, _WAY, way=True)
                made = way.send(self._address, core, data, dtype, device, shape)
            except (RuntimeError, TeletensorError):
                if kept is None:
                    return None  # else the daemon had ended it
        if self._keeps:
            self._ways.setdefault("kept", way)
        return made
