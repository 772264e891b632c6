"""Implements x[index] and x[index] = value as in PyTorch: by views where possible, and by gathers and
scatters otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .convert import tensor
from .pending import later, nonzero_rows, numbers_of

__all__ = ["expanded", "getitem", "nonzero_columns", "setitem"]

_select, _slice, _unsqueeze = ops["select"], ops["slice"], ops["unsqueeze"]


def _is_array(index: Any) -> bool:
    return isinstance(index, (Tensor, np.ndarray, list))


def _as_index(x: Tensor, index: Any) -> Tensor:
    if not isinstance(index, Tensor):
        index = tensor(np.asarray(index), device=x.device) if not (
            isinstance(index, list) and not index) else tensor([], dtype=_core.int64, device=x.device)
    if index.dtype not in (_core.int64, _core.int32, _core.bool, _core.uint8):
        raise IndexError(
            f"tensors used as indices must be int32, int64, uint8 or bool, not {index.dtype}")
    found: Tensor = index
    return found


def nonzero_columns(mask: Tensor) -> list[Tensor]:
    """The coordinates of the elements of the mask that are set, as one tensor for each dimension."""
    numbers = numbers_of(ops["count_nonzero"](mask))
    found = nonzero_rows(mask, numbers)

    def column(d: int) -> Tensor:
        return later(numbers, lambda _: _select(found, 1, d), _core.int64, 1, mask)

    return [column(d) for d in range(mask.dim())]


def _items(index: Any) -> list[Any]:
    """The index of each dimension. A list that contains anything but numbers counts as a tuple."""
    if isinstance(index, list) and any(
            isinstance(i, (list, tuple, range, slice, Tensor, np.ndarray)) or i is None or i is Ellipsis
            for i in index):
        index = tuple(index)
    items = list(index) if isinstance(index, tuple) else [index]
    return [list(item) if isinstance(item, (tuple, range)) else item for item in items]


def _plan(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor], list[int], bool]:
    """Returns the view that integers, slices, None and ... make, the remaining index tensors, their dims,
    and whether the index consisted only of full slices."""
    items = _items(index)
    used = 0
    for item in items:
        if isinstance(item, (Tensor, np.ndarray, list)):
            mask = (_is_mask(item) if isinstance(item, Tensor)
                    else np.asarray(item).dtype in (np.bool_, np.uint8))
            used += (item.dim() if isinstance(item, Tensor) else np.asarray(item).ndim) if mask else 1
        elif item is not None and item is not Ellipsis and not isinstance(item, bool):
            used += 1
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if used > x.dim():
        raise IndexError(f"too many indices for tensor of dimension {x.dim()}: {used}")
    view, dim, full = x, 0, True
    arrays: list[Tensor] = []
    dims: list[int] = []
    for item in items:
        if item is Ellipsis:
            dim += x.dim() - used
        elif item is None:
            view, full = _unsqueeze(view, dim), False
            dim += 1
        elif isinstance(item, (bool, np.bool_)):
            view, full = _unsqueeze(view, dim), False
            arrays.append(tensor([bool(item)], device=x.device))
            dims.append(dim)
            dim += 1
        elif isinstance(item, slice):
            start, stop, step = _slice_of(item, view._shape[dim])
            if (start, step) != (0, 1) or stop != view._shape[dim]:
                length = max(0, -(-(stop - start) // step))
                view, full = _slice(view, dim, start, length, step), False
            dim += 1
        elif _is_array(item):
            each, full = _as_index(view, item), False
            if each.dim() == 0 and not _is_mask(each):
                if not (_core.depth() and _core.innermost([each]) is not None):
                    view = _select(view, dim, int(each.item()))
                    continue
                # Under vmap the integer differs between samples, so it becomes an index tensor.
                arrays.append(each)
                dims.append(dim)
                dim += 1
                continue
            if each.dim() == 0:  # a mask for the whole tensor: a new dimension of size 1 or 0
                view, each = _unsqueeze(view, dim), ops["reshape"](each, (1,))
            arrays.append(each)
            dims.append(dim)
            dim += each.dim() if each.dtype in (_core.bool, _core.uint8) else 1
        else:
            try:
                at = _integer(item)
            except (AttributeError, TypeError):
                raise IndexError("only integers, slices, ellipsis, None and integer or bool tensors "
                                 f"are valid indices, not {_core.described(item)}") from None
            size = view._shape[dim]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for dimension {dim} with size {size}")
            view, full = _select(view, dim, at), False
    return view, arrays, dims, full


def _integer(item: Any) -> int:
    if _core.is_torch_tensor(item) and item.dim() > 0:  # it has __index__ if it has one element
        raise TypeError
    at: int = item.__index__()
    return at


def _slice_of(item: slice, size: int) -> tuple[int, int, int]:
    parts = []
    for part in (item.start, item.stop, item.step):
        parts.append(int(part.item()) if isinstance(part, Tensor) else part)
    if parts[2] is not None and parts[2] <= 0:
        raise ValueError("step must be greater than zero")
    start, stop, step = slice(*parts).indices(size)
    return start, max(start, stop), step


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (_core.bool, _core.uint8)


def _check_masks(view: Tensor, arrays: list[Tensor], dims: list[int]) -> list[Tensor]:
    """Returns the masks among the index tensors, after checking that they fit the dimensions that they
    index."""
    masks = []
    for each, dim in zip(arrays, dims, strict=True):
        if not _is_mask(each):
            continue
        masks.append(each)
        for d in range(each.dim()):
            if each._shape[d] != view._shape[dim + d]:
                raise IndexError(
                    f"the shape of the mask {list(each._shape)} at index {d} does not match "
                    f"the shape of the indexed tensor {list(view._shape)} at index {dim + d}")
    return masks


def _columns(arrays: list[Tensor], dims: list[int],
             counts: list[int]) -> tuple[list[Tensor], list[int]]:
    """Converts masks with the given numbers of set elements to tensors of coordinates."""
    out: list[Tensor] = []
    at: list[int] = []
    count = iter(counts)
    for each, dim in zip(arrays, dims, strict=True):
        if _is_mask(each):
            found = ops["nonzero"](each, next(count))
            out.extend(_select(found, 1, d) for d in range(each.dim()))
            at.extend(range(dim, dim + each.dim()))
        else:
            out.append(each)
            at.append(dim)
    return out, at


def expanded(view: Tensor, arrays: list[Tensor], dims: list[int]) -> tuple[list[Tensor], list[int]]:
    """Converts masks to tensors of coordinates; waits for the numbers of set elements."""
    masks = _check_masks(view, arrays, dims)
    counts = [int(n) for n in ops["stack"]([ops["count_nonzero"](each) for each in masks], 0).tolist()] \
        if masks else []
    return _columns(arrays, dims, counts)


def getitem(x: Tensor, index: Any) -> Tensor:
    """Returns x[index]."""
    if type(index) is int:
        size = x._shape[0] if x.ndim else None
        if size is None:
            raise IndexError("invalid index of a 0-dim tensor; use tensor.item()")
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {size}")
        return _select(x, 0, index)
    view, arrays, dims, _ = _plan(x, index)
    if not arrays:
        return ops["alias"](view) if view is x else view
    masks = _check_masks(view, arrays, dims)
    if not masks:
        return ops["index"](view, arrays, dims)

    def found(counts: list[int]) -> Tensor:
        return ops["index"](view, *_columns(arrays, dims, counts))

    rank = view.dim() - sum(mask.dim() for mask in masks) - (len(arrays) - len(masks)) + max(
        1 if _is_mask(each) else each.dim() for each in arrays)
    return later(numbers_of(*[ops["count_nonzero"](mask) for mask in masks]), found, x.dtype, rank,
                 view, *arrays)


def _set_masked(view: Tensor, arrays: list[Tensor], dims: list[int], value: Tensor) -> bool:
    """Performs view[mask] = value without waiting for the number of set elements, if value either has that
    number as its size (which the daemon verifies) or is broadcast along it. Returns False if neither holds
    and the number is needed."""
    mask, dim = _check_masks(view, arrays, dims)[0], dims[0]
    spread = mask.dim()
    rank = view.dim() - spread + 1
    while value.dim() > rank and value._shape[0] == 1:
        value = _select(value, 0, 0)
    if value.dim() > rank:
        return False
    at = dim - (rank - value.dim())  # value's dimension along the elements that are set
    if at >= 0 and value._shape[at] != 1:
        count = value._shape[at]
        if count > mask.numel():
            return False
        found = ops["count_nonzero"](mask)
        text = (f"shape mismatch: value tensor of shape {list(value._shape)} cannot be broadcast to an "
                f"indexing result with another number of elements than {count} along dimension {dim}")
        mask = ops["require"](mask, ops["eq"](found, count), text)
        columns, places = _columns([mask], [dim], [count])
        ops["index_put_"](view, value, columns, places)
        return True
    if at >= 0:
        value = ops["reshape"](value, (*value._shape[:at], *[1] * spread, *value._shape[at + 1:]))
    value = ops["expand"](value, view._shape)
    for _ in range(view.dim() - dim - spread):
        mask = _unsqueeze(mask, mask.dim())
    chosen = ops["where"](mask if mask.dtype == _core.bool else ops["ne"](mask, 0), value, view)
    ops["copy_"](view, chosen)
    return True


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """Performs x[index] = value in place."""
    view, arrays, dims, full = _plan(x, index)
    if not isinstance(value, (Tensor, bool, int, float)):
        value = tensor(value, dtype=x.dtype, device=x.device)
    if not arrays:
        region = x if full else view
        if not isinstance(value, Tensor) or (value.dim() == 0 and region.dim() != 0):
            ops["fill_"](region, value)
            return
        while value.dim() > region.dim() and value._shape[0] == 1:
            value = _select(value, 0, 0)
        if value._shape != region._shape:
            value = ops["expand"](value, region._shape)
        ops["copy_"](region, value)
        return
    masks_only = len(arrays) == 1 and arrays[0].dtype in (_core.bool, _core.uint8)
    if masks_only and (not isinstance(value, Tensor) or value.dim() == 0):
        mask = arrays[0]
        for d in range(mask.dim()):
            if mask._shape[d] != view._shape[dims[0] + d]:
                raise IndexError(
                    f"the shape of the mask {list(mask._shape)} at index {d} does not match the "
                    f"shape of the indexed tensor {list(view._shape)} at index {dims[0] + d}")
        for _ in range(view.dim() - dims[0] - mask.dim()):
            mask = _unsqueeze(mask, mask.dim())
        ops["masked_fill_"](view, mask if mask.dtype == _core.bool else ops["ne"](mask, 0), value)
        return
    if isinstance(value, Tensor) and value.dtype != view.dtype:
        if not masks_only or value.numel() != 1:
            raise RuntimeError("Index put requires the source and destination dtypes match, got "
                               f"{view.dtype} for the destination and {value.dtype} for the source.")
        value = value.to(view.dtype)
    if masks_only and _set_masked(view, arrays, dims, value):
        return
    columns, at = expanded(view, arrays, dims)
    if isinstance(value, Tensor):
        rank = view.dim() - len(columns) + max(each.dim() for each in columns)
        while value.dim() > rank and value._shape[0] == 1:
            value = _select(value, 0, 0)
    ops["index_put_"](view, value, columns, at)
