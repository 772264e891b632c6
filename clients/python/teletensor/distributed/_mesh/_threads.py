"""A thread for each rank of a mesh."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._per_rank import of_rank
from ._rank import Rank, named

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["in_threads"]


class _Stopped(SystemExit):
    """Raised in the thread of a rank, after another rank has failed or Ctrl-C. A thread that ends by a
    SystemExit prints nothing."""


def in_threads(
    mesh: Mesh,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stop: Callable[[], None],
) -> list[Any]:
    """The results of f on the ranks, each called in a thread. After the first error of a rank, or Ctrl-C,
    the threads are stopped; stop() ends what they wait for. That error is raised when all have ended."""
    results: list[Any] = [None] * len(mesh)
    ended: queue.SimpleQueue[tuple[Rank, BaseException | None]] = queue.SimpleQueue()

    def work(rank: Rank) -> None:
        error: BaseException | None = None
        try:
            with rank.session.as_current():
                results[rank.index] = f(*of_rank(args, rank.index), **of_rank(kwargs, rank.index))
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
        for each in threads:
            if each.ident is not None and each.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(each.ident), ctypes.py_object(_Stopped)
                )
        stop()
        for each in threads:
            each.join()
        raise
    return results
