"""The modes that decide whether anything is recorded."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from .. import _core

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled",
           "no_grad", "set_grad_enabled"]


class set_grad_enabled(contextlib.ContextDecorator):
    """Switches recording on or off: as a function at once, as a `with` for its body."""

    def __init__(self, mode: bool) -> None:
        self._before = _core.grad_mode()
        self._mode = mode
        _core.set_grad_mode(mode)

    def __enter__(self) -> None:
        _core.set_grad_mode(self._mode)

    def __exit__(self, *_: Any) -> None:
        _core.set_grad_mode(self._before)

    def __call__(self, function: Any) -> Any:
        mode = self._mode
        _core.set_grad_mode(self._before)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(mode):
                return function(*args, **kwargs)

        return wrapped


class _Mode(contextlib.ContextDecorator):
    _on = False

    def __init__(self, function: Any = None) -> None:
        self._stack: list[bool] = []

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):  # @no_grad without parentheses
            return cls()(function)
        return super().__new__(cls)

    def __enter__(self) -> None:
        self._stack.append(_core.grad_mode())
        _core.set_grad_mode(self._on)

    def __exit__(self, *_: Any) -> None:
        _core.set_grad_mode(self._stack.pop())


class no_grad(_Mode):
    """Nothing is recorded in its body (this thread)."""


class enable_grad(_Mode):
    """Recording is on in its body (this thread)."""

    _on = True


class inference_mode(contextlib.ContextDecorator):
    """As no_grad, and what its body makes can never be saved for a backward."""

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):  # @inference_mode without parentheses
            return cls()(mode)
        return super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode
        self._stack: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._stack.append((_core.grad_mode(), _core.inference_mode()))
        _core.set_inference_mode(self._mode)
        _core.set_grad_mode(not self._mode)

    def __exit__(self, *_: Any) -> None:
        grad, inference = self._stack.pop()
        _core.set_grad_mode(grad)
        _core.set_inference_mode(inference)


def is_inference_mode_enabled() -> bool:
    """Is this thread in inference mode?"""
    return _core.inference_mode()


def is_grad_enabled() -> bool:
    """Is recording on in this thread?"""
    return _core.grad_mode()
