"""What the rest of the package tells a capture under way: numbers that may change from call to call,
Python code that every call repeats, facts that a captured program depends on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jit._capture import Capture

__all__ = ["active"]

current: Capture | None = None
thread = 0


def active() -> Capture | None:
    """The capture that this thread runs under, or None."""
    return current if current is not None and thread == threading.get_ident() else None


def on_call(action: Callable[[], Any]) -> None:
    """Has `action`, which runs now as well, run at every later call of what is being captured."""
    capture = active()
    if capture is not None:
        capture.actions.append(action)


def module(owner: Any) -> None:
    """A module is called: its training flag is one of the facts."""
    capture = active()
    if capture is not None:
        capture.module(owner)


def group(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a parameter group; while captured, their numbers stay numbers of the program."""
    capture = active()
    return options if capture is None else capture.group(options)


def advanced(optimizer: Any, options: dict[str, Any], parameters: list[Any], numbers: Any) -> Any:
    """What an optimizer's `_advance` gave for these parameters; calls advance again."""
    capture = active()
    return numbers if capture is None else capture.advanced(optimizer, options, parameters, numbers)
