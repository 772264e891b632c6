"""Reading and writing at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core import Tensor, ops
from .._indexing import nonzero_columns
from .common import function_only
from .structure import broadcast_tensors

__all__ = [
    "gather", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill",
    "index_fill_", "index_put", "index_put_", "index_select", "masked_select", "nonzero",
    "scatter", "scatter_", "scatter_add", "scatter_add_", "where",
]


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """x's elements along dim at index."""
    return ops["gather"](input, index, dim)


def scatter(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
    """x with src (a tensor or number) written along dim at index."""
    return ops["scatter"](input, index, value if src is None else src, dim)


def scatter_(input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
    """scatter in place."""
    return ops["scatter_"](input, index, value if src is None else src, dim)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x with src added along dim at index."""
    return ops["scatter_add"](input, index, src, dim)


def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """scatter_add in place."""
    return ops["scatter_add_"](input, index, src, dim)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input along dim at index."""
    return ops["index_select"](input, index, dim)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """x with slices of source added along dim at index."""
    return ops["index_add"](input, index, source, dim, alpha)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """index_add in place."""
    return ops["index_add_"](input, index, source, dim, alpha)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with slices of source written along dim at index."""
    return ops["index_copy"](input, index, source, dim)


def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """index_copy in place."""
    return ops["index_copy_"](input, index, source, dim)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with value written to its slices along dim at index."""
    return ops["index_fill"](input, index, value, dim)


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """index_fill in place."""
    return ops["index_fill_"](input, index, value, dim)


def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor,
              accumulate: bool = False) -> Tensor:
    """x with values written at index tensors, one per leading dim."""
    return ops["index_put"](input, values, list(indices), list(range(len(indices))), accumulate)


def index_put_(input: Tensor, indices: Sequence[Tensor], values: Tensor,
               accumulate: bool = False) -> Tensor:
    """index_put in place."""
    return ops["index_put_"](input, values, list(indices), list(range(len(indices))), accumulate)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Coordinates of the elements that are not zero (reads their number: a round trip)."""
    if as_tuple:
        return tuple(nonzero_columns(input))
    return ops["nonzero"](input, int(ops["count_nonzero"](input).item()))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where mask is true, as a vector (reads their number: a round trip)."""
    input, mask = broadcast_tensors(input, mask)
    return input[mask]


@function_only
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """input where condition, else other; alone: the coordinates where it is true."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    return ops["where"](condition, input, other)
