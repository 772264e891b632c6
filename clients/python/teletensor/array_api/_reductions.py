"""The statistical, searching, sorting, set and utility functions of the standard."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

from .. import _api as tt
from .._core import Tensor, dtype as DType
from .._tensors.pending import later, numbers_of
from ._array import Array, operands, require, unwrap, wrap
from ._dtypes import BY_NAME, kind_of, promote
from ._manipulation import axes_of, axis_of, concat

__all__ = [
    "all", "any", "argmax", "argmin", "argsort", "count_nonzero", "cumulative_prod",
    "cumulative_sum", "diff", "isin", "max", "mean", "min", "nonzero", "prod", "searchsorted",
    "sort", "std", "sum", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "var", "where",
]  # fmt: skip

Axis = int | tuple[int, ...] | None
_FLOATING = ("real floating", "complex floating")
_REAL = ("integral", "real floating")


class UniqueAllResult(NamedTuple):
    """The result of unique_all."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """The result of unique_counts."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """The result of unique_inverse."""

    values: Array
    inverse_indices: Array


def _accumulator(dtype: DType, wanted: DType | None) -> DType:
    """The dtype of a sum or product: for integers it has 64 bits."""
    if wanted is not None:
        return wanted
    kind = kind_of(dtype)
    if kind == "signed integer" or kind == "bool":
        return BY_NAME["int64"]
    return BY_NAME["uint64"] if kind == "unsigned integer" else dtype


def _lines(x: Array, axis: Axis, where: str) -> tuple[Tensor, list[int], list[int]]:
    """The tensor with the reduced axes joined at its end, the shape of the result, and that shape with the
    reduced axes kept as ones."""
    tensor = unwrap(x, where)
    axes = axes_of(axis, x.ndim, where)
    rest = [i for i in range(x.ndim) if i not in axes]
    left = [x.shape[i] for i in rest]
    kept = [1 if i in axes else x.shape[i] for i in range(x.ndim)]
    count = 1
    for i in axes:
        count *= x.shape[i]
    return tensor.permute([*rest, *axes]).reshape([*left, count]), left, kept


def sum(
    x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: builtins.bool = False
) -> Array:
    """The sum; integers are summed in 64 bits unless `dtype` says otherwise."""
    require(x.dtype, "sum", "numeric")
    tensor, wide = unwrap(x, "sum"), _accumulator(x.dtype, dtype)
    axes = axes_of(axis, x.ndim, "sum")
    return wrap(
        tt.sum(tensor, axes, keepdim=keepdims, dtype=wide) if axes else tensor.to(wide, copy=True)
    )


def prod(
    x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: builtins.bool = False
) -> Array:
    """The product; integers are multiplied in 64 bits unless `dtype` says otherwise."""
    require(x.dtype, "prod", "numeric")
    lines, left, kept = _lines(x, axis, "prod")
    out = tt.prod(lines, -1, dtype=_accumulator(x.dtype, dtype))
    return wrap(out.reshape(kept if keepdims else left))


def mean(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """The arithmetic mean."""
    require(x.dtype, "mean", _FLOATING)
    axes = axes_of(axis, x.ndim, "mean")
    tensor = unwrap(x, "mean")
    return wrap(tt.mean(tensor, axes, keepdim=keepdims) if axes else tensor.clone())


def var(
    x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Array:
    """The variance: the sum of squared deviations divided by (count - correction)."""
    require(x.dtype, "var", "real floating")
    axes = axes_of(axis, x.ndim, "var")
    count = 1
    for i in axes:
        count *= x.shape[i]
    tensor = unwrap(x, "var")
    if not axes:
        return wrap(tensor * 0 / (1.0 - correction) if correction < 1 else tensor * float("nan"))
    centred = tensor - tt.mean(tensor, axes, keepdim=True)
    total = tt.sum(centred * centred, axes, keepdim=keepdims)
    return wrap(total / (count - correction) if count > correction else total * float("nan"))


def std(
    x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Array:
    """The square root of the variance."""
    require(x.dtype, "std", "real floating")
    return wrap(tt.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims)._tensor))


def _extreme(x: Array, axis: Axis, keepdims: builtins.bool, where: str, function: Any) -> Array:
    require(x.dtype, where, _REAL)
    lines, left, kept = _lines(x, axis, where)
    if lines._shape[-1] == 0:
        raise ValueError(f"{where}: the array has no elements")
    return wrap(function(lines, -1).reshape(kept if keepdims else left))


def max(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """The largest element; NaN if there is one."""
    return _extreme(x, axis, keepdims, "max", tt.amax)


def min(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """The smallest element; NaN if there is one."""
    return _extreme(x, axis, keepdims, "min", tt.amin)


def _cumulative(
    x: Array,
    axis: int | None,
    dtype: DType | None,
    initial: int,
    include: builtins.bool,
    where: str,
    function: Any,
) -> Array:
    require(x.dtype, where, "numeric")
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"{where}: axis is needed for an array with {x.ndim} axes")
        axis = 0
    axis = axis_of(axis, x.ndim, where)
    out = function(unwrap(x, where), axis, dtype=_accumulator(x.dtype, dtype))
    if include:
        shape = [1 if i == axis else size for i, size in enumerate(x.shape)]
        out = tt.cat([tt.full(shape, initial, dtype=out.dtype, device=out.device), out], axis)
    return wrap(out)


def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: builtins.bool = False,
) -> Array:
    """Cumulative sums along an axis; with `include_initial` the first one is 0."""
    return _cumulative(x, axis, dtype, 0, include_initial, "cumulative_sum", tt.cumsum)


def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: builtins.bool = False,
) -> Array:
    """Cumulative products along an axis; with `include_initial` the first one is 1."""
    return _cumulative(x, axis, dtype, 1, include_initial, "cumulative_prod", tt.cumprod)


def _truth(x: Array, where: str) -> Tensor:
    tensor = unwrap(x, where)
    return tensor if kind_of(x.dtype) == "bool" else tt.ne(tensor, 0)


def all(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """Returns whether all elements are true (not 0)."""
    lines, left, kept = _lines(Array(_truth(x, "all")), axis, "all")
    return wrap(tt.all(lines, -1).reshape(kept if keepdims else left))


def any(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """Returns whether any element is true (not 0)."""
    lines, left, kept = _lines(Array(_truth(x, "any")), axis, "any")
    return wrap(tt.any(lines, -1).reshape(kept if keepdims else left))


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> Array:
    """The number of elements that are not 0."""
    lines, left, kept = _lines(Array(_truth(x, "count_nonzero")), axis, "count_nonzero")
    return wrap(lines.to(tt.int64).sum(-1).reshape(kept if keepdims else left))


def diff(
    x: Array,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    """The n-th differences of adjacent elements along an axis."""
    require(x.dtype, "diff", "numeric")
    axis = axis_of(axis, x.ndim, "diff")
    parts = [part for part in (prepend, x, append) if part is not None]
    tensor = concat(parts, axis=axis)._tensor if len(parts) > 1 else unwrap(x, "diff")
    for _ in range(n):
        size = tensor._shape[axis]
        if size == 0:
            break
        tensor = tensor.narrow(axis, 1, size - 1) - tensor.narrow(axis, 0, size - 1)
    return wrap(tensor if tensor is not x._tensor else tensor.clone())


# ---------------------------------------------------------------- searching


def _where_is(
    x: Array, axis: int | None, keepdims: builtins.bool, where: str, function: Any
) -> Array:
    require(x.dtype, where, _REAL)
    tensor = unwrap(x, where)
    if axis is None:
        out = function(tensor.reshape(-1), 0)
        return wrap(out.reshape((1,) * x.ndim) if keepdims else out)
    axis = axis_of(axis, x.ndim, where)
    return wrap(function(tensor, axis, keepdim=keepdims))


def argmax(x: Array, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Array:
    """The index of the first largest element."""
    return _where_is(x, axis, keepdims, "argmax", tt.argmax)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Array:
    """The index of the first smallest element."""
    return _where_is(x, axis, keepdims, "argmin", tt.argmin)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, one array for each axis (waits for their number)."""
    if x.ndim == 0:
        raise ValueError("nonzero: needs at least 1 axis")
    return tuple(wrap(column) for column in tt.nonzero(_truth(x, "nonzero"), as_tuple=True))


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition is true, and x2 elsewhere."""
    test = unwrap(condition, "where")
    require(condition.dtype, "where", "bool")
    if not isinstance(x1, Array) and not isinstance(x2, Array):
        from ._creation import asarray
        from ._manipulation import result_type

        x1 = asarray(x1)
        x2 = asarray(x2)
        wide = (
            promote(x1.dtype, x2.dtype)
            if kind_of(x1.dtype) == kind_of(x2.dtype)
            else result_type(x1, x2)
        )
        return wrap(tt.where(test, x1._tensor.to(wide), x2._tensor.to(wide)))
    a, b = operands(x1, x2, "where")
    return wrap(tt.where(test, a, b))


def searchsorted(
    x1: Array, x2: Array | float, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """The indices at which the elements of x2 would be inserted into the sorted x1."""
    sequence = unwrap(x1, "searchsorted")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', not {side!r}")
    if sorter is not None:
        sequence = tt.index_select(sequence, 0, sorter._tensor.to(tt.int64))
    a, b = operands(Array(sequence), x2, "searchsorted")
    return wrap(tt.searchsorted(a.contiguous(), b.contiguous(), right=side == "right"))


# ---------------------------------------------------------------- sorting, sets


def sort(
    x: Array, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Array:
    """The elements sorted along an axis."""
    require(x.dtype, "sort", _REAL)
    axis = axis_of(axis, x.ndim, "sort")
    return wrap(tt.sort(unwrap(x, "sort"), dim=axis, descending=descending, stable=stable)[0])


def argsort(
    x: Array, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Array:
    """The indices that sort the elements along an axis."""
    require(x.dtype, "argsort", _REAL)
    axis = axis_of(axis, x.ndim, "argsort")
    return wrap(tt.sort(unwrap(x, "argsort"), dim=axis, descending=descending, stable=stable)[1])


def _unique(x: Array) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct values in ascending order (each NaN is distinct), the index of the first occurrence of
    each, the inverse, and the counts."""
    flat = unwrap(x, "unique").reshape(-1)
    if flat.dtype.is_complex:
        return _unique_complex(flat)
    values, places = tt.sort(flat, stable=True)
    return _groups(values, places, flat)


def _groups(values: Tensor, places: Tensor, flat: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the results of _unique from the sorted elements and their original indices."""
    count = values.numel()
    first = tt.ones(count, dtype=tt.bool, device=flat.device)
    if count > 1:
        first = tt.cat([first[:1], tt.ne(values[1:], values[:-1])])
    group = tt.cumsum(first.to(tt.int64), 0) - 1
    inverse = tt.zeros(count, dtype=tt.int64, device=flat.device).scatter(0, places, group)
    if not count:
        return values, places, inverse, inverse

    def sizes(counts: list[int]) -> Tensor:
        at = tt.nonzero_static(first, size=counts[0]).reshape(-1)
        end = tt.full((1,), count, dtype=tt.int64, device=first.device)
        return tt.cat([at[1:], end]) - at

    found = later(numbers_of(tt.count_nonzero(first)), sizes, tt.int64, 1, first)
    return values[first], places[first], inverse, found


def _unique_complex(flat: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """_unique for complex elements, sorted by the real part and then by the imaginary part."""
    by_imag = tt.sort(tt.imag(flat), stable=True)[1]
    by_real = tt.sort(tt.real(flat)[by_imag], stable=True)[1]
    places = by_imag[by_real]
    return _groups(flat[places], places, flat)


def unique_all(x: Array, /) -> UniqueAllResult:
    """The distinct values, the index of the first occurrence of each, the index of each element's value,
    and the counts."""
    values, places, inverse, counts = _unique(x)
    return UniqueAllResult(wrap(values), wrap(places), wrap(inverse.reshape(x.shape)), wrap(counts))


def unique_counts(x: Array, /) -> UniqueCountsResult:
    """The distinct values and the number of occurrences of each."""
    values, _, _, counts = _unique(x)
    return UniqueCountsResult(wrap(values), wrap(counts))


def unique_inverse(x: Array, /) -> UniqueInverseResult:
    """The distinct values and the index of each element's value."""
    values, _, inverse, _ = _unique(x)
    return UniqueInverseResult(wrap(values), wrap(inverse.reshape(x.shape)))


def unique_values(x: Array, /) -> Array:
    """The distinct values."""
    return wrap(_unique(x)[0])


def isin(x1: Any, x2: Any, /, *, invert: builtins.bool = False) -> Array:
    """Returns for each element of x1 whether it is among the elements of x2."""
    a, b = operands(x1, x2, "isin")
    if not a.dtype.is_complex:
        return wrap(tt.isin(a, b, invert=invert))
    found = tt.eq(a.unsqueeze(-1), b.reshape(-1)).any(-1)
    return wrap(~found if invert else found)
