"""The interface between a session and its connection. There are two implementations with the same wire
format: _native (gRPC C++, the default) and _grpcio."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import socket
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .. import _core
from .._sessions.errors import (
    DeviceLostError,
    OutOfMemoryError,
    RefusedError,
    SessionLostError,
    TeletensorError,
)
from .._sessions.interrupt import Pending, cleaner, shielded
from .credentials import Credentials, credentials_of, silent_grpc
from .notices import tell
from .protowire import Message, decode, encode
from .reattach import GONE, Attached, AttachError, End, Keeper

if TYPE_CHECKING:
    from .reach import Fault

__all__ = ["PERMISSION_DENIED", "CallError", "Greeting", "Transport", "device_number", "open_transport"]

PERMISSION_DENIED = 7

_CANCELLED, _UNKNOWN, _DEADLINE, _EXHAUSTED, _UNIMPLEMENTED, _UNAVAILABLE = 1, 2, 4, 8, 12, 14
_TRIES = 200
_MAX_MOVES = 8  # the maximum number of daemons that a request for a named session is referred to
_UNAUTHENTICATED = 16
# The number of attempts to reach a daemon if nothing listens at its address.
_STARTING_TRIES, _STARTING_PAUSE = 10, 0.1  # the pause is in seconds
_SILENCE = 1.5  # seconds without an answer after which the cause is looked for
_T = TypeVar("_T")
# Seconds during which a busy or restarting daemon is told that the session is closed. If it cannot be told,
# the session stays until its lease expires.
_CLOSE_PATIENCE = 6


class CallError(TeletensorError):
    """A call has failed with `code` (of google.rpc.Code) and, if the session has ended, a word for the
    reason."""

    def __init__(self, code: int, text: str, word: str = "") -> None:
        if not text:
            text = ("the daemon does not know this call: it is of another version"
                    if code == _UNIMPLEMENTED else f"the call ended with code {code}")
        super().__init__(text)
        self.code, self.word = code, word

    @property
    def end(self) -> End:
        """The same information as an End."""
        return End(self.code, str(self), self.word)

    @property
    def unreachable(self) -> bool:
        """Whether the daemon did not answer, or not in time."""
        return self.code in (_UNAVAILABLE, _DEADLINE)


_core.set_call_error(CallError)


class Device(NamedTuple):
    """A device of the daemon; `memory` is the number of bytes for all sessions. The remaining fields are
    set for GPUs only."""

    name: str
    memory: int
    model: str
    capability: int  # 90 means 9.0
    multiprocessors: int
    whole_memory: int  # all bytes of the device, including those that other programs use


@dataclass
class Greeting:
    """The result of Hello."""

    server_version: str
    token: str
    session_name: str
    epoch: int
    limits: dict[str, int]
    devices: list[Device]
    unsupported: list[str] = field(default_factory=list)
    quota: int = 0
    lease: int = 0  # seconds that the session outlives its connection
    start: Message | None = None  # the state of a session that was taken over
    session_id: int = 0
    sites_seconds: float = 0.0
    # how a process on the daemon's machine can map the session's memory
    share: _core.ShareAddress | None = None
    snapshots: bool = False  # whether snapshots of the session are written regularly
    restart: float = 0.0  # seconds to wait for a daemon that has ended without notice
    protocol: int = _core.PROTOCOL  # the number of the protocol that the session uses


def _this_process() -> bytes:
    """A ClientDescription: what the user is told whose session this process takes over."""
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"uid {user}"
    program = os.environ.get("JPY_SESSION_NAME") or (sys.argv[0] if sys.argv else "")
    name, host, program = (text.encode(errors="replace").decode() for text in (
        name, socket.gethostname(), os.path.basename(program) or "python"))
    return encode([(1, name), (2, host), (3, os.getpid()), (4, program)])


def _limits(message: Message) -> dict[str, int]:
    names = ("credit_upto", "credit_bytes", "frame_bytes", "frame_commands", "frame_items",
             "inline_bytes", "chunk_bytes", "programs", "program_steps", "program_bytes", "kept",
             "handles")
    return {name: message.integer(i + 1) for i, name in enumerate(names)}


def _share_of(address: str, reply: Message) -> _core.ShareAddress | None:
    ticket = reply.text(30)
    if not ticket or not address.startswith(("unix:", "/")):
        return None
    return _core.ShareAddress(os.fsencode(address.removeprefix("unix:") + ".share"),
                              reply.integer(11), ticket)


class Transport(ABC):
    """The connection of one session."""

    kind = ""

    def __init__(self, address: str, credentials: Credentials, timeout: float) -> None:
        self.address = address
        self.session_name = ""
        self.credentials = credentials
        self._timeout = timeout
        self._metadata = credentials.metadata()
        self.chunk_bytes = 1 << 20
        self._lease = self._epoch = 0
        self._restart = 0.0
        self._instance = b""
        self._leaving = False
        self._keeper: Keeper | None = None
        self._uploads = itertools.count(1)
        self._closing, self._over = threading.Lock(), False
        self._opened = False  # whether Hello has opened a new session
        # where the session's frames can be sent without gRPC
        self._local: _core.ShareAddress | None = None
        self.restarting = False  # the daemon was running a moment ago: hello() waits for it
        self._stream_of: Callable[[], _core.Session | None] = lambda: None

    def set_metadata(self, metadata: list[tuple[str, str]]) -> None:
        """Sets the metadata that every later call sends."""
        self._metadata = metadata

    @abstractmethod
    def call(self, method: str, request: bytes, timeout: float, wait: bool) -> bytes:
        """Sends one request and returns the reply; with `wait`, waits for a connection. Raises
        CallError."""

    @abstractmethod
    def connect_again(self) -> None:
        """Makes the next call connect again, after the daemon did not answer."""

    def follow(self, address: str) -> None:
        """Directs later calls to the daemon at this address, to which the session has been moved, with the
        same credentials. ValueError if they must not be sent there."""
        self.credentials = self.credentials.at(address)
        self.address = address
        self._local = None
        self.renew()

    @abstractmethod
    def renew(self) -> None:
        """Replaces the connection by a new one."""

    @abstractmethod
    def open_stream(self, owner: weakref.ref[_core.Session], attach: int, stream: int) -> Any:
        """Starts the Run call of this attach. The frames come from `owner`, as its stream number
        `stream`."""

    @abstractmethod
    def read_stream(self, call: Any, owner: weakref.ref[_core.Session]) -> End:
        """Passes everything that the daemon sends to `owner`, until the end of the stream."""

    def upload(self, core: _core.Session, data: memoryview, dtype: _core.dtype, device: _core.device,
               shape: Sequence[int], moved: _core.Moved) -> _core.Tensor:
        """Sends bytes; returns the tensor when the daemon has all of them. `moved` counts the bytes."""
        key = next(self._uploads)
        withdraw, put = functools.partial(self.give_up, key), cleaner()
        try:
            return self._upload(core, data, dtype, device, shape, moved, key)
        finally:
            # if bound, the bytes belong to a tensor, even if an exception is propagating
            if not moved.bound:
                put(withdraw)

    @abstractmethod
    def _upload(self, core: _core.Session, data: memoryview, dtype: _core.dtype,
                device: _core.device, shape: Sequence[int], moved: _core.Moved,
                key: int) -> _core.Tensor:
        """Implements upload(); `key` is this client's number for the upload."""

    @abstractmethod
    def download(self, seq: int, out: memoryview, moved: _core.Moved) -> None:
        """Reads the bytes of a bulk fetch into `out`. `moved` counts the bytes."""

    def close(self) -> None:
        """Waits a moment for the end of the stream, and then closes the connection.

        If an exception interrupts the call, the connection is closed nevertheless.
        """
        shielded(lambda _: self._close_once())

    def _close_once(self) -> None:
        with self._closing:
            if not self._over:
                self._close()
            self._over = True

    @abstractmethod
    def _close(self) -> None:
        """Implements close(), on a thread that receives no signals."""

    def abandon(self) -> None:
        """Ends the session that hello() has opened, without waiting for the commands that it has issued; a
        session that existed already stays."""
        core = self._stream_of()
        if core is not None:
            core.close()
        if self._opened:
            self.end_session()
        self._leaving = True
        self._close_once()

    def run(self, core: _core.Session) -> None:
        """Starts the stream, which sends `core`'s frames and receives their progress; starts it again after
        a lost connection."""
        self._stream_of = weakref.ref(core)
        self._keeper = Keeper(self, core, self._lease, self._restart)

    @property
    def ended(self) -> End | None:
        """How the session was lost, or None if it is not lost."""
        return self._keeper.ended if self._keeper is not None else None

    @property
    def epoch(self) -> int:
        """A number that changes with each restart of the daemon."""
        return self._epoch

    @property
    def away(self) -> float:
        """The number of seconds for which the connection has been lost, if the session is not lost."""
        since = self._keeper.away_since if self._keeper is not None else None
        return time.monotonic() - since if since is not None else 0.0

    def attach(self, attach: int, core: _core.Session) -> Attached:
        """Attaches to the session again. Raises AttachError."""
        # In this order, because completed_upto may be ahead of progress_upto, but never behind it.
        request = encode([(1, self._instance), (2, attach), (3, self._epoch),
                          (4, core.progress_upto), (5, core.completed_upto), (6, core.uploads_upto),
                          (7, core.replay_from)])
        try:
            reply = decode(self.unary("Compute", "Attach", request, timeout=5, wait=False))
        except CallError as error:
            raise AttachError(error.end) from None
        if moved_to := reply.text(10):
            return Attached(0, self._epoch, moved_to=moved_to)
        self._epoch = reply.integer(1)
        credits = (reply.integer(7), reply.integer(8), reply.integer(9))
        return Attached(reply.integer(3), self._epoch, credits if reply.integer(6) else None)

    def may_retry(self, error: CallError, tries: int) -> bool:
        """Returns whether a bulk call that was cut may be repeated, after the session has been attached
        again."""
        keeper = self._keeper
        if keeper is None or not keeper.keeps or not error.end.cut or tries > _TRIES:
            return False
        # Gives the stream's reader time to notice the broken connection too. A session that is being moved
        # is unavailable for seconds, and other streams of the user may last for seconds.
        time.sleep(min(0.02 * (1 + tries), 0.5) if error.word in ("resting", "streams") else 0.02)
        return keeper.wait(self._lease)

    def failure(self, error: CallError) -> Exception:
        """The exception that a bulk call raises in place of `error`. If the session is lost, it is the
        exception of that loss, which names the reason."""
        core = self._stream_of()
        if error.end.cut and core is not None and core.over:
            try:
                core.raise_lost()
            except SessionLostError as lost:
                return lost
        return _late_error(error)

    def staged(self, key: int, give_up: bool = False) -> tuple[int, int]:
        """The number of bytes of an interrupted upload that the daemon has received, and the number of the
        upload if it is complete."""
        try:
            request = encode([(1, key), (2, int(give_up))])
            reply = decode(self.unary("Compute", "Staged", request, timeout=10, wait=False))
        except CallError as error:
            # an older daemon does not implement Staged: the upload starts from the beginning
            if error.code != _UNIMPLEMENTED:
                raise
            return 0, 0
        return reply.integer(1), reply.integer(2)

    def give_up(self, key: int) -> None:
        """Tells the daemon to discard the bytes of an incomplete upload; for a lost session it does so by
        itself."""
        with contextlib.suppress(CallError):
            self.staged(key, True)

    def unary(self, service: str, method: str, request: bytes, timeout: float = 0.0,
              wait: bool = True) -> bytes:
        """Makes a call() of one of teletensor's services."""
        name = f"/teletensor.v1.{service}/{method}"
        return self.call(name, request, timeout or self._timeout, wait)

    def ask(self, question: Callable[[], _T]) -> _T:
        """Calls `question`, which makes a call for the attached session, again if the connection was
        cut."""
        for tries in itertools.count():
            try:
                return question()
            except CallError as error:
                if not self.may_retry(error, tries):
                    raise self.failure(error) from None
        raise AssertionError("not reached")

    def answers(self, timeout: float) -> bool:
        """Returns whether a daemon answers at the address."""
        try:
            self.call("/grpc.health.v1.Health/Check", b"", timeout, True)
        except CallError as error:
            return not error.unreachable
        return True

    def hello(self, instance: bytes, name: str, quota: int, back: bool = False) -> Greeting:
        """Opens a session on the daemon, or with `back` takes over the session of this transport that is
        there.

        Raises RefusedError or SessionLostError. If an exception interrupts the call, a session that it has
        opened is ended.
        """
        return shielded(lambda _: self._hello(instance, name, quota, back), lambda _: self.abandon())

    def _hello(self, instance: bytes, name: str, quota: int, back: bool) -> Greeting:
        from .. import __version__

        request = encode(
            [(1, _core.PROTOCOL_MIN), (2, _core.PROTOCOL), (3, __version__), (4, instance), (5, 1),
             (6, name), (7, quota), (11, _this_process()), (20, int(bool(name))), (21, int(back)), (22, 1)]
            + [(9, encode([(1, op), (2, revision)])) for op, revision in _core.op_table()]
        )
        reply = self._first_reply(request)
        for _ in range(_MAX_MOVES):
            if not (moved_to := reply.text(31)):
                break
            tell("session %r has moved from %s to %s", name, self.address, moved_to)
            try:
                self.follow(moved_to)
            except ValueError as error:
                raise RefusedError(f"session {name!r} has moved to {moved_to}: {error}") from None
            reply = self._first_reply(request)
        greeting = Greeting(
            server_version=reply.text(2), token=reply.text(4), session_name=reply.text(5),
            epoch=reply.integer(3), limits=_limits(reply.message(7)),
            devices=[Device(d.text(1), d.integer(2), d.text(3), d.integer(4), d.integer(5), d.integer(6))
                     for d in reply.messages(8)],
            unsupported=reply.texts(9), quota=reply.integer(10), lease=reply.integer(6),
            session_id=reply.integer(11), sites_seconds=reply.integer(12) / 1000,
            start=reply if reply.integer(20) else None, restart=reply.integer(13) / 1000,
            snapshots=reply.integer(14) > 0,
            share=_share_of(self.address, reply), protocol=reply.integer(1),
        )
        if not _core.PROTOCOL_MIN <= greeting.protocol <= _core.PROTOCOL:
            raise RefusedError(
                f"teletensord at {self.address} has chosen protocol {greeting.protocol}, and this client "
                f"offered {_core.PROTOCOL_MIN} to {_core.PROTOCOL}")
        self._local = greeting.share
        self._lease, self._instance, self._epoch = greeting.lease, instance, greeting.epoch
        self._restart = greeting.restart
        self.session_name = greeting.session_name
        self._opened = not back and greeting.start is None
        self.set_metadata([*self.credentials.metadata(), ("teletensor-token", greeting.token)])
        self.chunk_bytes = greeting.limits["chunk_bytes"] or 1 << 20
        return greeting

    def _first_reply(self, hello: bytes) -> Message:
        """The daemon's answer to Hello. Raises RefusedError or SessionLostError.

        If the daemon cannot be reached, the cause is reported at once, with three exceptions: if nothing
        listens at the address, the call is repeated for a moment, because the daemon may be about to start;
        and it is repeated for the whole timeout if the daemon is shutting down, because it may be
        restarting, or if the session is being moved to the daemon.
        """
        began = time.monotonic()
        for tries in itertools.count(1):
            try:
                return decode(self._answer_to(hello))
            except CallError as error:
                failed = error
            if not failed.unreachable:
                raise RefusedError(self._refusal(failed))
            arrives = failed.word == "arriving"
            fault = None if arrives else self.fault()
            self.restarting |= fault is None and failed.word == "daemon"
            if self.restarting or arrives:
                patient = time.monotonic() - began < self._timeout
            else:
                patient = tries < _STARTING_TRIES and (fault is None or fault.absent)
            if failed.code == _DEADLINE or not patient:
                raise RefusedError(self._refusal(failed)) if arrives else self._unreachable(fault or failed)
            time.sleep(_STARTING_PAUSE)
            self.connect_again()
        raise AssertionError("not reached")

    def _answer_to(self, hello: bytes) -> bytes:
        """Sends Hello and returns the daemon's answer. If there is none after a moment, looks for the
        cause. Raises CallError or SessionLostError."""
        reply = Pending(lambda: self.unary("Compute", "Hello", hello, wait=False))
        try:
            return reply.result(_SILENCE)
        except TimeoutError:
            fault = self.fault()
        if fault is not None:
            if not fault.silent:
                raise self._unreachable(fault)
            tell("%s has not answered for %.1f s: %s", self.address, _SILENCE, fault)
        return reply.result()

    def fault(self) -> Fault | None:
        """Why a daemon cannot be called, as far as this is visible below gRPC."""
        from .reach import fault_of  # imports ssl, so it is imported late

        return fault_of(self.credentials)

    def _unreachable(self, why: Exception) -> SessionLostError:
        return SessionLostError(f"no teletensord answers at {self.address}: {why}")

    def _refusal(self, error: CallError) -> str:
        if error.code == _UNIMPLEMENTED:
            return (f"what answers at {self.address} speaks gRPC, and is no teletensord or one of another "
                    f"version: {error}")
        text = f"teletensord at {self.address} refused: {error}"
        if error.code == _UNAUTHENTICATED:
            source = self.credentials.token_source
            text += (f"; the token is from {source}" if source else
                     "; give one by token=, TELETENSOR_TOKEN or TELETENSOR_TOKEN_FILE; an admin makes it "
                     "by `teletensor token create USER`")
        return text

    def settle(self, core: _core.Session) -> None:
        """Waits until all commands of the session have run, and raises its first late error. Does not wait
        for a connection if all commands have run that the session still has."""
        if self.away and not core.queued:
            core.raise_pending()
        else:
            core.synchronize()

    def end_stream(self) -> None:
        """Waits a moment for the end of the stream, which closing the session has requested."""
        if self._keeper is not None:
            if not self._keeper.attached:
                self._keeper.stop()
            self._keeper.join(timeout=max(self._lease, 5) if self._leaving else 5)

    def end_session(self) -> None:
        """Closes a session that would outlive its stream."""
        if not self._lease or self._leaving:
            return
        began = time.monotonic()
        while True:  # if the connection was cut, a new one is tried
            try:
                self.unary("Compute", "Close", b"", timeout=3, wait=False)
                return
            except CallError as error:
                patience = GONE if error.end.refused else _CLOSE_PATIENCE
                if not error.end.cut or time.monotonic() - began > patience:
                    return
            self.connect_again()
            time.sleep(0.05)

    def interrupt(self, upto: int) -> None:
        """Cancels every command up to number `upto`."""
        self.unary("Compute", "Interrupt", encode([(1, upto)]), timeout=5)

    def interrupt_named(self, name: str) -> None:
        """Cancels the commands that the user's session with this name has received."""
        try:
            self.unary("Compute", "Interrupt", encode([(2, name)]), timeout=5, wait=False)
        except CallError as error:
            if error.unreachable:
                raise self._unreachable(self.fault() or error) from None
            raise _late_error(error) from None

    def drop(self) -> None:
        """Ends the session at once, without waiting for queued commands, and closes the connection."""
        with contextlib.suppress(CallError):
            self.unary("Compute", "Close", b"", timeout=3, wait=False)
        self.close()

    def leave(self) -> None:
        """Waits until everything has been sent, and closes the connection; the session stays on the
        daemon."""
        self._leaving = True
        self.close()


_DEVICE_KINDS = {"cpu": 0, "cuda": 1, "sim": 2}


def device_number(device: _core.device) -> int:
    """The number of a device in messages."""
    return _DEVICE_KINDS[device.type] * 256 + (device.index or 0)


def _late_error(error: CallError) -> Exception:
    """The exception that a bulk call raises in place of `error`."""
    text = str(error)
    if error.word == "streams":
        return RuntimeError(text)
    if error.word:
        return SessionLostError(f"{text} [{error.word}]")
    if error.code == _EXHAUSTED:
        return OutOfMemoryError(text)
    if error.code == _UNKNOWN and "DEVICE_LOST" in text:
        return DeviceLostError(text)
    if error.code in (_UNAVAILABLE, _CANCELLED):
        return SessionLostError(f"the connection was lost: {text}")
    return RuntimeError(text)


_connected = 0  # the id of the process that has had a connection


def _check_fork() -> None:
    """RuntimeError if this process was forked and has its parent's connections, but not the threads that
    serve them."""
    global _connected
    if _connected not in (0, os.getpid()):
        raise RuntimeError(
            "this process was forked from one that had connected to a daemon, and does not have the "
            "threads of that connection: start processes by multiprocessing's \"spawn\" or \"forkserver\", "
            "or fork before the first session is opened")
    _connected = os.getpid()


def open_transport(address: str, credentials: Credentials | None = None,
                   timeout: float = 10.0) -> Transport:
    """Creates the transport that TELETENSOR_TRANSPORT names: "native", "grpcio", or, if it is not set,
    native if _wire is built."""
    wanted = os.environ.get("TELETENSOR_TRANSPORT") or "auto"
    if wanted not in ("auto", "native", "grpcio"):
        raise TeletensorError(f'TELETENSOR_TRANSPORT is "native" or "grpcio", not "{wanted}"')
    credentials = credentials or credentials_of(address)
    _check_fork()
    if wanted != "grpcio":
        from .native import NativeTransport, wire

        try:
            wire()
            return NativeTransport(address, credentials, timeout)
        except CallError:
            if wanted == "native":
                raise
    with silent_grpc():
        from .grpcio import GrpcioTransport

    return GrpcioTransport(address, credentials, timeout)
