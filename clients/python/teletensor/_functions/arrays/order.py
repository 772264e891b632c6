"""Functions that sort tensors, search in sorted tensors, and treat tensors as sets."""

from __future__ import annotations

import builtins
from typing import Any

from ... import _core, return_types
from ..._core import Tensor, ops
from ..._tensors.convert import tensor
from ..._tensors.pending import later, numbers_of
from ..common import function_only, refusing, wrap_dim
from ..typeinfo import promote_types, result_type
from .creation import full, zeros
from .indexing import nonzero

__all__ = [
    "argsort", "argwhere", "bucketize", "isin", "kthvalue", "msort", "searchsorted", "sort",
    "topk", "unique", "unique_consecutive",
]


def sort(input: Tensor, dim: int = -1, descending: bool = False,
         stable: bool | None = False) -> return_types.sort:
    """The elements sorted along dim, and their indices in input."""
    return return_types.sort(*ops["sort"](input, dim, descending, builtins.bool(stable)))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort input along dim. Equal elements keep their order."""
    return ops["argsort"](input, dim, descending, stable)


def msort(input: Tensor) -> Tensor:
    """The elements sorted along dim 0."""
    return ops["sort"](input, 0, False, True)[0]


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True,
         sorted: bool = True) -> return_types.topk:
    """The k largest elements along dim (the smallest if not `largest`), and their indices."""
    return return_types.topk(*ops["topk"](input, k, dim, largest, sorted))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> return_types.kthvalue:
    """The k-th smallest element along dim, and its index."""
    return return_types.kthvalue(*ops["kthvalue"](input, k, dim, keepdim))


def argwhere(input: Tensor) -> Any:
    """The coordinates of the elements that are not zero, one row for each."""
    return nonzero(input)


# ---------------------------------------------------------------- searching


@function_only
def searchsorted(sorted_sequence: Tensor, input: Any, *, out_int32: bool = False,
                 right: bool = False, side: str | None = None,
                 sorter: Tensor | None = None) -> Tensor:
    """The indices in ascending rows at which the values would be inserted: before equal elements, or after
    them if `right`."""
    if side is not None:
        if side not in ("left", "right"):
            raise RuntimeError("torch.searchsorted(): side can only be 'left' or 'right' but got "
                               f"{side}")
        if side == "left" and right:
            raise RuntimeError("torch.searchsorted(): side and right can't be set to opposites, got "
                               "side of left while right was True")
        right = side == "right"
    if sorter is not None:
        if sorter._shape != sorted_sequence._shape or sorter.dtype != _core.int64:
            raise RuntimeError("torch.searchsorted(): boundary and sorter must have the same size and "
                               "sorter must be int64")
        sorted_sequence = ops["gather"](sorted_sequence, sorter, sorted_sequence.dim() - 1)
    values = input
    if not isinstance(values, Tensor):
        if sorted_sequence.dim() != 1:
            raise RuntimeError("torch.searchsorted(): input value can be a scalar only when boundaries "
                               "tensor dimension is 1")
        values = tensor(values, device=sorted_sequence.device)
        dtype = result_type(sorted_sequence, input)
        values, sorted_sequence = values.to(dtype), sorted_sequence.to(dtype)
    elif values.dtype != sorted_sequence.dtype:
        dtype = promote_types(sorted_sequence.dtype, values.dtype)
        values, sorted_sequence = values.to(dtype), sorted_sequence.to(dtype)
    return ops["searchsorted"](sorted_sequence.detach(), values.detach(), out_int32, right)


@function_only
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False,
              right: bool = False) -> Tensor:
    """The index of the bucket, between ascending boundaries, to which each element belongs: searchsorted
    with the arguments exchanged."""
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False,
         invert: bool = False) -> Tensor:
    """Returns for each element whether it is among test_elements."""
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise TypeError("isin() takes a tensor as at least one of elements and test_elements")
    dtype = result_type(elements, test_elements)
    both = [x if isinstance(x, Tensor) else tensor(
        x, device=(test_elements if isinstance(test_elements, Tensor) else elements).device)
        for x in (elements, test_elements)]
    if dtype == _core.bool:
        dtype = _core.uint8
    x, tests = (each.detach().to(dtype) for each in both)
    if tests.numel() == 0:
        return full(x._shape, invert, device=x.device)
    ordered = ops["sort"](ops["reshape"](tests, (-1,)))[0]
    if dtype.is_floating_point:  # NaN equals nothing, and searching among NaN values gives wrong indices
        known = ops["where"](ops["isnan"](ordered), ordered[0], ordered)
        ordered = ops["sort"](known)[0]
    at = ops["clamp"](ops["searchsorted"](ordered, x), 0, tests.numel() - 1)
    return ops["ne" if invert else "eq"](ops["take"](ordered, at), x)


# ---------------------------------------------------------------- sets


def _answer(found: Tensor, inverse: Tensor, counts: Tensor, return_inverse: bool,
            return_counts: bool) -> Any:
    if not (return_inverse or return_counts):
        return found
    return (found, *([inverse] if return_inverse else []), *([counts] if return_counts else []))


def _moved(x: Tensor, source: int, target: int) -> Tensor:
    """x with dimension `source` at place `target`; the other dimensions keep their order."""
    order = [i for i in range(x.dim()) if i != source]
    order.insert(target, source)
    return ops["permute"](x, order)


def _groups(x: Tensor, dim: int | None) -> tuple[Tensor, tuple[int, ...]]:
    """The elements as a vector, or the slices along dim as rows; and the shape of a row."""
    if dim is None:
        return ops["reshape"](x, (x.numel(),)), ()
    d = wrap_dim(dim, x.dim())
    moved = _moved(x, d, 0) if x.dim() else ops["reshape"](x, (1,))
    shape = tuple(moved._shape)
    if 0 in shape[1:] and shape[0]:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be "
                           "applied")
    width = 1
    for n in shape[1:]:
        width *= n
    return ops["reshape"](moved, (shape[0], width)), shape[1:]


def _starts(rows: Tensor) -> Tensor:
    """True where a row differs from its predecessor."""
    n = rows._shape[0]
    differs = ops["ne"](ops["slice"](rows, 0, 1, n - 1, 1), ops["slice"](rows, 0, 0, n - 1, 1))
    if rows.dim() == 2:
        differs = ops["any"](differs, 1)
    return ops["cat"]([full((1,), True, device=rows.device), differs], 0)


def _distinct(x: Tensor, dim: int | None, in_order: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(distinct elements or slices, the group of each, the size of each group)."""
    x = refusing(x, "unique_consecutive" if in_order else "unique")
    rows, row_shape = _groups(x, dim)
    n = rows._shape[0]
    shape = x._shape if dim is None else (n,)
    if n == 0:
        empty = zeros(shape, dtype=_core.int64, device=x.device)
        none = zeros(0, dtype=_core.int64, device=x.device)
        return (rows if dim is None else x), empty, none
    order = None
    ordered = rows
    if not in_order:
        if dim is None:
            ordered, order = ops["sort"](rows, 0, False, True)
        else:
            order = ops["argsort_rows"](rows)
            ordered = ops["index_select"](rows, order, 0)
    first = _starts(ordered)
    group = ops["cumsum"](first, 0) - 1
    numbers = numbers_of(ops["count_nonzero"](first))
    rank = x.dim()

    def starts(count: int) -> Tensor:
        return ops["reshape"](ops["nonzero"](first, count), (count,))

    def distinct(counts: list[int]) -> Tensor:
        count = counts[0]
        found = ops["index_select"](ordered, starts(count), 0)
        if dim is None:
            return found
        if not rank:
            return ops["reshape"](found, (count,))
        found = ops["reshape"](found, (count, *row_shape))
        return ops["contiguous"](_moved(found, 0, wrap_dim(dim, rank)))

    def sizes(counts: list[int]) -> Tensor:
        places = starts(counts[0])
        ends = ops["cat"]([ops["slice"](places, 0, 1, counts[0] - 1, 1),
                           full((1,), n, device=first.device)], 0)
        return ends - places

    inverse = group if order is None else ops["scatter"](group, order, group, 0)
    found = later(numbers, distinct, x.dtype, 1 if dim is None else max(rank, 1), ordered, first)
    return (found, ops["reshape"](inverse, shape),
            later(numbers, sizes, _core.int64, 1, first))


def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False,
           return_counts: bool = False, dim: int | None = None) -> Any:
    """The distinct elements (or slices along dim) in ascending order. Reading the number of elements waits.

    Also returns, if requested, the index in the result of each element, and the number of its occurrences.
    """
    return _answer(*_distinct(input, dim, False), return_inverse, return_counts)


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False,
                       dim: int | None = None) -> Any:
    """The elements (or slices along dim) that differ from their predecessor. Reading the number of elements
    waits."""
    return _answer(*_distinct(input, dim, True), return_inverse, return_counts)
