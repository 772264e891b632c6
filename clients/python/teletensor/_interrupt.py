"""Ctrl-C: KeyboardInterrupt at once, and the daemon drops what the sessions have issued.

The interrupted thread only notes how far each session had come (`request`); a thread of its own tells
the daemons, so that nothing waits inside a signal handler. The session's next command first sees the
dropped work gone (`Session::settle` in _core). Bulk calls run on another thread (`shielded`): an
exception at the wrong place inside grpcio leaves its locks held.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._errors import TeletensorError

if TYPE_CHECKING:
    from ._session import Session

__all__ = ["Calls", "forget", "listen", "request", "shielded", "watch"]

T = TypeVar("T")
_TRIES = 3
_watched: dict[int, weakref.ref[Session]] = {}
_pid = 0
# Appending to such a queue is safe wherever a signal may come.
_stops: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()


def watch(session: Session) -> None:
    """`session` hears of Ctrl-C from now on."""
    global _stops, _jobs, _pid
    if _pid != os.getpid():  # the first session of this process
        _pid = os.getpid()
        _watched.clear()
        _stops, _jobs = queue.SimpleQueue(), queue.SimpleQueue()
        for name, todo in (("interrupts", _stops), ("bulk", _jobs)):
            threading.Thread(target=_serve, args=(todo,), name="teletensor-" + name,
                             daemon=True).start()
    _watched[id(session)] = weakref.ref(session)
    listen()


def forget(session: Session) -> None:
    """The session is closed."""
    _watched.pop(id(session), None)


def listen() -> None:
    """Puts our handler where Python's own is; a program's or a notebook's is left as it is."""
    if (signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and threading.current_thread() is threading.main_thread()):
        signal.signal(signal.SIGINT, _on_sigint)


def request(session: Session) -> None:
    """Nothing of what `session` has issued so far is wanted any more."""
    upto = session._core.mark_interrupted()
    if upto:
        own = weakref.ref(session)
        _stops.put(lambda: _tell(own, upto))


def _on_sigint(number: int, frame: FrameType | None) -> None:
    for own in list(_watched.values()):
        session = own()
        if session is not None:
            request(session)
    signal.default_int_handler(number, frame)


def _tell(own: weakref.ref[Session], upto: int) -> None:
    for _ in range(_TRIES):
        session = own()
        if session is None:  # a session that is closing still waits for this
            return
        try:
            return session._transport.interrupt(upto)
        except TeletensorError:  # too busy, gone, or closed in the meantime
            continue


def _serve(todo: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        todo.get()()


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


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Calls], T]) -> None:
        self._work, self.calls = work, Calls()
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self.result: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result.append(self._work(self.calls))
        except BaseException as error:
            self.error = error
        self.done.release()

    def undo_with(self, undo: Callable[[T], object]) -> None:
        """What was made is of no use to anybody any more."""
        for result in self.result:
            with contextlib.suppress(Exception):  # a session that is lost keeps nothing
                undo(result)


def shielded(work: Callable[[Calls], T], undo: Callable[[T], object] | None = None) -> T:
    """work(), on a thread that no signal reaches; Ctrl-C cancels its calls.

    `undo` gets a result that came all the same, on that thread too.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(Calls())
    job = _Job(work)
    try:
        _jobs.put(job.run)
        job.done.acquire()
    except BaseException:
        _stops.put(job.calls.stop)
        if undo is not None:
            _jobs.put(functools.partial(job.undo_with, undo))  # its turn comes when the job has ended
        raise
    if job.error is not None:
        error, job.error = job.error, None
        raise error
    return job.result[0]
