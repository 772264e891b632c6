"""Differentiable collectives: they return new tensors, and a backward through them calls collectives again.

All ranks of the group must call backward through the same collectives in the same order: the gradient of a
sum is the sum of the gradients, and that of a gather is a scatter. Minima, maxima and products over ranks
are not differentiable here: an operand that requires grad is refused.
"""

from __future__ import annotations

from typing import Any

from ... import _api as tt, distributed as _d
from ...autograd.function import Function
from .. import ReduceOp
from .._checks import alike, check, listed
from .._collectives import root_of
from .._group import found

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "recv", "reduce",
    "reduce_scatter", "scatter", "send",
]  # fmt: skip


def _linear(name: str, op: ReduceOp, *tensors: Any) -> None:
    """NotImplementedError for a reduction whose gradient is not a collective, if an operand requires
    grad."""
    if op not in (ReduceOp.SUM, ReduceOp.AVG) and any(each.requires_grad for each in tensors):
        raise NotImplementedError(
            f"distributed.nn.functional.{name} has gradients for ReduceOp.SUM and AVG, not for {op}: "
            "detach() the operand"
        )


def _empty(like: Any, shape: Any = None) -> Any:
    return like.detach().new_empty(tuple(like.shape if shape is None else shape))


# ---------------------------------------------------------------- one tensor


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, op: Any, x: Any) -> Any:
        ctx.group, ctx.op = group, op
        result = x.detach().clone()
        _d.all_reduce(result, op, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, _AllReduce.apply(ctx.group, ctx.op, gradient)


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Any:
    """The tensors of all ranks, reduced to one. NotImplementedError for an operand that requires grad and
    an op other than SUM and AVG."""
    _linear("all_reduce", op, tensor)
    return _AllReduce.apply(found(group), op, tensor)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, root: int, x: Any) -> Any:
        ctx.group, ctx.root = group, root
        result = x.detach().clone()
        _d.broadcast(result, group=group, group_src=root)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, _Reduce.apply(ctx.group, ctx.root, ReduceOp.SUM, gradient)


def broadcast(tensor: Any, src: int, group: Any = None) -> Any:
    """The tensor of rank src. On rank src its gradient is the sum of the ranks' gradients, and on all other
    ranks it is zero."""
    own = found(group)
    return _Broadcast.apply(own, root_of("src", src, None, own), tensor)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, root: int, op: Any, x: Any) -> Any:
        ctx.group, ctx.root, ctx.op = group, root, op
        result = x.detach().clone()
        _d.reduce(result, op=op, group=group, group_dst=root)
        return result if group.rank() == root else tt.zeros_like(result)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        share = gradient / ctx.group.size() if ctx.op is ReduceOp.AVG else gradient
        return None, None, None, _Broadcast.apply(ctx.group, ctx.root, share)


def reduce(tensor: Any, dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Any:
    """The tensors of all ranks reduced to one on rank dst, and zeros on all other ranks. Raises the errors
    of all_reduce."""
    _linear("reduce", op, tensor)
    own = found(group)
    return _Reduce.apply(own, root_of("dst", dst, None, own), op, tensor)


# ---------------------------------------------------------------- a tensor for each rank


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, root: int, x: Any) -> Any:
        ctx.group, ctx.root = group, root
        rows = [tt.zeros_like(x.detach()) for _ in range(group.size())]
        here = group.rank() == root
        _d.gather(x.detach(), rows if here else None, group=group, group_dst=root)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, _Scatter.apply(ctx.group, ctx.root, *gradients)


def gather(tensor: Any, dst: int = 0, group: Any = None) -> tuple[Any, ...]:
    """The tensors of all ranks on rank dst, and zeros on all other ranks. All tensors have the same
    shape."""
    own = found(group)
    check(tensor, "tensor", own)
    found_rows: tuple[Any, ...] = _Gather.apply(own, root_of("dst", dst, None, own), tensor)
    return found_rows


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, root: int, *rows: Any) -> Any:
        ctx.group, ctx.root = group, root
        result = _empty(rows[0])
        here = group.rank() == root
        _d.scatter(result, [row.detach() for row in rows] if here else None, group=group, group_src=root)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, *_Gather.apply(ctx.group, ctx.root, gradient)


def scatter(tensors: Any, src: int = 0, group: Any = None) -> Any:
    """The tensor for this rank in the list of rank src, which has one for each rank. The other ranks pass a
    list of tensors with the same shapes and dtypes, whose values are ignored."""
    own = found(group)
    rows = listed(tensors, "tensors", own)
    alike(rows, "tensors")
    return _Scatter.apply(own, root_of("src", src, None, own), *rows)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, x: Any) -> Any:
        ctx.group = group
        rows = [_empty(x) for _ in range(group.size())]
        _d.all_gather(rows, x.detach(), group)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, _ReduceScatter.apply(ctx.group, ReduceOp.SUM, *gradients)


def all_gather(tensor: Any, group: Any = None) -> tuple[Any, ...]:
    """The tensors of all ranks, which must have the same shape."""
    own = found(group)
    check(tensor, "tensor", own)
    rows: tuple[Any, ...] = _AllGather.apply(own, tensor)
    return rows


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, op: Any, *rows: Any) -> Any:
        ctx.group, ctx.op = group, op
        result = _empty(rows[0])
        _d.reduce_scatter(result, [row.detach() for row in rows], op, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        share = gradient / ctx.group.size() if ctx.op is ReduceOp.AVG else gradient
        return None, None, *_AllGather.apply(ctx.group, share)


def reduce_scatter(
    output: Any, input_list: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None
) -> Any:
    """Reduces the tensors at this rank's index in the input_list of all ranks; the result has the shape of
    `output`, which is not changed. Raises the errors of all_reduce."""
    own = found(group)
    rows = listed(input_list, "input_list", own)
    alike([output, *rows], "output and input_list")
    _linear("reduce_scatter", op, *rows)
    return _ReduceScatter.apply(own, op, *rows)


class _AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, shapes: Any, *rows: Any) -> Any:
        ctx.group, ctx.shapes = group, [tuple(row.shape) for row in rows]
        results = [_empty(rows[0], shape) for shape in shapes]
        _d.all_to_all(results, [row.detach() for row in rows], group)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *_AllToAll.apply(ctx.group, ctx.shapes, *gradients)


def all_to_all(output_tensor_list: Any, input_tensor_list: Any, group: Any = None) -> tuple[Any, ...]:
    """The tensors for this rank in the input lists of all ranks, with the shapes of the output list, whose
    tensors are not changed."""
    own = found(group)
    targets = listed(output_tensor_list, "output_tensor_list", own)
    sources = listed(input_tensor_list, "input_tensor_list", own)
    rows: tuple[Any, ...] = _AllToAll.apply(own, [tuple(each.shape) for each in targets], *sources)
    return rows


class _AllToAllSingle(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, shape: Any, receives: Any, sends: Any, x: Any) -> Any:
        ctx.group, ctx.shape, ctx.sizes = group, tuple(x.shape), (sends, receives)
        result = _empty(x, shape)
        _d.all_to_all_single(result, x.detach(), receives, sends, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, None, None, _AllToAllSingle.apply(ctx.group, ctx.shape, *ctx.sizes, gradient)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> Any:
    """As all_to_all, for the parts of one tensor along dimension 0: parts of equal size, or of the given
    sizes. `output` has the shape of the result and is not changed."""
    own = found(group)
    shape = tuple(output.shape)
    return _AllToAllSingle.apply(own, shape, output_split_sizes, input_split_sizes, input)


# ---------------------------------------------------------------- from one rank to another


class _Send(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, peer: int, tag: int, x: Any) -> Any:
        ctx.group, ctx.peer, ctx.tag, ctx.like = group, peer, tag, x.detach()
        _d.send(ctx.like, group=group, tag=tag, group_dst=peer)
        return ctx.like.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        received = _empty(ctx.like)
        _d.recv(received, group=ctx.group, tag=ctx.tag, group_src=ctx.peer)
        return None, None, None, received


def send(tensor: Any, dst: int, group: Any = None, tag: int = 0) -> Any:
    """Sends the tensor to rank dst. Returns a zero whose backward receives the tensor's gradient from rank
    dst: add it to this rank's loss, or call its backward()."""
    own = found(group)
    check(tensor, "tensor", own)
    return _Send.apply(own, root_of("dst", dst, None, own), tag, tensor)


class _Recv(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, peer: int, tag: int, like: Any) -> Any:
        ctx.group, ctx.peer, ctx.tag = group, peer, tag
        received = _empty(like)
        _d.recv(received, group=group, tag=tag, group_src=peer)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        _d.send(gradient, group=ctx.group, tag=ctx.tag, group_dst=ctx.peer)
        return None, None, None, None


def recv(tensor: Any, src: int, group: Any = None, tag: int = 0) -> Any:
    """The tensor that rank src sends by send(), as a new tensor with the dtype and shape of `tensor`. If
    `tensor` requires grad, the result does too, and its backward sends the gradient back to src."""
    own = found(group)
    check(tensor, "tensor", own)
    return _Recv.apply(own, root_of("src", src, None, own), tag, tensor)
