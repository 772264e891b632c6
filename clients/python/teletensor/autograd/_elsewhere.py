"""Backwards that continue in another session.

A tensor that was moved between two sessions (`x.to(mesh[1])`) is a *passage*: the backward of the second
session ends there with a gradient, and the backward of the first session begins with it. Each session's
part runs as one backward, after all parts that give it gradients, and nothing waits. """

from __future__ import annotations

import threading
import weakref
from typing import Any

from .._core import Tensor

__all__ = ["Passage", "forget", "next_part", "revisited"]


class _Reached(threading.local):
    def __init__(self) -> None:
        self.gradients: list[tuple[Passage, Tensor]] = []  # of the backward that this thread runs


_reached = _Reached()
_open: weakref.WeakSet[Passage] = weakref.WeakSet()  # whose backward may still come


class Passage:
    """From `origin` into the session `into`."""

    def __init__(self, origin: Tensor, into: Any) -> None:
        self.origin, self.into = origin, into
        _open.add(self)

    def reached(self, gradient: Tensor) -> None:
        """A backward has come here, with this gradient of `origin`."""
        _reached.gradients.append((self, gradient))


def forget() -> None:
    """The backward has failed."""
    _reached.gradients.clear()


def next_part(keep: bool) -> tuple[list[Tensor], list[Tensor]] | None:
    """The roots in the session whose turn it is, and their gradients; None at the end. With `keep` another
    backward may come through the same passages."""
    waiting = _reached.gradients
    if not waiting:
        return None
    sessions = list(dict.fromkeys(passage.origin._session for passage, _ in waiting))
    chosen = next(
        (s for s in sessions if not any(_leads(other, s) for other in sessions if other is not s)),
        sessions[0],
    )
    mine = [each for each in waiting if each[0].origin._session is chosen]
    waiting[:] = [each for each in waiting if each[0].origin._session is not chosen]
    if not keep:
        for passage, _ in mine:
            _open.discard(passage)
    return [passage.origin for passage, _ in mine], [gradient for _, gradient in mine]


def revisited(session: Any) -> bool:
    """May a backward that begins in this session, or one that waits, come to it (again)?"""
    waiting = {passage.origin._session for passage, _ in _reached.gradients}
    return any(_leads(other, session) for other in {*waiting, session})


def _leads(first: Any, last: Any) -> bool:
    """Does a passage lead a backward from the first session to the last one, directly or through further sessions?"""
    steps: dict[Any, set[Any]] = {}
    for passage in list(_open):
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
