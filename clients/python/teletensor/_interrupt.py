"""Ctrl-C, and other signals whose handlers raise.

Ctrl-C raises KeyboardInterrupt at the line that runs. What was issued before that line still runs on the
daemon, in order, so that the daemon's tensors and the program's own counters stay together. Where that
takes more than a moment the exception says so. A second Ctrl-C, in a wait for that work, drops it, as
`Session.cancel` does: a thread of its own asks the daemon, so that nothing waits for a reply inside a
signal handler; the session's next command first sees the dropped work gone (`Session::settle` in _core).

What must come to its end runs on other threads (`shielded`), which no signal reaches: grpcio's calls,
because an exception at the wrong place inside grpcio leaves its locks held, and Hello, because a session
that nobody knows of would stay on the daemon. Work that cleans up goes to `later`, one native call.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from . import _core
from ._errors import TeletensorError

if TYPE_CHECKING:
    from ._session import Session

__all__ = ["Calls", "Dropped", "Pending", "cleaner", "drop", "forget", "later", "listen", "request",
           "shielded", "watch"]

T = TypeVar("T")
Work = Callable[[], object]
_TRIES = 3
_WORTH_SAYING = 2.0  # seconds of queued work
_PATIENCE = 2.0  # seconds in which the daemon says what it has dropped
_ANSWER = 0.5  # seconds in which it says how much is queued, before the exception is raised
_MOST_IDLE = 4  # threads
_PYTHONS = signal.default_int_handler  # raises KeyboardInterrupt
_OWN = "teletensor-"  # how the names of this package's threads begin
_watched: dict[int, weakref.ref[Session]] = {}
_lock = threading.RLock()  # a finalizer may come to run under it, and be the first to need the threads

# put() of these queues is one native call: it is made, or not, wherever a signal may come.
_stops: queue.SimpleQueue[Work] = queue.SimpleQueue()
_jobs: queue.SimpleQueue[Work] = queue.SimpleQueue()
_idle: collections.deque[queue.SimpleQueue[Work]] = collections.deque()
_threads: list[int] = []


class Dropped(NamedTuple):
    """What was dropped of a session's queue: how many commands, and the line of the first one."""

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
    """`session` hears of Ctrl-C from now on."""
    _watched[id(session)] = weakref.ref(session)
    listen()


def forget(session: Session) -> None:
    """The session is closed."""
    _watched.pop(id(session), None)


def listen() -> None:
    """Puts our handler where Python's own is; a program's or a notebook's is left as it is.

    asyncio and trio install handlers of their own, which cancel the main task, only where they find
    `signal.default_int_handler`, and put that back afterwards: the name stands for our handler too.
    """
    if (signal.getsignal(signal.SIGINT) is _PYTHONS
            and threading.current_thread() is threading.main_thread()):
        signal.default_int_handler = _on_sigint  # type: ignore[assignment]  # it may return
        signal.signal(signal.SIGINT, _on_sigint)


def request(session: Session) -> int:
    """Nothing of what `session` has issued so far is wanted any more: number of the last command, or 0."""
    upto: int = session._core.mark_interrupted()
    if upto:
        own = weakref.ref(session)
        _start()
        _stops.put(lambda: _tell(own, upto))
    return upto


def drop(session: Session) -> Dropped:
    """Drops what `session` has queued. Waits a moment for the daemon to say what that was."""
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
    """What a KeyboardInterrupt tells of the sessions' queues."""
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
    """In which the daemon will have run what is queued, as it says; 0 where it is too busy to say."""
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
        if session is None:  # a session that is closing still waits for this
            return
        try:
            return session._transport.interrupt(upto)
        except TeletensorError:  # too busy, gone, or closed in the meantime
            continue


# ---------------------------------------------------------------- threads


def _start() -> None:
    """Starts this module's threads, where they do not run yet."""
    if _threads:
        return
    with _lock:
        if not _threads:
            # extend() starts both threads and notes them in one native call.
            _threads.extend(map(_thread.start_new_thread, (_serve, _serve),
                                ((_stops, "interrupts"), (_jobs, "jobs"))))


def _named(name: str) -> None:
    threading.current_thread().name = _OWN + name
    _core.makes_calls()


def _serve(todo: queue.SimpleQueue[Work], name: str) -> None:
    _named(name)
    handle = _quietly if todo is _stops else _hand_out
    while True:
        handle(todo.get())  # no name here keeps what it is about


def _hand_out(work: Work) -> None:
    """To a thread that has nothing to do, or a new one."""
    try:
        _idle.pop().put(work)
    except IndexError:
        own: queue.SimpleQueue[Work] = queue.SimpleQueue()
        own.put(work)
        try:
            _thread.start_new_thread(_work, (own,))
        except RuntimeError:  # the process has no thread left
            _quietly(work)


def _work(own: queue.SimpleQueue[Work]) -> None:
    _named("worker")
    while True:
        _quietly(own.get())
        if len(_idle) >= _MOST_IDLE:
            return
        _idle.append(own)


def _quietly(work: Work) -> None:
    with contextlib.suppress(Exception):  # of a session that is lost there is nothing to clean up
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
    """work(), begun on another thread, whether or not its result is waited for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._ends: queue.SimpleQueue[tuple[list[T], BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                self._ends.put(([work()], None))
            except BaseException as error:
                self._ends.put(([], error))

        later(run)

    def result(self, seconds: float | None = None) -> T:
        """What work() returns, or raises. TimeoutError: it has not come to its end."""
        try:
            found, error = self._ends.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return found[0]


def later(work: Work) -> None:
    """Has `work` done by another thread, soon; its errors are dropped."""
    _jobs.put(work)
    _start()


def cleaner() -> Callable[[Work], None]:
    """`later` as one native call: for a `finally`, where an exception is under way."""
    _start()
    return _jobs.put


class Calls:
    """The calls of one piece of work, to be cancelled together."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self.stopped = False

    def add(self, call: Any) -> None:
        """`call` is under way."""
        self._calls.append(call)
        if self.stopped:
            call.cancel()

    def stop(self) -> None:
        """Cancels those under way and those to come."""
        self.stopped = True
        for call in list(self._calls):
            call.cancel()

    def end(self) -> None:
        """None is under way any more."""
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
        self.calls.end()  # grpcio takes locks where a call's last name goes
        self.done.release()
        self._ended.set()

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self.calls.stop()
        if self._undo is not None:
            _jobs.put(self._take_back)

    def _take_back(self) -> None:
        self._ended.wait()
        assert self._undo is not None
        while self.result:
            self._undo(self.result.pop())


def shielded(work: Callable[[Calls], T], undo: Callable[[T], object] | None = None) -> T:
    """work(), on a thread that no signal reaches; an exception here cancels its calls.

    `undo` gets a result that came all the same, on such a thread too. RuntimeError in a finalizer that the
    collector runs in the middle of another such call.
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
