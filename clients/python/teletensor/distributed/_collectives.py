"""Collectives: operations that all processes of a group call together. The daemon of their sessions
computes them.

No function here waits for a collective: later lines run at once, and lines that use the result wait on the
daemon. So `async_op` makes no difference except that a `Work` is returned. A tensor on a GPU is copied
through the daemon's host memory.
"""

from __future__ import annotations

from typing import Any

from .._core import Tensor, ops
from ..autograd import no_grad
from ._checks import alike, check, check_reduced, listed, member, write
from ._group import ProcessGroup, ReduceOp, Work, found, meet, rank_of

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter",
]  # fmt: skip

_COMBINATIONS = {
    ReduceOp.PRODUCT: "product", ReduceOp.MIN: "min", ReduceOp.MAX: "max",
    ReduceOp.BAND: "and", ReduceOp.BOR: "or", ReduceOp.BXOR: "xor",
}  # fmt: skip


# ---------------------------------------------------------------- the ops


def _done(async_op: bool, *results: Tensor) -> Work | None:
    return Work(results) if async_op else None


def _run(name: str, x: Tensor, group: ProcessGroup, *attributes: Any) -> Tensor:
    with no_grad():
        result: Tensor = group.issue(name, x.detach().cpu(), *attributes)
        return result


def reduced(x: Tensor, op: ReduceOp, group: ProcessGroup) -> Tensor:
    """The reduction of the tensors of all ranks, without a gradient: on the host, or x itself if the
    group has one rank."""
    if group.size() == 1:
        return x
    if op in _COMBINATIONS:
        return _run("all_combine", x, group, _COMBINATIONS[op])
    return _run("all_reduce", x, group, op is ReduceOp.AVG)


def gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """The tensors of all ranks, as [ranks, *shape]."""
    return x.detach().unsqueeze(0) if group.size() == 1 else _run("all_gather", x, group, group.size())


def _exchanged(parts: Tensor, sends: list[int], receives: list[int], group: ProcessGroup) -> Tensor:
    """Exchanges rows of dimension 0, which are ordered by the rank to which they are sent."""
    return parts.detach() if group.size() == 1 else _run("all_to_all", parts, group, sends, receives)


def summed(x: Tensor, group: Any = None) -> Tensor:
    """The sum of x over the ranks, as a differentiable function: its gradient is the sum of the ranks'
    gradients."""
    own = found(group)
    check(x, "x", own)
    if own.size() == 1:
        return x
    result: Tensor = own.issue("all_reduce", x.cpu(), False)
    return result.to(x.device)


# ---------------------------------------------------------------- barriers


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
) -> Work | None:
    """Waits for all processes of the group."""
    if (own := member(group)) is None:
        return None
    if own._mesh is None:
        meet(own)
    else:  # the ranks of a mesh are issued one after the other by one process
        own._mesh.meet(own)
    return _done(async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """As barrier(), with an error that names all processes that did not arrive. With `timeout` (a timedelta
    or seconds) it waits no longer than that, and an error does not end the group. wait_all_ranks has no
    effect. Either all processes must give a timeout, or none."""
    own = member(group)
    if own is None or timeout is None or own.size() == 1:
        barrier(group)
        return
    made = own._for_barrier(timeout)
    try:
        meet(made)
    finally:
        made._leave()


# ---------------------------------------------------------------- tensors


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduces the tensors of all ranks and writes the result into `tensor` of each. Averages are allowed
    for floating-point and complex numbers only."""
    check_reduced(tensor, op)
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    if own.size() > 1:
        write(tensor, reduced(tensor, op, own).to(tensor.device), ("tensor", "result"))
    return _done(async_op, tensor)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_reduce, with the result on rank dst only; the tensors of all other ranks are not changed."""
    check_reduced(tensor, op)
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    root = rank_of(own, "dst", dst, group_dst)
    if own.size() > 1:
        if op is ReduceOp.SUM:
            result = _run("reduce_to", tensor, own, root)
        else:
            result = reduced(tensor, op, own)
        if own.rank() == root:
            write(tensor, result.to(tensor.device), ("tensor", "result"))
    return _done(async_op, tensor)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copies the tensor of rank src into `tensor` of each rank."""
    check(tensor, "tensor")
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    root = rank_of(own, "src", src, group_src)
    if own.size() > 1:
        result = _run("broadcast_from", tensor, own, root)
        if own.rank() != root:
            write(tensor, result.to(tensor.device), ("tensor", "result"))
    return _done(async_op, tensor)


def broadcast_from_lowest(tensor: Tensor, group: ProcessGroup) -> None:
    """Copies the tensor of the lowest rank of an elastic group that is not lost into `tensor` of each
    rank."""
    if group.size() > 1:
        result = _run("broadcast_from", tensor, group, -1)
        write(tensor, result.to(tensor.device), ("tensor", "result"))


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes the tensor of each rank into the corresponding tensor of tensor_list; zeros for a lost rank of
    an elastic group."""
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    targets = listed(tensor_list, "tensor_list", own)
    for rank, row in enumerate(gathered(tensor, own).unbind(0)):
        write(targets[rank], row.to(targets[rank].device), (f"tensor_list[{rank}]", "tensor"))
    return _done(async_op, *targets)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Writes the concatenated tensors of all ranks into output_tensor."""
    if (own := member(group)) is None:
        return None
    check(input_tensor, "input_tensor", own)
    result = gathered(input_tensor, own).to(output_tensor.device)
    write(output_tensor, result, ("output_tensor", "input_tensor"), same_shape=False)
    return _done(async_op, output_tensor)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Writes the tensor of each rank into the corresponding tensor of gather_list on rank dst (0 by
    default)."""
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    root = root_of("dst", dst, group_dst, own)
    here = own.rank() == root
    targets = listed(gather_list, "gather_list", own) if here else []
    if not here and gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    sends = [int(rank == root) for rank in range(own.size())]
    rows = _exchanged(tensor.unsqueeze(0), sends, [int(here)] * own.size(), own)
    for rank, target in enumerate(targets):
        write(target, rows[rank].to(target.device), (f"gather_list[{rank}]", "tensor"))
    return _done(async_op, *targets)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Writes the tensors of scatter_list on rank src (0 by default) into the tensors of the corresponding
    ranks."""
    if (own := member(group)) is None:
        return None
    check(tensor, "tensor", own)
    root = root_of("src", src, group_src, own)
    if own.rank() == root:
        sources = listed(scatter_list, "scatter_list", own)
        alike(sources, "scatter_list")
        parts, sends = ops["stack"](sources, 0), [1] * own.size()
    else:
        if scatter_list:
            raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
        parts, sends = tensor.detach().new_empty((0, *tensor.shape)), [0] * own.size()
    receives = [int(rank == root) for rank in range(own.size())]
    row = _exchanged(parts, sends, receives, own)[0]
    write(tensor, row.to(tensor.device), ("tensor", f"scatter_list[{own.rank()}]"))
    return _done(async_op, tensor)


def root_of(what: str, rank: int | None, group_rank: int | None, group: ProcessGroup) -> int:
    return rank_of(group, what, 0 if rank is None and group_rank is None else rank, group_rank)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces the tensors at this rank's index in the input_list of all ranks, and writes the result into
    output."""
    if (own := member(group)) is None:
        return None
    sources = listed(input_list, "input_list", own)
    alike(sources, "input_list")
    check_reduced(sources[0], op, "input_list[0]")
    result = _scattered(ops["stack"](sources, 0), op, own)
    write(output, result.to(output.device), ("output", f"input_list[{own.rank()}]"))
    return _done(async_op, output)


def _scattered(parts: Tensor, op: ReduceOp, group: ProcessGroup) -> Tensor:
    if group.size() == 1:
        return parts[0]
    if op in _COMBINATIONS:
        return reduced(parts, op, group)[group.rank()]
    return _run("reduce_scatter", parts, group, op is ReduceOp.AVG)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """As reduce_scatter, for the parts of one tensor."""
    check_reduced(input, op, "input")
    if (own := member(group)) is None:
        return None
    check(input, "input", own)
    check(output, "output")
    if input.numel() != output.numel() * own.size():
        raise ValueError(
            f"input of {tuple(input.shape)} is not {own.size()} times as large as output of "
            f"{tuple(output.shape)}"
        )
    result = _scattered(input.reshape(own.size(), *output.shape), op, own)
    write(output, result.to(output.device), ("output", "input"))
    return _done(async_op, output)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Writes tensor i of each rank's input list into the corresponding tensor of rank i's output list."""
    if (own := member(group)) is None:
        return None
    targets = listed(output_tensor_list, "output_tensor_list", own)
    sources = listed(input_tensor_list, "input_tensor_list", own)
    for tensors, name in ((targets, "output_tensor_list"), (sources, "input_tensor_list")):
        for i, each in enumerate(tensors):
            check(each, f"{name}[{i}]", own)
            if each.dtype != sources[0].dtype:
                raise ValueError(f"{name}[{i}] is {each.dtype}, input_tensor_list[0] {sources[0].dtype}")
    flat = ops["cat"]([source.reshape(-1) for source in sources], 0)
    receives = [target.numel() for target in targets]
    rows = _exchanged(flat, [source.numel() for source in sources], receives, own)
    at = 0
    for i, target in enumerate(targets):
        part = rows[at : at + receives[i]]
        write(target, part.to(target.device), (f"output_tensor_list[{i}]", "its part"), same_shape=False)
        at += receives[i]
    return _done(async_op, *targets)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """As all_to_all, for the parts of one tensor along dimension 0: parts of equal size, or of the given
    sizes."""
    if (own := member(group)) is None:
        return None
    splits = []
    for name, sizes, tensor in (
        ("output", output_split_sizes, output),
        ("input", input_split_sizes, input),
    ):
        check(tensor, name, own)
        rows = len(tensor)
        if not sizes and rows % own.size():
            raise ValueError(f"{name} of {rows} rows does not split equally for {own.size()} ranks")
        splits.append(list(sizes) if sizes else [rows // own.size()] * own.size())
        if len(splits[-1]) != own.size() or sum(splits[-1]) != rows:
            raise ValueError(f"{name}_split_sizes {sizes} do not split {rows} rows for {own.size()} ranks")
    result = _exchanged(input, splits[1], splits[0], own)
    write(output, result.to(output.device), ("output", "input"))
    return _done(async_op, output)
