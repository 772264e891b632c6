"""Collectives of one rank: what the only process gives is what each gets."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from .._core import Tensor
from ..autograd import no_grad
from ._group import ReduceOp, Work, found, is_member, only_rank

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "irecv", "isend", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list", "send",
]  # fmt: skip


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
) -> Work | None:
    """Waits for the other processes: there are none."""
    return _done(group, async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """As barrier()."""
    _done(group, False)


def _done(group: Any, async_op: bool) -> Work | None:
    return Work() if is_member(group) and async_op else None


def _check(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a Tensor, not {type(tensor).__name__}")


def _check_reduced(tensor: Any, op: ReduceOp, name: str = "tensor") -> None:
    _check(tensor, name)
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op is a ReduceOp, not {type(op).__name__}")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and (
        tensor.dtype.is_floating_point or tensor.dtype.is_complex
    ):
        raise RuntimeError(f"Cannot use {op} with non-integral dtype {tensor.dtype}")


def _copy(target: Any, source: Any, names: tuple[str, str], same_shape: bool = True) -> None:
    """Writes the source's elements into the target."""
    for tensor, name in zip((target, source), names, strict=True):
        _check(tensor, name)
    if target.dtype != source.dtype:
        raise ValueError(f"{names[0]} is {target.dtype}, {names[1]} {source.dtype}")
    if target.shape != source.shape if same_shape else target.numel() != source.numel():
        raise ValueError(
            f"{names[0]} of {tuple(target.shape)} does not take {names[1]} of {tuple(source.shape)}"
        )
    with no_grad():
        target.copy_(source.reshape(target.shape))


def _one(given: Any, name: str) -> Any:
    if not isinstance(given, (list, tuple)) or len(given) != 1:
        size = len(given) if isinstance(given, (list, tuple)) else type(given).__name__
        raise ValueError(
            f"{name} is a list of one element for each rank of the group, which has one; it is {size}"
        )
    return given[0]


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """The tensors of all ranks as one, in `tensor`: it stays as it is."""
    _check_reduced(tensor, op)
    return _done(group, async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_reduce, on rank dst."""
    _check_reduced(tensor, op)
    only_rank(dst, "dst", group_dst)
    return _done(group, async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """The tensor of rank src on all: it stays as it is."""
    _check(tensor, "tensor")
    only_rank(src, "src", group_src)
    return _done(group, async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes the tensor of each rank into a tensor of tensor_list."""
    if is_member(group):
        _copy(_one(tensor_list, "tensor_list"), tensor, ("tensor_list[0]", "tensor"))
    return _done(group, async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes the tensors of all ranks, one after the other, into output_tensor."""
    if is_member(group):
        _copy(output_tensor, input_tensor, ("output_tensor", "input_tensor"), same_shape=False)
    return _done(group, async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Writes the tensor of each rank into a tensor of gather_list, on rank dst."""
    only_rank(dst, "dst", group_dst)
    if is_member(group):
        _copy(_one(gather_list, "gather_list"), tensor, ("gather_list[0]", "tensor"))
    return _done(group, async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Writes a tensor of rank src's scatter_list into each rank's tensor."""
    only_rank(src, "src", group_src)
    if is_member(group):
        _copy(tensor, _one(scatter_list, "scatter_list"), ("tensor", "scatter_list[0]"))
    return _done(group, async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes into output the ranks' tensors at its place in input_list, as one."""
    if is_member(group):
        _check_reduced(_one(input_list, "input_list"), op, "input_list[0]")
        _copy(output, input_list[0], ("output", "input_list[0]"))
    return _done(group, async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """As reduce_scatter, of the parts of one tensor."""
    _check_reduced(input, op, "input")
    if is_member(group):
        _copy(output, input, ("output", "input"), same_shape=False)
    return _done(group, async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes tensor i of each rank's input list into a tensor of rank i's output list."""
    if is_member(group):
        _copy(
            _one(output_tensor_list, "output_tensor_list"),
            _one(input_tensor_list, "input_tensor_list"),
            ("output_tensor_list[0]", "input_tensor_list[0]"),
        )
    return _done(group, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """As all_to_all, of the parts of one tensor along dimension 0."""
    given = (("output", output_split_sizes, output), ("input", input_split_sizes, input))
    for name, sizes, tensor in given:
        _check(tensor, name)
        if sizes and (len(sizes) != 1 or sizes[0] != len(tensor)):
            raise ValueError(f"{name}_split_sizes {sizes} do not split {len(tensor)} rows for one rank")
    if is_member(group):
        _copy(output, input, ("output", "input"))
    return _done(group, async_op)


# Objects are copied, since in a larger world each rank has its own.
def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Puts a copy of each rank's object into object_list."""
    if is_member(group):
        _one(object_list, "object_list")
        object_list[0] = copy.deepcopy(obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Puts a copy of each rank's object into object_gather_list, on rank dst."""
    only_rank(dst, "dst", group_dst)
    if is_member(group):
        _one(object_gather_list, "object_gather_list")
        assert object_gather_list is not None
        object_gather_list[0] = copy.deepcopy(obj)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """The objects of rank src in the lists of all: they stay as they are."""
    only_rank(src, "src", group_src)
    is_member(group)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Puts an object of rank src's input list into the first place of each output list."""
    only_rank(src, "src", group_src)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    if is_member(group):
        scatter_object_output_list[0] = copy.deepcopy(
            _one(scatter_object_input_list, "scatter_object_input_list")
        )


def _no_partner(what: str, rank: int | None, group_rank: int | None, group: Any) -> Any:
    found(group)
    place = rank if rank is not None else group_rank
    if place == 0:
        raise ValueError(
            f"Invalid {what} rank: {what} rank should not be the same as the rank of the current process."
        )
    raise ValueError(f"Invalid {what} rank {place}: the group has one process, which cannot send to itself")


def send(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Raises ValueError: a process does not send to itself, and there is no other one."""
    _no_partner("destination", dst, group_dst, group)


def recv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Raises ValueError: there is no process to receive from."""
    return int(_no_partner("source", src, group_src, group))


def isend(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """As send()."""
    send(tensor, dst, group, tag, group_dst)
    return None


def irecv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """As recv()."""
    recv(tensor, src, group, tag, group_src)
    return None
