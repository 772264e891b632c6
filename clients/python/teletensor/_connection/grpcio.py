"""The transport that uses grpcio: the fallback if _wire is not built."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from .. import _core
from .._sessions.errors import SessionLostError
from .._sessions.interrupt import Calls, shielded
from .credentials import Credentials
from .protowire import decode, encode
from .reattach import End
from .transport import PERMISSION_DENIED, CallError, Transport, device_number

__all__ = ["GrpcioTransport"]

_CHANNEL_OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# The same settings as in clients/wire/wire.cc. gRPC versions differ in the name of the timeout, so both are
# set.
_KEEPALIVE: list[tuple[str, str | int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_CANCELLED, _INTERNAL = 1, 13


def _same(data: bytes) -> bytes:
    return data


def _failed(error: grpc.RpcError) -> CallError:
    trailing = dict(error.trailing_metadata() or ())
    return CallError(error.code().value[0], error.details() or "",
                     str(trailing.get("teletensor-reason", "")))


class GrpcioTransport(Transport):
    """One connection of one session."""

    kind = "grpcio"

    def __init__(self, address: str, credentials: Credentials, timeout: float) -> None:
        super().__init__(address, credentials, timeout)
        self._channel: Any = self._connect()
        self._writers: list[threading.Event] = []

    def _connect(self) -> Any:
        local = self.credentials.target.startswith("unix:")
        options = _CHANNEL_OPTIONS + ([] if local else _KEEPALIVE)
        return shielded(lambda _: self.credentials.channel(options), lambda channel: channel.close())

    @property
    def channel(self) -> Any:
        if self._channel is None:
            raise CallError(_INTERNAL, "the connection is closed", "closed")
        return self._channel

    def call(self, method: str, request: bytes, timeout: float, wait: bool) -> bytes:
        def work(calls: Calls) -> bytes:
            # A stream follows a unary call, so that no token is sent before this check.
            if refusal := _core.socket_refusal(self.credentials.target):
                raise CallError(PERMISSION_DENIED, refusal)
            try:
                call = self._begin(lambda: self.channel.unary_unary(method, _same, _same).future(
                    request, metadata=self._metadata, timeout=timeout, wait_for_ready=wait))
                calls.add(call)
                reply: bytes = call.result()
                return reply
            except grpc.RpcError as error:
                failed = _failed(error)
            except grpc.FutureCancelledError:
                failed = CallError(_CANCELLED, "the call was cancelled")
            raise failed  # raised here, where the error does not refer to objects of grpcio

        return shielded(work)

    def _begin(self, start: Callable[[], Any]) -> Any:
        """Returns the call that start() begins. CallError if another thread has closed the channel, for
        good or to replace it."""
        try:
            return start()
        except ValueError as error:
            word = "closed" if self._channel is None else ""
            failed = CallError(_INTERNAL if word else _CANCELLED, str(error), word)
        raise failed  # raised here, where the error does not refer to objects of grpcio

    def connect_again(self) -> None:
        if self._writers:  # the channel of an open stream reconnects by itself
            return
        self.channel.close()  # a new channel, because the pauses of the old one grow with every attempt
        self._channel = self._connect()

    def renew(self) -> None:
        before, self._channel = self.channel, self._connect()
        before.close()

    def open_stream(self, owner: weakref.ref[_core.Session], attach: int, stream: int) -> Any:
        def work(calls: Calls) -> Any:
            run = self.channel.stream_stream("/teletensor.v1.Compute/Run", _same, _same)
            done = threading.Event()
            self._writers = [w for w in self._writers if not w.is_set()] + [done]
            return run(_frames(owner, stream, done),
                       metadata=[*self._metadata, ("teletensor-attach", str(attach))])

        return shielded(work, lambda call: call.cancel())

    def read_stream(self, call: Any, owner: weakref.ref[_core.Session]) -> End:
        try:
            for progress in call:
                core = owner()
                if core is None:
                    call.cancel()
                    break
                core.on_progress(progress)
                del core
            return End(0, "the daemon ended the stream")
        except grpc.RpcError as error:
            return _failed(error).end
        except (RuntimeError, ValueError) as error:
            call.cancel()
            return End(_INTERNAL, f"the daemon sent an invalid progress message: {error}", "protocol")

    def _upload(self, core: _core.Session, data: memoryview, dtype: _core.dtype,
                device: _core.device, shape: Sequence[int], moved: _core.Moved,
                key: int) -> _core.Tensor:
        number = device_number(device)
        size, step = len(data), max(1, self.chunk_bytes - 256)

        def chunks(offset: int) -> Iterator[bytes]:
            first = [(1, size), (2, number)]
            while offset < size or first:
                part = data[offset : offset + step]
                yield encode([*first, (3, offset), (4, bytes(part))])
                offset, first = offset + len(part), []
                moved.bytes = offset

        metadata = [*self._metadata, ("teletensor-upload", str(key))]

        def start(received: int) -> Any:
            return self.channel.stream_unary("/teletensor.v1.Compute/Upload", _same, _same).future(
                chunks(received), metadata=metadata)

        def work(calls: Calls) -> int:
            for tries in itertools.count():
                try:
                    received, whole = self.staged(key) if tries else (0, 0)
                    if whole:
                        return whole
                    call = self._begin(functools.partial(start, received))
                    calls.add(call)
                    return decode(call.result()).integer(1)
                except CallError as error:
                    failed = error
                except grpc.RpcError as error:
                    failed = _failed(error)
                except grpc.FutureCancelledError:
                    raise SessionLostError("the upload was cancelled") from None
                if calls.stopped or not self.may_retry(failed, tries):
                    raise self.failure(failed) from None
            raise AssertionError("not reached")

        return core.uploaded(shielded(work), dtype, device, shape, moved)

    def download(self, seq: int, out: memoryview, moved: _core.Moved) -> None:
        def start(at: int) -> Any:
            return self.channel.unary_stream("/teletensor.v1.Compute/Download", _same, _same)(
                encode([(1, seq), (2, at)]), metadata=self._metadata)

        def work(calls: Calls) -> None:
            at = 0
            for tries in itertools.count():
                failed: CallError | None = None
                try:
                    call = self._begin(functools.partial(start, at))
                    calls.add(call)
                    for chunk in call:
                        message = decode(chunk)
                        part = message.data(5)
                        out[at : at + len(part)] = part
                        at += len(part)
                        moved.bytes = at
                except grpc.RpcError as error:
                    failed = _failed(error)
                except CallError as error:
                    failed = error
                if failed is None:
                    break
                if calls.stopped or not self.may_retry(failed, tries):
                    raise self.failure(failed)
            if at != len(out):
                raise SessionLostError(f"a download ended after {at} of {len(out)} bytes")

        shielded(work)

    def _close(self) -> None:
        self.end_stream()
        # A thread that is in native code when Python exits would crash the process.
        for writer in self._writers:
            writer.wait(timeout=2)
        self.end_session()
        # The last reference must be dropped here, because grpcio takes locks then.
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _frames(owner: weakref.ref[_core.Session], stream: int,
            done: threading.Event) -> Iterator[bytes]:
    """Yields the frames of a stream. grpcio calls it on a thread of its own, and asks for the next frame
    when it has written the last one."""
    try:
        while True:
            core = owner()
            if core is None:
                return
            frame = core.next_frame(0.2, stream)
            if frame is None:
                return
            if frame:
                yield frame
            else:
                core.idle()
            del core
    finally:
        done.set()
