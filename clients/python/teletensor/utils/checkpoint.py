"""Gradient checkpointing: saves memory by a second forward during backward."""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .. import _core
from .._calls.tree import flatten
from .._core import Tensor
from .._sessions.scopes import Restoring
from .._sessions.session import current_session, owner_of
from ..autograd._modes import enable_grad

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential", "set_checkpoint_debug_enabled",
           "set_checkpoint_early_stop"]

CheckpointError = RuntimeError

# Functions that create the context managers for second calls, the outermost first.
_around: contextvars.ContextVar[tuple[Callable[[], Any], ...]] = contextvars.ContextVar(
    "around", default=())


def _surrounded(manager: Callable[[], Any]) -> Restoring:
    """Within it, the second call of a checkpointed function runs in a context `manager()`."""
    return _within((*_around.get(), manager))


def _within(managers: tuple[Callable[[], Any], ...]) -> Restoring:
    return Restoring(_around.get, lambda: _around.set(managers), _around.set)


def _numbers_from(state: Any) -> Restoring:
    return Restoring(_core.rng_state, lambda: _core.set_rng_state(*state),
                     lambda before: _core.set_rng_state(*before))


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
               context_fn: Callable[[], tuple[Any, Any]] | None = None,
               determinism_check: str = "default", debug: bool = False,
               preserve_rng_state: bool = True, early_stop: bool = True, **kwargs: Any) -> Any:
    """Returns function(*args, **kwargs), and keeps only the arguments of what its backward needs: the
    backward calls the function a second time when it reaches it.

    Random numbers are the same in both calls, unless preserve_rng_state is False. Both values of
    use_reentrant have the same effect: gradients reach arguments and captured parameters, and autograd.grad
    works. context_fn returns two context managers, for the first and the second call.
    """
    if use_reentrant and kwargs:
        raise ValueError(f"Unexpected keyword arguments: {','.join(kwargs)}")
    if use_reentrant and context_fn is not None:
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    first: Any = contextlib.nullcontext()
    second: Any = contextlib.nullcontext()
    if context_fn is not None:
        first, second = context_fn()
    if not _core.grad_mode():
        with first:
            return function(*args, **kwargs)
    if _core.depth():
        raise RuntimeError("checkpoint: not inside vmap or forward-mode differentiation")
    tensors = [t for t in flatten([args, kwargs])[0] if isinstance(t, Tensor)]
    core = (owner_of(tensors[0]._session) if tensors else current_session())._core
    if use_reentrant and not any(t.requires_grad for t in tensors):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None",
                      stacklevel=2)
    state = _core.rng_state()
    around = _around.get()

    def again() -> Any:
        numbers = _numbers_from(state) if preserve_rng_state else contextlib.nullcontext()
        with contextlib.ExitStack() as stack, numbers, enable_grad(), second:
            for manager in around:
                stack.enter_context(manager())
            stack.enter_context(_within(around))
            return function(*args, **kwargs)

    with _core.frame(core, again), first:
        return function(*args, **kwargs)


def checkpoint_sequential(functions: Any, segments: int, input: Any,
                          use_reentrant: bool | None = None, **kwargs: Any) -> Any:
    """Calls a sequence of modules or functions, each on the result of the previous one, in `segments`
    parts, which are checkpointed except for the last one."""
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps: Sequence[Any] = list(functions.children()) if hasattr(functions, "children") \
        else list(functions)

    def run(part: Iterable[Any]) -> Callable[[Any], Any]:
        def forward(value: Any) -> Any:
            for step in part:
                value = step(value)
            return value

        return forward

    size = len(steps) // segments
    end = -1
    for start in range(0, size * (segments - 1), size):
        end = start + size - 1
        input = checkpoint(run(steps[start:end + 1]), input, use_reentrant=use_reentrant,
                           preserve_rng_state=preserve)
    return run(steps[end + 1:])(input)


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Accepted without effect: the second call of a function always runs to its end."""
    yield


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Accepted without effect: the backward always reports where the two calls differ."""
    yield
