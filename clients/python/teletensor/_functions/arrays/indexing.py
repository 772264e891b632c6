"""Functions that read and write elements at indices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ... import _core
from ..._calls.out import store
from ..._core import Tensor, ops
from ..._tensors.indexing import expanded, nonzero_columns
from ..._tensors.pending import nonzero_rows
from ..common import function_only, indices_of, sizes_of
from .structure import broadcast_shapes, broadcast_tensors

__all__ = [
    "gather", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill",
    "index_fill_", "index_put", "index_put_", "index_select", "masked_fill", "masked_scatter",
    "masked_select", "nonzero",
    "scatter", "scatter_", "scatter_add", "scatter_add_", "unravel_index", "where", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate",
]


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """The elements at index along dim. sparse_grad is accepted; gradients are dense."""
    if index.numel() == 0 and index.dim() != input.dim():
        nothing = ops["slice"](ops["reshape"](input, (input.numel(),)), 0, 0, 0, 1)
        return ops["reshape"](nothing, index._shape)  # with the history of input
    return ops["gather"](input, indices_of(index), dim)


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def _scattered(ending: str, input: Tensor, dim: int, index: Tensor, src: Any, value: Any,
               reduce: str | None) -> Tensor:
    source, index = value if src is None else src, indices_of(index, input.dim())
    if reduce is None:
        return ops["scatter" + ending](input, index, source, dim)
    if reduce not in _REDUCTIONS:
        raise RuntimeError("reduce argument must be either add or multiply.")
    if not isinstance(source, Tensor):
        source = ops["full"](source, index._shape, input.dtype, input.device)
    return ops["scatter_reduce" + ending](input, index, source, dim, _REDUCTIONS[reduce], True)


def scatter(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
            reduce: str | None = None) -> Tensor:
    """A copy of input in which src (a tensor or a number) is written, added or multiplied at index along
    dim."""
    return _scattered("", input, dim, index, src, value, reduce)


def scatter_(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
             reduce: str | None = None) -> Tensor:
    """scatter in place."""
    return _scattered("_", input, dim, index, src, value, reduce)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of input with src added at index along dim."""
    return ops["scatter_add"](input, indices_of(index, input.dim()), src, dim)


def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """scatter_add in place."""
    return ops["scatter_add_"](input, indices_of(index, input.dim()), src, dim)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input at index along dim."""
    return ops["index_select"](input, index, dim)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy of input with slices of source added at index along dim."""
    return ops["index_add"](input, index, source, dim, alpha)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """index_add in place."""
    return ops["index_add_"](input, index, source, dim, alpha)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of input with slices of source written at index along dim."""
    return ops["index_copy"](input, index, source, dim)


def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """index_copy in place."""
    return ops["index_copy_"](input, index, source, dim)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A copy of input with value written into its slices at index along dim."""
    return ops["index_fill"](input, index, value, dim)


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """index_fill in place."""
    return ops["index_fill_"](input, index, value, dim)


def _put(name: str, input: Tensor, indices: Sequence[Tensor | None], values: Tensor,
         accumulate: bool) -> Tensor:
    arrays = [(d, i) for d, i in _placed(indices) if i is not None]
    columns, dims = expanded(input, [i for _, i in arrays], [d for d, _ in arrays])
    if not isinstance(values, Tensor):
        raise TypeError(f"index_put: values must be a Tensor, not {_core.described(values)}")
    if values.dtype != input.dtype:
        raise RuntimeError("Index put requires the source and destination dtypes match, got "
                           f"{input.dtype} for the destination and {values.dtype} for the source.")
    return ops[name](input, values, columns, dims, accumulate)


def _placed(indices: Sequence[Tensor | None]) -> Iterator[tuple[int, Tensor | None]]:
    """Each index with the first dimension that it indexes; a mask indexes as many dimensions as it has."""
    dim = 0
    for index in indices:
        yield dim, index
        mask = index is not None and index.dtype in (_core.bool, _core.uint8)
        dim += index.dim() if index is not None and mask else 1


def index_put(input: Tensor, indices: Sequence[Tensor | None], values: Tensor,
              accumulate: bool = False) -> Tensor:
    """A copy with values written (or added) at the index tensors, one for each leading dimension; None
    stands for all of a dimension."""
    return _put("index_put", input, indices, values, accumulate)


def index_put_(input: Tensor, indices: Sequence[Tensor | None], values: Tensor,
               accumulate: bool = False) -> Tensor:
    """index_put in place."""
    return _put("index_put_", input, indices, values, accumulate)


def nonzero(input: Tensor, *, as_tuple: bool = False, out: Tensor | None = None) -> Any:
    """The coordinates of the elements that are not zero. Does not wait; only reading the result's shape
    waits."""
    if out is not None:
        if as_tuple:
            raise RuntimeError("nonzero does not support the out kwarg when as_tuple is True")
        if out.dtype != _core.int64:
            raise RuntimeError(f"nonzero: Expected out tensor to have scalar type Long but got {out.dtype}")
        return store("nonzero", out, nonzero_rows(input))
    if as_tuple and input.dim() == 0:
        input = ops["reshape"](input, (1,))
    if as_tuple:
        return tuple(nonzero_columns(input))
    return nonzero_rows(input)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements at which mask is true, as a vector. Does not wait; only reading the result's shape
    waits."""
    if mask.dtype != _core.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    input, mask = broadcast_tensors(input, mask)
    if input.dim() == 0:
        input, mask = ops["reshape"](input, (1,)), ops["reshape"](mask, (1,))
    return input[mask]


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Converts indices into the row-major order of a tensor of shape `shape` to coordinates."""
    sizes = sizes_of((shape,))
    if indices.dtype.is_floating_point or indices.dtype.is_complex or indices.dtype == _core.bool:
        raise TypeError(f"expected 'indices' to be integer tensor, but got {indices.dtype}")
    if any(n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    found, step, places = [], 1, ops["cast"](indices, _core.int64)
    for n in reversed(sizes):
        found.append(ops["remainder"](ops["floor_divide"](places, max(step, 1)), max(n, 1)))
        step *= n
    return tuple(reversed(found))


def _unsafe_masked_index(input: Tensor, mask: Tensor, indices: Sequence[Any], fill: Any) -> Tensor:
    """The elements at the indices; `fill` where mask is False."""
    found = input[tuple(slice(None) if i is None else i for i in _clamped(input, indices))]
    return ops["masked_fill"](found, ops["logical_not"](mask), fill)


def _unsafe_masked_index_put_accumulate(input: Tensor, mask: Tensor, indices: Sequence[Any],
                                        values: Tensor) -> Tensor:
    """A copy of input with values added at the indices where mask is True."""
    kept = masked_fill(values, ops["logical_not"](mask), 0)
    return index_put(input, _clamped(input, indices), kept, True)


def _clamped(input: Tensor, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if i is None else ops["clamp"](i, -n, n - 1)
                 for i, n in zip(indices, input._shape, strict=False))


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A copy of input with value where mask is True; input and mask are broadcast together."""
    return ops["masked_fill"](_as_wide(input, mask), mask, value)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of input whose elements where mask is True are replaced by those of source, in order; input
    and mask are broadcast together."""
    return ops["masked_scatter"](_as_wide(input, mask), mask, source)


def _as_wide(input: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast_shapes(input._shape, mask._shape)
    return input if shape == input._shape else ops["expand"](input, shape)


@function_only
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """The elements of input where condition is true, and of other elsewhere. With condition alone: the
    coordinates of its true elements."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if condition.dtype == _core.uint8:
        warnings.warn("where received a uint8 condition tensor. This behavior is deprecated and will be "
                      "removed in a future version of PyTorch. Use a boolean condition instead.",
                      stacklevel=2)
        condition = condition.to(_core.bool)
    return ops["where"](condition, input, other)
