"""Factorisations: Cholesky, LU, LDL, QR, singular values, eigenvalues."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._core import Tensor, ops
from ._common import adjoint, identity, wants_gradient

__all__ = [
    "cholesky", "cholesky_ex", "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "ldl_factor",
    "ldl_factor_ex", "ldl_solve", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "qr", "svd",
    "svdvals",
]


class CholeskyEx(NamedTuple):
    """Result of cholesky_ex."""

    L: Tensor
    info: Tensor


class LU(NamedTuple):
    """Result of lu: A = P L U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """Result of lu_factor."""

    LU: Tensor
    pivots: Tensor


class LUFactorEx(NamedTuple):
    """Result of lu_factor_ex."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class LDLFactor(NamedTuple):
    """Result of ldl_factor."""

    LD: Tensor
    pivots: Tensor


class LDLFactorEx(NamedTuple):
    """Result of ldl_factor_ex."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


class QR(NamedTuple):
    """Result of qr."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """Result of svd: A = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eig(NamedTuple):
    """Result of eig."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Eigh(NamedTuple):
    """Result of eigh."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """L with A = L L^H (upper: U with A = U^H U) of Hermitian positive-definite matrices.

    Reads one triangle. Another matrix raises LinAlgError when a value is read.
    """
    return ops["linalg_cholesky_ex"](A, upper, True)[0]


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """cholesky with info (int32): 0, or the order of the leading minor that is not positive-definite."""
    return CholeskyEx(*ops["linalg_cholesky_ex"](A, upper, check_errors))


# ---------------------------------------------------------------- LU


def _pivoted(pivot: bool, name: str) -> None:
    if not pivot:
        raise RuntimeError(f"linalg.{name}: LU without pivoting is not implemented on the CPU")


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """L and U in one matrix (L's diagonal of ones is left out), and the exchanged rows, from 1.

    A singular matrix raises LinAlgError when a value is read; `lu` and `lu_factor_ex` take it.
    """
    _pivoted(pivot, "lu_factor")
    factor, pivots, _ = ops["linalg_lu_factor_ex"](A, True)
    return LUFactor(factor, pivots)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """lu_factor with info (int32): 0, or the diagonal element of U, from 1, that is zero."""
    _pivoted(pivot, "lu_factor")
    return LUFactorEx(*ops["linalg_lu_factor_ex"](A, check_errors))


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """A = P L U of m x n matrices: P m x m, L m x k with ones on its diagonal, U k x n."""
    _pivoted(pivot, "lu")
    factor, pivots, _ = ops["linalg_lu_factor_ex"](A, False)
    return LU(permutation(pivots, factor), *triangles(factor))


def triangles(factor: Tensor) -> tuple[Tensor, Tensor]:
    """L and U of one matrix that holds both."""
    m, n = factor._shape[-2:]
    k = min(m, n)
    lower = factor if k == n else factor.narrow(-1, 0, k)
    upper = factor if k == m else factor.narrow(-2, 0, k)
    return ops["tril"](lower, -1) + identity(m, factor, k), ops["triu"](upper)


def permutation(pivots: Tensor, factor: Tensor) -> Tensor:
    """The matrix P of the pivots of lu_factor."""
    m = factor._shape[-2]
    order = ops["linalg_lu_permutation"](pivots, m, True)
    columns = ops["arange"](0, m, 1, None, factor.device)
    return (order.unsqueeze(-1) == columns).to(factor.dtype)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True,
             adjoint: bool = False) -> Tensor:
    """X of A X = B (left), X A = B, or the same with A^H, from the factors of A.

    B is [*, n, k] (left) or [*, k, n]; the leading dimensions broadcast.
    """
    if not left:
        return _adjoint(lu_solve(LU, pivots, _adjoint(B), adjoint=not adjoint))
    n = LU._shape[-1]
    lead = _broadcast(LU._shape[:-2], B._shape[:-2])
    B = B.expand((*lead, *B._shape[-2:]))
    order = ops["linalg_lu_permutation"](pivots, n, adjoint).unsqueeze(-1).expand(B._shape)
    solve = ops["linalg_solve_triangular"]
    if adjoint:
        y = solve(_adjoint(LU), B, False, True, False)
        return ops["gather"](solve(_adjoint(LU), y, True, True, True), order, -2)
    y = solve(LU, ops["gather"](B, order, -2), False, True, True)
    return solve(LU, y, True, True, False)


_adjoint = adjoint


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    from .._functions import broadcast_shapes

    return tuple(broadcast_shapes(a, b))


# ---------------------------------------------------------------- LDL


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:
    """Bunch-Kaufman factors of symmetric (Hermitian) matrices, from the lower triangle."""
    factor, pivots, _ = ops["linalg_ldl_factor_ex"](A, hermitian, True)
    return LDLFactor(factor, pivots)


def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLFactorEx:
    """ldl_factor with info (int32)."""
    return LDLFactorEx(*ops["linalg_ldl_factor_ex"](A, hermitian, check_errors))


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """X of A X = B from the factors of ldl_factor."""
    return ops["linalg_ldl_solve"](LD, pivots, B, hermitian)


# ---------------------------------------------------------------- QR


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R. Modes: "reduced" (Q m x min(m, n)), "complete" (Q m x m), "r" (Q is empty).

    Mode "r", and "complete" of matrices with more rows than columns, have no derivative.
    """
    fixed = mode == "r" or (mode == "complete" and A.dim() >= 2 and A._shape[-2] > A._shape[-1])
    return QR(*ops["linalg_qr"](A.detach() if fixed else A, mode))


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of the product of the reflectors I - tau_i v_i v_i^H of geqrf.

    A is [*, m, n] with v_i below the diagonal of column i, tau [*, k].
    """
    if not wants_gradient(A, tau):
        return ops["linalg_householder_product"](A, tau)
    ops["linalg_householder_product"](A.detach(), tau.detach())  # refuses wrong shapes
    m, n = A._shape[-2:]
    out = identity(m, A, n).expand(A._shape)
    for i in range(tau._shape[-1] - 1, -1, -1):
        v = ops["tril"](A, -1).narrow(-1, i, 1) + identity(m, A).narrow(-1, i, 1)
        scale = tau.narrow(-1, i, 1).unsqueeze(-1)
        out = out - scale * (v @ (adjoint(v) @ out))
    return out


# ---------------------------------------------------------------- spectra


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U diag(S) Vh, S in descending order. `driver` is PyTorch's for CUDA."""
    _no_driver(driver, "svd")
    return SVD(*ops["linalg_svd"](A, full_matrices))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Singular values in descending order."""
    _no_driver(driver, "svdvals")
    if wants_gradient(A):
        return ops["linalg_svd"](A, False)[1]
    return ops["linalg_svdvals"](A)


def _no_driver(driver: str | None, name: str) -> None:
    if driver is not None:
        raise RuntimeError(f"linalg.{name}: keyword argument `driver=` is only supported on CUDA "
                           "inputs with cuSOLVER backend.")


def eig(A: Tensor) -> Eig:
    """Eigenvalues, in no order, and eigenvectors of norm 1 of square matrices: complex tensors."""
    return Eig(*ops["linalg_eig"](A))


def eigvals(A: Tensor) -> Tensor:
    """Eigenvalues of square matrices, in no order: a complex tensor."""
    return ops["linalg_eigvals"](A)


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues, ascending, and orthonormal eigenvectors of Hermitian matrices.

    Reads the triangle that UPLO names.
    """
    return Eigh(*ops["linalg_eigh"](A, UPLO))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of Hermitian matrices, ascending."""
    if wants_gradient(A):
        return ops["linalg_eigh"](A, UPLO)[0]
    return ops["linalg_eigvalsh"](A, UPLO)


def unpack(data: Tensor, pivots: Tensor, unpack_data: Any, unpack_pivots: Any) -> LU:
    """P, L, U of the factors; an empty tensor for what is not asked for."""
    empty = data.new_zeros(0)
    lower, upper = triangles(data) if unpack_data else (empty, empty)
    return LU(permutation(pivots, data) if unpack_pivots else empty, lower, upper)
