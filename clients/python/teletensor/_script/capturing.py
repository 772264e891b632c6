"""The interface of the rest of the package to a running capture of a function: numbers that may change from
call to call, Python code that must run at every call, and facts on which the captured program depends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..jit._capture import Capture

__all__ = ["active"]

current: Capture | None = None
thread = 0


def active() -> Capture | None:
    """Returns the capture that runs in this thread, or None."""
    return current if current is not None and thread == threading.get_ident() else None


def on_call(action: Callable[[], Any]) -> None:
    """Runs `action` again at every later call of the function that is being captured. The caller runs it
    for the current call itself."""
    capture = active()
    if capture is not None and capture.reads.paused == 0:
        capture.actions.append(action)


def holds(key: object, get: Callable[[], Any]) -> None:
    """Records that the captured program is valid only while get() returns what it returns now. Each key is
    recorded once."""
    capture = active()
    if capture is not None:
        capture.holds(key, get)


def carries(key: object, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
    """Does what holds() does, and also makes every later call pass to put() the value that get() has when
    the capture ends."""
    capture = active()
    if capture is not None and capture.holds(key, get):
        capture.leaves(get, put)


def refuse(what: str) -> None:
    """Raises RuntimeError if a function is being captured: a captured function cannot do `what`."""
    if active() is not None:
        raise RuntimeError(f"a captured function cannot {what}")


class _Repeated:
    """Context of code whose effects happen at every call by other means, so that the values that it reads
    do not become conditions of the captured program."""

    def __enter__(self) -> None:
        capture = active()
        if capture is not None:
            capture.reads.paused += 1

    def __exit__(self, *error: object) -> None:
        capture = active()
        if capture is not None:
            capture.reads.paused -= 1


repeated = _Repeated()


def group(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a parameter group; within a capture, their numbers become variables of the
    captured program."""
    capture = active()
    return options if capture is None else capture.group(options)


def advanced(optimizer: Any, options: dict[str, Any], parameters: list[Any], numbers: Any) -> Any:
    """Returns `numbers`, the result of an optimizer's `_advance` for these parameters; calls of a captured
    program advance the optimizer again."""
    capture = active()
    return numbers if capture is None else capture.advanced(optimizer, options, parameters, numbers)
