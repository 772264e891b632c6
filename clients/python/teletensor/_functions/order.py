"""Sorting and selecting by order."""

from __future__ import annotations

from .._core import Tensor, ops
from .common import ValuesIndices

__all__ = ["kthvalue", "sort", "topk"]


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """Sorted along dim, and the indices."""
    return ValuesIndices(*ops["sort"](input, dim, descending, stable))


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """The k largest along dim, and their indices."""
    return ValuesIndices(*ops["topk"](input, k, dim, largest, sorted))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The k-th smallest along dim, and its index."""
    return ValuesIndices(*ops["kthvalue"](input, k, dim, keepdim))
