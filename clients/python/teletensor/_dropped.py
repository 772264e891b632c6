"""Sessions that a program can reach no more: they end on the daemon, and here with their descriptors and
threads.

A session is reached by its Session, and by its tensors, each of which holds the native half. When the
Session goes first, what it knew is left with the native half (`rest`), from which `owner_of` makes
another one when a tensor needs it; when that is dropped as well, a thread ends the session.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Any

from . import _core

__all__ = ["NativeSession", "join", "serve"]

_Item = tuple["NativeSession", dict[str, Any]]
# Appending to such a queue is safe in a finalizer, wherever that may run.
_dropped: queue.SimpleQueue[_Item] = queue.SimpleQueue()
_at_work: set[threading.Thread] = set()
_pid = 0


class NativeSession(_core.Session):
    """The native half of a Session."""

    rest: dict[str, Any] | None = None  # what a Session knew that has been dropped

    def __del__(self) -> None:
        rest, self.rest = self.rest, None
        if rest is not None:
            _dropped.put((self, rest))


def serve() -> None:
    """From now on sessions of this process are ended when they are dropped."""
    global _dropped, _pid
    if _pid != os.getpid():
        _pid, _dropped = os.getpid(), queue.SimpleQueue()
        _at_work.clear()
        threading.Thread(target=_take, name="teletensor-dropped", daemon=True).start()


def join(seconds: float) -> None:
    """Waits for those that are being ended, `seconds` each at most."""
    with contextlib.suppress(queue.Empty):
        while True:
            _start(_dropped.get_nowait())
    for thread in list(_at_work):
        thread.join(seconds)


def _take() -> None:
    while True:
        _start(_dropped.get())


def _start(item: _Item) -> None:
    thread = threading.Thread(target=_end, args=item, name="teletensor-end", daemon=True)
    _at_work.add(thread)
    try:
        thread.start()
    except RuntimeError:  # no room for another thread, or the program is at its end
        _end(*item)


def _end(core: NativeSession, rest: dict[str, Any]) -> None:
    try:
        with contextlib.suppress(Exception):
            if rest["_sites"] is not None:
                rest["_sites"].stop(core)
            core.close()
            core.follow_nothing()
            if rest["_named"]:
                rest["_transport"].leave()
            else:
                rest["_transport"].drop()
    finally:
        _at_work.discard(threading.current_thread())
