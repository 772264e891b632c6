"""The session of the device meta, whose tensors have no data. It has no daemon."""

from __future__ import annotations

import weakref

from .. import _core
from .dropped import NativeSession
from .session import Session

__all__ = ["MetaSession", "session"]

_UNLIMITED = 1 << 62


class MetaSession(Session):
    """Keeps shapes, dtypes, strides and history of the tensors on the device meta. The process has one such
    session, which is never closed and never the current session."""

    def __init__(self) -> None:
        _core.Scope.__init__(self)
        self.name, self.devices = "meta", ["meta"]
        self._closed, self._inline = False, 0
        self._core = NativeSession(
            credit_upto=_UNLIMITED, credit_bytes=_UNLIMITED, frame_bytes=1 << 20, frame_commands=1 << 16,
            frame_items=1 << 30, inline_bytes=1 << 16, quota=0, keeps=False, retained_bytes=0, meta=True)
        self._core.owner = weakref.ref(self)

    def __del__(self, *_: object) -> None:
        pass

    def __repr__(self) -> str:
        return "<teletensor.Session of the device meta>"

    @property
    def state(self) -> str:
        """"open"."""
        return "open"

    @property
    def _gone(self) -> bool:
        return False

    def check_device(self, device: _core.device) -> _core.device:
        """Returns `device`: copying a tensor from the device meta to any other device is an error."""
        return device


session = MetaSession()
