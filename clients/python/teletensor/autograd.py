"""Gradients: backward, grad, and the modes that decide whether anything is recorded."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

from . import _core
from ._core import Tensor

__all__ = ["backward", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad",
           "set_grad_enabled"]


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


class inference_mode(_Mode):
    """As no_grad: results of its body never require grad."""


def is_grad_enabled() -> bool:
    """Is recording on in this thread?"""
    return _core.grad_mode()


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None,
             create_graph: bool = False, inputs: Any = None) -> None:
    """Adds the gradients of `tensors` to .grad of the leaves (or of `inputs` only).

    RuntimeError where nothing requires grad, the graph was used up, or a gradient's shape differs.
    """
    roots = _list(tensors)
    if not roots:
        raise RuntimeError("backward: no tensors were given")
    seeds = _list(grad_tensors) if grad_tensors is not None else [None] * len(roots)
    if len(seeds) != len(roots):
        raise RuntimeError(f"got {len(roots)} tensors and {len(seeds)} gradients")
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        _core.backward(roots, seeds, None, keep, create_graph, True)
        return
    leaves = _list(inputs)
    if not leaves:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for leaf, g in zip(leaves, _core.backward(roots, seeds, leaves, keep, create_graph, True),
                       strict=True):
        if g is None:
            continue
        if leaf.grad is None:
            leaf.grad = g
        elif create_graph:
            leaf.grad = leaf.grad + g
        else:
            with no_grad():
                leaf.grad.add_(g)


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None,
         create_graph: bool = False, allow_unused: bool | None = None,
         materialize_grads: bool = False) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs, as new tensors; .grad stays alone.

    One per input, in its shape; None for an input that was not used, where allow_unused says so.
    """
    roots, wanted = _list(outputs), _list(inputs)
    seeds = _list(grad_outputs) if grad_outputs is not None else [None] * len(roots)
    if len(seeds) != len(roots):
        raise RuntimeError(f"got {len(roots)} outputs and {len(seeds)} gradients")
    keep = create_graph if retain_graph is None else retain_graph
    unused = materialize_grads if allow_unused is None else allow_unused
    found: Sequence[Any] = _core.backward(roots, seeds, wanted, keep, create_graph, unused)
    if materialize_grads:
        from ._functions import zeros_like

        found = [zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
    return tuple(found)
