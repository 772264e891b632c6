"""Memory of the daemon that is mapped into this process, for clients on the daemon's machine that use its
UNIX socket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .errors import OutOfMemoryError, SessionLostError, TeletensorError

__all__ = ["Sharing", "memory_of"]

# in bytes: smaller data is sent faster in a message, and the daemon does not share memory for it
_MIN_SHARED = 1 << 20
_MIN_SENT = 4 << 20  # the minimum bytes of an upload through shared memory
# bytes of the shared memory through which uploads are sent; creating it takes as long as sending 10 MiB
_WAY = 2 << 20
# only with a larger quota is that memory kept for a second for the next upload
_KEPT_OF = 64 * _WAY
_MOST = 128  # the maximum number of arrays at a time: each needs a file descriptor of this process


class _Plain(bytearray):
    """The memory of shared_empty() if the daemon does not share memory."""


def memory_of(array: np.ndarray[Any, Any]) -> Any:
    """The memory from shared_empty() that contains the array; None for other arrays."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    ours = isinstance(base, _Plain) or (isinstance(base, _core.Mapping) and base.readable)
    return base if ours else None


class Sharing:
    """The shared memory of one session. With TELETENSOR_SHARED_MEMORY=0 in the environment nothing is
    shared."""

    def __init__(self, address: _core.ShareAddress | None, quota: int) -> None:
        on = os.environ.get("TELETENSOR_SHARED_MEMORY", "1") != "0"
        self._address = address if on else None
        self._keeps = not 0 < quota < _KEPT_OF  # a quota of 0 means no limit
        self._ways: dict[str, _core.Mapping] = {}  # "kept": the memory of the last upload

    @property
    def available(self) -> bool:
        """Whether the daemon offers shared memory."""
        return self._address is not None

    def take(self, core: _core.Session, seq: int, size: int) -> np.ndarray[Any, Any] | None:
        """The bytes of bulk fetch `seq` of the session, without a copy; None if they must be fetched
        through the stream."""
        if self._address is None or size <= _MIN_SHARED or self._address.live >= _MOST:
            return None
        mapping = _core.Mapping.take(self._address, core, seq, size)
        if mapping is None:
            return None
        return np.frombuffer(mapping, np.uint8)

    def take_gpu(self, core: _core.Session, seq: int, size: int) -> tuple[int, int, bytes]:
        """The result of bulk fetch `seq` of the session in memory of its GPU: file descriptors of the
        memory and of its hold, and the UUID of the GPU."""
        assert self._address is not None
        return _core.take_gpu(self._address, core, seq, size)

    def memory(self, size: int) -> Any:
        """New memory that the daemon can read; if that is not possible, memory of this process."""
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
        """Returns a tensor with a copy of the array, which the daemon has made; None if the stream must be
        used, which also reports any error."""
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
        # the session is lost or is being moved: then the stream finds its new address
        except SessionLostError:
            return None
        return made

    def _send(self, core: _core.Session, array: np.ndarray[Any, Any], dtype: _core.dtype,
              device: _core.device, shape: Sequence[int]) -> _core.Tensor | None:
        """Sends the array through a small block of shared memory; None if the stream must be used, which
        also reports any error."""
        assert self._address is not None
        if array.nbytes < _MIN_SENT or self._address.live >= _MOST:
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
                    return None  # otherwise the daemon had ended the kept memory, so try again
        if self._keeps:
            self._ways.setdefault("kept", way)
        return made
