"""What PyTorch's programs say about functions that are scripted, and ask of what runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .. import _capturing
from .._script import MARK, compiling
from ._compiled import Compiled
from ._files import Loaded
from ._scripted import Scripted, script

__all__ = [
    "Final", "ScriptFunction", "ScriptModule", "annotate", "export", "ignore", "interface",
    "is_scripting", "is_tracing", "script_if_tracing", "unused",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def is_scripting() -> bool:
    """Is this call compiled by `script`?"""
    return compiling()


def is_tracing() -> bool:
    """Is this call captured by `trace`?"""
    capture = _capturing.active()
    return capture is not None and capture.traced


def annotate(the_type: Any, the_value: T) -> T:
    """the_value."""
    return the_value


def export(fn: F) -> F:
    """fn itself: `script` compiles every method that is called."""
    return fn


def interface(obj: T) -> T:
    """obj itself: `script` compiles the module that it gets."""
    return obj


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator of functions that `script` is not to compile: ScriptError where a scripted function
    calls it, since its program cannot go back to Python on its way. Elsewhere it is the function
    itself."""
    if callable(drop):
        return _marked(drop, "ignore")
    return lambda fn: _marked(fn, "ignore")


def unused(fn: F) -> F:
    """As ignore."""
    return _marked(fn, "unused")


def _marked(fn: F, mark: str) -> F:
    setattr(fn, MARK, mark)
    return fn


def script_if_tracing(fn: F) -> F:
    """A function that is scripted where `trace` captures a call of it, and elsewhere runs as ever."""
    scripted: list[Any] = []

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            return fn(*args, **kwargs)
        if not scripted:
            scripted.append(script(fn))
        return scripted[0](*args, **kwargs)

    return wrapper  # type: ignore[return-value]


class _Kind(type):
    """isinstance() tells whether something is captured or scripted, and of a module."""

    of_module: bool

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, (Compiled, Loaded, Scripted)):
            return False
        return hasattr(getattr(x, "_function", None), "named_parameters") == cls.of_module


class ScriptModule(metaclass=_Kind):
    """isinstance(x, ScriptModule): a module that was scripted or traced."""

    of_module = True


class ScriptFunction(metaclass=_Kind):
    """isinstance(x, ScriptFunction): a function that was scripted, traced or loaded."""

    of_module = False
