"""Runs a function in one thread for each rank of a mesh."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._per_rank import of_rank
from ._rank import Rank, named

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["in_threads"]


class _Stopped(BaseException):
    """Raised in the thread of a rank after another rank has failed, or after Ctrl-C."""


class _Stoppable:
    """The threads that may be stopped: each at most once, and only while it runs the code of a rank. No
    lock is used, because a thread that is stopped while it holds a lock would keep it."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self._stopping = False

    def begin(self) -> None:
        """Allows this thread to be stopped from now on."""
        self._running.add(threading.get_ident())

    def end(self) -> None:
        """Forbids this thread to be stopped from now on: a pending exception is raised in this method."""
        thread = threading.get_ident()
        while True:
            try:
                self._ended.add(thread)
                while self._stopping:
                    time.sleep(0.001)
                # the interpreter raises a pending exception at the end of an iteration
                for _ in range(100):
                    pass
                return
            except _Stopped:
                pass

    def stop(self) -> None:
        """Stops the threads."""
        self._stopping = True
        for thread in tuple(self._running):
            if thread not in self._ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(_Stopped)
                )
        self._stopping = False


def in_threads(
    mesh: Mesh,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stop: Callable[[], None],
) -> list[Any]:
    """Calls f on the ranks, each in a thread; returns the results. After the first error of a rank, or
    Ctrl-C, the threads are stopped; stop() ends everything for which they wait. The error is raised when
    all threads have ended."""
    results: list[Any] = [None] * len(mesh)
    ended: queue.SimpleQueue[tuple[Rank, BaseException | None]] = queue.SimpleQueue()

    stoppable = _Stoppable()

    def work(rank: Rank) -> None:
        error: BaseException | None = None
        try:
            try:
                stoppable.begin()
                with rank.session.as_current():
                    results[rank.index] = f(*of_rank(args, rank.index), **of_rank(kwargs, rank.index))
            finally:
                stoppable.end()
        except BaseException as raised:
            error = raised
        ended.put((rank, error))

    threads = [
        threading.Thread(target=work, args=(rank,), name=f"rank {rank.index}", daemon=True)
        for rank in mesh
    ]
    for each in threads:
        each.start()
    try:
        for _ in threads:
            rank, error = ended.get()
            if error is not None:
                named(error, rank)
                raise error
    except BaseException:
        stoppable.stop()
        stop()
        for each in threads:
            each.join()
        raise
    return results
