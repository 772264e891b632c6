"""Ends sessions that the program can no longer reach: on the daemon, and their descriptors and threads in
this process.

A session can be reached through its Session object and through its tensors, each of which refers to the
native half of the session. If the Session object is deleted first, its state is kept in the native half
(`rest`), and `owner_of` makes a new Session from it when a tensor needs one. When the native half is
deleted too, a thread ends the session.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Any

from .. import _core

__all__ = ["NativeSession", "join", "serve"]

_Item = tuple["NativeSession", dict[str, Any]]
# It is safe to append to this type of queue in a finalizer, wherever the finalizer runs.
_dropped: queue.SimpleQueue[_Item] = queue.SimpleQueue()
_at_work: set[threading.Thread] = set()
_pid = 0


class NativeSession(_core.Session):
    """The native half of a Session."""

    rest: dict[str, Any] | None = None  # the state of a Session object that has been deleted

    def __del__(self) -> None:
        rest, self.rest = self.rest, None
        if rest is not None:
            _dropped.put((self, rest))


def serve() -> None:
    """Starts the service that ends this process's sessions when they become unreachable."""
    global _dropped, _pid
    if _pid != os.getpid():
        _pid, _dropped = os.getpid(), queue.SimpleQueue()
        _at_work.clear()
        threading.Thread(target=_take, name="teletensor-dropped", daemon=True).start()


def join(seconds: float) -> None:
    """Waits for the sessions that are being ended, at most `seconds` each."""
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
    except RuntimeError:  # no more threads can be started, or the interpreter is shutting down
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
