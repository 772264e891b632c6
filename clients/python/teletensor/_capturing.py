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
    if capture is not None and capture.reads.paused == 0:
        capture.actions.append(action)


def holds(key: object, get: Callable[[], Any]) -> None:
    """What is being captured is for what get() gives now. Each key counts once."""
    capture = active()
    if capture is not None:
        capture.holds(key, get)


def carries(key: object, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
    """As holds(); and each call leaves by put() what get() gives when the capture ends."""
    capture = active()
    if capture is not None and capture.holds(key, get):
        capture.leaves(get, put)


def refuse(what: str) -> None:
    """RuntimeError where a function is being captured: it cannot do `what`."""
    if active() is not None:
        raise RuntimeError(f"a captured function cannot {what}")


class _Repeated:
    """Code whose effects every call repeats or is told of otherwise: what it reads decides nothing."""

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
    """The options of a parameter group; while captured, their numbers stay numbers of the program."""
    capture = active()
    return options if capture is None else capture.group(options)


def advanced(optimizer: Any, options: dict[str, Any], parameters: list[Any], numbers: Any) -> Any:
    """What an optimizer's `_advance` gave for these parameters; calls advance again."""
    capture = active()
    return numbers if capture is None else capture.advanced(optimizer, options, parameters, numbers)
