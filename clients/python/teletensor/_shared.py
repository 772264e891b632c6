"""Memory of the daemon, mapped into this process: for clients on its machine, over its UNIX socket."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from . import _core

__all__ = ["Sharing"]

_LEAST = 1 << 20  # bytes; what is not larger is quicker in a message, and the daemon shares none of it
_MOST = 128  # arrays at once: each holds a descriptor of this process


class Sharing:
    """What one session has mapped. With TELETENSOR_SHARED_MEMORY=0 in the environment: nothing."""

    def __init__(self, address: _core.ShareAddress | None) -> None:
        on = os.environ.get("TELETENSOR_SHARED_MEMORY", "1") != "0"
        self._address = address if on else None
        self._live = 0

    @property
    def available(self) -> bool:
        """The daemon has offered it."""
        return self._address is not None

    def _gone(self) -> None:
        self._live -= 1

    def take(self, seq: int, size: int) -> np.ndarray[Any, Any] | None:
        """The bytes of bulk fetch `seq`, without a copy; None: they have to come by the stream."""
        if self._address is None or size <= _LEAST or self._live >= _MOST:
            return None
        mapping = _core.Mapping.take(self._address, seq, size)
        if mapping is None:
            return None
        array: np.ndarray[Any, Any] = np.frombuffer(mapping, np.uint8)
        self._live += 1
        weakref.finalize(mapping, self._gone).atexit = False
        return array
