"""Decorators and queries by which PyTorch's programs mark functions for scripting, and ask how they run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .._script import MARK, capturing as _capturing, compiling
from ._compiled import Compiled
from ._files import Loaded
from ._scripted import Scripted, script

__all__ = [
    "Final", "RecursiveScriptModule", "ScriptFunction", "ScriptModule", "TracerWarning", "annotate",
    "export", "ignore", "interface", "is_scripting", "is_tracing", "script_if_tracing", "script_method",
    "unused",
]  # fmt: skip


class TracerWarning(Warning):
    """The category of PyTorch's warnings about values that a trace makes constants, for programs that
    silence them. Here a capture of such a function raises RuntimeError."""


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def is_scripting() -> bool:
    """Returns whether `script` is compiling this call."""
    return compiling()


def is_tracing() -> bool:
    """Returns whether `trace` is capturing this call."""
    capture = _capturing.active()
    return capture is not None and capture.traced


def annotate(the_type: Any, the_value: T) -> T:
    """Returns the_value."""
    return the_value


def export(fn: F) -> F:
    """Returns fn itself: `script` compiles every method that is called."""
    return fn


def interface(obj: T) -> T:
    """Returns obj itself: `script` compiles the module that it gets."""
    return obj


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator for functions that `script` must not compile: ScriptError if a scripted function calls
    one, because its program cannot return to Python. Otherwise the function is unchanged."""
    if callable(drop):
        return _marked(drop, "ignore")
    return lambda fn: _marked(fn, "ignore")


def unused(fn: F) -> F:
    """As ignore."""
    return _marked(fn, "unused")


def script_method(fn: F) -> F:
    """Returns fn itself: `script` compiles every method that is called."""
    return fn


def _marked(fn: F, mark: str) -> F:
    setattr(fn, MARK, mark)
    return fn


def script_if_tracing(fn: F) -> F:
    """Returns a function that is scripted if `trace` captures a call of it, and that runs normally
    otherwise."""
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
    """Makes isinstance() say whether something is captured or scripted, and whether from a module."""

    of_module: bool

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, (Compiled, Loaded, Scripted)):
            return False
        return hasattr(getattr(x, "_function", None), "named_parameters") == cls.of_module


class ScriptModule(metaclass=_Kind):
    """For isinstance(x, ScriptModule): x is a module that was scripted or traced."""

    of_module = True


RecursiveScriptModule = ScriptModule


class ScriptFunction(metaclass=_Kind):
    """For isinstance(x, ScriptFunction): x is a function that was scripted, traced or loaded."""

    of_module = False
