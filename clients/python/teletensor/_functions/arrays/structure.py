"""Views, reshaping, joining and splitting."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from ... import _core
from ..._core import Tensor, ops
from ..._tensors.memory_format import contiguous_format, in_format
from ..._tensors.size import Size as Shape
from ..common import Size, owned, sizes_of, tensors_of, wrap_dim
from .creation import arange

__all__ = [
    "broadcast_shapes", "broadcast_tensors", "cat", "chunk", "clone", "contiguous", "expand",
    "expand_as", "flatten", "flip", "meshgrid", "movedim", "narrow", "permute", "repeat",
    "reshape", "reshape_as", "split", "split_with_sizes", "squeeze", "stack", "t", "unbind",
    "unflatten", "view", "view_as",
]


def view(input: Tensor, *sizes: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """A view of the same elements with another shape, or of the same bytes as another dtype, without a copy
    (except to or from bool)."""
    if len(sizes) == 1 and isinstance(sizes[0], _core.dtype):
        dtype = sizes[0]
    if dtype is None:
        return ops["view"](input, sizes_of(sizes if size is None else (size,)))
    return ops["bitcast"](input, dtype)


def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The same elements with another shape; copied only if a view is impossible."""
    return ops["reshape"](input, sizes_of(sizes if shape is None else (shape,)))


def expand(input: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """A view in which dimensions of size 1 are repeated; -1 keeps a size."""
    return ops["expand"](input, sizes_of(sizes if size is None else (size,)))


def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """A view with the dimensions in another order."""
    return ops["permute"](input, sizes_of(order if dims is None else (dims,)))


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; a vector is returned as it is."""
    if input.dim() > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.dim()}D")
    # The order of the dimensions tells t() from transpose(0, 1) in the name of the node, TBackward0.
    return input if input.dim() < 2 else ops["transpose"](input, 1, 0)


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """A view without dimensions of size 1 (those given by dim, or all)."""
    return ops["squeeze"](input, dim)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merges the dimensions start_dim to end_dim into one."""
    rank = input.dim()
    first, last = wrap_dim(start_dim, rank), wrap_dim(end_dim, rank)
    if rank == 0:
        return ops["reshape"](input, (1,))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if first == last:
        return input
    shape = input._shape
    return ops["reshape"](input, (*shape[:first], math.prod(shape[first:last + 1]), *shape[last + 1:]))


def unflatten(input: Tensor, dim: int, sizes: Size) -> Tensor:
    """Splits the dimension dim into several of the given sizes."""
    d = wrap_dim(dim, input.dim())
    parts = list(sizes_of((sizes,)))
    if not parts:
        raise RuntimeError("unflatten: sizes must be non-empty")
    if -1 in parts:
        known = -math.prod(parts) if parts.count(-1) == 1 else 0
        whole = input._shape[d] if input.dim() else 1
        if known == 0 or whole % known:
            raise RuntimeError(f"unflatten: Provided sizes {parts} don't multiply up to the size of dim "
                               f"{dim} ({whole}) in the input tensor")
        parts[parts.index(-1)] = whole // known
    if math.prod(parts) != (input._shape[d] if input.dim() else 1):
        raise RuntimeError(f"unflatten: Provided sizes {parts} don't multiply up to the size of dim {dim} "
                           f"({input._shape[d]}) in the input tensor")
    return ops["view"](input, (*input._shape[:d], *parts, *input._shape[d + 1:]))


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """A view with the dimensions `source` moved to the positions `destination`."""
    rank = input.dim()
    sources = [wrap_dim(d, rank) for d in ([source] if isinstance(source, int) else source)]
    places = [wrap_dim(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(sources) != len(places):
        raise RuntimeError(f"movedim: Invalid source or destination dims: source ({sources} dims) should "
                           f"contain the same number of dims as destination ({places} dims)")
    for name, dims in (("source", sources), ("destination", places)):
        if len(set(dims)) != len(dims):
            raise RuntimeError(f"movedim: repeated dim in `{name}` ({dims})")
    if rank == 0:
        return ops["alias"](input)
    order = [-1] * rank
    for s, p in zip(sources, places, strict=True):
        order[p] = s
    rest = iter(d for d in range(rank) if d not in sources)
    return ops["permute"](input, [next(rest) if o < 0 else o for o in order])


def _has_dims(input: Tensor, name: str) -> None:
    if not input.dim():
        raise RuntimeError(f"{name} expects at least a 1-dimensional tensor")


def split(
    tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None
) -> tuple[Tensor, ...]:
    """Views along dim: of split_size_or_sections elements each (the last may be smaller), or of the given
    sizes. The method of tensors calls the argument split_size."""
    sections = split_size if split_size_or_sections is None else split_size_or_sections
    if sections is None:
        raise TypeError("split() missing 1 required positional argument: 'split_size_or_sections'")
    if isinstance(sections, Tensor) and not sections.dim():
        sections = int(sections)
    _has_dims(tensor, "split")
    if isinstance(sections, int):
        size = tensor._shape[wrap_dim(dim, tensor.dim())]
        if sections <= 0 and not (sections == 0 and size == 0):
            raise RuntimeError(f"split expects split_size be non-negative, got {sections}")
        count = max(1, -(-size // sections)) if sections else 1
        sections = [min(sections, size - i * sections) for i in range(count)]
    return split_with_sizes(tensor, sections, dim)


# the maximum number of tensors in one instruction; more tensors are joined by several instructions
_MOST = 32768


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views along dim of the given sizes."""
    if not isinstance(split_sizes, (list, tuple)) or len(split_sizes) <= _MOST:
        return ops["split_with_sizes"](input, split_sizes, dim)
    sizes = [int(each) for each in split_sizes]
    dim = wrap_dim(dim, input.dim())
    if sum(sizes) != input._shape[dim]:
        raise RuntimeError(f"split_with_sizes expects split_sizes to sum exactly to {input._shape[dim]}, "
                           f"got {sum(sizes)}")
    found: list[Tensor] = []
    start = 0
    for first in range(0, len(sizes), _MOST):
        own = sizes[first:first + _MOST]
        found += ops["split_with_sizes"](ops["slice"](input, dim, start, sum(own), 1), own, dim)
        start += sum(own)
    return tuple(found)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the slices at each index of dim, without dim."""
    if isinstance(input, Tensor) and input.dim():
        dim = wrap_dim(dim, input.dim())
        size = input._shape[dim]
        if size > _MOST:
            return tuple(each for start in range(0, size, _MOST)
                         for each in ops["unbind"](ops["slice"](
                             input, dim, start, min(_MOST, size - start), 1), dim))
    return ops["unbind"](input, dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views along dim."""
    _has_dims(input, "chunk")
    if chunks <= 0:
        raise RuntimeError("chunk expects `chunks` to be greater than 0, got: " + str(chunks))
    size = input._shape[wrap_dim(dim, input.dim())]
    each = -(-size // chunks)
    if each == 0:
        return split(input, [0] * chunks, dim)
    return split(input, each, dim)


def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """A view of `length` elements of dim from start on; both may be numbers or 0-d tensors."""
    if input.dim() == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    length = operator.index(length)
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    size = input._shape[wrap_dim(dim, input.dim())]
    if isinstance(start, Tensor) and (start.dim() or start.dtype not in (_core.int32, _core.int64)):
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    start = int(start)
    if not -size <= start <= size:
        raise IndexError(f"start out of range (expected to be in range of [-{size}, {size}], but got "
                         f"{start})")
    return ops["slice"](input, dim, start + size if start < 0 else start, length, 1)


def repeat(input: Tensor, *times: Any, repeats: Any = None) -> Tensor:
    """input repeated along each dimension."""
    times = sizes_of(times if repeats is None else (repeats,))
    lead = len(times) - input.dim()
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of "
                           "dimensions of tensor")
    if any(n < 0 for n in times):
        raise RuntimeError(f"repeat: counts must not be negative, got {list(times)}")
    shape = (1,) * lead + input._shape
    between = [n for size in shape for n in (1, size)]
    spread = [n for size, k in zip(shape, times, strict=True) for n in (k, size)]
    out = ops["expand"](ops["reshape"](input, between), spread)
    return owned(ops["reshape"](out, [s * k for s, k in zip(shape, times, strict=True)]))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """A view of input expanded to other's shape."""
    return ops["expand"](input, other._shape)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """A view of input with other's shape."""
    return ops["view"](input, other._shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """input reshaped to other's shape."""
    return ops["reshape"](input, other._shape)


def contiguous(input: Tensor, *, memory_format: Any = contiguous_format) -> Tensor:
    """input itself if its strides have that memory format (row-major by default), and otherwise a copy that
    has it."""
    if memory_format is contiguous_format:
        return input if input.is_contiguous() else ops["contiguous"](input)
    return in_format(input, memory_format)


def broadcast_tensors(*tensors: Tensor) -> list[Tensor]:
    """Views of the tensors, all expanded to their common shape."""
    own = tensors_of("broadcast_tensors", tensors)
    shape = broadcast_shapes(*(input._shape for input in own))
    return [ops["expand"](input, shape) for input in own]


def broadcast_shapes(*given: Sequence[int] | int) -> Shape:
    """The shape to which all given shapes broadcast; RuntimeError if there is none."""
    shapes = [(s,) if isinstance(s, int) else s for s in given]
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    if any(size < 0 for shape in shapes for size in shape):
        raise ValueError(f"broadcast_shapes: sizes must not be negative, got {', '.join(map(str, shapes))}")
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            if size != 1:
                if out[rank - 1 - i] not in (1, size):
                    raise RuntimeError(f"shapes do not broadcast: {', '.join(map(str, shapes))}")
                out[rank - 1 - i] = size
    return Shape(out)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinate tensors of the grid that 1-d tensors span."""
    if indexing not in ("ij", "xy"):
        raise RuntimeError('torch.meshgrid: indexing must be one of "xy" or "ij", but received: '
                           f"{indexing}")
    vectors = tensors_of("meshgrid", tensors)
    if not vectors:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    if len({(v.dtype, v.device) for v in vectors}) > 1:
        raise RuntimeError("meshgrid expects all tensors to have the same dtype and device")
    if indexing == "xy" and len(vectors) >= 2:
        a, b, *rest = meshgrid(vectors[1], vectors[0], *vectors[2:])
        return (b, a, *rest)
    for v in vectors:
        if v.dim() > 1:
            raise RuntimeError("torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: "
                               f"{list(v._shape)}")
    shape = [v.numel() for v in vectors]
    return tuple(
        ops["expand"](ops["reshape"](v, [v.numel() if j == i else 1 for j in range(len(shape))]), shape)
        for i, v in enumerate(vectors))


def flip(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """A copy with the order of the elements reversed along dims."""
    if not order and dims is None:
        raise TypeError('flip() missing 1 required positional arguments: "dims"')
    axes = [wrap_dim(d, input.dim()) for d in sizes_of(order if dims is None else (dims,))]
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"dim {axes} appears multiple times in the list of dims")
    out = input
    for dim in axes:
        if out.dim() and out._shape[dim] > 1:
            back = arange(out._shape[dim] - 1, -1, -1, device=input.device)
            out = ops["index_select"](out, back, dim)
    return ops["clone"](out) if out is input else out


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy with that memory format; by default with the strides of input."""
    return in_format(input, memory_format, copy=True)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joins tensors along dim."""
    if isinstance(tensors, (list, tuple)) and len(tensors) > _MOST:
        tensors = [ops["cat"](tensors[i:i + _MOST], dim) for i in range(0, len(tensors), _MOST)]
    return ops["cat"](tensors, dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joins tensors of the same shape along a new dimension."""
    if isinstance(tensors, (list, tuple)) and len(tensors) > _MOST:
        return ops["cat"]([ops["stack"](tensors[i:i + _MOST], dim)
                           for i in range(0, len(tensors), _MOST)], dim)
    return ops["stack"](tensors, dim)
