"""Places of specified elements: the indices of COO tensors as numbers of one dimension, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import _api as tt
from .._core import Tensor

__all__ = [
    "ascending", "check_inside", "checked_values", "flat_places", "grouped", "indices_of_places", "pairs",
    "picked", "placed", "summed",
]  # fmt: skip

_MAX = 2**63 - 1


def _outside(row: Tensor, size: int) -> Tensor:
    return (row < 0) | (row >= size)


def flat_places(indices: Tensor, sizes: Sequence[int], inside: bool) -> Tensor:
    """The row-major number [nnz] of each column of indices [dims, nnz] in a tensor of these sizes.

    An index out of range, which is possible unless `inside`, gets the number of elements, which is out of
    range, too: the op that uses the number then raises IndexError when a result is read.
    """
    total = math.prod(sizes)
    if total > _MAX:
        raise RuntimeError("numel: integer multiplication overflow")
    places: Tensor = tt.zeros(indices.shape[1], dtype=tt.int64, device=indices.device)
    stride = total
    for row, size in zip(indices, sizes, strict=True):
        stride //= max(size, 1)
        places = places + row * stride
    if not inside:
        for row, size in zip(indices, sizes, strict=True):
            places = tt.where(_outside(row, size), total, places)
    return places


def indices_of_places(places: Tensor, sizes: Sequence[int]) -> Tensor:
    """The indices [dims, n] of row-major numbers [n]."""
    rows: list[Tensor] = []
    for size in reversed(sizes):
        rows.append(places % max(size, 1))
        places = places // max(size, 1)
    if not rows:
        return tt.zeros(0, places.shape[0], dtype=tt.int64, device=places.device)
    return tt.stack(rows[::-1])


def check_inside(indices: Tensor, sizes: Sequence[int]) -> None:
    """RuntimeError if an index is out of range. Waits for the answer."""
    if indices.numel() == 0:
        return
    flags = tt.stack([_outside(row, size).any() for row, size in zip(indices, sizes, strict=True)])
    for d, outside in enumerate(flags.tolist()):
        if outside:
            least, largest = int(indices[d].min()), int(indices[d].max())
            if least < 0:
                raise RuntimeError(f"found negative index {least} for dim {d}")
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {d}, size is {sizes[d]} but found index "
                f"{largest}"
            )


def ascending(indices: Tensor, sizes: Sequence[int]) -> bool:
    """Are the places distinct and in row-major order? The indices are in range. Waits for the answer."""
    places = flat_places(indices, sizes, True)
    return bool((places[1:] > places[:-1]).all())


def checked_values(values: Tensor, indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """The values [nnz, ...]; reading what is computed from them raises IndexError if an index is out of
    range."""
    count = values.shape[0]
    outside = tt.zeros(count, dtype=tt.bool, device=values.device)
    for row, size in zip(indices, sizes, strict=True):
        outside = outside | _outside(row, size)
    order = tt.arange(count, device=values.device)
    return values.index_select(0, tt.where(outside, count, order))


def summed(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """The sums [count, ...] of the rows of values [n, ...] that have the same group [n]; "or" for bool."""
    flags = values.dtype == tt.bool
    rows = values.to(tt.int64) if flags else values
    start = tt.zeros((count, *values.shape[1:]), dtype=rows.dtype, device=values.device)
    sums = start.index_add(0, groups, rows)
    return sums != 0 if flags else sums


def grouped(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The places [n] in ascending order; the number [n] of each among the distinct places; and the sums
    [n, ...] of the values of each distinct place, followed by zeros. Nothing waits for the number of
    distinct places."""
    order = places.argsort(stable=True)
    ascending = places.index_select(0, order)
    begins = tt.cat([ascending[:1] != ascending[:1], ascending[1:] != ascending[:-1]])
    groups = begins.cumsum(0)
    return ascending, groups, summed(values.index_select(0, order), groups, places.shape[0])


def placed(values: Tensor, indices: Tensor, sizes: Sequence[int], inside: bool) -> Tensor:
    """The dense tensor [*sizes, ...] with values [nnz, ...] at these indices; values at the same place are
    added."""
    sums = summed(values, flat_places(indices, sizes, inside), math.prod(sizes))
    return sums.reshape((*sizes, *values.shape[1:]))


def picked(dense: Tensor, indices: Tensor, sizes: Sequence[int], inside: bool) -> Tensor:
    """The elements [nnz, ...] of a dense tensor at these indices. The leading dimensions of `dense` are
    `sizes`, or 1 where it is broadcast."""
    count = len(sizes)
    own = dense.shape[:count]
    rest = dense.shape[count:]
    if tuple(own) == tuple(sizes):
        places = flat_places(indices, sizes, inside)
    else:
        if not inside:
            check_inside(indices, sizes)
        kept = tt.stack([row * 0 if size == 1 else row for row, size in zip(indices, own, strict=True)])
        places = flat_places(kept, own, True)
    return dense.reshape((math.prod(own), *rest)).index_select(0, places)


def pairs(left: Tensor, right: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """All pairs (i, j) with left[i] == right[j], as two vectors, ordered by i. The elements of both are in
    range(size). Waits for the number of pairs."""
    order = tt.argsort(right, stable=True)
    counts = summed(tt.ones_like(right), right, size)
    starts = counts.cumsum(0) - counts
    repeats = counts.index_select(0, left)
    first: Tensor = tt.repeat_interleave(repeats)
    offsets = tt.arange(first.shape[0], device=left.device)
    offsets = offsets - (repeats.cumsum(0) - repeats).index_select(0, first)
    second = order.index_select(0, starts.index_select(0, left).index_select(0, first) + offsets)
    return first, second
