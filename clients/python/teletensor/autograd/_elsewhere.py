"""Backward passes that continue in another session.

A tensor that was moved between two sessions (`x.to(mesh[1])`) is a *passage*: the backward of the second
session ends there with a gradient, and the backward of the first session begins with it. Each session's
part runs as one backward, after all parts that contribute gradients to it, and nothing waits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from .._core import Tensor

__all__ = ["Passage", "may_return", "run_all"]

# The passages that a later backward may still reach. Each backward asks whether there are any, and the
# truth of a WeakSet is a call of Python code.
_open: set[weakref.ref[Passage]] = set()
_lock = threading.Lock()  # protects _open


class _Running(threading.local):
    def __init__(self) -> None:
        # The passages and gradients of each backward that this thread runs, the innermost one last.
        self.backwards: list[list[tuple[Passage, Tensor]]] = []


_running = _Running()


class Passage:
    """A passage from `origin` into the session `into`."""

    def __init__(self, origin: Tensor, into: Any) -> None:
        self.origin, self.into = origin, into
        self.own = weakref.ref(self, _open.discard)
        with _lock:
            _open.add(self.own)

    def reached(self, gradient: Tensor) -> None:
        """Called when a backward has reached the passage, with its gradient of `origin`. RuntimeError
        outside of `backward`."""
        if not _running.backwards:
            raise RuntimeError("only backward() continues in another session")
        _running.backwards[-1].append((self, gradient))


def run_all(
    roots: list[Tensor],
    seeds: list[Any],
    keep: bool,
    run: Callable[[list[Tensor], list[Any], bool], None],
) -> None:
    """Runs a backward from these roots through all sessions: run(roots, gradients, keep) runs the part in
    one session. With `keep` a later backward may use the same graph."""
    if not _open:
        return run(roots, seeds, keep)
    waiting: list[tuple[Passage, Tensor]] = []
    _running.backwards.append(waiting)
    try:
        while True:
            run(roots, seeds, keep or _revisited(roots[0]._session, waiting))
            if not waiting:
                return
            roots, seeds = _next_session_part(waiting, keep)
    finally:
        _running.backwards.pop()


def may_return(session: Any) -> bool:
    """Returns whether a backward that begins in this session may lead to another session and back."""
    return bool(_open) and _leads(session, session)


def _next_session_part(
    waiting: list[tuple[Passage, Tensor]], keep: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Removes and returns the roots of the session that is next, and their gradients."""
    sessions = list(dict.fromkeys(passage.origin._session for passage, _ in waiting))
    chosen = next(
        (s for s in sessions if not any(_leads(other, s) for other in sessions if other is not s)),
        sessions[0],
    )
    mine = [each for each in waiting if each[0].origin._session is chosen]
    waiting[:] = [each for each in waiting if each[0].origin._session is not chosen]
    if not keep:
        with _lock:
            for passage, _ in mine:
                _open.discard(passage.own)
    return [passage.origin for passage, _ in mine], [gradient for _, gradient in mine]


def _revisited(session: Any, waiting: list[tuple[Passage, Tensor]]) -> bool:
    """Returns whether this session may have another part after the one that begins now."""
    others = {passage.origin._session for passage, _ in waiting}
    return any(_leads(other, session) for other in {*others, session})


def _leads(first: Any, last: Any) -> bool:
    """Returns whether a chain of one or more passages leads a backward from the first session to the last
    one."""
    with _lock:
        passages = [each() for each in list(_open)]
    steps: dict[Any, set[Any]] = {}
    for passage in passages:
        if passage is not None:
            steps.setdefault(passage.into, set()).add(passage.origin._session)
    seen, todo = set(), list(steps.get(first, ()))
    while todo:
        session = todo.pop()
        if session is last:
            return True
        if session not in seen:
            seen.add(session)
            todo += steps.get(session, ())
    return False
