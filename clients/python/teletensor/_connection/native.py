"""The transport that uses _wire: gRPC in C++ threads, without the GIL."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import weakref
from collections.abc import Sequence
from typing import Any

from .. import _core
from .credentials import Credentials, silent_grpc
from .reattach import End
from .transport import CallError, Transport

__all__ = ["NativeTransport", "wire"]


@functools.cache
def wire() -> _core.Wire:
    """The native library, which is next to _core. CallError if it is not built or cannot be loaded."""
    core = pathlib.Path(_core.__file__)
    places = [pathlib.Path(__file__).parents[1], core.parent, pathlib.Path(os.path.realpath(core)).parent]
    for place in places:
        path = place / "_wire.so"
        if path.exists():
            return _core.Wire(str(path))
    raise CallError(5, "_wire is not built: there was no gRPC C++ when the client was")


class NativeTransport(Transport):
    """One connection of one session."""

    kind = "native"

    def __init__(self, address: str, credentials: Credentials, timeout: float) -> None:
        super().__init__(address, credentials, timeout)
        self._channel: _core.Channel | None = self._connect()
        self._owner: weakref.ref[_core.Session] | None = None

    def _connect(self) -> _core.Channel:
        c = self.credentials
        with silent_grpc():
            channel = _core.Channel(wire(), c.target, c.tls, c.ca, c.certificate, c.key)
        channel.set_metadata(self._metadata)
        return channel

    def connect_again(self) -> None:
        # After a socket did not exist, gRPC itself pauses for 10 s before its next attempt (seen with gRPC
        # 1.51).
        if self._channel is not None:
            self._channel = self._connect()

    def renew(self) -> None:
        self.connect_again()

    def _open(self) -> _core.Channel:
        if self._channel is None:
            raise CallError(14, "the connection is closed")
        return self._channel

    def set_metadata(self, metadata: list[tuple[str, str]]) -> None:
        super().set_metadata(metadata)
        self._open().set_metadata(metadata)

    def call(self, method: str, request: bytes, timeout: float, wait: bool) -> bytes:
        return self._open().unary(method, request, timeout, wait)

    def open_stream(self, owner: weakref.ref[_core.Session], attach: int, stream: int) -> Any:
        self._owner, core = owner, owner()
        return None if core is None else self._open().run(core, attach, self._local)

    def read_stream(self, call: Any, owner: weakref.ref[_core.Session]) -> End:
        return End(*call.wait()) if call is not None else End(0, "")

    def _upload(self, core: _core.Session, data: memoryview, dtype: _core.dtype,
                device: _core.device, shape: Sequence[int], moved: _core.Moved,
                key: int) -> _core.Tensor:
        for tries in itertools.count():
            try:
                tensor: _core.Tensor = self._open().upload(
                    core, data, dtype, device, shape, self.chunk_bytes, key, tries > 0, moved)
                return tensor
            except CallError as error:
                if not self.may_retry(error, tries):
                    raise self.failure(error) from None
        raise AssertionError("not reached")

    def download(self, seq: int, out: memoryview, moved: _core.Moved) -> None:
        at = 0
        for tries in itertools.count():
            at, code, text, word = self._open().download(seq, out, at, moved)
            if code == 0:
                return
            error = CallError(code, text, word)
            if not self.may_retry(error, tries):
                raise self.failure(error) from None

    def _close(self) -> None:
        self.end_stream()
        core = self._owner() if self._owner is not None else None
        if core is not None:
            core.detach()
        if self._channel is not None and self._owner is not None:
            self.end_session()
        self._channel = None
