"""Handling of Ctrl-C and of other signals whose handlers raise exceptions.

Ctrl-C raises KeyboardInterrupt at the line that is being executed. Work that was issued before that line
still runs on the daemon, in order, so that the daemon's tensors stay consistent with the program's own
counters. If that work takes more than a moment, the exception says so. A second Ctrl-C, during a wait for
that work, cancels it, as `Session.cancel` does: a separate thread asks the daemon to, so that a signal
handler never waits for a reply; the next command of the session first sees the effect of the cancellation
(`PendingErrors::settle` in _core).

Operations that must not be interrupted run on other threads (`shielded`), which receive no signals: calls
of grpcio, because an exception at the wrong place inside grpcio leaves its locks held, and Hello, because
an interrupted Hello could leave an unknown session on the daemon. Cleanup work is passed to `later`, which
is one native call.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import importlib
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .. import _core
from .errors import TeletensorError

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Calls", "Dropped", "Pending", "cleaner", "drop", "forget", "later", "listen", "request",
           "shielded", "watch"]

T = TypeVar("T")
Work = Callable[[], object]
_TRIES = 3
_WORTH_SAYING = 2.0  # seconds of queued work from which on it is mentioned
_PATIENCE = 2.0  # seconds that the daemon has to report what it cancelled
_ANSWER = 0.5  # seconds that the daemon has to report how much is queued before the exception is raised
_MAX_IDLE = 4  # the maximum number of idle worker threads
_PYTHONS = signal.default_int_handler  # raises KeyboardInterrupt
# signal.getsignal() looks for an enum member first, which takes longer than an op.
_handler_of: Callable[[int], Any] = importlib.import_module("_signal").getsignal
_OWN = "teletensor-"  # prefix of the names of this package's threads
_watched: dict[int, weakref.ref[Session]] = {}
# reentrant, because a finalizer that needs the threads may run while it is held
_lock = threading.RLock()

# put() of these queues is one native call: a signal cannot interrupt it in the middle.
_stops: queue.SimpleQueue[Work] = queue.SimpleQueue()
_jobs: queue.SimpleQueue[Work] = queue.SimpleQueue()
_idle: collections.deque[queue.SimpleQueue[Work]] = collections.deque()
_threads: list[int] = []


class Dropped(NamedTuple):
    """The result of cancelling a session's queue: the number of commands, and the source line of the first
    one."""

    commands: int
    line: str

    def __str__(self) -> str:
        if not self.commands:
            return "nothing was queued"
        return f"dropped {self.commands:,} command{'s' * (self.commands != 1)}" + (
            f", from {self.line} on" if self.line else "")

    def __repr__(self) -> str:
        return str(self)


def watch(session: Session) -> None:
    """Registers `session` for the handling of Ctrl-C."""
    _watched[id(session)] = weakref.ref(session)
    listen()


def forget(session: Session) -> None:
    """Unregisters a session that is closed."""
    _watched.pop(id(session), None)


def listen() -> None:
    """Installs this module's handler if Python's own handler is installed; a handler of the program or of a
    notebook is left in place.

    asyncio and trio install handlers of their own, which cancel the main task, only if
    `signal.default_int_handler` is installed, and restore that name's handler afterwards. Therefore the
    name is set to this module's handler as well.
    """
    if (_handler_of(signal.SIGINT) is _PYTHONS
            and threading.current_thread() is threading.main_thread()):
        signal.default_int_handler = _on_sigint  # type: ignore[assignment]  # it may return
        signal.signal(signal.SIGINT, _on_sigint)


def request(session: Session) -> int:
    """Requests the cancellation of everything that `session` has issued so far; returns the number of the
    last such command, or 0."""
    upto: int = session._core.mark_interrupted()
    if upto:
        own = weakref.ref(session)
        _start()
        _stops.put(lambda: _tell(own, upto))
    return upto


def drop(session: Session) -> Dropped:
    """Cancels the queue of `session`. Waits a moment for the daemon to report what was cancelled."""
    upto = request(session)
    if not upto:
        return Dropped(0, "")
    first, commands = session._core.dropped(upto, _PATIENCE)
    return Dropped(commands, session._core.site_of(first) if first else "")


def _on_sigint(number: int, frame: FrameType | None) -> None:
    if _core.postpone_interrupt():
        return
    raise KeyboardInterrupt(*_said())


def _said() -> list[str]:
    """The texts about the sessions' queues that KeyboardInterrupt contains."""
    texts = []
    queued, longest = 0, 0.0
    for own in list(_watched.values()):
        session = own()
        if session is None:
            continue
        if session._core.interrupt_again():
            texts.append(str(drop(session)))
            continue
        commands = session._core.queued
        if commands:
            queued, longest = queued + commands, max(longest, _seconds_left(session))
    if longest > _WORTH_SAYING:
        texts.append(f"still queued: about {queued:,} commands, {longest:.0f} s; "
                     "session.cancel() drops them")
    return ["; ".join(texts)] if texts else []


def _seconds_left(session: Session) -> float:
    """The time that the daemon estimates for the queued commands; 0 if it is too busy to answer."""
    answers: list[float] = []
    heard = _thread.allocate_lock()
    heard.acquire()

    def ask() -> None:
        try:
            answers.append(session._admin().holdings(most=1)["session"]["wait_seconds"])
        finally:
            heard.release()

    later(ask)
    heard.acquire(timeout=_ANSWER)
    return answers[0] if answers else 0.0


def _tell(own: weakref.ref[Session], upto: int) -> None:
    for _ in range(_TRIES):
        session = own()
        if session is None:  # a session that is being closed still waits for its commands
            return
        try:
            return session._transport.interrupt(upto)
        except TeletensorError:  # the daemon is too busy or unreachable, or the session has been closed
            continue


# ---------------------------------------------------------------- threads


def _start() -> None:
    """Starts this module's threads if they are not running yet."""
    if _threads:
        return
    with _lock:
        if not _threads:
            # extend() starts both threads and records them in one native call.
            _threads.extend(map(_thread.start_new_thread, (_serve, _serve),
                                ((_stops, "interrupts"), (_jobs, "jobs"))))


def _named(name: str) -> None:
    threading.current_thread().name = _OWN + name
    _core.makes_calls()


def _serve(todo: queue.SimpleQueue[Work], name: str) -> None:
    _named(name)
    handle = _quietly if todo is _stops else _dispatch_job
    while True:
        handle(todo.get())  # no local variable here keeps the work's objects alive


def _dispatch_job(work: Work) -> None:
    """Passes work to an idle worker thread, or to a new one."""
    try:
        _idle.pop().put(work)
    except IndexError:
        own: queue.SimpleQueue[Work] = queue.SimpleQueue()
        own.put(work)
        try:
            _thread.start_new_thread(_work, (own,))
        except RuntimeError:  # the process cannot start more threads
            _quietly(work)


def _work(own: queue.SimpleQueue[Work]) -> None:
    _named("worker")
    while True:
        _quietly(own.get())
        if len(_idle) >= _MAX_IDLE:
            return
        _idle.append(own)


def _quietly(work: Work) -> None:
    with contextlib.suppress(Exception):  # nothing has to be cleaned up in a session that is lost
        work()


def _forked() -> None:
    global _lock, _stops, _jobs
    _watched.clear()
    _threads.clear()
    _idle.clear()
    _lock = threading.RLock()
    _stops, _jobs = queue.SimpleQueue(), queue.SimpleQueue()


os.register_at_fork(after_in_child=_forked)


class Pending(Generic[T]):
    """The result of work(), which runs on another thread whether or not its result is waited for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._ends: queue.SimpleQueue[tuple[list[T], BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                self._ends.put(([work()], None))
            except BaseException as error:
                self._ends.put(([], error))

        later(run)

    def result(self, seconds: float | None = None) -> T:
        """Returns or raises what work() returns or raises. TimeoutError if it does not end in time."""
        try:
            found, error = self._ends.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return found[0]


def later(work: Work) -> None:
    """Runs `work` on another thread soon; its errors are ignored."""
    _jobs.put(work)
    _start()


def cleaner() -> Callable[[Work], None]:
    """Returns a form of `later` that is one native call, for a `finally` block while an exception is
    propagating."""
    _start()
    return _jobs.put


class Calls:
    """The RPCs of one piece of work, so that they can be cancelled together."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self.stopped = False

    def add(self, call: Any) -> None:
        """Registers a call that has been started."""
        self._calls.append(call)
        if self.stopped:
            call.cancel()

    def stop(self) -> None:
        """Cancels all registered calls, and every call that is registered later."""
        self.stopped = True
        for call in list(self._calls):
            call.cancel()

    def end(self) -> None:
        """Forgets the calls, all of which have ended."""
        self._calls.clear()


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Calls], T], undo: Callable[[T], object] | None) -> None:
        self._work, self._undo, self.calls = work, undo, Calls()
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self._ended = threading.Event()
        self.result: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if not self.calls.stopped:
                self.result.append(self._work(self.calls))
        except BaseException as error:
            self.error = error
        self.calls.end()  # grpcio takes locks when the last reference to a call is dropped
        self.done.release()
        self._ended.set()

    def stop(self) -> None:
        """Cancels the calls of a job whose result is not wanted any more."""
        self.calls.stop()
        if self._undo is not None:
            _jobs.put(self._take_back)

    def _take_back(self) -> None:
        self._ended.wait()
        assert self._undo is not None
        while self.result:
            self._undo(self.result.pop())


def shielded(work: Callable[[Calls], T], undo: Callable[[T], object] | None = None) -> T:
    """Returns the result of work(), which runs on a thread that receives no signals; an exception in the
    calling thread cancels its calls.

    If work() returns a result although the caller was interrupted, `undo` is called with it, on such a
    thread too. RuntimeError in a finalizer that the garbage collector runs in the middle of another such
    call.
    """
    _core.check_may_call()
    if threading.current_thread().name.startswith(_OWN):
        _core.makes_calls()
        return work(Calls())
    _start()
    job = _Job(work, undo)
    try:
        _jobs.put(job.run)
        job.done.acquire()
    except BaseException:
        _stops.put(job.stop)
        raise
    if job.error is not None:
        error, job.error = job.error, None
        raise error
    return job.result[0]
