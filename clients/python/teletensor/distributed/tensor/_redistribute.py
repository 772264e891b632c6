"""Conversion from one layout to another by differentiable collectives; a backward converts in the opposite
direction."""

from __future__ import annotations

from typing import Any

from ... import distributed as _d
from ..._core import Tensor, ops
from ...autograd.function import Function
from ._placements import Layout, Partial, Replicate, Shard, coordinate, for_gradients, sizes

__all__ = ["redistributed"]


def redistributed(local: Tensor, now: Layout, then: Layout, gradient: Layout | None = None) -> Tensor:
    """This rank's part of the tensor in the layout `then`. `gradient` is the layout of its gradient; by
    default that of `then`, with Replicate where `then` is Partial."""
    gradient = then.placed(for_gradients(then.placements)) if gradient is None else gradient
    result: Tensor = _Redistribute.apply(now, then, gradient, local)
    return result


class _Redistribute(Function):
    @staticmethod
    def forward(ctx: Any, now: Layout, then: Layout, gradient: Layout, local: Tensor) -> Tensor:
        ctx.now, ctx.gradient = now.placed(for_gradients(now.placements)), gradient
        moved = _moved(local.detach(), now, then)
        return moved.view(moved.shape) if moved.shape == local.shape else moved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, redistributed(gradient.contiguous(), ctx.gradient, ctx.now)


def _moved(x: Tensor, now: Layout, then: Layout) -> Tensor:
    changed = [dim for dim in range(now.mesh.ndim) if now.placements[dim] != then.placements[dim]]
    # If a part is divided again, the divisions by later dimensions of the mesh are undone first.
    if len(changed) == 1 and not any(
        isinstance(each, Shard) for each in now.placements[changed[0] + 1 :]
    ):
        return _step(x, now, then, changed[0])
    first = min(changed, default=now.mesh.ndim)
    layout = now
    for dim in reversed(range(first, now.mesh.ndim)):
        whole = (*layout.placements[:dim], Replicate(), *layout.placements[dim + 1 :])
        if (
            isinstance(layout.placements[dim], Replicate)
            or layout.placements[dim] == then.placements[dim]
            and isinstance(then.placements[dim], Partial)
        ):
            continue
        x = _step(x, layout, layout.placed(whole), dim)
        layout = layout.placed(whole)
    for dim in range(first, now.mesh.ndim):
        placed = (*layout.placements[:dim], then.placements[dim], *layout.placements[dim + 1 :])
        x = _step(x, layout, layout.placed(placed), dim)
        layout = layout.placed(placed)
    return x


def _step(x: Tensor, now: Layout, then: Layout, dim: int) -> Tensor:
    """Converts the placement along one dimension of the mesh."""
    source, target = now.placements[dim], then.placements[dim]
    if source == target:
        return x
    group, count = now.mesh.get_group(dim), now.mesh.size(dim)
    place = coordinate(now.mesh)[dim]
    whole = now.local_shape(dim)  # undivided by later dimensions of the mesh
    if isinstance(source, Replicate):
        if isinstance(target, Shard):
            return _chunks(x, target.dim, count)[place].contiguous()
        assert isinstance(target, Partial)
        return x / count if target.reduce_op == "sum" else x
    if isinstance(source, Partial):
        if isinstance(target, Partial):
            raise NotImplementedError(f"redistribute: a change from {source!r} to {target!r} is not "
                                      "supported")
        if isinstance(target, Replicate):
            result = x.clone()
            _d.all_reduce(result, source.reduction, group)
            return result
        assert isinstance(target, Shard)
        most, own = sizes(whole[target.dim], count)[0], sizes(whole[target.dim], count)[place]
        rows = [_padded(each, target.dim, most) for each in _chunks(x, target.dim, count)]
        part = rows[0].new_empty(rows[0].shape)
        _d.reduce_scatter(part, rows, source.reduction, group)
        return part.narrow(target.dim, 0, own)
    assert isinstance(source, Shard)
    parts = sizes(whole[source.dim], count)
    if isinstance(target, Shard):
        return _exchanged(x, source.dim, target.dim, now, dim)
    if isinstance(target, Partial):  # zeros except for the own part
        around = [list(x.shape), list(x.shape)]
        around[0][source.dim], around[1][source.dim] = sum(parts[:place]), sum(parts[place + 1 :])
        before, after = (ops["full"](0, shape, x.dtype, x.device) for shape in around)
        whole_part = ops["cat"]([before, x, after], source.dim)
        return whole_part * count if target.reduce_op == "avg" else whole_part
    padded = _padded(x, source.dim, parts[0])
    rows = [padded.new_empty(padded.shape) for _ in range(count)]
    _d.all_gather(rows, padded, group)
    return ops["cat"](
        [row.narrow(source.dim, 0, size) for row, size in zip(rows, parts, strict=True)], source.dim
    )


def _exchanged(x: Tensor, source: int, target: int, now: Layout, dim: int) -> Tensor:
    """Converts parts along one dimension of the tensor to parts along another one."""
    group, count, place = now.mesh.get_group(dim), now.mesh.size(dim), coordinate(now.mesh)[dim]
    whole = now.local_shape(dim)
    theirs, mine = sizes(whole[source], count), sizes(whole[target], count)[place]
    results = []
    for size in theirs:
        shape = list(x.shape)
        shape[source], shape[target] = size, mine
        results.append(x.new_empty(shape))
    _d.all_to_all(results, [each.contiguous() for each in _chunks(x, target, count)], group)
    return ops["cat"](results, source)


def _chunks(x: Tensor, dim: int, count: int) -> list[Tensor]:
    found, at = [], 0
    for size in sizes(x.shape[dim], count):
        found.append(x.narrow(dim, at, size))
        at += size
    return found


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    if x.shape[dim] == size:
        return x.contiguous()
    shape = list(x.shape)
    shape[dim] = size - shape[dim]
    return ops["cat"]([x, ops["full"](0, shape, x.dtype, x.device)], dim)
