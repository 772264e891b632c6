"""The modes that decide whether operations are recorded."""

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


# The scopes of _core set and reset the modes in native code, which a signal handler cannot interrupt
# halfway.


class set_grad_enabled(_core.GradSwitch):
    """Enables or disables recording: at once if called as a function, and for the block if used in a `with`
    statement."""

    def __call__(self, function: F) -> F:
        mode = self._mode
        self._take_back()
        return _within(lambda: _core.GradScope(mode), function)


class no_grad(_core.GradScope):
    """Disables recording in its block, for this thread."""

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):  # used as @no_grad without parentheses
            return cls()(function)
        return super().__new__(cls)

    def __init__(self, function: Any = None) -> None:
        super().__init__(False)

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


class enable_grad(_core.GradScope):
    """Enables recording in its block, for this thread."""

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):
            return cls()(function)
        return super().__new__(cls)

    def __init__(self, function: Any = None) -> None:
        super().__init__(True)

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


class inference_mode(_core.InferenceScope):
    """As no_grad; in addition, tensors that are created in its block can never be saved for a backward."""

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):  # used as @inference_mode without parentheses
            return cls()(mode)
        return super().__new__(cls)

    def __init__(self, mode: Any = True) -> None:
        super().__init__(bool(mode))

    def __call__(self, function: F) -> F:
        return _within(lambda: self, function)


def is_inference_mode_enabled() -> bool:
    """Returns whether this thread is in inference mode."""
    return _core.inference_mode()


def is_grad_enabled() -> bool:
    """Returns whether recording is enabled in this thread."""
    return _core.grad_mode()
