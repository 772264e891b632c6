"""Python objects sent between ranks: encoded as text and arrays, without pickle, so that no rank can run
code on another one.

Supported are None, bool, numbers, str, bytes, NumPy arrays, tensors, dtypes, devices, sizes, and lists,
tuples, sets and dicts of these. A received tensor is on the CPU of the receiver's session, without history.
PyTorch's argument weights_only has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._core import Tensor, ops
from .._files.objects import from_message, message
from .._sessions.errors import RankLostError
from .._tensors.convert import tensor
from ._checks import listed, member
from ._collectives import gathered, root_of
from ._group import ProcessGroup
from ._point_to_point import recv, send

__all__ = [
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list",
    "scatter_object_list", "send_object_list",
]  # fmt: skip


# ---------------------------------------------------------------- between ranks

_ERRORS = {kind.__name__: kind for kind in (TypeError, ValueError)}


def _packed(make: Callable[[], Any]) -> tuple[Tensor, Exception | None]:
    """The message with the object that make() returns, as a uint8 vector. If that fails, the message tells
    the other ranks about it, and the error is returned with it."""
    failure = None
    try:
        data = message(["object", make()])
    except (TypeError, ValueError) as error:
        failure = error
        kind = next(name for name, each in _ERRORS.items() if isinstance(error, each))
        data = message([kind, str(error)])
    return tensor(np.frombuffer(data, np.uint8)), failure


def _unpacked(data: Tensor, rank: int) -> Any:
    """The object of a message from this rank. Raises the rank's error if it has not sent its object."""
    kind, content = from_message(data.numpy().tobytes())
    if kind != "object":
        raise _ERRORS[kind](f"rank {rank}: {content}")
    return content


def _all_objects(make: Callable[[], Any], group: ProcessGroup) -> list[Any]:
    """The objects that make() returns on all ranks. If it fails on any rank, all ranks raise its error, so
    that they stay in step."""
    data, failure = _packed(make)
    sizes = gathered(tensor(np.array([len(data)])), group).flatten().tolist()
    padded = ops["cat"]([data, data.new_zeros(max(sizes) - len(data))], 0)
    rows = gathered(padded, group)
    if failure is not None:
        raise failure
    # only a lost rank of an elastic group has sent nothing
    return [_unpacked(rows[rank][:size], rank) if size else None for rank, size in enumerate(sizes)]


def all_gather_object(
    object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False
) -> None:
    """Writes a copy of each rank's object into object_list. All ranks raise TypeError if an object of any
    rank cannot be sent."""
    if (own := member(group)) is None:
        return

    def given() -> Any:
        listed(object_list, "object_list", own)
        return obj

    object_list[:] = _all_objects(given, own)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """Writes a copy of each rank's object into object_gather_list on rank dst."""
    if (own := member(group)) is None:
        return
    here = own.rank() == root_of("dst", dst, group_dst, own)

    def given() -> Any:
        if here:
            listed(object_gather_list, "object_gather_list", own)
        return obj

    objects = _all_objects(given, own)
    if here:
        assert object_gather_list is not None
        object_gather_list[:] = objects


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Writes copies of the objects of rank src into the lists of all ranks, which must have the same
    length."""
    if (own := member(group)) is None:
        return
    root = root_of("src", src, group_src, own)
    sent = _all_objects(lambda: list(object_list) if own.rank() == root else len(object_list), own)
    if own.rank() == root:
        return
    if sent[root] is None:
        raise RankLostError(f"broadcast_object_list: rank {root} is lost")
    if len(sent[root]) != len(object_list):
        raise ValueError(
            f"object_list has {len(object_list)} objects, that of rank {root} has {len(sent[root])}"
        )
    object_list[:] = sent[root]


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Writes the object of rank src's input list for this rank into the first element of the output
    list."""
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    if (own := member(group)) is None:
        return
    root = root_of("src", src, group_src, own)
    here = own.rank() == root

    def given() -> Any:
        return listed(scatter_object_input_list, "scatter_object_input_list", own) if here else None

    scatter_object_output_list[0] = _all_objects(given, own)[root][own.rank()]


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """Sends the objects to rank dst, which calls recv_object_list with a list of the same length."""
    if member(group) is None:
        return
    data, failure = _packed(lambda: list(object_list))
    send(tensor(np.array([len(data), len(object_list)])), dst, group, group_dst=group_dst)
    send(data, dst, group, group_dst=group_dst)
    if failure is not None:
        raise failure


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """Receives the objects that rank src (or any rank, if it is not given) sends, and writes them into
    object_list. Returns the rank in the world that sent them. ValueError if the lists have different
    lengths."""
    if member(group) is None:
        return -1
    sizes = tensor(np.zeros(2, np.int64))
    source = recv(sizes, src, group, group_src=group_src)
    size, count = sizes.tolist()
    data = tensor(np.zeros(size, np.uint8))
    recv(data, source, group)
    sent = _unpacked(data, source)
    if count != len(object_list):
        raise ValueError(f"object_list has {len(object_list)} objects, that of rank {source} has {count}")
    object_list[:] = sent
    return source
