"""Arrays and tensors of one memory: shared_empty, from_numpy, hand_over, take_back."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._convert import _TO_NUMPY, _send, tensor, to_numpy
from ._core import Tensor
from ._session import Session, current_session, owner_of
from ._shared import memory_of

__all__ = ["from_numpy", "hand_over", "shared_empty", "take_back"]


def shared_empty(*size: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A NumPy array of zeros in memory that the daemon can read: what `from_numpy` shows and
    `tensor` copies without the way through a stream.

    The memory counts as the current session's until the array and its views are gone. Where the
    daemon shares none (over TCP, for instance) it is this process's own, and all that is said here holds
    just the same, by streams.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    kind: np.dtype[Any] = _TO_NUMPY[dtype or _core.default_dtype()] if dtype is None or isinstance(
        dtype, _core.dtype) else np.dtype(dtype)
    count = 1
    for extent in shape:
        if extent < 0:
            raise ValueError(f"shared_empty: negative size {extent}")
        count *= int(extent)
    if count == 0:
        return np.empty(shape, kind)
    memory = current_session()._shared.memory(count * kind.itemsize)
    return np.frombuffer(memory, kind, count).reshape(shape)


class _Follower:
    """Gives a tensor the contents of its array."""

    def __init__(self, session: Session, array: np.ndarray[Any, Any], alias: Tensor) -> None:
        self.session, self.array, self.alias = session, array, alias

    def __call__(self) -> None:
        recorded = _core.grad_mode()
        _core.set_grad_mode(False)
        try:
            self.alias.copy_(_send(self.session, self.array, self.alias.device))
        finally:
            _core.set_grad_mode(recorded)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the array's dtype with its values.

    Of an array in memory of `shared_empty`, the tensor *follows* the array: what is written to the array
    in place is seen by everything that uses the tensor from then on, while what was computed before
    keeps the values it was computed from. Each use then waits until the daemon has copied the array
    (`hand_over` does without). The tensor cannot be written to. Of other arrays it is a copy.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected np.ndarray, got {type(array).__name__}")
    made = tensor(array)
    if array.size and memory_of(array) is not None:
        session = owner_of(made._session)
        alias = made.detach()
        session._core.follow(alias, _Follower(session, array, alias))
    return made


def _follower(t: Tensor, what: str) -> tuple[Session, _Follower]:
    session = owner_of(t._session)
    follower = session._core.follower_of(t)
    if follower is None:
        raise RuntimeError(
            f"{what}: the tensor does not follow an array (tt.from_numpy of a tt.shared_empty)")
    return session, follower


def hand_over(self: Tensor) -> Tensor:
    """Leaves the memory of the array that this tensor follows to the daemon, until `take_back`.

    The array is read-only meanwhile, and the tensor one like any other: using it does not wait, and it
    may be written to. Returns the tensor.
    """
    session, follower = _follower(self, "hand_over")
    session._core.set_handed_over(self, True)
    try:
        follower()
    except BaseException:
        session._core.set_handed_over(self, False)
        raise
    follower.array.flags.writeable = False
    return self


def take_back(self: Tensor) -> Tensor:
    """Waits for what uses the tensor, writes its values into the array, and lets it follow that again."""
    session, follower = _follower(self, "take_back")
    values = to_numpy(follower.alias)
    follower.array.flags.writeable = True
    follower.array[...] = values
    session._core.set_handed_over(self, False)
    return self
