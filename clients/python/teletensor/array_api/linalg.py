"""The linalg extension of the standard."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

from .. import _api as tt, linalg as _linalg
from .._core import dtype as DType
from ._array import Array, operands, require, unwrap, wrap
from ._linear import matmul, matrix_transpose, tensordot, vecdot
from ._manipulation import axes_of, broadcast_arrays
from ._reductions import _accumulator

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cross",
    "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet",
    "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

_FLOATING = ("real floating", "complex floating")


class EighResult(NamedTuple):
    """The result of eigh."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """The result of eig."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of qr."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The result of slogdet."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """The result of svd."""

    U: Array
    S: Array
    Vh: Array


def _matrix(x: Array, where: str) -> Any:
    tensor = unwrap(x, where)
    require(x.dtype, where, _FLOATING)
    return tensor


def cholesky(x: Array, /, *, upper: builtins.bool = False) -> Array:
    """The lower (upper) triangular factor of each symmetric positive definite matrix."""
    return wrap(_linalg.cholesky(_matrix(x, "cholesky"), upper=upper))


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of 3 elements."""
    a, b = operands(x1, x2, "cross", "numeric")
    left, right = broadcast_arrays(wrap(a), wrap(b))
    low = builtins.min(x1.ndim, x2.ndim)
    if not -low <= axis < low:
        raise IndexError(f"cross: axis {axis} is out of range")
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(
            f"cross: axis {axis} needs size 3, it has {x1.shape[axis]} and {x2.shape[axis]}"
        )
    return wrap(_linalg.cross(left._tensor, right._tensor, dim=axis))


def det(x: Array, /) -> Array:
    """The determinant of each square matrix."""
    return wrap(_linalg.det(_matrix(x, "det")))


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The diagonal of each matrix."""
    return wrap(tt.diagonal(unwrap(x, "diagonal"), offset, -2, -1))


def eigh(x: Array, /) -> EighResult:
    """The eigenvalues (ascending) and eigenvectors (columns) of each symmetric or Hermitian matrix."""
    values, vectors = _linalg.eigh(_matrix(x, "eigh"))
    return EighResult(wrap(values), wrap(vectors))


def eigvalsh(x: Array, /) -> Array:
    """The eigenvalues (ascending) of each symmetric or Hermitian matrix."""
    return wrap(_linalg.eigvalsh(_matrix(x, "eigvalsh")))


def eig(x: Array, /) -> EigResult:
    """The complex eigenvalues and eigenvectors (columns) of each square matrix."""
    values, vectors = _linalg.eig(_matrix(x, "eig"))
    return EigResult(wrap(values), wrap(vectors))


def eigvals(x: Array, /) -> Array:
    """The complex eigenvalues of each square matrix."""
    return wrap(_linalg.eigvals(_matrix(x, "eigvals")))


def inv(x: Array, /) -> Array:
    """The inverse of each square matrix."""
    return wrap(_linalg.inv(_matrix(x, "inv")))


def matrix_norm(x: Array, /, *, keepdims: builtins.bool = False, ord: Any = "fro") -> Array:
    """A norm of each matrix: 'fro', 'nuc', 1, -1, 2, -2, inf or -inf."""
    tensor = _matrix(x, "matrix_norm")
    return wrap(_linalg.matrix_norm(tensor, ord, dim=(-2, -1), keepdim=keepdims))


def matrix_power(x: Array, n: int, /) -> Array:
    """Raises each square matrix to an integer power."""
    return wrap(_linalg.matrix_power(_matrix(x, "matrix_power"), n))


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """The number of singular values above rtol times the largest one."""
    tensor = _matrix(x, "matrix_rank")
    if x.ndim < 2:
        raise ValueError(f"matrix_rank: needs at least 2 axes, got {x.ndim}")
    values = _linalg.svdvals(tensor)
    limit = _limit(x, values, rtol)
    return wrap((values > limit).to(tt.int64).sum(-1))


def _limit(x: Array, values: Any, rtol: Any) -> Any:
    from ._dtypes import finfo

    largest = tt.amax(values, -1, keepdim=True) if values._shape[-1] else values
    if rtol is None:
        rtol = builtins.max(x.shape[-2:]) * finfo(x.dtype).eps
    factor = rtol._tensor.unsqueeze(-1) if isinstance(rtol, Array) else rtol
    return largest * factor


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """The pseudo-inverse of each matrix."""
    tensor = _matrix(x, "pinv")
    factor = rtol._tensor if isinstance(rtol, Array) else rtol
    return wrap(_linalg.pinv(tensor) if factor is None else _linalg.pinv(tensor, rtol=factor))


def outer(x1: Array, x2: Array, /) -> Array:
    """The products of each element of one vector with each element of the other."""
    a, b = operands(x1, x2, "outer", "numeric")
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: takes vectors, got {x1.ndim} and {x2.ndim} axes")
    return wrap(a.unsqueeze(1) * b)


def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """The factors of x = Q @ R: Q has orthonormal columns and R is upper triangular."""
    q, r = _linalg.qr(_matrix(x, "qr"), mode)
    return QRResult(wrap(q), wrap(r))


def slogdet(x: Array, /) -> SlogdetResult:
    """The sign (or phase) and the logarithm of the absolute value of each determinant."""
    sign, logabsdet = _linalg.slogdet(_matrix(x, "slogdet"))
    return SlogdetResult(wrap(sign), wrap(logabsdet))


def solve(x1: Array, x2: Array, /) -> Array:
    """The solution X of x1 @ X = x2. x2 is a vector if it has one axis, and otherwise a stack of
    matrices."""
    a, b = operands(x1, x2, "solve", _FLOATING)
    if x2.ndim == 1:
        return wrap(_linalg.solve(a, b.unsqueeze(-1)).squeeze(-1))
    batch = (
        broadcast_arrays(wrap(a[..., 0, 0]), wrap(b[..., 0, 0]))[0].shape
        if (x1.shape[-1] and x2.shape[-1] and x2.shape[-2])
        else None
    )
    if batch is not None:
        a, b = a.expand((*batch, *x1.shape[-2:])), b.expand((*batch, *x2.shape[-2:]))
    return wrap(_linalg.solve(a, b))


def svd(x: Array, /, *, full_matrices: builtins.bool = True) -> SVDResult:
    """The factors of x = U @ diag(S) @ Vh, with the singular values in descending order."""
    u, s, vh = _linalg.svd(_matrix(x, "svd"), full_matrices=full_matrices)
    return SVDResult(wrap(u), wrap(s), wrap(vh))


def svdvals(x: Array, /) -> Array:
    """The singular values of each matrix in descending order."""
    return wrap(_linalg.svdvals(_matrix(x, "svdvals")))


def trace(x: Array, /, *, offset: int = 0, dtype: DType | None = None) -> Array:
    """The sum of the diagonal of each matrix; integers are summed in 64 bits."""
    require(x.dtype, "trace", "numeric")
    return wrap(tt.sum(diagonal(x, offset=offset)._tensor, -1, dtype=_accumulator(x.dtype, dtype)))


def vector_norm(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: builtins.bool = False,
    ord: float = 2,
) -> Array:
    """The p-norm over axes (None for all elements)."""
    tensor = _matrix(x, "vector_norm")
    axes = axes_of(axis, x.ndim, "vector_norm")
    size = tt.abs(tensor)
    if not axes:
        return wrap(size if ord != 0 else tt.ne(size, 0).to(size.dtype))
    if ord == float("inf"):
        return wrap(tt.amax(size, axes, keepdim=keepdims))
    if ord == -float("inf"):
        return wrap(tt.amin(size, axes, keepdim=keepdims))
    if ord == 0:
        return wrap(tt.ne(size, 0).to(size.dtype).sum(axes, keepdim=keepdims))
    if ord == 1:
        return wrap(size.sum(axes, keepdim=keepdims))
    if ord == 2:
        return wrap((size * size).sum(axes, keepdim=keepdims).sqrt())
    return wrap((size**ord).sum(axes, keepdim=keepdims) ** (1.0 / ord))
