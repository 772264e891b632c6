"""PyTorch's functions where their call forms differ from the catalog's: overloads, varargs, names.

Everything else is the catalog's op itself (`_ops`). Functions whose first argument is a tensor are
methods too (`_tensor` attaches them).
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _core
from ._convert import resolve_device, tensor
from ._core import Tensor, ops
from ._indexing import nonzero_columns
from ._session import current_session

__all__ = [
    "allclose", "arange", "broadcast_shapes", "broadcast_tensors", "cat", "chunk", "contiguous",
    "div", "dropout", "empty", "empty_like", "equal", "expand", "expand_as", "eye", "flatten",
    "flip", "full", "full_like", "gather", "index_add", "index_add_", "index_copy",
    "index_copy_", "index_fill", "index_fill_", "index_put", "index_put_", "index_select",
    "is_tensor", "isclose", "kthvalue", "linspace", "log_softmax", "masked_select", "max",
    "median", "meshgrid", "min", "movedim", "narrow", "nonzero", "norm", "normal", "numel",
    "one_hot", "ones", "ones_like", "permute", "rand", "rand_like", "randint", "randn",
    "randn_like", "randperm", "repeat", "reshape", "reshape_as", "scalar_tensor", "scatter",
    "scatter_", "scatter_add", "scatter_add_", "shares_storage", "softmax", "sort", "split",
    "squeeze", "std", "t", "topk", "unflatten", "var", "view", "view_as", "where", "zeros",
    "zeros_like",
]

Size = Sequence[int]


class ValuesIndices(NamedTuple):
    """Result of a reduction along one dim: the values and where they were found."""

    values: Tensor
    indices: Tensor


def _sizes(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """f(2, 3), f((2, 3)) and f([2, 3]) alike."""
    if len(sizes) == 1 and not isinstance(sizes[0], int) and hasattr(sizes[0], "__iter__"):
        return tuple(int(s) for s in sizes[0])
    return tuple(int(s) for s in sizes)


# ---------------------------------------------------------------- creation


def _options(dtype: Any, device: Any) -> tuple[Any, Any]:
    return (_core.default_dtype() if dtype is None else dtype,
            resolve_device(current_session(), device))


def _made(x: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        x.requires_grad = True
    return x


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor of `size` filled with one value; its dtype is the value's unless given."""
    device = resolve_device(current_session(), device)
    if dtype is None and isinstance(fill_value, float):
        dtype = _core.default_dtype()
    return _made(ops["full"](fill_value, _sizes((size,)), dtype, device), requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    dtype, device = _options(dtype, device)
    return _made(ops["full"](0, _sizes(size), dtype, device), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    dtype, device = _options(dtype, device)
    return _made(ops["full"](1, _sizes(size), dtype, device), requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose contents are not specified."""
    dtype, device = _options(dtype, device)
    return _made(ops["empty"](_sizes(size), dtype, device), requires_grad)


def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False) -> Tensor:
    """Zeros of x's shape; dtype and device are x's unless given."""
    return full_like(x, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False) -> Tensor:
    """Ones of x's shape; dtype and device are x's unless given."""
    return full_like(x, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False) -> Tensor:
    """A tensor of x's shape filled with one value."""
    return _made(ops["full"](fill_value, x._shape, dtype or x.dtype, device or x.device),
                 requires_grad)


def empty_like(x: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False) -> Tensor:
    """An uninitialised tensor of x's shape."""
    return _made(ops["empty"](x._shape, dtype or x.dtype, device or x.device), requires_grad)


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:
    """start, start + step, ... before end; `arange(end)` starts at 0."""
    if end is None:
        start, end = 0, start
    device = resolve_device(current_session(), device)
    if dtype is None and any(isinstance(v, float) for v in (start, end, step)):
        dtype = _core.default_dtype()
    return _made(ops["arange"](start, end, step, dtype, device), requires_grad)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """`steps` evenly spaced numbers from start to end."""
    dtype, device = _options(dtype, device)
    return _made(ops["linspace"](start, end, steps, dtype, device), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None,
        requires_grad: bool = False) -> Tensor:
    """The n x m matrix with ones on the diagonal."""
    dtype, device = _options(dtype, device)
    return _made(ops["eye"](n, m, dtype, device), requires_grad)


def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform random numbers in [0, 1)."""
    dtype, device = _options(dtype, device)
    return _made(ops["rand"](_sizes(size), dtype, device), requires_grad)


def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal random numbers."""
    dtype, device = _options(dtype, device)
    return _made(ops["randn"](_sizes(size), dtype, device), requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = None,
            device: Any = None) -> Tensor:
    """Uniform random integers in [low, high); `randint(high, size)` starts at 0."""
    if size is None:
        low, high, size = 0, low, high
    return ops["randint"](low, high, _sizes((size,)), dtype or _core.int64,
                          resolve_device(current_session(), device))


def randperm(n: int, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A random permutation of 0 ... n-1."""
    return ops["randperm"](n, dtype or _core.int64, resolve_device(current_session(), device))


def rand_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Uniform random numbers of x's shape."""
    return ops["rand"](x._shape, dtype or x.dtype, device or x.device)


def randn_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Standard normal random numbers of x's shape."""
    return ops["randn"](x._shape, dtype or x.dtype, device or x.device)


def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None,
           device: Any = None) -> Tensor:
    """Normal random numbers; mean and std may be tensors."""
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        like: Tensor = mean if isinstance(mean, Tensor) else std
        drawn = randn_like(like)
    else:
        drawn = randn(_sizes((size,)), dtype=dtype, device=device)
    result: Tensor = drawn * std + mean
    return result


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64 rows with a one at each index of x; -1 reads the largest index first."""
    if num_classes == -1:
        num_classes = int(ops["max"](x).item()) + 1 if x.numel() else 0
    return ops["one_hot"](x, num_classes)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Elements set to zero with probability p, the others divided by 1 - p."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return ops["dropout"](x, p)[0] if training and p > 0 else x


# ---------------------------------------------------------------- shape


def view(x: Tensor, *size: Any) -> Tensor:
    """The same elements under another shape, without a copy."""
    return ops["view"](x, _sizes(size))


def reshape(x: Tensor, *size: Any) -> Tensor:
    """The same elements under another shape, copied only where a view is impossible."""
    return ops["reshape"](x, _sizes(size))


def expand(x: Tensor, *size: Any) -> Tensor:
    """Dimensions of size 1 repeated, without a copy; -1 keeps a size."""
    return ops["expand"](x, _sizes(size))


def permute(x: Tensor, *dims: Any) -> Tensor:
    """The dimensions in another order."""
    return ops["permute"](x, _sizes(dims))


def t(x: Tensor) -> Tensor:
    """The transpose of a matrix; a vector stays."""
    if x.dim() > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.dim()}D")
    return x if x.dim() < 2 else ops["transpose"](x, 0, 1)


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """Without dimensions of size 1 (those in dim, or all)."""
    return ops["squeeze"](x, dim)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions start_dim to end_dim as one."""
    rank = x.dim()
    if rank == 0:
        return ops["reshape"](x, (1,))
    first, last = _dim(start_dim, rank), _dim(end_dim, rank)
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if first == last:
        return x
    shape = x._shape
    return ops["reshape"](x, (*shape[:first], math.prod(shape[first:last + 1]), *shape[last + 1:]))


def unflatten(x: Tensor, dim: int, sizes: Size) -> Tensor:
    """Dimension dim as several."""
    d = _dim(dim, x.dim())
    return ops["reshape"](x, (*x._shape[:d], *sizes, *x._shape[d + 1:]))


def _dim(dim: int, rank: int) -> int:
    if not -builtins.max(rank, 1) <= dim < builtins.max(rank, 1):
        raise IndexError(f"Dimension out of range (expected to be in range of [{-builtins.max(rank, 1)}, "
                         f"{builtins.max(rank, 1) - 1}], but got {dim})")
    return dim % builtins.max(rank, 1)


def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Dimensions `source` moved to the places `destination`."""
    rank = x.dim()
    sources = [_dim(d, rank) for d in ([source] if isinstance(source, int) else source)]
    places = [_dim(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    order = [-1] * rank
    for s, p in zip(sources, places, strict=True):
        order[p] = s
    rest = iter(d for d in range(rank) if d not in sources)
    return ops["permute"](x, [next(rest) if o < 0 else o for o in order])


def split(x: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views along dim: each of split_size (the last may be smaller), or of the sizes given."""
    if isinstance(split_size, int):
        size = x._shape[_dim(dim, x.dim())]
        if split_size <= 0 and not (split_size == 0 and size == 0):
            raise RuntimeError(f"split expects split_size be non-negative, got {split_size}")
        count = builtins.max(1, -(-size // split_size)) if split_size else 1
        split_size = [builtins.min(split_size, size - i * split_size) for i in range(count)]
    return ops["split_with_sizes"](x, split_size, dim)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views along dim."""
    if chunks <= 0:
        raise RuntimeError("chunk expects `chunks` to be greater than 0, got: " + str(chunks))
    size = x._shape[_dim(dim, x.dim())]
    each = -(-size // chunks)
    if each == 0:
        return split(x, [0] * chunks, dim)
    return split(x, each, dim)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """The view of `length` elements of dim from start on."""
    size = x._shape[_dim(dim, x.dim())] if x.dim() else 0
    return ops["slice"](x, dim, start + size if start < 0 else start, length, 1)


def repeat(x: Tensor, *sizes: Any) -> Tensor:
    """x tiled along each dimension."""
    times = _sizes(sizes)
    lead = len(times) - x.dim()
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of "
                           "dimensions of tensor")
    shape = (1,) * lead + x._shape
    between = [n for size in shape for n in (1, size)]
    spread = [n for size, k in zip(shape, times, strict=True) for n in (k, size)]
    out = ops["expand"](ops["reshape"](x, between), spread)
    return ops["reshape"](out, [s * k for s, k in zip(shape, times, strict=True)])


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """x expanded to other's shape."""
    return ops["expand"](x, other._shape)


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """x viewed under other's shape."""
    return ops["view"](x, other._shape)


def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """x reshaped to other's shape."""
    return ops["reshape"](x, other._shape)


def contiguous(x: Tensor) -> Tensor:
    """x itself where it is row-major, else a row-major copy."""
    return x if x.is_contiguous() else ops["contiguous"](x)


def broadcast_tensors(*tensors: Tensor) -> list[Tensor]:
    """All expanded to their common shape."""
    shape = broadcast_shapes(*(x._shape for x in tensors))
    return [ops["expand"](x, shape) for x in tensors]


def broadcast_shapes(*shapes: Size) -> tuple[int, ...]:
    """The shape that all broadcast to; RuntimeError where there is none."""
    rank = builtins.max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            if size != 1:
                if out[rank - 1 - i] not in (1, size):
                    raise RuntimeError(f"shapes do not broadcast: {', '.join(map(str, shapes))}")
                out[rank - 1 - i] = size
    return tuple(out)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate tensors of the grid that 1-d tensors span."""
    vectors = list(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) \
        else list(tensors)
    if indexing == "xy" and len(vectors) >= 2:
        a, b, *rest = meshgrid(vectors[1], vectors[0], *vectors[2:])
        return (b.transpose(0, 1), a.transpose(0, 1), *(r.transpose(0, 1) for r in rest))
    shape = [v.numel() for v in vectors]
    return tuple(
        ops["expand"](ops["reshape"](v, [-1 if j == i else 1 for j in range(len(shape))]), shape)
        for i, v in enumerate(vectors))


# ---------------------------------------------------------------- reductions


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element; along dim: (values, indices); with a tensor: elementwise."""
    if isinstance(dim, Tensor):
        return ops["maximum"](x, dim)
    return ops["max"](x) if dim is None else ValuesIndices(*ops["max_dim"](x, dim, keepdim))


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element; along dim: (values, indices); with a tensor: elementwise."""
    if isinstance(dim, Tensor):
        return ops["minimum"](x, dim)
    return ops["min"](x) if dim is None else ValuesIndices(*ops["min_dim"](x, dim, keepdim))


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The (lower) median; along dim: (values, indices)."""
    return ops["median"](x) if dim is None else ValuesIndices(*ops["median_dim"](x, dim, keepdim))


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """Sorted along dim, and the indices."""
    return ValuesIndices(*ops["sort"](x, dim, descending, stable))


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """The k largest along dim, and their indices."""
    return ValuesIndices(*ops["topk"](x, k, dim, largest, sorted))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The k-th smallest along dim, and its index."""
    return ValuesIndices(*ops["kthvalue"](x, k, dim, keepdim))


def _spread(name: str) -> Any:
    op = ops[name]

    def spread(x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
               correction: Any = None) -> Tensor:
        if isinstance(dim, bool):  # var(x, unbiased)
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None or unbiased else 0
        return op(x, dim, correction, keepdim)

    spread.__name__ = name
    spread.__doc__ = op.__doc__
    return spread


var, std = _spread("var"), _spread("std")


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The vector norm over dim ("fro" is 2)."""
    return ops["norm"](x, 2.0 if p in ("fro", None) else p, dim, keepdim, dtype)


# ---------------------------------------------------------------- indexing


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x's elements along dim at index."""
    return ops["gather"](x, index, dim)


def scatter(x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
    """x with src (a tensor or number) written along dim at index."""
    return ops["scatter"](x, index, value if src is None else src, dim)


def scatter_(x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
    """scatter in place."""
    return ops["scatter_"](x, index, value if src is None else src, dim)


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x with src added along dim at index."""
    return ops["scatter_add"](x, index, src, dim)


def scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """scatter_add in place."""
    return ops["scatter_add_"](x, index, src, dim)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of x along dim at index."""
    return ops["index_select"](x, index, dim)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """x with slices of source added along dim at index."""
    return ops["index_add"](x, index, source, dim, alpha)


def index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """index_add in place."""
    return ops["index_add_"](x, index, source, dim, alpha)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with slices of source written along dim at index."""
    return ops["index_copy"](x, index, source, dim)


def index_copy_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """index_copy in place."""
    return ops["index_copy_"](x, index, source, dim)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with value written to its slices along dim at index."""
    return ops["index_fill"](x, index, value, dim)


def index_fill_(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """index_fill in place."""
    return ops["index_fill_"](x, index, value, dim)


def flip(x: Tensor, dims: int | Size) -> Tensor:
    """x with the order of its elements reversed along dims (a copy)."""
    for dim in (dims,) if isinstance(dims, int) else dims:
        order = arange(x.shape[dim] - 1, -1, -1, device=x.device)
        x = ops["index_select"](x, order, dim)
    return x


def index_put(x: Tensor, indices: Sequence[Tensor], values: Tensor,
              accumulate: bool = False) -> Tensor:
    """x with values written at index tensors, one per leading dim."""
    return ops["index_put"](x, values, list(indices), list(range(len(indices))), accumulate)


def index_put_(x: Tensor, indices: Sequence[Tensor], values: Tensor,
               accumulate: bool = False) -> Tensor:
    """index_put in place."""
    return ops["index_put_"](x, values, list(indices), list(range(len(indices))), accumulate)


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Coordinates of the elements that are not zero (reads their number: a round trip)."""
    if as_tuple:
        return tuple(nonzero_columns(x))
    return ops["nonzero"](x, int(ops["count_nonzero"](x).item()))


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where mask is true, as a vector (reads their number: a round trip)."""
    x, mask = broadcast_tensors(x, mask)
    return x[mask]


def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    """x where condition, else y; alone: the coordinates where it is true."""
    if x is None and y is None:
        return nonzero(condition, as_tuple=True)
    return ops["where"](condition, x, y)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along dim."""
    return ops["cat"](tensors, dim)


def softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) over its sum along dim."""
    return ops["softmax"](x, dim, dtype)


def log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along dim."""
    return ops["log_softmax"](x, dim, dtype)


def div(x: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / other; rounding_mode "floor" or "trunc" rounds the quotient."""
    if rounding_mode is None:
        return ops["div"](x, other)
    if rounding_mode == "floor":
        return ops["floor_divide"](x, other)
    if rounding_mode != "trunc":
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but "
                           f"found '{rounding_mode}'")
    if isinstance(x, Tensor) and not x.dtype.is_floating_point and (
            not isinstance(other, float) and not (
                isinstance(other, Tensor) and other.dtype.is_floating_point)):
        whole = ops["sub"](x, ops["fmod"](x, other))
        return ops["floor_divide"](whole, other)
    return ops["trunc"](ops["div"](x, other))


# ---------------------------------------------------------------- comparing


def equal(x: Tensor, other: Tensor) -> bool:
    """Same shape and elements? (waits)"""
    return x._shape == other._shape and bool(ops["all"](ops["eq"](x, other)).item())


def isclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Tensor:
    """|x - other| <= atol + rtol * |other|, elementwise."""
    near = ops["le"](ops["abs"](x - other), ops["abs"](other) * rtol + atol)
    near = ops["logical_or"](near, ops["eq"](x, other))
    near = ops["logical_and"](near, ops["logical_or"](
        ops["eq"](x, other), ops["isfinite"](other)))
    if equal_nan:
        near = ops["logical_or"](near, ops["logical_and"](ops["isnan"](x), ops["isnan"](other)))
    return near


def allclose(x: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
             equal_nan: bool = False) -> bool:
    """isclose everywhere? (waits)"""
    return bool(ops["all"](isclose(x, other, rtol, atol, equal_nan)).item())


def shares_storage(x: Tensor, other: Tensor) -> bool:
    """Do the two see the same memory?"""
    return x._shares_storage(other)


def is_tensor(x: Any) -> bool:
    """Is x a Tensor?"""
    return isinstance(x, Tensor)


def numel(x: Tensor) -> int:
    """The number of elements."""
    return x.numel()


def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A 0-d tensor."""
    return tensor(value, dtype=dtype, device=device)
