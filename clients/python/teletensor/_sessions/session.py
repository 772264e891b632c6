"""Sessions: connect(), the default session, embedded daemons."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import math
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from .. import _core
from .._connection import daemon as _daemon, notices as _notices
from .._connection.credentials import Credentials, credentials_of
from .._connection.transport import CallError, Greeting, Transport, open_transport
from .._tools.admin import Admin
from .._tools.notebook import session_html
from .._tools.profile import Profile
from . import dropped as _dropped, interrupt as _interrupt, kept as _kept, published as _published
from .dropped import NativeSession
from .errors import SessionLostError, TeletensorError
from .shared import Sharing
from .sites import SiteReporter

if TYPE_CHECKING:
    from .._tensors.tensor import Tensor

__all__ = [
    "Session",
    "checked",
    "connect",
    "current_session",
    "interrupt",
    "set_strict",
    "synchronize",
]

_END_PATIENCE = 8.0  # seconds that the end of the program waits for a session that was deleted just before
_INSTANCE = os.urandom(16)
_lock = threading.RLock()
_naming = threading.RLock()  # held so that only one connect() with a name runs at a time
_default: Session | None = None
_stack = threading.local()
_open: weakref.WeakSet[NativeSession] = weakref.WeakSet()
_over = ""  # the reason why this process cannot open sessions any more


class Queued(NamedTuple):
    """The work that a session still has to do: see `Session.queued`."""

    commands: int
    seconds: float


class Way(NamedTuple):
    """How a daemon is reached, also from another process: see `way`."""

    address: str
    credentials: Credentials


class Session(_core.Scope):
    """A client's session on a daemon: its tensors, its tape, its memory.

    Created by `connect`. `with session:` makes it the current session of this thread and closes it, as with
    files and sockets, at the end of the (outermost) block. `with session.as_current():` leaves it open, so
    that programs can switch between sessions. A session that the program can no longer reach, through this
    object or through one of its tensors, is closed (or detached, if it has a name).
    """

    def __init__(self, transport: Transport, name: str, quota: int,
                 made: list[Session] | None = None) -> None:
        super().__init__()
        self._transport = transport
        self._pid = os.getpid()
        self._named = False
        self._world: Any = None  # the group of `distributed` if the session is a rank of a device mesh
        self._asked = name
        self._closed = False
        self._owned = 0
        self._published: dict[str, _published.Held | None] = {}  # None: the daemon has not accepted it yet
        self._sites: SiteReporter | None = None
        put = _interrupt.cleaner()
        try:
            greeting = transport.hello(_INSTANCE, name, quota)
            self._named = bool(name) and greeting.lease > 0
            _dropped.serve()
            _serve_exit()
            self._begin(greeting)
            _interrupt.watch(self)
            if made is not None:
                made.append(self)
        except BaseException:
            put(self._abandon)
            raise
        if _over:  # the program has begun to end in the meantime
            self.close()
            raise RuntimeError(_over)

    def _begin(self, greeting: Greeting) -> None:
        transport = self._transport
        self.name = greeting.session_name
        self.id = greeting.session_id
        self.server_version, self.protocol = greeting.server_version, greeting.protocol
        self.devices = [d.name for d in greeting.devices]
        self._gpus = [d for d in greeting.devices if d.name.startswith("cuda:")]
        self.unsupported_ops = greeting.unsupported
        limits = greeting.limits
        self._inline = limits["inline_bytes"]
        self._shared = Sharing(greeting.share, greeting.quota)
        self._core = NativeSession(
            credit_upto=limits["credit_upto"], credit_bytes=limits["credit_bytes"],
            frame_bytes=limits["frame_bytes"], frame_commands=limits["frame_commands"],
            frame_items=limits["frame_items"], inline_bytes=limits["inline_bytes"],
            quota=greeting.quota, keeps=greeting.lease > 0, protocol=greeting.protocol,
            retained_bytes=_retained_bytes() if greeting.restart else 0,
            programs=limits["programs"], program_steps=limits["program_steps"],
            program_bytes=limits["program_bytes"], kept=limits["kept"], handles=limits["handles"],
        )
        if greeting.snapshots:
            self._core.retain()
        self._core.owner = weakref.ref(self)
        _open.add(self._core)
        self._rolled_back: SessionLostError | None = None
        self._before_close: list[Callable[[], None]] = []  # issue the last commands of the session
        self.taken_over = greeting.start is not None
        self._kept = _kept.restored(self._core, greeting.start) if greeting.start else {}
        self._core.on_reads = _notices.hint_at_reads
        transport.run(self._core)
        if greeting.sites_seconds:
            self._sites = SiteReporter(transport, self._core, greeting.sites_seconds)
            self._sites.start()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        known = dict(self.__dict__)
        core = known.pop("_core", None)
        # At the exit of the interpreter the module's names may be gone, like the sessions of the process.
        if core is None or self._closed or self._pid != getpid() or _interrupt is None:
            return
        _interrupt.forget(self)
        known["_kept"] = {}
        self.__dict__.clear()
        core.rest = known

    def __repr__(self) -> str:
        return f"<teletensor.Session {self.name!r} at {self._transport.address}, {self.state}>"

    @property
    def state(self) -> str:
        """"open", "reconnecting for 3 s", "rolled back" (see `rolled_back`), "lost: REASON" or "closed"."""
        ended = self._transport.ended
        if self._closed:
            return "closed"
        if self._rolled_back is not None or (ended is not None and ended.word == "rollback"):
            return "rolled back"
        if ended is not None or self._core.over:
            return f"lost: {(ended and ended.text) or 'the daemon ended it'}"
        away = self._transport.away
        return f"reconnecting for {int(away)} s" if away else "open"

    @property
    def _gone(self) -> bool:
        """Whether the session cannot be used any more in this process."""
        return self._pid != os.getpid() or self.state.startswith(("closed", "lost"))

    @property
    def _idle(self) -> bool:
        """Whether the program holds no tensor of the session and could not take it over by a name."""
        return not (self._named or self._core.held)

    @property
    def address(self) -> str:
        """The address of the daemon: "host:port" or "unix:/path"."""
        return self._transport.address

    @property
    def transport(self) -> str:
        """The transport to the daemon: "native" (gRPC C++) or "grpcio"."""
        return self._transport.kind

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._closed

    # Called by Scope when a `with session:` block is entered.
    def _save(self) -> int:
        if self._closed:
            raise SessionLostError(
                f"session {self.name!r} is closed: `with session:` closes it at the end of its block, "
                "`with session.as_current():` does not")
        return _sessions().count(self)

    def _apply(self) -> Session:
        _sessions().append(self)
        return self

    def _restore(self, state: int, kind: Any) -> None:
        stack = _sessions()
        while stack.count(self) > state:
            del stack[len(stack) - 1 - stack[::-1].index(self)]
        if not self._owned or self in stack:
            return
        if kind is None:
            return self.close()
        with contextlib.suppress(Exception):
            if issubclass(kind, KeyboardInterrupt):
                _interrupt.request(self)  # the queued commands are cancelled with the session
            self.close()

    def as_current(self) -> contextlib.AbstractContextManager[Session]:
        """A context in which this session is current in this thread. It does not close the session."""
        self._save()
        return _core.Pushed(_sessions(), self)

    def cancel(self) -> _interrupt.Dropped:
        """Cancels the queued commands: commands that have not run are dropped, and tensors keep their last
        values. Returns the number of these commands and the source line of the first one; reading a tensor
        that was not computed raises InterruptedOpError.
        """
        return _interrupt.drop(self)

    def synchronize(self) -> None:
        """Waits until everything that was issued has run; raises late errors."""
        self._core.synchronize()

    def errors(self) -> list[Exception]:
        """The late errors that have not been raised yet, oldest first: one exception for each failed
        command, with the line that issued it. Waits until everything issued so far has run.

        Reading a tensor of the session raises the oldest of them once, which stands for all errors of its
        kind.
        """
        self._core.wait_completed()
        pending: list[Exception] = self._core.pending_errors()
        return pending

    def clear_errors(self) -> list[Exception]:
        """Discards the late errors that have not been raised yet, and returns them as `errors` does.

        Tensors that a failed command should have overwritten keep their last valid values. A tensor that a
        failed command should have created raises that command's error whenever it is read.
        """
        forgotten = self.errors()
        self._core.clear_pending()
        return forgotten

    def check_device(self, device: _core.device) -> _core.device:
        """Returns `device`; raises an error that lists the daemon's devices if it is not one of them."""
        if str(device) not in self.devices:
            raise RuntimeError(
                f"device {str(device)!r} is not on this daemon; it has {', '.join(self.devices)}")
        return device

    def _admin(self) -> Admin:
        if self._closed:
            raise SessionLostError(f"session {self.name!r} is closed", "closed")
        return Admin(self._transport)

    def memory(self, tensors: int = 20) -> list[dict[str, Any]]:
        """The memory of this session by device. For each device: bytes `used`, `peak` and `quota`;
        `device_used` and `device_total` over all sessions; `away`, the bytes of the session that are on the
        daemon's disk, or for a GPU on its host, because memory was short; and `tensors`, the largest
        tensors. Each of these has `bytes`, `shape` and `dtype` ([] and "" if they are not known), the
        source line that made it (`site`), the number of its `command`, and whether it is `away`. Files use
        `disk_used` bytes of at most `disk_quota` (0: nothing is moved to disk).
        """
        if self.rolled_back is None:
            self._core.synchronize()
        reply = self._admin().holdings(most=max(tensors, 1))
        for tensor in reply["tensors"]:
            tensor["site"] = self._core.site_of(tensor["command"]) or tensor["site"]
        devices: list[dict[str, Any]] = reply["session"]["memory"]
        for device in devices:
            device["tensors"] = [
                {k: v for k, v in t.items() if k != "device"}
                for t in reply["tensors"][:tensors] if t["device"] == device["device"]]
        return devices

    def status(self) -> dict[str, Any]:
        """The state of the session: `memory` by device (bytes `used`, `quota`, `device_used`, ...),
        `queued` commands, sessions `ahead` in the queue, `wait_seconds` until these have run (estimated),
        commands `repeated` that ran together, `handles`, `lane_seconds`, `limits`: for other resources than
        memory (handles, programs, ...) `used` and `limit` (0: limited by memory only), `not_saved`: why the
        last snapshot was not written, or "". Does not wait for queued commands.
        """
        status: dict[str, Any] = self._admin().holdings(most=1)["session"]
        return status

    def queued(self) -> Queued:
        """The number of commands that are issued but have not run, and the estimated seconds that they
        take, from the speed since the queue was last empty (0 until the first of them has run; NaN if the
        daemon cannot be asked). Does not wait for queued commands.
        """
        try:
            status = self._admin().holdings(most=1)["session"]
        except CallError:
            return Queued(self._commands_left(), math.nan)
        return Queued(self._commands_left(), status["wait_seconds"])

    def _commands_left(self) -> int:
        return max(self._core.last_seq - self._core.completed_upto, 0)

    def _repr_html_(self) -> str:
        return session_html(self)

    def profile(self, record_shapes: bool = False) -> Profile:
        """Records a block: `with session.profile() as p:`, and then `p.table()`, `p.save("trace.json")`."""
        return Profile(self, record_shapes)

    def keep(self, name: str, value: Any) -> None:
        """Keeps `value` under `name` for a later client of this session; None removes the name.

        `value` is a tensor, or a dict, list, tuple, Module or optimizer, whose tensors are kept as
        "name/key".
        """
        _kept.replace(self, self._kept, name, value)

    def kept(self) -> dict[str, Tensor]:
        """The tensors that this session keeps, by name, including those of earlier clients.

        After a rollback: the tensors that the daemon has, with their values of that time, which can be read
        and saved.
        """
        if self.rolled_back is not None and not self._core.frozen:
            self._take_back()
        return dict(self._kept)

    @property
    def rolled_back(self) -> tuple[int, int] | None:
        """Not None if the daemon has restored the session to a state earlier than work that this client
        knows of: the number of the last command in the restored state, and of the last command that had
        run. Until accept_rollback() is called, everything raises SessionLostError except `kept`, reading
        and saving its tensors, `status`, `memory` and `close`.
        """
        if self._rolled_back is None and self._core.over and not self._closed:
            try:
                self._core.raise_lost()
            except SessionLostError as lost:
                if lost.reason == "rollback":
                    self._rolled_back = lost
            except RuntimeError:
                pass
        return self._rolled_back.commands if self._rolled_back is not None else None

    def accept_rollback(self) -> None:
        """Continues with the session as the daemon has restored it: it has the tensors in `kept()` with
        their values of that time, and no further tensors. Tensors that are older than the rollback raise
        SessionLostError.
        """
        if self.rolled_back is None:
            raise RuntimeError(f"session {self.name!r} has not been rolled back")
        if not self._core.frozen:
            self._take_back()
        self._rolled_back = None
        self._core.freeze(0, "")

    def _take_back(self) -> None:
        lost = self._rolled_back
        assert lost is not None
        if self._sites is not None:
            self._sites.stop()
        self._core.follow_nothing()
        self._begin(self._transport.hello(_INSTANCE, self.name, 0, back=True))
        self._rolled_back = lost
        self._core.freeze(14, str(lost))

    def snapshot(self) -> dict[str, Any]:
        """Makes the daemon write a snapshot of the session that includes everything issued so far, whose
        end it waits for.

        Returns when the file is safe on the daemon's disk: the number of the last `command` in it, the
        `bytes` of tensors, and the `seconds` that writing took. After a crash of the daemon the session has
        at least this state (docs/sessions.md). RuntimeError if the session cannot be written.
        """
        if self._rolled_back is not None:
            raise self._rolled_back
        self._core.retain()
        self._core.synchronize()
        return self._transport.ask(self._admin().snapshot)

    def publish(self, name: str, value: Any, writable: bool = False, users: Iterable[str] = ()) -> None:
        """Lets other sessions use `value` under `name`: see `publish`."""
        _published.publish_in(self, name, value, writable, users)

    @overload
    def published(self, name: None = None) -> list[dict[str, Any]]: ...
    @overload
    def published(self, name: str) -> Tensor | dict[str, Tensor]: ...
    def published(self, name: str | None = None) -> Tensor | dict[str, Tensor] | list[dict[str, Any]]:
        """The tensor that a session has published as `name`, as a tensor of this session; without a name a
        list of all publications: see `published`."""
        return _published.listed_in(self) if name is None else _published.published_in(self, name)

    def detach(self) -> None:
        """Leaves the session on the daemon, where the issued commands continue to run, until a client
        connects by its name or its lease expires. This object is closed.
        """
        if self._closed or os.getpid() != self._pid:
            return
        put, finish = _interrupt.cleaner(), functools.partial(self._finish, self._transport.leave)
        try:
            finish()
        except BaseException:
            put(finish)  # runs on another thread, which signals do not interrupt
            raise

    def _shut(self) -> None:
        self._closed = True
        _interrupt.forget(self)
        if self._sites is not None:
            self._sites.stop(self._core)
        self._core.close()
        self._core.follow_nothing()
        self._kept.clear()
        global _default
        with _lock:
            if _default is self:
                _default = None

    def _abandon(self) -> None:
        """Ends the session as if it had not been opened; it may have been opened in part."""
        self._closed = True
        _interrupt.forget(self)
        if "_core" in self.__dict__:
            _open.discard(self._core)
        if self._sites is not None:
            self._sites.stop()
        self._transport.abandon()

    def close(self) -> None:
        """Ends the session and releases its memory. Raises the first late error that has not been raised
        yet."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True
            _interrupt.forget(self)
            return
        put, finish = _interrupt.cleaner(), functools.partial(self._finish, self._transport.close)
        error: BaseException | None = None
        try:
            try:
                for issue in list(self._before_close):
                    issue()
            finally:
                self._closed = True
            self._transport.settle(self._core)
        except SessionLostError:
            pass
        except BaseException as late:
            error = late
        try:
            finish()
        except BaseException:
            put(finish)  # runs on another thread, which signals do not interrupt
            raise
        if error is not None:
            raise error

    def _finish(self, leave: Callable[[], None]) -> None:
        self._shut()
        leave()


def _forked() -> None:
    """In the child: the child is a different client than its parent, and none of its threads holds these
    locks."""
    global _INSTANCE, _lock, _naming
    _INSTANCE, _lock, _naming = os.urandom(16), threading.RLock(), threading.RLock()


os.register_at_fork(after_in_child=_forked)
_served = 0  # the id of the process whose sessions are ended at its exit


def _serve_exit() -> None:
    """Makes a process of multiprocessing, which does not run atexit functions, end its sessions at its exit
    too."""
    global _served
    process = sys.modules.get("multiprocessing.process")
    if _served != os.getpid() and process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)
    _served = os.getpid()


def _retained_bytes() -> int:
    """The limit for frames since the last snapshot that are retained: TELETENSOR_REPLAY, or else 32 MiB."""
    given = os.environ.get("TELETENSOR_REPLAY", "")
    return int(given) if given.isdecimal() else 32 << 20


def _sessions() -> list[Session]:
    stack: list[Session] | None = getattr(_stack, "sessions", None)
    if stack is None:
        stack = _stack.sessions = []
    return stack


def connect(address: str | os.PathLike[str] | None = None, *, token: str | None = None,
            name: str | None = None, memory: int = 0, ca: str | os.PathLike[str] | None = None,
            cert: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
            fresh: bool = False) -> Session:
    """Opens a session, or takes over an existing one by its name.

    Without `address` the session is on the daemon that TELETENSOR_ADDRESS names. If that is not set, it is
    on this user's running daemon, which is reached by its UNIX socket. If there is none, a daemon is
    started for this user, which ends with its last client; its binary is the one that TELETENSORD names, or
    one next to this package, or one on PATH. `address` is "host:port", "unix:/path" or a path. If the host
    is not a loopback address, or if `ca` or `cert` is given, the connection uses TLS ("tls://host:port"
    always does). The daemon's certificate is checked against the authorities in the file `ca`
    (TELETENSOR_CA, or else the system's authorities), and the client presents the certificate and key in
    `cert` (TELETENSOR_CERT, TELETENSOR_KEY) if the daemon asks for one. `token` identifies the user
    (TELETENSOR_TOKEN, TELETENSOR_TOKEN_FILE). `memory` is the number of bytes requested on each device (0:
    the maximum that the daemon allows).

    `name`: if this process has an open session of that name at that address, that session is returned, with
    all its tensors; `fresh=True` makes a new client of it instead, as another process would. If another
    process of this user has a session of that name, it is taken over: the tensors that it keeps (`keep`)
    are in `kept()`, its quota and queue are unchanged, and the program that had it, if it still runs, gets
    SessionLostError. A session with a name outlives its program; `Session.close` ends it.

    SessionLostError if no daemon answers, with the cause and how to repair it: within about a second if
    nothing listens (a daemon may be about to start), and after 10 s if the network drops packets.
    RefusedError if the daemon refuses the client, ValueError for an invalid address.
    """
    try:
        quota = operator.index(memory)
    except TypeError:
        raise TypeError(f"connect: memory must be a whole number of bytes, not {memory!r}") from None
    if not 0 <= quota < 1 << 63:
        raise ValueError(f"connect: memory must be a number of bytes, 0 or more, not {memory}")
    if _over:
        raise RuntimeError(_over)
    _check_threads()
    asked = _name("connect", name or "")
    if _default_way is not None and (address, token, ca, cert) == (None, None, None, None):
        place, credentials = _default_way
    else:
        place = place_of(address)
        credentials = credentials_of(place, token, ca, cert)
    made: list[Session] = []
    put = _interrupt.cleaner()
    try:
        with _naming if asked else contextlib.nullcontext():
            earlier = _opened(asked, credentials) if asked else None
            if earlier is not None and not fresh:
                session = earlier
            else:
                transport = open_transport(place, credentials)
                transport.restarting = _is_away(credentials)
                session = Session(transport, asked, quota, made)
                # the earlier session may have been taken over without this process having noticed it
                if earlier is not None:
                    earlier._asked = ""
        session._owned = 1
        global _default
        with _lock:
            # `fresh` has ended the earlier session, which may not have noticed it yet
            if _default is None or _default._gone or _default is earlier:
                _default = session
        return session
    except BaseException:
        if made:
            put(made[0]._abandon)
        raise


def beside() -> Session:
    """Opens a separate session on the daemon of the current session, or on the one that connect() would
    find. It does not become the default session."""
    if _refusal is not None:
        raise RuntimeError(_refusal)
    _check_threads()
    known = way() or _default_way
    place = place_of(None) if known is None else known.address
    credentials = credentials_of(place) if known is None else known.credentials
    return Session(open_transport(place, credentials), "", 0)


def _check_threads() -> None:
    """Refuses greenlets in place of threads: all of them would block while one waits in native code."""
    # threading._start_new_thread does not exist in Python 3.13
    start = getattr(threading, "_start_new_thread", _thread.start_new_thread)
    if not (isinstance(start, types.BuiltinFunctionType)
            and isinstance(_thread.start_new_thread, types.BuiltinFunctionType)):
        raise TeletensorError(
            "connect: the threads of this process are those of gevent, eventlet or the like, and would "
            "stand still while one waits for the daemon; leave threads as they are, for example by "
            "gevent.monkey.patch_all(thread=False)")


def _all_open() -> Iterator[Session]:
    """The sessions of this process that are not closed, including those that only tensors refer to."""
    for core in list(_open):
        session = owner_of(core) if core.rest is not None else core.owner()
        if session is not None and session._pid == os.getpid() and not session._closed:
            yield session


def _opened(name: str, credentials: Credentials) -> Session | None:
    """The session of this process that was opened by connect() with this name at this address."""
    for session in _all_open():
        if (session._asked == name and session._transport.credentials == credentials
                and not session._gone):
            return session
    return None


def _is_away(credentials: Credentials) -> bool:
    """Whether a session of this process has lost its connection to the daemon at that address."""
    return any(session._transport.credentials == credentials and session._transport.away > 0
               for session in _all_open())


def _name(what: str, name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what}: a session's name must be text, not {name!r}")
    return name


def interrupt(name: str, address: str | None = None) -> None:
    """Cancels the queued commands of this user's session `name`, which may belong to another program.

    The next read in that session raises InterruptedOpError. RuntimeError if there is no such session.
    """
    if not _name("interrupt", name):
        raise ValueError("interrupt: the name of the session must not be empty")
    transport = open_transport(place_of(address))
    try:
        transport.interrupt_named(name)
    finally:
        transport.close()


_default_way: Way | None = None


def open_session() -> Session | None:
    """The session in which new tensors are created, or None if there is none yet. Does not open one."""
    stack = _sessions()
    session = stack[-1] if stack else _default
    return None if session is None or session._gone else session


def way() -> Way | None:
    """How the session in which new tensors are created is reached; None if there is none yet."""
    session = open_session()
    return None if session is None else Way(session.address, session._transport.credentials)


def usual(way: Way | None) -> None:
    """Makes connect() without an address use this way from now on; None restores the default."""
    global _default_way
    _default_way = way


_refusal: str | None = None


def refuse(reason: str) -> None:
    """Prevents this process from opening sessions: current_session() raises RuntimeError(reason) from now
    on."""
    global _refusal
    _refusal = reason


def current_session() -> Session:
    """The session in which new tensors are created: that of the innermost `with`, or else the default
    session.

    A default session that is lost is replaced by a new one at once if the program has no tensors in it, and
    otherwise when the program calls connect(): until then using it raises SessionLostError.
    """
    if _refusal is not None:
        raise RuntimeError(_refusal)
    stack = _sessions()
    if stack:
        return stack[-1]
    global _default
    with _lock:
        if _default is not None and _default._pid != os.getpid():
            _default = None
        if _default is None or (_default._gone and _default._idle):
            connect()
        assert _default is not None
        return _default


def _current_core() -> _core.Session:
    _interrupt.listen()  # a notebook restores Python's handler for every cell
    return current_session()._core


_core.set_current(_current_core, os.path.dirname(os.path.dirname(__file__)) + os.sep)


def owner_of(core: _core.Session) -> Session:
    """The Session that wraps a native session."""
    owner: Session | None = core.owner()
    if owner is None:
        known = getattr(core, "rest", None)
        if known is None:
            raise SessionLostError("the session of this tensor is closed; open a session and make the "
                                   "tensor "
                                   "there", "closed")
        core.rest = None
        owner = Session.__new__(Session)
        _core.Scope.__init__(owner)
        owner.__dict__.update(known, _core=core)
        core.owner = weakref.ref(owner)
        _interrupt.watch(owner)
    return owner


def synchronize() -> None:
    """Waits for everything that the current session has issued; raises late errors."""
    current_session().synchronize()


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """A context that waits at its end, so that late errors of the block are raised inside the `with`."""
    session = current_session()
    yield
    session.synchronize()


def set_strict(on: bool = True) -> None:
    """Waits after every op of the current session, so that errors are raised at the line that caused them
    (slow)."""
    current_session()._core.strict = on


# ---------------------------------------------------------------- finding a daemon


def place_of(address: str | os.PathLike[str] | None) -> str:
    """The address that connect() uses for this argument."""
    address = os.fsdecode(address).strip() if address is not None else None
    address = address or os.environ.get("TELETENSOR_ADDRESS", "").strip()
    if not address:
        own = _daemon.runtime_dir() / "teletensor.sock"
        try:
            credentials_of(f"unix:{own}")
        except ValueError as error:
            raise TeletensorError(f"{error}; its folder is given by XDG_RUNTIME_DIR") from None
        address = f"unix:{own if _daemon.answers(own) else _daemon.embedded()}"
    return address


def _drop(session: Session) -> None:
    """Ends a session whose results are not needed, without waiting for its queued commands."""
    session._closed = True
    upto = session._core.mark_interrupted()
    if upto:
        with contextlib.suppress(TeletensorError):
            session._transport.interrupt(upto)
    session._shut()
    session._transport.close()


@atexit.register
def _close_all() -> None:
    """Ends the sessions at the end of the program; the exit status becomes 1 if there is a late error."""
    global _over
    _over = "the program is at its end, where no session is opened any more"
    _notices.over()
    refuse(_over)
    # sys.last_value is set after an uncaught exception; an interactive interpreter sets it for each
    # exception.
    failed = hasattr(sys, "last_value") and not hasattr(sys, "ps1")
    for session in _all_open():
        try:
            if session._core.interrupt_pending and not session._named:
                session.cancel()  # the results are not needed, because they end with the session
            # a named session is not closed, so that a later program can take it over
            if session._named:
                try:
                    session._core.raise_pending()
                finally:
                    session.detach()
            elif failed:
                _drop(session)
            else:
                session.close()
        except Exception as error:
            print(f"teletensor: session {session.name!r} ended with an error that no read had raised: "
                  f"{type(error).__name__}: {error}", file=sys.stderr)
            _core.fail_at_exit()
    _dropped.join(_END_PATIENCE)
