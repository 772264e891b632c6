"""Norms and products of vectors and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._core import Tensor, ops
from .._functions.typeinfo import type_name
from ._common import floating, is_complex, square
from ._decompositions import svdvals
from ._solvers import inv_ex

__all__ = [
    "cond", "cross", "diagonal", "matmul", "matrix_norm", "multi_dot", "norm", "vander", "vecdot",
    "vector_norm",
]


def _dims(dim: Any, rank: int) -> list[int]:
    from .._functions.common import wrap_dim

    return [wrap_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
                dtype: Any = None) -> Tensor:
    """The p-norm of all elements, or over dims; ord may also be inf, -inf or 0 (the number of nonzero
    elements)."""
    floating(x, "vector_norm")
    return ops["norm"](x, float(ord), dim, keepdim, dtype)


def _extreme(x: Tensor, ord: float, dim: int, keepdim: bool) -> Tensor:
    """The largest of non-negative numbers (0 if there are none) for a positive ord, and the smallest for a
    negative one."""
    if ord < 0:
        return x.amin(dim, keepdim=keepdim)
    return x.amax(dim, keepdim=keepdim) if x._shape[dim] else x.sum(dim, keepdim=keepdim)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *,
                dtype: Any = None) -> Tensor:
    """The norm of the matrices in two dims of A; ord is "fro", "nuc", 2, -2, 1, -1, inf or -inf."""
    floating(A, "matrix_norm")
    if A.dim() < 2:
        raise RuntimeError("linalg.matrix_norm: The input tensor A must have at least 2 dimensions.")
    if len(dim) != 2:
        raise RuntimeError("linalg.matrix_norm: dim must be a 2-tuple. Got " + str(dim))
    rows, columns = _dims(dim, A.dim())
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got ({dim[0]}, {dim[1]})")
    if dtype is not None:
        A = A.to(dtype)
    if ord == "fro":
        return ops["norm"](A, 2.0, [rows, columns], keepdim, None)
    if ord == "nuc" or ord in (2, -2):
        values = svdvals(A.permute([d for d in range(A.dim()) if d not in (rows, columns)]
                                   + [rows, columns]))
        out = values.sum(-1) if ord == "nuc" else _extreme(values, ord, -1, False)
        if keepdim:
            for d in sorted((rows, columns)):
                out = out.unsqueeze(d)
        return out
    if ord not in (1, -1, math.inf, -math.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    if abs(ord) == 1:
        rows, columns = columns, rows
    sums = ops["abs"](A).sum(columns, keepdim=True)
    out = _extreme(sums, ord, rows, True)
    return out if keepdim else out.squeeze((rows, columns))


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *,
         dtype: Any = None) -> Tensor:
    """A vector norm, or a matrix norm if `ord` is given and the norm is over two dims.

    Without `ord` it is the 2-norm of all elements, or over dim.
    """
    if ord is not None:
        single = isinstance(dim, int) or (dim is not None and len(dim) == 1)
        if dim is not None and not single and len(dim) != 2:
            raise RuntimeError("linalg.norm: If dim is specified, it must be of length 1 or 2. Got "
                               + str(dim))
        if dim is None and A.dim() not in (1, 2):
            raise RuntimeError("linalg.norm: If dim is not specified but ord is, the input must be 1D "
                               f"or 2D. Got {A.dim()}D.")
        if isinstance(ord, str) or not (single or (dim is None and A.dim() == 1)):
            return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number: norm(A, p) * norm(inv(A), p), the 2-norm unless p is given."""
    if A.numel() == 0 and A.dim() >= 2:
        return ops["full"](0, A._shape[:-2], A.dtype.to_real(), A.device)
    if p is None or p in (2, -2):
        values = svdvals(A)
        large, small = values.select(-1, 0), values.select(-1, -1)
        return small / large if p == -2 else large / small
    square(A, "cond")
    inverse, info = inv_ex(A)
    result = matrix_norm(A, p) * matrix_norm(inverse, p)
    return ops["where"](info > 0, math.inf, result)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of matrices."""
    return ops["diagonal"](A, offset, dim1, dim2)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product; see `teletensor.matmul`."""
    return ops["matmul"](input, other)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of conj(x) * y along dim."""
    for each in (x, y):
        if not (each.is_floating_point() or is_complex(each)):
            raise NotImplementedError("linalg.vecdot: Expected a floating point or complex tensor as "
                                      f"input. Got {type_name(each.dtype)}")
    return ((ops["conj"](x) if is_complex(x) else x) * y).sum(dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of the elements of x along a new last dim; N defaults to the size of x's last
    dim."""
    if x.dim() < 1 and N is None:
        raise RuntimeError("linalg.vander: The input tensor must have at least one dimension.")
    if x.dim() < 1:  # as in PyTorch, a 0-d tensor gives one row
        x = x.unsqueeze(0)
    n = x._shape[-1] if N is None else N
    if n <= 1 and N is not None:
        raise RuntimeError("linalg.vander: N must be greater than 1.")
    if not x.is_floating_point() and not is_complex(x):
        x = x.long()
    powers = x.unsqueeze(-1).expand(*x._shape, max(n - 1, 0)).cumprod(-1)
    return ops["cat"]([x.new_ones(*x._shape, 1), powers], -1)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of 3-vectors along dim; the other dims broadcast."""
    if input.dim() != other.dim():
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    if input._shape[dim] != 3 or other._shape[dim] != 3:
        raise RuntimeError(f"linalg.cross: inputs dimension {dim} must have length 3. Got "
                           f"{input._shape[dim]} and {other._shape[dim]}")

    # One pass over memory with large strides, instead of one pass for each product.
    a, b = (ops["unbind"](ops["contiguous"](v), dim) for v in (input, other))
    parts = [a[i] * b[j] - a[j] * b[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return ops["stack"](parts, _dims(dim, input.dim())[0])


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices, in the order that needs the fewest multiplications.

    The first tensor may be a row vector and the last a column vector.
    """
    matrices = list(tensors)
    if len(matrices) < 2:
        raise RuntimeError("multi_dot(): expected at least 2 tensors but got " + str(len(matrices)))
    first, last = matrices[0].dim() == 1, matrices[-1].dim() == 1
    if first:
        matrices[0] = matrices[0].unsqueeze(0)
    if last:
        matrices[-1] = matrices[-1].unsqueeze(-1)
    for i, a in enumerate(matrices):
        if a.dim() != 2:
            raise RuntimeError(f"multi_dot(): tensor {i} must be 2D but got {a.dim()}D")
    out = _chain(matrices)
    if first:
        out = out.squeeze(0)
    return out.squeeze(-1) if last else out


def _chain(matrices: list[Tensor]) -> Tensor:
    n = len(matrices)
    sizes = [matrices[0]._shape[0], *(a._shape[1] for a in matrices)]
    cost = [[0] * n for _ in range(n)]
    cut = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], cut[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j))

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return matrices[i]
        return product(i, cut[i][j]) @ product(cut[i][j] + 1, j)

    return product(0, n - 1)
