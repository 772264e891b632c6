"""fork() and wait() of PyTorch's scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..futures import Future

__all__ = ["fork", "wait"]


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Calls the function and returns a Future with its result. The call only issues work, which the daemon
    computes while the program continues. Errors of func are raised by this call, as in PyTorch outside of
    scripted functions."""
    from ..futures import Future

    future: Future[Any] = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Future[Any]) -> Any:
    """Returns the value of a Future, or raises its error."""
    return future.wait()
