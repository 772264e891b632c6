"""Reductions of sparse tensors, and softmax over their specified elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import checked_values, flat_places, grouped, summed
from ._tensor import SparseTensor, unsupported

__all__ = ["FORMS", "log_softmax", "softmax", "sum"]


def _dims(dim: Any, rank: int) -> set[int]:
    dims = [dim] if isinstance(dim, int) else list(dim)
    found = {wrap_dim(each, rank) for each in dims}
    if len(found) != len(dims):
        raise RuntimeError(f"sum: a dimension appears multiple times in {dims}")
    return found


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of all elements as a dense number, or over dimensions: a sparse tensor, or a dense one if all
    sparse dimensions are summed. Waits for the number of places of a sparse result."""
    if not isinstance(input, SparseTensor):
        raise TypeError(
            f"sparse.sum(): argument 'input' must be a sparse tensor, not {type(input).__name__}"
        )
    coo = input.to_sparse_coo()
    values = coo._data if dtype is None else coo._data.to(dtype)
    if not coo._inside:
        values = checked_values(values, coo._places, coo._sizes)
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return values.sum()
    if isinstance(input, CompressedTensor) and not keepdim:
        raise RuntimeError(
            "reduction operations on CSR tensors with keepdim=False is unsupported; call to_sparse_coo()"
        )
    dims, count = _dims(dim, coo.ndim), coo.sparse_dim()
    dense = [d - count + 1 for d in dims if d >= count]
    if dense:
        values = values.sum(dense, keepdim)
    rest = [size if d not in dims else 1 for d, size in enumerate(coo._shape) if keepdim or d not in dims]
    left = [d for d in range(count) if d not in dims]
    if keepdim:
        rows = [row if d in left else row * 0 for d, row in enumerate(coo._places)]
    else:
        rows = [coo._places[d] for d in left]
    if not rows:
        return values.sum(0)
    unchanged = len(left) == count and coo.is_coalesced()
    total = CooTensor(tt.stack(rows), values, tuple(rest), unchanged, coo._inside)
    found = total.coalesce()
    return found if isinstance(input, CooTensor) else found.to_sparse(layout=input.layout)


def _softmax(name: str, log: bool, input: Any, dim: int, dtype: Any) -> Any:
    if not isinstance(input, CooTensor):
        if isinstance(input, SparseTensor):
            unsupported(f"sparse.{name}", input)
        raise TypeError(
            f"sparse.{name}(): argument 'input' must be a sparse tensor, not {type(input).__name__}"
        )
    coo = input.coalesce()
    values = coo._data if dtype is None else coo._data.to(dtype)
    if not values.is_floating_point():
        raise RuntimeError(f"sparse.{name}: expected a floating-point dtype, got {values.dtype}")
    at, count = wrap_dim(dim, coo.ndim), coo.sparse_dim()
    if at >= count:
        function = tt.log_softmax if log else tt.softmax
        return coo._like(function(values, at - count + 1))
    number = values.shape[0]
    rest = [d for d in range(count) if d != at]
    if number == 0:
        return coo._like(values)
    if rest:
        places = flat_places(coo._places[rest], [coo._shape[d] for d in rest], True)
        groups = tt.unique(places, return_inverse=True)[1]
    else:
        groups = tt.zeros(number, dtype=tt.int64, device=values.device)
    wide = groups.reshape((-1, *(1,) * (values.dim() - 1))).expand(values.shape)
    # There are no more groups than values, so nothing waits for their number.
    lowest = tt.full(values.shape, float("-inf"), dtype=values.dtype, device=values.device)
    largest = lowest.scatter_reduce(0, wide, values.detach(), "amax").index_select(0, groups)
    shifted = values - tt.where(largest.isinf(), tt.zeros_like(largest), largest)
    powers = shifted.exp()
    sums: Tensor = summed(powers, groups, number).index_select(0, groups)
    return coo._like(shifted - sums.log() if log else powers / sums)


def softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Softmax over the specified elements along `dim`; an element that is not specified counts as minus
    infinity. Waits for the number of places unless the tensor is coalesced."""
    return _softmax("softmax", False, input, dim, dtype)


def log_softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """The logarithm of `softmax`."""
    return _softmax("log_softmax", True, input, dim, dtype)


def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if dim is not None or keepdim:
        raise NotImplementedError(
            "norm of a sparse tensor over dimensions is not supported; call to_dense()"
        )
    if not isinstance(input, CooTensor) or input.is_coalesced():
        values = input._data
    elif isinstance(p, (int, float)) and p <= 0:
        values = input.coalesce()._data
    else:
        values = grouped(input._data, flat_places(input._places, input._sizes, input._inside))[2]
    return tt.norm(values.reshape(-1), p, dtype=dtype)


def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if not ord > 0:
        raise NotImplementedError(f"vector_norm of a sparse tensor: ord must be positive, got {ord}")
    return norm(x, ord, dim, keepdim, dtype)


def any(input: Any) -> Any:
    return (input.coalesce() if isinstance(input, CooTensor) else input)._data.any()


FORMS: dict[str, Callable[..., Any]] = {"sum": sum, "norm": norm, "vector_norm": vector_norm, "any": any}
