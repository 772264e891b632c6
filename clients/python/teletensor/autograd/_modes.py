"""The modes that decide whether anything is recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled",
           "no_grad", "set_grad_enabled"]


F = TypeVar("F", bound=Callable[..., Any])


def _within(scope: Callable[[], Any], function: F) -> F:
    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with scope():
            return function(*args, **kwargs)

    return within  # type: ignore[return-value]


# The scopes of _core set and reset in native code, which no signal's handler leaves halfway.


class set_grad_enabled(_core.GradSwitch):
    """Switches recording on or off: as a function at once, as a `with` for its body."""

    def __call__(self, function: F) -> F:
        mode = self._mode
        self._take_back()
        return _within(lambda: _core.GradScope(mode), function)


class no_grad(_core.GradScope):
    """Nothing is recorded in its body (this thread)."""

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):  # @no_grad without parentheses
            return cls()(function)
        return super().__new__(cls)

    def __init__(self, function: Any = None) -> None:
        super().__init__(False)

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


class enable_grad(_core.GradScope):
    """Recording is on in its body (this thread)."""

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):
            return cls()(function)
        return super().__new__(cls)

    def __init__(self, function: Any = None) -> None:
        super().__init__(True)

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


class inference_mode(_core.InferenceScope):
    """As no_grad, and what its body makes can never be saved for a backward."""

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):  # @inference_mode without parentheses
            return cls()(mode)
        return super().__new__(cls)

    def __init__(self, mode: Any = True) -> None:
        super().__init__(bool(mode))

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


def is_inference_mode_enabled() -> bool:
    """Is this thread in inference mode?"""
    return _core.inference_mode()


def is_grad_enabled() -> bool:
    """Is recording on in this thread?"""
    return _core.grad_mode()
