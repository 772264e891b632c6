"""Context managers whose exit is executed even if a signal handler raises an exception."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core

__all__ = ["Restoring"]

F = TypeVar("F", bound=Callable[..., Any])


class Restoring(_core.Scope):
    """A context manager and decorator: on entry it calls save() and apply(), and on exit it restores the
    state that save() returned.

    `restore(state)` restores the state that save() returned. It must be repeatable: if a signal handler
    raises an exception in it, it is called again before that exception is propagated. save() must not
    change anything.
    """

    def __init__(self, save: Callable[[], Any], apply: Callable[[], Any],
                 restore: Callable[[Any], Any]) -> None:
        super().__init__()
        self._save, self._apply, self._put = save, apply, restore

    def _restore(self, state: Any, kind: Any) -> None:
        self._put(state)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return within  # type: ignore[return-value]
