"""The functions of torch.compiler, in addition to `teletensor.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ._names import absent as _absent
from ._script import capturing as _capturing
from .jit import _compiled, compile

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable",
    "is_compiling", "is_dynamo_compiling", "is_exporting", "reset",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def is_compiling() -> bool:
    """Returns whether `compile` is capturing this call."""
    capture = _capturing.active()
    return capture is not None and not capture.traced


def is_dynamo_compiling() -> bool:
    """As is_compiling()."""
    return is_compiling()


def is_exporting() -> bool:
    """Returns False: there is no `export`."""
    return False


def allow_in_graph(fn: F) -> F:
    """Returns fn itself: every function is captured completely."""
    return fn


def assume_constant_result(fn: F) -> F:
    """Returns fn itself: results that a captured function computes without tensors are constants of the
    program."""
    return fn


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Marks a function that is never captured. Also a decorator.

    If it is called in a captured function it raises RuntimeError: a captured function is one program, and
    cannot be interrupted by code that runs at each call, as with PyTorch's graph breaks."""
    if fn is None:
        return lambda function: disable(function, recursive, reason=reason)
    return _compiled.Uncaptured(fn, reason)


def reset() -> None:
    """Discards everything that `compile` and `jit.trace` have captured: the next calls capture again."""
    for each in list(_compiled.Compiled.alive):
        each.reset()


def cudagraph_mark_step_begin() -> None:
    """Does nothing: later calls never overwrite the results of captured functions."""


_absent.attach(globals())
