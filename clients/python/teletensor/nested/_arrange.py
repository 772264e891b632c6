"""Functions that arrange, select and join nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from ..nn import functional
from ._tensor import NestedTensor, unsupported

__all__ = ["FORMS"]


def _inner(name: str, input: NestedTensor, dim: int) -> int:
    """The dimension of the values for one of the nested tensor that is neither that of the batch nor the
    ragged one."""
    at = wrap_dim(dim, input.ndim)
    if at in (0, input._dim):
        unsupported(name, f"dimension {at} of a nested tensor is its batch or ragged")
    return at - 1


def transpose(input: NestedTensor, dim0: int, dim1: int) -> NestedTensor:
    first, second = wrap_dim(dim0, input.ndim), wrap_dim(dim1, input.ndim)
    if first == second:
        return input
    if 0 in (first, second):
        unsupported("transpose", "dimension 0 of a nested tensor is its batch")
    moved = {first: second, second: first}.get(input._dim, input._dim)
    return input._like(input._data.transpose(first - 1, second - 1), moved)


def unflatten(input: NestedTensor, dim: int, sizes: Any) -> NestedTensor:
    at = _inner("unflatten", input, dim)
    moved = input._dim + (len(sizes) - 1 if at < input._dim - 1 else 0)
    return input._like(input._data.unflatten(at, sizes), moved)


def flatten(input: NestedTensor, start_dim: int = 0, end_dim: int = -1) -> NestedTensor:
    first, last = wrap_dim(start_dim, input.ndim), wrap_dim(end_dim, input.ndim)
    if first == 0 or first <= input._dim <= last:
        unsupported("flatten", "dimensions of a batch and ragged ones cannot be flattened")
    moved = input._dim - (last - first if last < input._dim else 0)
    return input._like(input._data.flatten(first - 1, last - 1), moved)


def unsqueeze(input: NestedTensor, dim: int) -> NestedTensor:
    at = wrap_dim(dim, input.ndim + 1)
    if at == 0:
        unsupported("unsqueeze", "dimension 0 of a nested tensor is its batch")
    return input._like(input._data.unsqueeze(at - 1), input._dim + (at <= input._dim))


def squeeze(input: NestedTensor, dim: int) -> NestedTensor:
    at = _inner("squeeze", input, dim)
    if input._data.shape[at] != 1:
        return input
    return input._like(input._data.squeeze(at), input._dim - (at < input._dim - 1))


def chunk(input: NestedTensor, chunks: int, dim: int = 0) -> tuple[NestedTensor, ...]:
    at = _inner("chunk", input, dim)
    return tuple(input._like(each) for each in input._data.chunk(chunks, at))


def split(input: NestedTensor, split_size: Any, dim: int = 0) -> tuple[NestedTensor, ...]:
    at = _inner("split", input, dim)
    return tuple(input._like(each) for each in input._data.split(split_size, at))


def select(input: NestedTensor, dim: int, index: int) -> Any:
    if wrap_dim(dim, input.ndim) == 0:
        batch = input._ragged.batch
        if not -batch <= index < batch:
            raise IndexError(f"select(): index {index} out of range for a batch of {batch} tensors")
        begin, end = input._ragged.bounds[index % batch :][:2]
        return input._data.narrow(input._dim - 1, begin, end - begin)
    at = _inner("select", input, dim)
    return input._like(input._data.select(at, index), input._dim - (at < input._dim - 1))


def getitem(input: NestedTensor, index: Any) -> Any:
    if not isinstance(index, int) or isinstance(index, bool):
        unsupported("getitem", "a nested tensor is indexed with an integer")
    return select(input, 0, index)


def cat(tensors: Any, dim: int = 0) -> NestedTensor:
    first = tensors[0]
    if not all(isinstance(each, NestedTensor) for each in tensors):
        raise RuntimeError("cat(): nested and dense tensors cannot be joined")
    at = _inner("cat", first, dim)
    if any(each._ragged != first._ragged or each._dim != first._dim for each in tensors):
        raise RuntimeError(f"cat(): the lengths differ: shapes {[each.shape for each in tensors[:10]]}")
    joined: NestedTensor = first._like(tt.cat([each._data for each in tensors], at))
    return joined


def embedding(input: NestedTensor, weight: Tensor, *args: Any, **kwargs: Any) -> NestedTensor:
    return input._like(functional.embedding(input._data, weight, *args, **kwargs))


FORMS: dict[str, Callable[..., Any]] = {
    "transpose": transpose, "swapaxes": transpose, "unflatten": unflatten, "flatten": flatten,
    "unsqueeze": unsqueeze, "squeeze": squeeze, "chunk": chunk, "split": split, "select": select,
    "getitem": getitem, "cat": cat, "concat": cat, "embedding": embedding,
}  # fmt: skip
