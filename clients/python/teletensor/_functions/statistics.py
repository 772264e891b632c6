"""Statistics: reductions that ignore NaN, quantiles, histograms, covariances, differences."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from .. import _core, return_types
from .._core import Tensor, ops
from .._tensors.convert import tensor
from .._tensors.pending import later, numbers_of
from .common import function_only, refusing, tied, wrap_dim
from .complex import conj, real as real_part
from .reductions import std, var
from .stores import real, stored

__all__ = [
    "aminmax", "bincount", "corrcoef", "cov", "cummax", "cummin", "cumulative_trapezoid", "diff",
    "gradient", "histc", "histogram", "histogramdd", "mode", "nanmean", "nanmedian",
    "nanquantile", "nansum", "quantile", "renorm", "renorm_", "std_mean", "trapezoid", "trapz",
    "var_mean",
]


def _all_dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    """The dims that a reduction reduces, counted from the front; None means all dims."""
    if dim is None:
        return tuple(range(x.dim()))
    return tuple(wrap_dim(d, x.dim()) for d in ([dim] if isinstance(dim, int) else dim))


# ---------------------------------------------------------------- reductions


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> return_types.aminmax:
    """The smallest and the largest element, along dim or of the whole tensor."""
    if dim is None and input.numel() == 0:
        raise RuntimeError("aminmax(): cannot compute aminmax over an empty dimension as the operation "
                           "has no identity.")
    return return_types.aminmax(ops["amin"](input, dim, keepdim), ops["amax"](input, dim, keepdim))


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over dim of the elements that are not NaN."""
    return ops["nan_sum" if input.dtype.is_floating_point else "sum"](input, dim, keepdim, dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over dim of the elements that are not NaN."""
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"nanmean(): expected input to have floating point dtype but got "
                           f"{input.dtype.name}")
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError("nanmean(): could not infer output dtype. Optional dtype must be either a "
                           f"floating point or complex dtype. Got: {dtype}")
    count = ops["sum"](ops["logical_not"](ops["isnan"](input)), dim, keepdim)
    return ops["div"](nansum(input, dim, keepdim, dtype=dtype), count)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median (the lower one of two) of the elements that are not NaN; along dim: (values, indices)."""
    if input.dtype == _core.bool:
        raise NotImplementedError("nanmedian: not implemented for bool")
    if dim is None:
        if input.numel() == 0:
            return ops["median"](input)
        value = nanmedian(ops["reshape"](input, (-1,)), 0).values
        if not input.dtype.is_floating_point:
            return value
        # Equal elements share the gradient, as those of amax do.
        equal = ops["logical_or"](ops["eq"](input, value), ops["isnan"](value))
        return ops["amax"](ops["where"](equal, input, float("-inf")))
    dim = wrap_dim(dim, input.dim())
    if input.dim() == 0:
        return return_types.nanmedian(ops["clone"](input), ops["full"](0, (), _core.int64, input.device))
    if input._shape[dim] == 0:
        raise IndexError(f"median(): Expected reduction dim {dim} to have non-zero size.")
    values, indices = ops["sort"](input, dim, False, True)
    count = ops["sum"](ops["logical_not"](ops["isnan"](input)), dim, True)
    place = ops["clamp"](ops["floor_divide"](count - 1, 2), 0, None)
    found = [ops["gather"](x, place, dim) for x in (values, indices)]
    return return_types.nanmedian(*(x if keepdim else ops["squeeze"](x, dim) for x in found))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> return_types.mode:
    """The most frequent value along dim (the smallest of several such values) and the index of its last
    occurrence."""
    dim = wrap_dim(dim, input.dim())
    if input.dim() == 0:
        return return_types.mode(ops["clone"](input), ops["full"](0, (), _core.int64, input.device))
    n = input._shape[dim]
    if n == 0:
        raise IndexError(f"mode(): Expected reduction dim {dim} to have non-zero size.")
    values, indices = ops["sort"](input, dim, False, True)
    shape = [1] * input.dim()
    shape[dim] = n
    places = ops["reshape"](ops["arange"](0, n, 1, _core.int64, input.device), shape)
    new = ops["ne"](ops["slice"](values, dim, 1, n - 1, 1), ops["slice"](values, dim, 0, n - 1, 1))
    first = ops["full"](True, [1 if d == dim else s for d, s in enumerate(input._shape)], _core.bool,
                        input.device)
    starts = ops["where"](ops["cat"]([first, new], dim), places, 0)
    # the number of elements since the run of equal values began
    length = places - ops["cummax"](starts, dim)[0]
    best = ops["argmax"](length, dim, True)
    found = [ops["gather"](x, best, dim) for x in (values, indices)]
    return return_types.mode(*(x if keepdim else ops["squeeze"](x, dim) for x in found))


def cummax(input: Tensor, dim: int) -> return_types.cummax:
    """The cumulative maximum along dim, and its index."""
    return return_types.cummax(*ops["cummax"](input, dim))


def cummin(input: Tensor, dim: int) -> return_types.cummin:
    """The cumulative minimum along dim, and its index."""
    return return_types.cummin(*ops["cummin"](input, dim))


@function_only
def var_mean(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
             correction: Any = None) -> tuple[Tensor, Tensor]:
    """The variance and the mean over dim."""
    spread = var(input, dim, unbiased, keepdim, correction=correction)
    return spread, ops["mean"](input, None if isinstance(dim, bool) else dim, keepdim)


@function_only
def std_mean(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
             correction: Any = None) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over dim."""
    spread = std(input, dim, unbiased, keepdim, correction=correction)
    return spread, ops["mean"](input, None if isinstance(dim, bool) else dim, keepdim)


# ---------------------------------------------------------------- quantiles


def _quantile(name: str, x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if x.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if x.dtype not in (_core.float32, _core.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(f"{name}() interpolation must be one of linear, lower, higher, midpoint or "
                           f"nearest, but got {interpolation}")
    if isinstance(q, Tensor):
        if q.dim() > 1:
            raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
        if q.dtype != x.dtype:
            raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    else:
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        q = tensor(float(q), dtype=x.dtype, device=x.device)
    rank = x.dim()
    axis = 0 if dim is None else wrap_dim(dim, rank)
    flat = ops["reshape"](x, (-1,)) if dim is None or rank == 0 else x
    last = flat.dim() - 1
    order = [d for d in range(last + 1) if d != axis] + [axis]
    ordered = ops["sort"](ops["permute"](flat, order), -1)[0]
    nans = ops["isnan"](ordered)
    n = ordered._shape[-1]
    levels = ops["reshape"](q, (-1,))
    if name == "nanquantile":
        count = ops["sum"](ops["logical_not"](nans), -1, True)
        place = ops["clamp"](levels * ops["cast"](count - 1, x.dtype), 0, None)
    else:  # if there is a NaN, which sorting puts last, the result is NaN
        place = ops["where"](ops["slice"](nans, -1, n - 1, 1, 1), float(n - 1), levels * (n - 1))
        place = ops["cast"](place, x.dtype)
    if interpolation == "lower":
        place = ops["floor"](place)
    elif interpolation == "higher":
        place = ops["ceil"](place)
    elif interpolation == "nearest":
        place = ops["round"](place)
    below = ops["floor"](place)
    out = ops["gather"](ordered, ops["cast"](below, _core.int64), last)
    if interpolation in ("linear", "midpoint"):
        above = ops["gather"](ordered, ops["cast"](ops["ceil"](place), _core.int64), last)
        out = ops["lerp"](out, above, 0.5 if interpolation == "midpoint" else place - below)
    out = ops["permute"](out, [last, *range(last)])  # the quantile levels become the first dimension
    shape = list(x._shape)
    if dim is None:
        shape = [1] * rank
    elif rank:
        shape[axis] = 1
    if not keepdim:
        shape = [] if dim is None else [s for d, s in enumerate(x._shape) if d != axis]
    return ops["reshape"](out, ([] if q.dim() == 0 else [q.numel()]) + shape)


def quantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
             interpolation: str = "linear") -> Tensor:
    """The q-quantiles along dim, or of all elements; NaN if one of the elements is NaN."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


def nanquantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
                interpolation: str = "linear") -> Tensor:
    """The q-quantiles along dim, or of all elements; NaN elements are ignored."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


# ---------------------------------------------------------------- histograms


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of occurrences of each integer from 0 up, or the sum of its weights.

    Reading the result's shape waits for the largest element.
    """
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if input.dim() != 1 or input.dtype.is_floating_point or input.dtype == _core.bool:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights._shape != input._shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = _core.int64
    if weights is not None:
        dtype = _core.float32 if weights.dtype == _core.float32 else _core.float64
    source = ops["expand"](ops["full"](1, (), dtype, input.device), input._shape) if weights is None else (
        ops["cast"](refusing(weights, "bincount"), dtype))
    at = input if input.dtype == _core.int64 else ops["cast"](input, _core.int64)

    def counted(numbers: list[int]) -> Tensor:
        low, high = numbers
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        out = ops["full"](0, (max(minlength, high + 1),), dtype, at.device)
        return ops["index_add"](out, at, source, 0, 1)

    if input.numel() == 0:
        return counted([0, -1])
    return later(numbers_of(ops["min"](at), ops["max"](at)), counted, dtype, 1, at, source)


def histc(input: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """The number of elements in each of `bins` equal bins between min and max (the extremes of the data if
    the two are equal)."""
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if min > max:
        raise RuntimeError("max must be larger than min")
    if not math.isfinite(min) or not math.isfinite(max):
        raise RuntimeError(f"range of [{min}, {max}] is not finite")
    x = ops["detach"](ops["reshape"](input, (-1,)))
    dtype = x.dtype
    if not dtype.is_floating_point:
        raise NotImplementedError(f"histc is not implemented for {dtype.name}")
    if x.numel() == 0:
        return ops["full"](0, (bins,), dtype, x.device)
    low: Any = ops["full"](float(min), (), dtype, x.device)
    high: Any = ops["full"](float(max), (), dtype, x.device)
    if min == max:
        low, high = ops["min"](x), ops["max"](x)
    same = ops["eq"](low, high)
    low, high = ops["where"](same, low - 1, low), ops["where"](same, high + 1, high)
    inside = ops["logical_and"](ops["ge"](x, low), ops["le"](x, high))
    place = ops["clamp"](ops["floor"]((x - low) * bins / (high - low)), 0, bins - 1)
    index = ops["cast"](ops["where"](inside, place, float(bins)), _core.int64)
    total = ops["cast"](_counted(index, bins + 1), dtype)
    # The client does not know the extremes of the data: if they are not finite there are no bins, and all
    # counts become NaN.
    total = ops["where"](ops["isfinite"](high - low), total, math.nan)
    return ops["slice"](total, 0, 0, bins, 1)


def _counted(index: Tensor, size: int) -> Tensor:
    """The number of occurrences of each index below size. They are counted as integers, because float32
    numbers stop growing at 2^24."""
    zeros, one = (ops["full"](v, (n,), _core.int64, index.device) for v, n in ((0, size), (1, 1)))
    return ops["index_add"](zeros, index, ops["expand"](one, index._shape), 0, 1)


def _edges(x: Tensor, bins: int, limits: Any, dtype: Any) -> Tensor:
    """bins + 1 bin edges between limits, or between the extremes of x."""
    if bins <= 0:
        raise RuntimeError("histogram(): bins must be > 0")
    if limits is not None:
        low: Any = float(limits[0])
        high: Any = float(limits[1])
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"histogramdd(): range [{low}, {high}] is not finite")
        if low > high:
            raise RuntimeError(f"histogramdd(): min should not exceed max, but got min {low} max {high}")
        if low == high:
            low, high = low - 0.5, high + 0.5
        low, high = (ops["full"](v, (), dtype, x.device) for v in (low, high))
    elif x.numel() == 0:
        low, high = (ops["full"](v, (), dtype, x.device) for v in (0.0, 1.0))
    else:
        low, high = ops["min"](x), ops["max"](x)
        same = ops["eq"](low, high)
        low, high = ops["where"](same, low - 0.5, low), ops["where"](same, high + 0.5, high)
    steps = ops["arange"](0, bins + 1, 1, dtype, x.device)
    half = (bins + 1) // 2
    step = (high - low) / bins  # counted from the nearer end, as in linspace
    return ops["where"](ops["lt"](steps, half), low + steps * step, high - (bins - steps) * step)


def _place(x: Tensor, edges: Tensor) -> Tensor:
    """The index of each element's bin; the number of bins if no bin contains it."""
    bins = edges._shape[0] - 1
    count = ops["searchsorted"](edges, x, False, True) - 1
    last = ops["slice"](edges, 0, bins, 1, 1)
    count = ops["where"](ops["eq"](x, last), bins - 1, count)
    inside = ops["logical_and"](ops["ge"](count, 0), ops["le"](x, last))
    return ops["where"](inside, count, bins)


@function_only
def histogramdd(input: Tensor, bins: Any, range: Any = None, weight: Tensor | None = None,
                density: bool = False) -> return_types.histogramdd:
    """The number of points (rows of input) in each cell of a grid of bins."""
    return _histogram("histogramdd", input, bins, range, weight, density)


def _histogram(name: str, input: Tensor, bins: Any, range: Any, weight: Tensor | None,
               density: bool) -> return_types.histogramdd:
    if input.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions, but got "
                           f"{input.dim()}")
    x = refusing(input, name)
    width = x._shape[-1]
    points = ops["reshape"](x, (math.prod(x._shape[:-1]), width))
    columns = [ops["select"](points, 1, i) for i in builtins.range(width)]
    if isinstance(bins, int):
        bins = [bins] * width
    if len(bins) != width:
        raise RuntimeError(f"histogramdd(): The size of bins must be equal to the innermost dimension of "
                           f"the input, {width}, but it is {len(bins)}")
    limits: list[Any] = [None] * width
    if range is not None:
        limits = list(zip(range[::2], range[1::2], strict=True))
    edges = [b if isinstance(b, Tensor) else _edges(c, b, r, x.dtype)
             for b, c, r in zip(bins, columns, limits, strict=True)]
    shape = [e._shape[0] - 1 for e in edges]
    total = math.prod(shape)
    place: Any = None
    outside: Any = None
    for column, edge, size in zip(columns, edges, shape, strict=True):
        at = _place(column, edge)
        beyond = ops["eq"](at, size)
        place = at if place is None else place * size + at
        outside = beyond if outside is None else ops["logical_or"](outside, beyond)
    index = ops["where"](outside, total, place)
    if weight is None:
        counts = tied(ops["cast"](_counted(index, total + 1), x.dtype), ops["sum"](x))
    else:
        source = tied(ops["reshape"](refusing(weight, name), (-1,)),
                      ops["reshape"](ops["select"](x, x.dim() - 1, 0), (-1,)))
        counts = ops["index_add"](ops["full"](0, (total + 1,), x.dtype, x.device), index, source, 0, 1)
    hist: Any = ops["reshape"](ops["slice"](counts, 0, 0, total, 1), shape)
    if density:
        hist = hist / ops["sum"](hist)
        for d, edge in enumerate(edges):
            lengths = [1] * width
            lengths[d] = shape[d]
            hist = hist / ops["reshape"](diff(edge), lengths)
    return return_types.histogramdd(hist, tuple(edges))


def histogram(input: Tensor, bins: Any = 100, *, range: Any = None, weight: Tensor | None = None,
              density: bool = False) -> return_types.histogram:
    """The number of elements in each bin (`bins` is a number of bins, or their edges), and the edges of the
    bins."""
    if weight is not None and weight._shape != input._shape:
        raise RuntimeError("histogramdd(): if weight tensor is provided it should have the same shape as "
                           "the input tensor excluding its innermost dimension")
    flat = ops["reshape"](input, (input.numel(), 1))
    hist, edges = _histogram("histogram", flat, [bins], range, weight, density)
    return return_types.histogram(hist, tied(edges[0], refusing(ops["sum"](input), "histogram")))


# ---------------------------------------------------------------- covariances, norms


def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None,
        aweights: Tensor | None = None) -> Tensor:
    """The covariance matrix of variables; each row of input is a variable."""
    if input.dim() > 2:
        raise RuntimeError("cov(): expected input to have two or fewer dimensions but got an input with "
                           f"{input.dim()} dimensions")
    if input.dtype == _core.bool:
        raise NotImplementedError("cov(): bool dtype is not supported for input")
    x = ops["reshape"](input, (1, -1)) if input.dim() < 2 else input
    n = x._shape[1]
    weights: Any = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        if given.dim() > 1 or given.numel() != n:
            raise RuntimeError(f"cov(): expected {name} to have one dimension and as many elements as "
                               f"there are observations in the input, {n}")
        if (name == "fweights") == given.dtype.is_floating_point:
            kind = "integral" if name == "fweights" else "floating point"
            raise RuntimeError(f"cov(): expected {name} to have {kind} dtype, but got {name} with "
                               f"{given.dtype.name} dtype")
        given = ops["reshape"](given, (-1,))
        given = ops["require"](given, ops["ge"](given, 0), f"cov(): {name} cannot be negative")
        weights = given if weights is None else weights * given
    total: Any = n
    if weights is None:
        mean = ops["sum"](x, 1, True) / n
    else:
        total = ops["sum"](weights)
        mean = ops["sum"](x * weights, 1, True) / total
    norm: Any = total - correction
    if weights is not None and aweights is not None and correction != 0:
        norm = total - correction * ops["sum"](weights * aweights) / total
    centred: Any = x - mean
    scaled = centred if weights is None else centred * weights
    if isinstance(norm, Tensor):
        norm = ops["clamp"](norm, 0, None)
    else:
        norm = max(norm, 0)
    other = conj(ops["cast"](scaled, centred.dtype))
    product = ops["matmul"](centred, ops["transpose"](other, 0, 1))
    out = ops["div"](product, norm)
    return ops["reshape"](out, ()) if x._shape[0] == 1 else out


def corrcoef(input: Tensor) -> Tensor:
    """The correlation coefficients of variables; each row of input is a variable."""
    if input.dim() > 2:
        raise RuntimeError("corrcoef(): expected input to have two or fewer dimensions but got an input "
                           f"with {input.dim()} dimensions")
    c: Any = cov(input)
    if c.dim() == 0:
        return ops["div"](c, c)
    spread: Any = ops["sqrt"](real_part(ops["diagonal"](c)))
    out = c / ops["unsqueeze"](spread, 1) / ops["unsqueeze"](spread, 0)
    if out.dtype.is_complex:
        return ops["complex"](*(ops["clamp"](ops[part](out), -1, 1) for part in ("real", "imag")))
    return ops["clamp"](out, -1, 1)


def renorm(input: Tensor, p: Any, dim: int, maxnorm: Any) -> Tensor:
    """Scales the slices along dim whose p-norm is above maxnorm so that their norm becomes maxnorm."""
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.dim() < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.dim()} dimensions")
    dim = wrap_dim(dim, input.dim())
    size: Any = ops["norm"](input, p, [d for d in range(input.dim()) if d != dim], True, None)
    factor = ops["where"](ops["gt"](size, maxnorm), float(maxnorm) / (size + 1e-7), 1.0)
    return ops["mul"](input, factor)


def renorm_(input: Tensor, p: Any, dim: int, maxnorm: Any) -> Tensor:
    """renorm in place."""
    return stored(input, renorm(input, p, dim, maxnorm))


# ---------------------------------------------------------------- differences, integrals


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
         append: Tensor | None = None) -> Tensor:
    """The n-th differences of adjacent elements along dim."""
    if input.dim() == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    dim = wrap_dim(dim, input.dim())
    if n == 0:
        return ops["clone"](input)
    parts = [x for x in (prepend, input, append) if x is not None]
    x = ops["cat"](parts, dim) if len(parts) > 1 else input
    step = "logical_xor" if x.dtype == _core.bool else "sub"
    for _ in range(min(n, x._shape[dim])):
        rest = max(x._shape[dim] - 1, 0)
        if rest == 0:
            return ops["clone"](ops["slice"](x, dim, 0, 0, 1))
        x = ops[step](ops["slice"](x, dim, 1, rest, 1), ops["slice"](x, dim, 0, rest, 1))
    return x


def _pairs(y: Tensor, x: Tensor | None, dim: int) -> Tensor:
    """Twice the areas between adjacent samples; without x their distance is 1."""
    dim = wrap_dim(dim, y.dim())
    if not y.dim():
        raise RuntimeError("trapezoid: expected a tensor of samples, got one number")
    n = y._shape[dim]
    steps = max(n - 1, 0)
    both = ops["slice"](y, dim, n - steps, steps, 1) + ops["slice"](y, dim, 0, steps, 1)
    if x is None:
        return both
    if x.dim() == 1 and x._shape[0] != n:
        raise RuntimeError(f"There must be one `x` value for each sample point: {n} and {x._shape[0]}")
    if x.dim() == 1:
        x = ops["reshape"](x, [n if d == dim else 1 for d in range(y.dim())])
    return ops["mul"](both, diff(x, 1, dim - y.dim()))


def _half(x: Tensor | None, dx: Any) -> Any:
    return (1.0 if x is not None or dx is None else dx) / 2


@function_only
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of samples along dim by the trapezoidal rule."""
    if y.dim() and y._shape[wrap_dim(dim, y.dim())] == 0:
        return ops["sum"](real(y), dim)
    if x is not None or not y.dim():
        return ops["mul"](ops["sum"](_pairs(y, x, dim), dim), _half(x, dx))
    ends = ops["select"](y, dim, 0) + ops["select"](y, dim, -1)
    return ops["mul"](ops["sum"](y, dim) - ends * 0.5, 1.0 if dx is None else dx)


@function_only
def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """trapezoid under its older name."""
    return trapezoid(y, x, dx=dx, dim=dim)


@function_only
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The running integral of samples along dim by the trapezoidal rule."""
    return ops["cumsum"](ops["mul"](_pairs(y, x, dim), _half(x, dx)), dim)


def _slope(x: Tensor, space: Any, dim: int, edge_order: int) -> Tensor:
    n = x._shape[dim]

    def part(start: int, length: int) -> Any:
        return ops["slice"](x, dim, start, length, 1)

    if isinstance(space, Tensor):
        h: Any = ops["reshape"](diff(space), [-1 if d == dim else 1 for d in range(x.dim())])
        before, after = ops["slice"](h, dim, 0, n - 2, 1), ops["slice"](h, dim, 1, n - 2, 1)
        middle = (part(2, n - 2) * before / after - part(0, n - 2) * after / before) / (before + after) + (
            part(1, n - 2) * (after - before) / (before * after))
        first, last = ops["slice"](h, dim, 0, 1, 1), ops["slice"](h, dim, n - 2, 1, 1)
        near_first = ops["slice"](h, dim, min(1, n - 2), 1, 1)
        near_last = ops["slice"](h, dim, max(n - 3, 0), 1, 1)
    else:
        first = last = near_first = near_last = space
        middle = (part(2, n - 2) - part(0, n - 2)) / (2 * space)
    if edge_order == 1:
        start, end = (part(1, 1) - part(0, 1)) / first, (part(n - 1, 1) - part(n - 2, 1)) / last
    else:
        def edge(a: Any, b: Any, c: Any, h1: Any, h2: Any) -> Any:
            return (-a * (2 * h1 + h2) / (h1 * (h1 + h2)) + b * (h1 + h2) / (h1 * h2)
                    - c * h1 / (h2 * (h1 + h2)))

        start = edge(part(0, 1), part(1, 1), part(2, 1), first, near_first)
        end = -edge(part(n - 1, 1), part(n - 2, 1), part(n - 3, 1), last, near_last)
    return ops["cat"]([start, middle, end], dim)


@function_only
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None,
             edge_order: int = 1) -> tuple[Tensor, ...]:
    """Estimates the partial derivatives by second-order differences; returns one tensor for each dim."""
    spacing = 1 if spacing is None else spacing
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    dims = _all_dims(input, dim)
    for d in dims:
        if dims.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    if isinstance(spacing, Sequence):
        spaces = list(spacing)
    else:
        spaces = [spacing] * len(dims)
    if len(spaces) != len(dims):
        raise RuntimeError(f"torch.gradient expected spacing to be unspecified, a scalar, or a list of "
                           f"length equal to 'dim', {len(dims)}, but got {len(spaces)} values")
    for d in dims:
        if input._shape[d] < edge_order + 1:
            raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    x = real(input)
    return tuple(_slope(x, s, d, edge_order) for d, s in zip(dims, spaces, strict=True))
