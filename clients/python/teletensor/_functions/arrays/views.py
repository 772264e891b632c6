"""Views and copies of views: dimensions inserted, split, joined and moved; diagonals and windows."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from typing import Any

from ... import _core
from ..._calls.checked import checked
from ..._core import Tensor, ops
from ..common import Size, function_only, sizes_of, tensors_of, wrap_dim
from .creation import zeros
from .structure import chunk, expand, narrow, permute, split, split_with_sizes, squeeze, t, unbind

METHODS = ["narrow_copy"]
__all__ = [
    "alias_copy", "as_strided", "as_strided_copy", "atleast_1d", "atleast_2d",
    "atleast_3d", "broadcast_to", "detach_copy", "diag_embed", "diagflat", "diagonal_copy",
    "dsplit", "expand_copy", "hsplit", "narrow_copy", "permute_copy", "ravel", "select_copy", "slice",
    "slice_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy", "swapdims", "t_copy",
    "tensor_split", "transpose_copy", "unbind_copy", "unfold_copy", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "unsqueeze_copy", "view_copy", "vsplit",
]  # fmt: skip


def as_strided(input: Tensor, size: Size, stride: Size, storage_offset: int | None = None) -> Tensor:
    """A view with the given sizes, strides and offset, all in units of storage elements.

    The view must stay within the elements that the tensor, or the base tensor of which it is a view,
    covers.
    """
    offset = input.storage_offset() if storage_offset is None else storage_offset
    try:
        return ops["as_strided"](input, sizes_of((size,)), sizes_of((stride,)), offset)
    except RuntimeError:
        base = input._base
        if base is None:
            raise
        return ops["as_strided"](base, sizes_of((size,)), sizes_of((stride,)), offset)


def ravel(input: Tensor) -> Tensor:
    """The elements in row-major order as one dimension; copied only if a view is impossible."""
    return ops["reshape"](ops["contiguous"](input), (input.numel(),))


def broadcast_to(input: Tensor, size: Size) -> Tensor:
    """The tensor expanded to `size`."""
    return ops["expand"](input, sizes_of((size,)))


def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions swapped."""
    return ops["transpose"](input, dim0, dim1)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in the dims dim1 and dim2 of the result, with the last dimension of input on a diagonal."""
    rank = input.dim() + 1
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    side = input._shape[-1] + abs(offset)
    rest = iter(input._shape[:-1])
    shape = [side if d in (first, second) else next(rest) for d in range(rank)]
    strides = _row_major(shape)
    start = offset * strides[second] if offset >= 0 else -offset * strides[first]
    kept = [d for d in range(rank) if d not in (first, second)]
    region = [strides[d] for d in kept] + [strides[first] + strides[second]]
    blank = zeros(shape, dtype=input.dtype, device=input.device)
    return ops["update_region"](blank, input, shape, strides, input._shape, region,
                                start if input.numel() else 0)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements of input on a diagonal."""
    return ops["diag"](ravel(input), offset)


def _row_major(shape: Any) -> builtins.list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= builtins.max(size, 1)
    return strides[::-1]


# ---------------------------------------------------------------- splitting


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views along dim: a number of sections of nearly equal size, or sections that begin at each index."""
    if input.dim() == 0:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor "
                           "with 0 dims")
    d = wrap_dim(dim, input.dim())
    size = input._shape[d]
    if isinstance(indices_or_sections, Tensor):
        if indices_or_sections.dim() > 1 or indices_or_sections.dtype != _core.int64:
            raise RuntimeError("tensor_split expected tensor_indices_or_sections to be a 0- or "
                               "1-dimensional int64 tensor")
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        sections = indices_or_sections
        if sections <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {sections}")
        each, more = divmod(size, sections)
        return split_with_sizes(
            input, [each + 1] * more + [each] * (sections - more), d)
    if not isinstance(indices_or_sections, (list, tuple)):
        raise TypeError("tensor_split(): argument 'indices_or_sections' must be an int, a tuple of ints "
                        f"or a Tensor, not {_core.described(indices_or_sections)}")
    cuts = [0, *indices_or_sections, size]
    parts = []
    for begin, end in zip(cuts[:-1], cuts[1:], strict=True):
        first, last, _ = builtins.slice(begin, end).indices(size)
        parts.append(ops["slice"](input, d, first, builtins.max(last - first, 0), 1))
    return tuple(parts)


def _split_dim(name: str, dim: int, least: int) -> Callable[..., tuple[Tensor, ...]]:
    def parts(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        if input.dim() < least:
            raise RuntimeError(f"{name} requires a tensor with at least {least} dimension"
                               f"{'s' if least > 1 else ''}, but got a tensor with {input.dim()} dims")
        at = 0 if input.dim() == 1 else dim
        if isinstance(indices_or_sections, int):
            if indices_or_sections <= 0 or input._shape[at] % indices_or_sections:
                raise RuntimeError(f"{name} attempted to split along dimension {at}, but the size of "
                                   f"the dimension {input._shape[at]} is not divisible by the "
                                   f"split_size {indices_or_sections}!")
        return tensor_split(input, indices_or_sections, at)

    parts.__name__ = name
    parts.__doc__ = f"tensor_split along dim {dim}{' (0 of a vector)' if name == 'hsplit' else ''}."
    return parts


hsplit, vsplit, dsplit = (_split_dim("hsplit", 1, 1), _split_dim("vsplit", 0, 2),
                          _split_dim("dsplit", 2, 3))


def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """As split; PyTorch's name promises that the program does not write to the parts in place."""
    return split(input, split_size, dim)


def unsafe_split_with_sizes(input: Tensor, split_sizes: Size, dim: int = 0) -> tuple[Tensor, ...]:
    """As split into the given sizes; PyTorch's name promises that the program does not write to the parts
    in place."""
    return split(input, list(split_sizes), dim)


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """As chunk; PyTorch's name promises that the program does not write to the parts in place."""
    return chunk(input, chunks, dim)


# ---------------------------------------------------------------- minimum number of dimensions


def _each(name: str, change: Callable[[Tensor], Tensor], tensors: tuple[Any, ...]) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return change(tensors[0])
    return tuple(change(x) for x in tensors_of(name, tensors))


def atleast_1d(*tensors: Any) -> Any:
    """Returns 0-d tensors as vectors of one element; one tensor for one argument, or a tuple for
    several."""
    return _each("atleast_1d", lambda x: x if x.dim() else ops["reshape"](x, (1,)), tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Returns tensors with at least two dimensions: a vector becomes a row."""
    def change(x: Tensor) -> Tensor:
        return ops["reshape"](x, (1, 1)) if x.dim() == 0 else ops["unsqueeze"](x, 0) \
            if x.dim() == 1 else x
    return _each("atleast_2d", change, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Returns tensors with at least three dimensions: a vector becomes the middle dimension, a matrix the
    first two."""
    def change(x: Tensor) -> Tensor:
        if x.dim() == 0:
            return ops["reshape"](x, (1, 1, 1))
        if x.dim() == 1:
            return ops["unsqueeze"](ops["unsqueeze"](x, 0), 2)
        return ops["unsqueeze"](x, 2) if x.dim() == 2 else x
    return _each("atleast_3d", change, tensors)


# ---------------------------------------------------------------- copies of views


def _slice(input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Tensor:
    """The view input[start:end:step] along one dim."""
    first, last, _ = builtins.slice(start, end).indices(input._shape[wrap_dim(dim, input.dim())])
    return ops["slice"](input, dim, first, builtins.max(-(-(last - first) // step), 0), step)


slice = _slice


def _copied(name: str, view: Callable[..., Any]) -> Any:
    view = checked(view, __name__) if inspect.isfunction(view) else view

    def copy(input: Tensor, *args: Any, **options: Any) -> Any:
        made = view(input, *args, **options)
        if isinstance(made, Tensor):
            return ops["contiguous"](made)
        return tuple(ops["contiguous"](each) for each in made)

    copy.__name__ = name
    copy.__doc__ = f"A row-major copy of what {name.removesuffix('_copy')} shows."
    return function_only(copy)


def _view(input: Tensor, size: Any) -> Tensor:
    return input.view(size)


alias_copy = _copied("alias_copy", ops["alias"])
as_strided_copy = _copied("as_strided_copy", as_strided)
detach_copy = _copied("detach_copy", ops["detach"])
diagonal_copy = _copied("diagonal_copy", ops["diagonal"])
expand_copy = _copied("expand_copy", expand)
narrow_copy = _copied("narrow_copy", narrow)
permute_copy = _copied("permute_copy", permute)
select_copy = _copied("select_copy", ops["select"])
slice_copy = _copied("slice_copy", _slice)
split_copy = _copied("split_copy", split)
split_with_sizes_copy = _copied("split_with_sizes_copy", split_with_sizes)
squeeze_copy = _copied("squeeze_copy", squeeze)
t_copy = _copied("t_copy", t)
transpose_copy = _copied("transpose_copy", ops["transpose"])
unbind_copy = _copied("unbind_copy", unbind)
unfold_copy = _copied("unfold_copy", ops["unfold"])
unsqueeze_copy = _copied("unsqueeze_copy", ops["unsqueeze"])
view_copy = _copied("view_copy", _view)
