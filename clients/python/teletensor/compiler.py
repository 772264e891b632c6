"""What PyTorch's programs ask of compilation, beside `teletensor.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from . import _absent, _capturing
from .jit import _compiled, compile

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable",
    "is_compiling", "is_dynamo_compiling", "is_exporting", "reset",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def is_compiling() -> bool:
    """Is this call captured by `compile`?"""
    capture = _capturing.active()
    return capture is not None and not capture.traced


def is_dynamo_compiling() -> bool:
    """is_compiling()."""
    return is_compiling()


def is_exporting() -> bool:
    """False: there is no `export`."""
    return False


def allow_in_graph(fn: F) -> F:
    """fn itself: every function is captured whole."""
    return fn


def assume_constant_result(fn: F) -> F:
    """fn itself: what a captured function computes without tensors is a constant of the program."""
    return fn


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A function that is never captured. Also a decorator.

    Called in a captured function it raises RuntimeError: a captured function is one program, and cannot
    stop for code that each call runs by itself, as PyTorch's graph breaks do."""
    if fn is None:
        return lambda function: disable(function, recursive, reason=reason)
    return _compiled.Uncaptured(fn, reason)


def reset() -> None:
    """Forgets what `compile` and `jit.trace` have captured: the next calls capture anew."""
    for each in list(_compiled.Compiled.alive):
        each.reset()


def cudagraph_mark_step_begin() -> None:
    """Does nothing: results of captured functions are never written over by later calls."""


_absent.attach(globals())
