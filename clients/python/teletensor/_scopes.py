"""Context managers whose end a signal cannot leave out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from . import _core

__all__ = ["Restoring"]

F = TypeVar("F", bound=Callable[..., Any])


class Restoring(_core.Scope):
    """A context manager and decorator: within it, what apply() has set; afterwards, what save() found.

    `restore(state)` puts the state that save() gave back, however often it is called: where a signal's
    handler raises in it, it is called again before that exception goes on. save() changes nothing.
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
