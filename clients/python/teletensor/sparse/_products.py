"""Products of matrices of which one or both are sparse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt, _core
from .._core import Tensor
from ._blocks import BlockTensor
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import flat_places, pairs
from ._pointwise import add, mul
from ._tensor import SparseTensor

__all__ = ["FORMS", "addmm", "hspmm", "mm", "sampled_addmm", "smm", "sspaddmm"]

_PIECE = 2**21  # scaled elements that are made before they are added, so that they stay in caches


def _tensors(name: str, *operands: Any) -> None:
    """TypeError for an operand that is no tensor, dense or sparse."""
    for place, each in enumerate(operands):
        if not isinstance(each, Tensor | SparseTensor):
            kind = _core.described(each)
            raise TypeError(f"{name}(): argument {place + 1} must be a Tensor, not {kind}")


def _matrices(name: str, input: Any, mat2: Any) -> None:
    """Checks the operands of a product of two matrices."""
    _tensors(name, input, mat2)
    if len(input.shape) != 2 or len(mat2.shape) != 2:
        raise RuntimeError(
            f"{name}: both must be matrices, got shapes {list(input.shape)} and {list(mat2.shape)}"
        )
    _operands(name, input, mat2)


def _operands(name: str, input: Any, mat2: Any) -> None:
    """Checks the dense dimensions, the sizes of the matrices, dtype and device of the operands of products
    of matrices."""
    for each in (input, mat2):
        if isinstance(each, SparseTensor) and each.dense_dim():
            raise RuntimeError(
                f"{name}: a sparse matrix must have 2 sparse dimensions and no dense ones, got "
                f"{each.sparse_dim()} and {each.dense_dim()}"
            )
    if input.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({input.shape[-2]}x{input.shape[-1]} and "
            f"{mat2.shape[-2]}x{mat2.shape[-1]})"
        )
    if input.dtype != mat2.dtype:
        raise RuntimeError(
            f"{name}: expected both to have the same dtype, but got {input.dtype} and {mat2.dtype}"
        )
    if input.device != mat2.device:
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, {input.device} and {mat2.device}!"
        )


def _times_dense(values: Tensor, rows: Tensor, columns: Tensor, dense: Tensor, height: int) -> Tensor:
    """The product [height, n] of a sparse matrix and dense [k, n]: rows of `dense` are scaled and added."""
    count, width = values.shape[0], dense.shape[1]
    total: Tensor = tt.zeros(height, width, dtype=values.dtype, device=values.device)
    # The gradient of a piece with respect to `dense` would have the size of `dense`.
    recorded = dense.requires_grad and tt.is_grad_enabled()
    step = count if recorded else max(_PIECE // max(width, 1), 1)
    for begin in range(0, max(count, 1), max(step, 1)):
        piece = slice(begin, begin + step) if step < count else slice(None)
        taken = dense.index_select(0, columns[piece]) * values[piece].reshape((-1, 1))
        total = total.index_add(0, rows[piece], taken)
    return total


def _sparse_dense(matrix: SparseTensor, dense: Tensor) -> Tensor:
    if isinstance(matrix, BlockTensor):
        return matrix.times(dense)
    coo = matrix.to_sparse_coo()
    return _times_dense(coo._data, coo._places[0], coo._places[1], dense, coo._shape[0])


def _sparse_sparse(a: SparseTensor, b: SparseTensor) -> Any:
    """Waits for the number of products, and for the number of places of the result."""
    first, second = a.to_sparse_coo().coalesce(), b.to_sparse_coo().coalesce()
    left, right = pairs(first._places[1], second._places[0], a._shape[1])
    places = tt.stack([first._places[0].index_select(0, left), second._places[1].index_select(0, right)])
    values = first._data.index_select(0, left) * second._data.index_select(0, right)
    found = CooTensor(places, values, (a._shape[0], b._shape[1]), False, True).coalesce()
    if isinstance(a, CooTensor):
        return found
    by_column = a.layout is tt.sparse_csc and b.layout is tt.sparse_csc
    return found.to_sparse(layout=tt.sparse_csc if by_column else tt.sparse_csr)


def mm(input: Any, mat2: Any, reduce: str = "sum") -> Any:
    """The product of two matrices, of which at least one is sparse: dense if the other is dense, sparse
    otherwise. Gradients of a sparse matrix are those of its values.

    For a sparse and a dense matrix, `reduce` is how the products of specified elements of a row are
    combined: "sum", "mean", "amax" or "amin"; 0 if there are none."""
    if not isinstance(input, SparseTensor) and not isinstance(mat2, SparseTensor):
        return tt.mm(input, mat2)
    _matrices("mm", input, mat2)
    if reduce != "sum":
        return _reduced(input, mat2, reduce)
    if isinstance(input, Tensor):
        return _sparse_dense(mat2.exchanged(), input.t()).t()
    return _sparse_dense(input, mat2) if isinstance(mat2, Tensor) else _sparse_sparse(input, mat2)


def _reduced(matrix: Any, dense: Any, reduce: str) -> Tensor:
    if reduce not in ("mean", "amax", "amin"):
        raise ValueError(f"mm: reduce must be sum, mean, amax or amin, got {reduce!r}")
    if not isinstance(matrix, SparseTensor) or not isinstance(dense, Tensor):
        raise NotImplementedError(f"mm: reduce={reduce!r} needs a sparse and a dense matrix")
    coo = matrix.to_sparse_coo().coalesce()
    rows, columns = coo._places
    taken = dense.index_select(0, columns) * coo._data.reshape((-1, 1))
    start = tt.zeros(coo._shape[0], dense.shape[1], dtype=taken.dtype, device=taken.device)
    wide = rows.reshape((-1, 1)).expand(taken.shape)
    found: Tensor = start.scatter_reduce(0, wide, taken, reduce, include_self=False)
    return found


def mv(input: Any, vec: Any) -> Any:
    if isinstance(vec, SparseTensor) or len(vec.shape) != 1:
        raise RuntimeError("mv: expected a sparse matrix and a dense vector")
    return mm(input, vec.reshape((-1, 1))).reshape(-1)


def matmul(input: Any, other: Any) -> Any:
    _tensors("matmul", input, other)
    dims = (len(input.shape), len(other.shape))
    if dims == (2, 2):
        return mm(input, other)
    if dims[1] == 1 and isinstance(input, SparseTensor) and isinstance(other, Tensor):
        return mv(input, other) if dims[0] == 2 else matmul(input, other.unsqueeze(-1)).squeeze(-1)
    if dims[0] == 1 and isinstance(other, SparseTensor) and isinstance(input, Tensor):
        return matmul(input.unsqueeze(0), other).squeeze(-2)
    return _batches("matmul", input, other)


def bmm(input: Any, mat2: Any) -> Any:
    """The products of the matrices of two batches [b, m, k] and [b, k, n], of which one is sparse."""
    _tensors("bmm", input, mat2)
    if len(input.shape) != 3 or len(mat2.shape) != 3 or input.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm: shapes {list(input.shape)} and {list(mat2.shape)} do not fit")
    return _batches("bmm", input, mat2)


def _batches(name: str, input: Any, mat2: Any) -> Tensor:
    """The products of the matrices of a sparse batch [..., m, k] and a dense one [..., k, n], or the other
    way around. The batch of the dense one is broadcast to that of the sparse one."""
    if isinstance(input, SparseTensor) == isinstance(mat2, SparseTensor):
        raise NotImplementedError(f"{name}: of two batches of matrices, one must be dense; call to_dense()")
    _operands(name, input, mat2)
    if isinstance(input, Tensor):
        return _batches(name, mat2.exchanged(), input.transpose(-2, -1)).transpose(-2, -1)
    coo = input.to_sparse_coo()
    *batch, height, inner = input._shape
    if coo.sparse_dim() != len(input._shape):
        raise NotImplementedError(f"{name}: the dimensions of a batch of sparse matrices must be sparse")
    if tuple(tt.broadcast_shapes(tuple(mat2.shape[:-2]), tuple(batch))) != tuple(batch):
        raise RuntimeError(f"{name}: shapes {list(input._shape)} and {list(mat2.shape)} do not fit")
    count, width = math.prod(batch), mat2.shape[-1]
    places = coo._places
    left = flat_places(places[:-1], (*batch, height), coo._inside)
    right = flat_places(tt.cat([places[:-2], places[-1:]]), (*batch, inner), coo._inside)
    dense = mat2.expand((*batch, inner, width))
    if isinstance(input, BlockTensor):
        return input.times(dense)
    flat = dense.reshape((count * inner, width))
    return _times_dense(coo._data, left, right, flat, count * height).reshape((*batch, height, width))


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2), where mat1 or mat2 is sparse: dense if input is dense."""
    product = mm(mat1, mat2)
    if isinstance(product, Tensor) and isinstance(input, Tensor):
        return (input if beta == 1 else input * beta) + (product if alpha == 1 else product * alpha)
    if isinstance(input, SparseTensor) and isinstance(product, Tensor):
        product = product.to_sparse(layout=input.layout)
    return add(mul(input, beta) if isinstance(input, SparseTensor) else input * beta, product, alpha=alpha)


def sampled_addmm(input: Any, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2) at the places of `input`, a sparse matrix (CSR) or a batch of
    them: only these elements of the product are computed."""
    _tensors("sampled_addmm", input, mat1, mat2)
    if not isinstance(input, CompressedTensor):
        raise RuntimeError(f"sampled_addmm: Expected self to have CSR layout, but got {input.layout}")
    *batch, height, width = input._shape
    inner, fits = mat1.shape[-1], len(input._shape) == mat1.dim() == mat2.dim() and not input.dense_dim()
    wanted = (*batch, height, inner), (*batch, inner, width)
    if not fits or (tuple(mat1.shape), tuple(mat2.shape)) != wanted:
        raise RuntimeError(
            f"sampled_addmm: shapes {list(input._shape)}, {list(mat1.shape)} and "
            f"{list(mat2.shape)} do not fit"
        )
    coo = input.to_sparse_coo()
    rows = flat_places(coo._places[:-1], (*batch, height), coo._inside)
    columns = flat_places(tt.cat([coo._places[:-2], coo._places[-1:]]), (*batch, width), coo._inside)
    left = mat1.reshape((math.prod(batch) * height, inner)).index_select(0, rows)
    right = mat2.transpose(-2, -1).reshape((math.prod(batch) * width, inner)).index_select(0, columns)
    return input._like((left * right).sum(1).reshape(input._data.shape) * alpha + input._data * beta)


def smm(input: Any, mat2: Any) -> Any:
    """The product of a sparse and a dense matrix as a sparse matrix."""
    return mm(input, mat2).to_sparse()


def hspmm(mat1: Any, mat2: Any) -> Any:
    """The product of a sparse and a dense matrix as a sparse tensor whose values are its rows."""
    return mm(mat1, mat2).to_sparse(1)


def sspaddmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2), where input and mat1 are sparse, as a sparse matrix."""
    return addmm(input, mat1, mat2, beta=beta, alpha=alpha)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(input, SparseTensor) and isinstance(weight, SparseTensor):
        raise NotImplementedError("linear: only one of input and weight may be sparse; call to_dense()")
    product = mm(input, weight.exchanged() if isinstance(weight, SparseTensor) else weight.t())
    return product if bias is None else product + bias


FORMS: dict[str, Callable[..., Any]] = {
    "mm": mm, "matmul": matmul, "spmm": mm, "dsmm": mm, "mv": mv, "bmm": bmm, "addmm": addmm,
    "saddmm": addmm, "smm": smm, "hspmm": hspmm, "hsmm": hspmm, "sspaddmm": sspaddmm, "linear": linear,
    "sampled_addmm": sampled_addmm,
}  # fmt: skip
