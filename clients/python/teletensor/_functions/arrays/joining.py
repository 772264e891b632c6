"""Functions that join, repeat, roll and rotate tensors, and products that only rearrange elements (kron,
block_diag)."""

from __future__ import annotations

import math
from typing import Any

from ... import _core
from ..._core import Tensor, ops
from ..._tensors.convert import tensor
from ..._tensors.pending import later, numbers_of
from ..common import Size, function_only, owned, sizes_of, tensors_of, wrap_dim
from .creation import arange, full, zeros
from .structure import cat, flip, meshgrid
from .views import atleast_1d, atleast_2d, atleast_3d

__all__ = [
    "block_diag", "cartesian_prod", "column_stack", "combinations", "dstack", "fliplr", "flipud",
    "hstack", "kron", "repeat_interleave", "roll", "rot90", "row_stack", "tile", "trace",
    "vander", "vstack",
]  # fmt: skip


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def hstack(tensors: Any) -> Tensor:
    """Joins tensors along dim 1 (vectors along dim 0)."""
    parts = [atleast_1d(x) for x in _list(tensors)]
    return cat(parts, 0 if parts and parts[0].dim() == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """Joins tensors along dim 0; vectors become rows."""
    return cat([atleast_2d(x) for x in _list(tensors)], 0)


row_stack = vstack


def dstack(tensors: Any) -> Tensor:
    """Joins tensors along dim 2, after atleast_3d of each."""
    return cat([atleast_3d(x) for x in _list(tensors)], 2)


def column_stack(tensors: Any) -> Tensor:
    """Joins tensors along dim 1; vectors become columns."""
    return cat([ops["reshape"](x, (x.numel(), 1)) if x.dim() <= 1 else x for x in _list(tensors)], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """The matrix that has the given matrices along its diagonal; vectors and numbers count as rows."""
    blocks = [atleast_2d(x) for x in tensors_of("block_diag", tensors)] or [zeros(1, 0)]
    for i, x in enumerate(blocks):
        if x.dim() != 2:
            raise RuntimeError("torch.block_diag: Input tensors must have 2 or fewer dimensions. "
                               f"Input {i} has {x.dim()} dimensions")
    dtype = blocks[0].dtype
    for x in blocks[1:]:
        dtype = _core.promote(dtype, x.dtype)
    width, before, rows = sum(x._shape[1] for x in blocks), 0, []
    for x in blocks:
        height, own = x._shape
        x = x if x.dtype == dtype else ops["cast"](x, dtype)
        rows.append(cat([
            zeros(height, before, dtype=dtype, device=x.device), x,
            zeros(height, width - before - own, dtype=dtype, device=x.device)], 1))
        before += own
    return cat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element from each vector, as rows; for one vector, the vector itself."""
    vectors = tensors_of("cartesian_prod", tensors)
    for x in vectors:
        if x.dim() != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(x._shape)}")
    if len(vectors) == 1:
        return vectors[0]
    return ops["stack"]([ops["reshape"](x, (-1,)) if x.numel() else ops["reshape"](x, (0,))
                         for x in meshgrid(*vectors)], 1)


@function_only
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, in order, as rows."""
    if input.dim() != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input._shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return zeros(0, dtype=input.dtype, device=input.device)
    n = input.numel()
    grids = meshgrid(*[arange(n, device=input.device)] * r)
    kept = full((n,) * r, True, device=input.device)
    for left, right in zip(grids[:-1], grids[1:], strict=True):
        kept = ops["logical_and"](kept, ops["le" if with_replacement else "lt"](left, right))
    count = math.comb(n + r - 1, r) if with_replacement and n else math.comb(n, r)
    return ops["index"](input, [ops["nonzero"](kept, count)], [0])


# ---------------------------------------------------------------- repeating


def tile(input: Tensor, *repeats: Any, dims: Any = None) -> Tensor:
    """Repeats input along each dimension; if there are fewer counts than dimensions, 1 is used for the
    first dimensions."""
    times = sizes_of(repeats if dims is None else (dims,))
    times = (1,) * (input.dim() - len(times)) + times
    return input.repeat(times)


def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *,
                      output_size: int | None = None) -> Tensor:
    """Repeats each element (each slice along dim); `repeats` is one number, or one for each slice.

    A tensor of repeats without input gives the indices. Without output_size, reading the shape waits for
    the sum of the repeats.
    """
    if repeats is None:
        return _spread(input, output_size)
    if dim is None:
        input, dim = ops["reshape"](input, (input.numel(),)), 0
    at = wrap_dim(dim, input.dim())
    size = input._shape[at] if input.dim() else 1
    if isinstance(repeats, Tensor) and repeats.numel() == 1 and repeats.dim() < 2:
        times = ops["cast"](ops["detach"](repeats), _core.int64)
        return later(numbers_of(times), lambda n: repeat_interleave(input, n[0], dim), input.dtype,
                     max(input.dim(), 1), input, times)
    if isinstance(repeats, int):
        if repeats < 0:
            raise RuntimeError("repeats has to be non-negative")
        if input.dim() == 0:
            return owned(ops["expand"](ops["reshape"](input, (1,)), (repeats,)))
        shape = input._shape
        wide = ops["expand"](ops["unsqueeze"](input, at + 1),
                             (*shape[:at + 1], repeats, *shape[at + 1:]))
        return owned(ops["reshape"](wide, (*shape[:at], size * repeats, *shape[at + 1:])))
    if not isinstance(repeats, Tensor):
        repeats = tensor(repeats, device=input.device)
    if repeats.dim() != 1 or repeats.numel() != size:
        raise RuntimeError(f"repeats must have the same size as input along dim, but got repeats.size(0)"
                           f" = {repeats.numel()} and input.size({at}) = {size}")
    _check_repeats(repeats)
    if output_size is not None:
        return ops["index_select"](input, _spread(repeats, output_size), at)
    return later(_total(repeats), lambda n: ops["index_select"](input, _places(repeats, n), at),
                 input.dtype, input.dim(), input, repeats)


def _spread(repeats: Tensor, output_size: int | None) -> Tensor:
    """The vector that contains each index i repeats[i] times."""
    _check_repeats(repeats)
    if output_size is not None:
        return _places(repeats, [0, output_size])
    return later(_total(repeats), lambda n: _places(repeats, n), repeats.dtype, 1, repeats)


def _check_repeats(repeats: Tensor) -> None:
    if repeats.dim() != 1 or repeats.dtype not in (_core.int32, _core.int64):
        raise RuntimeError("repeats must be a 1-dimensional tensor of int32 or int64, it is "
                           f"{list(repeats._shape)} {repeats.dtype}")


def _total(repeats: Tensor) -> _core.Counts:
    """The smallest of the repeats and their sum."""
    wide = ops["cast"](ops["detach"](repeats), _core.int64)
    low = ops["min"](wide) if repeats.numel() else ops["full"](0, (), _core.int64, repeats.device)
    return numbers_of(low, ops["sum"](wide))


def _places(repeats: Tensor, numbers: list[int]) -> Tensor:
    if numbers[0] < 0:
        raise RuntimeError("repeats can not be negative")
    ends = ops["cumsum"](repeats, 0)
    places = ops["searchsorted"](ends, arange(numbers[1], device=repeats.device), False, True)
    return places if repeats.dtype == _core.int64 else ops["cast"](places, repeats.dtype)


# ---------------------------------------------------------------- rolling and turning


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Shifts elements along dims; elements shifted out at one end come in at the other end. Without dims,
    shifts the tensor as a vector."""
    moves = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = () if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    if not moves:
        raise RuntimeError("`shifts` required")
    if not axes and len(moves) == 1:
        flat = ops["reshape"](input, (input.numel(),))
        return ops["reshape"](roll(flat, moves, 0), input._shape)
    if len(axes) != len(moves):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(moves)}, dims:{len(axes)}")
    out = input
    for shift, axis in zip(moves, axes, strict=True):
        if input.dim() == 0:
            raise IndexError("Dimension specified as 0 but tensor has no dimensions")
        d = wrap_dim(axis, input.dim())
        size = input._shape[d]
        first = -shift % size if size else 0
        if first:
            out = cat([ops["slice"](out, d, first, size - first, 1),
                       ops["slice"](out, d, 0, first, 1)], d)
    return ops["contiguous"](out) if out is input else out


def fliplr(input: Tensor) -> Tensor:
    """A copy with the order of the columns reversed."""
    if input.dim() < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, (1,))


def flipud(input: Tensor) -> Tensor:
    """A copy with the order of the rows reversed."""
    if input.dim() < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, (0,))


def rot90(input: Tensor, k: int = 1, dims: Size = (0, 1)) -> Tensor:
    """Rotates k times by 90 degrees in the plane of two dims, from the first towards the second."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.dim() < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {input.dim()}")
    a, b = wrap_dim(dims[0], input.dim()), wrap_dim(dims[1], input.dim())
    if a == b:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and "
                           f"dim1 = {dims[1]}")
    turns = k % 4
    if turns == 1:
        return ops["transpose"](flip(input, (b,)), a, b)
    if turns == 2:
        return flip(input, (a, b))
    if turns == 3:
        return ops["transpose"](flip(input, (a,)), a, b)
    return ops["clone"](input)


# ---------------------------------------------------------------- products and sums


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.dim() != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.dim()}")
    return ops["sum"](ops["diagonal"](input))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: one block, other times the element, for each element of `input`."""
    rank = max(input.dim(), other.dim())
    a = (1,) * (rank - input.dim()) + tuple(input._shape)
    b = (1,) * (rank - other.dim()) + tuple(other._shape)
    left = ops["reshape"](input, [n for size in a for n in (size, 1)])
    right = ops["reshape"](other, [n for size in b for n in (1, size)])
    if min(math.prod(a[:-1]), math.prod(b[:-1])) >= 4 and b[-1] < 256:
        # If rows are long, the repetitions of both sides along the last dimension are computed once, not
        # for each product.
        last = [a[-1], b[-1]]
        left, right = (ops["reshape"](ops["expand"](x, [*x._shape[:-2], *last]),
                                      [*x._shape[:-2], a[-1] * b[-1]]) for x in (left, right))
    return ops["reshape"](left * right, [m * n for m, n in zip(a, b, strict=True)])


@function_only
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix of a vector: N columns (by default as many as elements) with the powers N - 1
    down to 0, or upwards if `increasing`."""
    if x.dim() != 1:
        raise RuntimeError(f"x must be a one-dimensional tensor, it has {x.dim()} dimensions")
    columns = x.numel() if N is None else N
    if columns < 0:
        raise RuntimeError(f"N must be non-negative, got {columns}")
    if columns == 0 or x.numel() == 0:
        dtype = x.dtype if x.dtype.is_floating_point else _core.int64
        return zeros(x.numel(), columns, dtype=dtype, device=x.device)
    powers = ops["expand"](ops["unsqueeze"](x, 1), (x.numel(), columns - 1))
    if columns > 1:
        powers = ops["cumprod"](powers, 1)
    ones = full((x.numel(), 1), 1, dtype=powers.dtype, device=x.device)
    out = cat([ones, powers], 1)
    return out if increasing else flip(out, (1,))
