"""gRPC by grpcio: one channel, one Run stream, bulk calls. Messages are bytes on both sides."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from . import _core
from ._credentials import Credentials, credentials_of
from ._errors import RefusedError, SessionLostError
from ._interrupt import Calls, shielded
from ._protowire import Message, decode, encode
from ._reattach import Attached, AttachError, End, Keeper

__all__ = ["Greeting", "Transport"]

PROTOCOL = 1
_SERVICE = "/teletensor.v1.Compute/"
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_INTERNAL = 13
_TRIES = 200


def _same(data: bytes) -> bytes:
    return data


@dataclass
class Greeting:
    """What Hello agreed on."""

    server_version: str
    token: str
    session_name: str
    epoch: int
    limits: dict[str, int]
    devices: list[tuple[str, int]]
    unsupported: list[str] = field(default_factory=list)
    quota: int = 0
    lease: int = 0  # seconds that the session outlives its connection
    session_id: int = 0
    sites_seconds: float = 0.0


def _limits(message: Message) -> dict[str, int]:
    names = ("credit_upto", "credit_bytes", "frame_bytes", "frame_commands", "frame_items",
             "inline_bytes", "chunk_bytes")
    return {name: message.integer(i + 1) for i, name in enumerate(names)}


class Transport:
    """One connection of one session."""

    def __init__(self, address: str, credentials: Credentials | None = None,
                 connect_timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = connect_timeout
        self.credentials = credentials or credentials_of(address)
        self.channel = self.credentials.channel(_CHANNEL_OPTIONS)
        self._metadata = self.credentials.metadata()
        self._instance = b""
        self._epoch = 0
        self._keeper: Keeper | None = None
        self._writers: list[threading.Event] = []
        self._uploads = itertools.count(1)
        self.chunk_bytes = 1 << 20
        self._lease = 0

    def unary(self, service: str, method: str, request: bytes, timeout: float | None = None,
              wait: bool = True) -> bytes:
        """One request, one reply. grpc.RpcError passes through."""
        call = self.channel.unary_unary(f"/teletensor.v1.{service}/{method}", _same, _same)
        reply: bytes = call(request, metadata=self._metadata, timeout=timeout or self._timeout,
                            wait_for_ready=wait)
        return reply

    def hello(self, instance: bytes, name: str, quota: int) -> Greeting:
        """Opens a session on the daemon. RefusedError, SessionLostError."""
        from . import __version__

        request = encode(
            [(1, PROTOCOL), (2, PROTOCOL), (3, __version__), (4, instance), (5, 1), (6, name),
             (7, quota)]
            + [(9, encode([(1, op), (2, revision)])) for op, revision in _core.op_table()]
        )
        try:
            reply = decode(self.unary("Compute", "Hello", request))
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise SessionLostError(
                    f"no teletensord answers at {self.address} ({text})") from None
            raise RefusedError(f"teletensord at {self.address} refused: {text}") from None
        greeting = Greeting(
            server_version=reply.text(2), token=reply.text(4), session_name=reply.text(5),
            epoch=reply.integer(3), limits=_limits(reply.message(7)),
            devices=[(d.text(1), d.integer(2)) for d in reply.messages(8)],
            unsupported=reply.texts(9), quota=reply.integer(10), lease=reply.integer(6),
            session_id=reply.integer(11), sites_seconds=reply.integer(12) / 1000,
        )
        self._lease, self._instance, self._epoch = greeting.lease, instance, greeting.epoch
        self._metadata = [*self.credentials.metadata(), ("teletensor-token", greeting.token)]
        self.chunk_bytes = greeting.limits["chunk_bytes"] or 1 << 20
        return greeting

    def run(self, core: _core.Session) -> None:
        """Starts the stream: `core`'s frames out, progress in; again after a lost connection."""
        self._keeper = Keeper(self, core, self._lease)

    def open_stream(self, owner: weakref.ref[_core.Session], attach: int, stream: int) -> Any:
        """A Run call of this attach. The frames come from `owner`, as its stream number `stream`."""
        run = self.channel.stream_stream(_SERVICE + "Run", _same, _same)
        done = threading.Event()
        self._writers = [w for w in self._writers if not w.is_set()] + [done]
        return run(_frames(owner, stream, done),
                   metadata=[*self._metadata, ("teletensor-attach", str(attach))])

    def read_stream(self, call: Any, owner: weakref.ref[_core.Session]) -> End:
        """Gives `owner` what comes, until the end."""
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
            return _end_of(error)
        except (RuntimeError, ValueError) as error:
            call.cancel()
            return End(_INTERNAL, f"the daemon sent what is no progress message: {error}", "protocol")

    def attach(self, attach: int, progress_upto: int) -> Attached:
        """Takes the session up again. AttachError."""
        request = encode([(1, self._instance), (2, attach), (3, self._epoch), (4, progress_upto)])
        try:
            reply = decode(self.unary("Compute", "Attach", request, timeout=5, wait=False))
        except grpc.RpcError as error:
            raise AttachError(_end_of(error)) from None
        except ValueError as error:  # the channel is closed
            raise AttachError(End(_INTERNAL, str(error), "closed")) from None
        self._epoch = reply.integer(1)
        return Attached(reply.integer(3), self._epoch)

    def _comes_again(self, error: grpc.RpcError, tries: int) -> bool:
        """A bulk call was cut; the session has been attached again, so that the call may be repeated."""
        keeper = self._keeper
        if keeper is None or not keeper.keeps or not _end_of(error).cut or tries > _TRIES:
            return False
        time.sleep(0.02)  # the stream's reader hears of it at about the same time
        return keeper.wait(self._lease)

    def upload(self, device: int, data: memoryview, drop: Callable[[int], object]) -> int:
        """Sends bytes; returns the upload's number once the daemon has them all.

        `drop` gets the number of one that arrived whole although its caller was interrupted.
        """
        upload = self.channel.stream_unary(_SERVICE + "Upload", _same, _same)
        size, step = len(data), max(1, self.chunk_bytes - 256)

        def chunks() -> Iterator[bytes]:
            offset = 0
            while offset < size or offset == 0:
                first = [(1, size), (2, device)] if offset == 0 else []
                part = data[offset : offset + step]
                yield encode([*first, (3, offset), (4, bytes(part))])
                offset += len(part) or 1

        # A repeated upload takes the place of one whose answer was lost.
        metadata = [*self._metadata, ("teletensor-upload", str(next(self._uploads)))]

        def work(calls: Calls) -> int:
            for tries in itertools.count():
                call = upload.future(chunks(), metadata=metadata)
                calls.add(call)
                try:
                    return decode(call.result()).integer(1)
                except grpc.RpcError as error:
                    if calls.stopped or not self._comes_again(error, tries):
                        raise _late(error) from None
                except grpc.FutureCancelledError:
                    raise SessionLostError("the upload was cancelled") from None
            raise AssertionError("not reached")

        return shielded(work, drop)

    def download(self, seq: int, out: memoryview) -> None:
        """Reads the bytes of a bulk fetch into `out`."""
        download = self.channel.unary_stream(_SERVICE + "Download", _same, _same)

        def work(calls: Calls) -> None:
            at = 0
            for tries in itertools.count():
                call = download(encode([(1, seq), (2, at)]), metadata=self._metadata)
                calls.add(call)
                try:
                    for chunk in call:
                        message = decode(chunk)
                        part = message.data(5)
                        out[at : at + len(part)] = part
                        at += len(part)
                    break
                except grpc.RpcError as error:
                    if calls.stopped or not self._comes_again(error, tries):
                        raise _late(error) from None
            if at != len(out):
                raise SessionLostError(f"a download ended after {at} of {len(out)} bytes")

        shielded(work)

    def interrupt(self, upto: int) -> None:
        """Cancels every command up to number `upto`."""
        self.unary("Compute", "Interrupt", encode([(1, upto)]), timeout=5)

    def close(self) -> None:
        """Waits a moment for the stream's end, then closes the channel."""
        if self._keeper is not None:
            if not self._keeper.attached.is_set():
                self._keeper.stop()
            self._keeper.join(timeout=5)
            # A thread that is still in native code when Python ends would end the process.
            for writer in self._writers:
                writer.wait(timeout=2)
        if self._lease:  # else it has ended with its stream
            with contextlib.suppress(grpc.RpcError, ValueError):
                self.unary("Compute", "Close", b"", timeout=2, wait=False)
        self.channel.close()


def _end_of(error: grpc.RpcError) -> End:
    trailing = dict(error.trailing_metadata() or ())
    return End(error.code().value[0], error.details() or "", trailing.get("teletensor-reason", ""))


def _late(error: grpc.RpcError) -> Exception:
    code, text, word = _end_of(error)
    if word:
        return SessionLostError(f"{text} [{word}]")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
        from ._errors import OutOfMemoryError

        return OutOfMemoryError(text)
    if code in (grpc.StatusCode.UNAVAILABLE.value[0], grpc.StatusCode.CANCELLED.value[0]):
        return SessionLostError(f"the connection was lost: {text}")
    return RuntimeError(text)


def _frames(owner: weakref.ref[_core.Session], stream: int,
            done: threading.Event) -> Iterator[bytes]:
    """Runs on grpcio's thread; asks for the next frame when the last one has been written."""
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
