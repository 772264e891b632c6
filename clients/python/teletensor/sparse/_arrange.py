"""Functions that arrange, select and join sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import pairs
from ._tensor import SparseTensor, unsupported

__all__ = ["FORMS", "sparse_mask"]


def permute(input: Any, *dims: Any) -> Any:
    wanted = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    coo, rank = input.to_sparse_coo(), input.ndim
    order = [wrap_dim(d, rank) for d in wanted]
    if sorted(order) != list(range(rank)):
        raise RuntimeError(f"permute: {list(wanted)} is not a permutation of {rank} dimensions")
    count = coo.sparse_dim()
    if any(d >= count for d in order[:count]):
        raise RuntimeError("permute: sparse and dense dimensions of a sparse tensor cannot be exchanged")
    if order == list(range(rank)):
        return input
    values = coo._data.permute((0, *(d - count + 1 for d in order[count:])))
    rows = tt.stack([coo._places[d] for d in order[:count]]) if count else coo._places
    shape = tuple(coo._shape[d] for d in order)
    coalesced = coo._coalesced and order[:count] == list(range(count))
    made = CooTensor(rows, values, shape, coalesced, coo._inside)
    return made if isinstance(input, CooTensor) else made.to_sparse(layout=input.layout)


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    rank = input.ndim
    first, second = wrap_dim(dim0, rank), wrap_dim(dim1, rank)
    matrix = len(input._batch)
    if isinstance(input, CompressedTensor) and {first, second} == {matrix, matrix + 1}:
        return input.exchanged()
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return permute(input, order)


def t(input: Any) -> Any:
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return transpose(input, 0, 1) if input.ndim == 2 else input


def unsqueeze(input: Any, dim: int) -> Any:
    coo = input.to_sparse_coo()
    at, count = wrap_dim(dim, coo.ndim + 1), coo.sparse_dim()
    shape = (*coo._shape[:at], 1, *coo._shape[at:])
    if at > count:
        return CooTensor(
            coo._places, coo._data.unsqueeze(at - count + 1), shape, coo._coalesced, coo._inside
        )
    rows = list(coo._places)
    rows.insert(at, tt.zeros(coo._places.shape[1], dtype=tt.int64, device=coo.device))
    return CooTensor(tt.stack(rows), coo._data, shape, coo._coalesced, coo._inside)


def select(input: Any, dim: int, index: int) -> Any:
    """The slice at one index: sparse, or dense if no sparse dimension is left. Waits for the number of
    places, unless it selects matrices of a batch."""
    if input.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor")
    at = wrap_dim(dim, input.ndim)
    size = input._shape[at]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input._shape)} at dimension "
            f"{at}"
        )
    index %= size
    if at < len(input._batch):
        return input.of_batch(at, index)
    coo = input.to_sparse_coo()
    count = coo.sparse_dim()
    shape = (*coo._shape[:at], *coo._shape[at + 1 :])
    if at >= count:
        values = coo._data.select(at - count + 1, index)
        return CooTensor(coo._places, values, shape, coo._coalesced, coo._inside)
    kept = (coo._places[at] == index).nonzero().reshape(-1)
    values = coo._data.index_select(0, kept)
    rows = [coo._places[d].index_select(0, kept) for d in range(count) if d != at]
    if not rows:
        return values.sum(0)
    return CooTensor(tt.stack(rows), values, shape, coo._coalesced, coo._inside)


def index_select(input: Any, dim: int, index: Tensor) -> Any:
    """The slices at the indices, which may repeat. Waits for the number of places."""
    if not isinstance(input, SparseTensor):
        unsupported("index_select", index)  # type: ignore[arg-type]
    coo = input.to_sparse_coo().coalesce()
    at, count = wrap_dim(dim, coo.ndim), coo.sparse_dim()
    if index.dim() > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector, got shape {list(index.shape)}")
    wanted = index.reshape(-1).to(tt.int64)
    shape = (*coo._shape[:at], wanted.shape[0], *coo._shape[at + 1 :])
    if at >= count:
        values = coo._data.index_select(at - count + 1, wanted)
        return CooTensor(coo._places, values, shape, True, True)
    new, old = pairs(wanted, coo._places[at], coo._shape[at])
    rows = [new if d == at else row.index_select(0, old) for d, row in enumerate(coo._places)]
    return CooTensor(tt.stack(rows), coo._data.index_select(0, old), shape, False, True).coalesce()


def narrow_copy(input: Any, dim: int, start: int, length: int) -> Any:
    """The slices from `start` on. Waits for the number of places."""
    at = wrap_dim(dim, input.ndim)
    size = input._shape[at]
    first = start + size if start < 0 else start
    if not 0 <= first <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    if length < 0 or first + length > size:
        raise RuntimeError(f"start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return index_select(input, at, tt.arange(first, first + length, device=input.device))


def getitem(input: Any, index: Any) -> Any:
    """x[i] and x[i, j, ...] with integers."""
    items = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in items):
        raise NotImplementedError(
            "sparse tensors are indexed with integers only; use index_select, or to_dense()"
        )
    if len(items) > input.ndim:
        raise IndexError(f"too many indices for tensor of dimension {input.ndim}")
    for each in items:
        input = select(input, 0, each) if isinstance(input, SparseTensor) else input[each]
    return input


def cat(tensors: Any, dim: int = 0) -> Any:
    parts = []
    for i, each in enumerate(tensors):
        if not isinstance(each, SparseTensor):
            raise RuntimeError(
                f"Concatenating sparse tensors, but a dense tensor was found at position {i}."
            )
        parts.append(each.to_sparse_coo())
    first = parts[0]
    at, count = wrap_dim(dim, first.ndim), first.sparse_dim()
    for each in parts:
        rest = [n for d, n in enumerate(each._shape) if d != at]
        if rest != [n for d, n in enumerate(first._shape) if d != at] or each.sparse_dim() != count:
            raise RuntimeError(
                f"cat: sizes of sparse tensors must match except in dimension {at}, got "
                f"{[list(p._shape) for p in parts]}"
            )
    if at >= count:
        return _cat_values(parts, at, count)
    rows, offset = [], 0
    for each in parts:
        shifted = [row + offset if d == at else row for d, row in enumerate(each._places)]
        rows.append(tt.stack(shifted))
        offset += each._shape[at]
    shape = (*first._shape[:at], offset, *first._shape[at + 1 :])
    return CooTensor(
        tt.cat(rows, 1),
        tt.cat([each._data for each in parts]),
        shape,
        False,
        all(each._inside for each in parts),
    )


def _cat_values(parts: list[CooTensor], at: int, count: int) -> CooTensor:
    """Joins along a dense dimension: each value gets zeros at the other tensors' parts of it."""
    total, before, rows = sum(each._shape[at] for each in parts), 0, []
    for each in parts:
        own = each._data
        shape = list(own.shape)
        pieces = []
        for size in (before, total - before - each._shape[at]):
            shape[at - count + 1] = size
            pieces.append(tt.zeros(shape, dtype=own.dtype, device=own.device))
        rows.append(tt.cat([pieces[0], own, pieces[1]], at - count + 1))
        before += each._shape[at]
    shape = list(parts[0]._shape)
    shape[at] = total
    return CooTensor(
        tt.cat([each._places for each in parts], 1),
        tt.cat(rows),
        tuple(shape),
        False,
        all(each._inside for each in parts),
    )


def stack(tensors: Any, dim: int = 0) -> Any:
    for i, each in enumerate(tensors):
        if not isinstance(each, SparseTensor):
            raise RuntimeError(
                f"Concatenating sparse tensors, but a dense tensor was found at position {i}."
            )
    return cat([unsqueeze(each, dim) for each in tensors], dim)


def sparse_mask(input: Any, mask: Any) -> Any:
    """The elements of a tensor at the places of the sparse tensor `mask`."""
    if not isinstance(mask, SparseTensor):
        raise TypeError(
            f"sparse_mask(): argument 'mask' must be a sparse tensor, not {type(mask).__name__}"
        )
    if tuple(input.shape) != mask._shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size "
            f"{list(input.shape)} but mask has size {list(mask._shape)}"
        )
    places = mask.coalesce() if isinstance(mask, CooTensor) else mask
    return places._like(places._at_places(input.to_dense() if isinstance(input, SparseTensor) else input))


def is_same_size(input: Any, other: Any) -> bool:
    return tuple(input.shape) == tuple(other.shape)


FORMS: dict[str, Callable[..., Any]] = {
    "permute": permute, "transpose": transpose, "swapaxes": transpose, "t": t, "unsqueeze": unsqueeze,
    "select": select, "index_select": index_select, "getitem": getitem, "cat": cat, "concat": cat,
    "concatenate": cat, "stack": stack, "sparse_mask": sparse_mask, "is_same_size": is_same_size,
    "narrow_copy": narrow_copy,
}  # fmt: skip
