"""Copies of tensors with a part replaced (..._scatter), and reductions and copies at the positions that an
index gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import _core
from ..._core import Tensor, ops
from ..common import Size, function_only, indices_of, sizes_of, wrap_dim

__all__ = [
    "as_strided_scatter", "diagonal_scatter", "index_reduce", "index_reduce_", "put", "put_",
    "scatter_reduce", "scatter_reduce_", "segment_reduce", "select_scatter", "slice_scatter",
    "take_along_dim",
]  # fmt: skip


def _strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _replaced(input: Tensor, src: Tensor, shape: list[int], strides: list[int],
              offset: int) -> Tensor:
    """input with a strided region of its row-major order replaced by src."""
    if list(src._shape) != shape:
        raise RuntimeError("expected src to have a size equal to the slice of self. src size = "
                           f"{list(src._shape)}, slice size = {shape}")
    base = input._shape
    return ops["update_region"](input, src, base, _strides(base), shape, strides,
                                offset if src.numel() else 0)


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0,
                     dim2: int = 1) -> Tensor:
    """A copy of input with a diagonal replaced by src."""
    a, b = wrap_dim(dim1, input.dim()), wrap_dim(dim2, input.dim())
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    shape, strides = list(input._shape), _strides(input._shape)
    length = max(0, min(shape[a], shape[b] - offset) if offset >= 0
                 else min(shape[a] + offset, shape[b]))
    start = offset * strides[b] if offset >= 0 else -offset * strides[a]
    kept = [d for d in range(len(shape)) if d not in (a, b)]
    return _replaced(input, src, [*(shape[d] for d in kept), length],
                     [*(strides[d] for d in kept), strides[a] + strides[b]], start)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of input with its slice at one index of dim replaced by src."""
    d = wrap_dim(dim, input.dim())
    shape, strides = list(input._shape), _strides(input._shape)
    if not shape or not -shape[d] <= index < shape[d]:
        raise IndexError(f"select(): index {index} out of range for tensor of size {shape} at "
                         f"dimension {d}")
    start = index % shape.pop(d) * strides.pop(d)
    return _replaced(input, src, shape, strides, start)


def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Tensor:
    """A copy of input with input[start:end:step] along dim replaced by src."""
    d = wrap_dim(dim, input.dim())
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    shape, strides = list(input._shape), _strides(input._shape)
    first, last, _ = slice(start, end).indices(shape[d])
    offset = first * strides[d]
    shape[d] = max(0, -(-(last - first) // step))
    strides[d] *= step
    return _replaced(input, src, shape, strides, offset)


def as_strided_scatter(input: Tensor, src: Tensor, size: Size, stride: Size,
                       storage_offset: int | None = None) -> Tensor:
    """A copy of input in which the elements that as_strided would view are replaced by src."""
    shape, strides = list(sizes_of((size,))), list(sizes_of((stride,)))
    own = input.storage_offset()
    offset = own if storage_offset is None else storage_offset
    ops["as_strided"](input, shape, strides, offset)  # raises an error if the region is out of bounds
    if list(src._shape) != shape:
        raise RuntimeError("expected src to have a size equal to the slice of self. src size = "
                           f"{list(src._shape)}, slice size = {shape}")
    return ops["update_region"](input, src, input._shape, input._strides(), shape, strides,
                                offset - own if src.numel() else 0)


# ---------------------------------------------------------------- at the positions of an index


def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *,
                   include_self: bool = True) -> Tensor:
    """A copy of input in which the elements of src that index assigns to one position, and the element
    there, are reduced by sum, prod, mean, amax or amin."""
    return ops["scatter_reduce"](input, indices_of(index, input.dim()), src, dim, reduce, include_self)


def scatter_reduce_(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *,
                    include_self: bool = True) -> Tensor:
    """scatter_reduce in place."""
    return ops["scatter_reduce_"](input, indices_of(index, input.dim()), src, dim, reduce, include_self)


def _slices(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str) -> Tensor:
    """An index of slices, expanded to an index of elements of source's shape."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError("index_reduce(): Expected reduce to be one of prod, mean, amax or amin but "
                           f"got {reduce}.")
    d = wrap_dim(dim, input.dim())
    if index.dim() > 1:
        raise IndexError("index_reduce_(): Index is supposed to be a vector, but got dim: "
                         f"{index.dim()}")
    if source.dim() == 0 or input.dim() == 0:
        return ops["reshape"](index, source._shape)
    if source._shape[d] != index.numel():
        raise RuntimeError(f"index_reduce_(): Number of indices ({index.numel()}) should be equal to "
                           f"self.size(dim) ({source._shape[d]})")
    column = [1] * source.dim()
    column[d] = index.numel()
    return ops["expand"](ops["reshape"](index, column), source._shape)


def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                 include_self: bool = True) -> Tensor:
    """A copy of input in which the slices of source with the same index, and input's slice there, are
    reduced by prod, mean, amax or amin."""
    places = _slices(input, dim, index, source, reduce)
    return ops["scatter_reduce"](input, places, source, dim, reduce, include_self)


def index_reduce_(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                  include_self: bool = True) -> Tensor:
    """index_reduce in place."""
    places = _slices(input, dim, index, source, reduce)
    return ops["scatter_reduce_"](input, places, source, dim, reduce, include_self)


_SEGMENTS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "prod": ("prod", 1.0),
             "max": ("amax", -math.inf), "min": ("amin", math.inf)}


@function_only
def segment_reduce(data: Tensor, reduce: str, *, lengths: Tensor | None = None,
                   indices: Tensor | None = None, offsets: Tensor | None = None, axis: int = 0,
                   unsafe: bool = False, initial: float | None = None) -> Tensor:
    """Reduces segments of consecutive elements along axis by sum, mean, max, min or prod. `lengths` gives
    the lengths of the segments (or `offsets` their bounds); its last dimension is axis, and its other
    dimensions are those of data.

    Lengths that are negative or do not add up to the size of axis are an error when a value is read (unless
    `unsafe`). A segment of length 0 has the value `initial`, or, without it, the neutral element of the
    reduction (NaN for mean).
    """
    if indices is not None:
        raise NotImplementedError("segment_reduce(): indices based reduction is not supported yet.")
    if not data.dtype.is_floating_point:
        raise NotImplementedError(f"segment_reduce(): is not defined for {data.dtype}")
    if reduce not in _SEGMENTS:
        raise RuntimeError(f"segment_reduce(): unsupported reduction given! {reduce}")
    if lengths is None:
        if offsets is None:
            raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
        lengths = offsets.diff(dim=-1)
    d, rank = wrap_dim(axis, data.dim()), data.dim()
    if lengths.dim() != d + 1 or lengths._shape[:d] != data._shape[:d]:
        raise RuntimeError("segment_reduce(): Expected axis to be the last dimension of lengths, whose "
                           f"others are data's, but got axis {d}, lengths of shape "
                           f"{list(lengths._shape)} and data of shape {list(data._shape)}")
    size, count = data._shape[d], lengths._shape[d]
    ends = lengths.cumsum(-1)
    if not unsafe:
        whole = ops["logical_and"](ops["all"](ops["ge"](lengths, 0)),
                                   ops["all"](ops["eq"](lengths.sum(-1), size)))
        data = ops["require"](data, whole, "segment_reduce(): Expected all rows of lengths along axis "
                                           f"to sum to {size}, and no negative ones")
    dtype = data.dtype
    if reduce == "mean" and dtype in (_core.float16, _core.bfloat16):
        data = data.to(_core.float32)  # so that the sum is not rounded before the division
    by, start = _SEGMENTS[reduce]
    places = ops["expand"](ops["arange"](0, size, 1, _core.int64, data.device), [*data._shape[:d], size])
    segments = ops["searchsorted"](ends, ops["contiguous"](places), False, True)
    column = ops["reshape"](segments, [*segments._shape, *[1] * (rank - d - 1)])
    shape = list(data._shape)
    shape[d] = count + 1  # the last entry receives the elements after all segments
    out = ops["full"](start if initial is None else initial, shape, data.dtype, data.device)
    out = ops["scatter_reduce"](out, ops["expand"](column, data._shape), data, d, by, True)
    out = ops["slice"](out, d, 0, count, 1)
    if reduce != "mean":
        return out
    wide = ops["reshape"](lengths, [*lengths._shape, *[1] * (rank - d - 1)])
    return (out / (wide if initial is None else wide.clamp(min=1))).to(dtype)


def _flat(x: Tensor) -> Tensor:
    return ops["reshape"](x, (x.numel(),))


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of input with source written (or added) at indices into its row-major order."""
    if index.numel() != source.numel():
        raise RuntimeError("put_(): Expected source and index to have the same number of elements, but "
                           f"got source.numel() = {source.numel()}, index.numel() = {index.numel()}")
    if input.dtype != source.dtype:
        raise RuntimeError("put_(): self and source expected to have the same dtype, but got "
                           f"{input.dtype} and {source.dtype}")
    if index.numel() == 0:
        return ops["clone"](input)
    out = ops["index_put"](_flat(input), _flat(source), [_flat(index)], [0], accumulate)
    return ops["reshape"](out, input._shape)


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """put in place."""
    return ops["copy_"](input, put(input, index, source, accumulate))


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements along dim at the indices, which broadcast; without dim, at indices into the row-major
    order."""
    if indices.dtype != _core.int64:
        raise RuntimeError("torch.take_along_dim(): dtype of indices should be Long but got "
                           f"{indices.dtype}")
    if dim is None:
        return ops["gather"](_flat(input), _flat(indices), 0)
    if input.dim() != indices.dim():
        raise RuntimeError("torch.take_along_dim(): input and indices should have the same number of "
                           f"dimensions, but got {input.dim()} dimensions for input, and "
                           f"{indices.dim()} dimensions for indices")
    d = wrap_dim(dim, input.dim())
    shape, at = [], []
    for i, (n, m) in enumerate(zip(input._shape, indices._shape, strict=True)):
        if i != d and n != m and 1 not in (n, m):
            raise RuntimeError(f"shapes do not broadcast: {list(input._shape)} and "
                               f"{list(indices._shape)}")
        wide = m if n == 1 else n
        shape.append(n if i == d else wide)
        at.append(m if i == d else wide)
    indices = ops["where"](ops["lt"](indices, 0), indices + shape[d], indices) if at else indices
    return ops["gather"](ops["expand"](input, shape), ops["expand"](indices, at), d)
