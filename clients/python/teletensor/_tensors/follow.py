"""Arrays and tensors that share memory: shared_empty, from_numpy, hand_over, take_back."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .._sessions.session import Session, current_session, owner_of
from .._sessions.shared import memory_of
from .convert import _TO_NUMPY, _send, tensor, to_numpy

__all__ = ["from_numpy", "hand_over", "shared_empty", "take_back"]


def shared_empty(*size: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Returns a NumPy array of zeros in memory that the daemon can read: `from_numpy` makes tensors that
    follow it, and `tensor` copies it without sending it through a stream.

    The memory is charged to the current session until the array and its views are deleted. If the daemon
    does not share memory (over TCP, for instance), the memory is this process's own; everything stated here
    holds as well, but the data are sent through streams.
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
    """Copies the contents of an array into the tensor that follows it. The session owns this object, so it
    must not refer to the session."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __call__(self, alias: Tensor) -> None:
        session = owner_of(alias._session)
        with _core.GradScope(False):
            ops["copy_"](alias, _send(session, self.array, alias.device))


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """Returns a tensor of the array's dtype with its values.

    If the array is in memory from `shared_empty`, the tensor *follows* the array: everything that uses the
    tensor later sees what was written to the array in place, while earlier results keep the values that
    they were computed from. Each use waits until the daemon has copied the array (`hand_over` avoids this).
    The tensor cannot be written to. For any other array the tensor is a copy.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected np.ndarray, got {type(array).__name__}")
    made = tensor(array, device="cpu")
    if array.size and memory_of(array) is not None:
        session = owner_of(made._session)
        session._core.follow(ops["detach"](made), _Follower(array))
    return made


def _follower(t: Tensor, what: str) -> tuple[Session, _Follower]:
    session = owner_of(t._session)
    follower: _Follower | None = session._core.follower_of(t)
    if follower is None or t.numel() != follower.array.size or not t.is_contiguous():
        raise RuntimeError(f"{what}: the tensor does not follow an array, as a whole "
                           "(tt.from_numpy of a tt.shared_empty)")
    return session, follower


def hand_over(self: Tensor) -> Tensor:
    """Gives the memory of the array that this tensor follows to the daemon, until `take_back` is called.

    Until then the array is read-only, and the tensor behaves like any other: using it does not wait, and it
    can be written to. Returns the tensor.
    """
    session, follower = _follower(self, "hand_over")
    self.detach()  # this counts as a use: the daemon now has the array's values
    session._core.set_handed_over(self, True)
    follower.array.flags.writeable = False
    return self


def take_back(self: Tensor) -> Tensor:
    """Waits for the operations that use the tensor, writes its values into the array, and makes the tensor
    follow the array again.

    Returns the tensor.
    """
    session, follower = _follower(self, "take_back")
    values = to_numpy(self.detach())
    follower.array.flags.writeable = True
    follower.array[...] = values.reshape(follower.array.shape)
    session._core.set_handed_over(self, False)
    return self
