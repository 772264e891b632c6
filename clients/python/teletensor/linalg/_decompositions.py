"""Factorisations: Cholesky, LU, LDL, QR, singular values, eigenvalues."""

from __future__ import annotations

from typing import Any

from .. import return_types
from .._core import Tensor, ops
from .._functions.common import refusing
from ._common import adjoint, identity, settled, wants_gradient

__all__ = [
    "cholesky", "cholesky_ex", "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "ldl_factor",
    "ldl_factor_ex", "ldl_solve", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "qr", "svd",
    "svdvals",
]


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The factor L of A = L L^H (or, with upper, U of A = U^H U) of Hermitian positive-definite matrices.

    Reads one triangle only. Waits for the result, and raises LinAlgError if a matrix is not
    positive-definite; `cholesky_ex` does not wait.
    """
    return settled(A, ops["linalg_cholesky_ex"](A, upper, True))[0]


def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> return_types.linalg_cholesky_ex:
    """The result of cholesky, and info (int32): 0, or the order of the leading minor that is not
    positive-definite.

    With check_errors it waits and raises LinAlgError, as cholesky does.
    """
    made = ops["linalg_cholesky_ex"](A, upper, check_errors)
    return return_types.linalg_cholesky_ex(*(settled(A, made) if check_errors else made))


# ---------------------------------------------------------------- LU


def _pivoted(pivot: bool, name: str) -> None:
    if not pivot:
        raise RuntimeError(f"linalg.{name}: LU without pivoting is not implemented on the CPU")


def lu_factor(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu_factor:
    """L and U in one matrix (the unit diagonal of L is left out), and the 1-based indices of the exchanged
    rows.

    Waits for the result, and raises LinAlgError if a matrix is singular; `lu` and `lu_factor_ex` accept it
    and do not wait.
    """
    _pivoted(pivot, "lu_factor")
    factor, pivots, _ = settled(A, ops["linalg_lu_factor_ex"](A, True))
    return return_types.linalg_lu_factor(factor, pivots)


def lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> return_types.linalg_lu_factor_ex:
    """The result of lu_factor, and info (int32): 0, or the 1-based index of the diagonal element of U that
    is zero."""
    _pivoted(pivot, "lu_factor")
    made = ops["linalg_lu_factor_ex"](A, check_errors)
    return return_types.linalg_lu_factor_ex(*(settled(A, made) if check_errors else made))


def lu(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu:
    """The factors A = P L U of m x n matrices: P is m x m, L is m x k with ones on its diagonal, U is k x
    n."""
    _pivoted(pivot, "lu")
    factor, pivots, _ = ops["linalg_lu_factor_ex"](A, False)
    return return_types.linalg_lu(permutation(pivots, factor), *triangles(factor))


def triangles(factor: Tensor) -> tuple[Tensor, Tensor]:
    """L and U from one matrix that contains both."""
    m, n = factor._shape[-2:]
    k = min(m, n)
    lower = factor if k == n else factor.narrow(-1, 0, k)
    upper = factor if k == m else factor.narrow(-2, 0, k)
    return ops["tril"](lower, -1) + identity(m, factor, k), ops["triu"](upper)


def permutation(pivots: Tensor, factor: Tensor) -> Tensor:
    """The permutation matrix P for the pivots of lu_factor."""
    m = factor._shape[-2]
    order = ops["linalg_lu_permutation"](pivots, m, True)
    columns = ops["arange"](0, m, 1, None, factor.device)
    return (order.unsqueeze(-1) == columns).to(factor.dtype)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True,
             adjoint: bool = False) -> Tensor:
    """The solution X of A X = B (if `left`) or X A = B, or of the same with A^H, given the factors of A.

    B is [*, n, k] if `left`, and [*, k, n] otherwise; the leading dimensions broadcast.
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


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> return_types.linalg_ldl_factor:
    """The Bunch-Kaufman factors of symmetric (Hermitian) matrices, computed from the lower triangle.

    Waits for the result, and raises LinAlgError if a matrix is singular; `ldl_factor_ex` does not wait.
    """
    factor, pivots, _ = settled(A, ops["linalg_ldl_factor_ex"](A, hermitian, True))
    return return_types.linalg_ldl_factor(factor, pivots)


def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> return_types.linalg_ldl_factor_ex:
    """The result of ldl_factor, and info (int32)."""
    made = ops["linalg_ldl_factor_ex"](A, hermitian, check_errors)
    return return_types.linalg_ldl_factor_ex(*(settled(A, made) if check_errors else made))


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """The solution X of A X = B, given the factors from ldl_factor."""
    return ops["linalg_ldl_solve"](LD, pivots, B, hermitian)


# ---------------------------------------------------------------- QR


def qr(A: Tensor, mode: str = "reduced") -> return_types.linalg_qr:
    """The factors of A = Q R. Modes: "reduced" (Q is m x min(m, n)), "complete" (Q is m x m), "r" (Q is
    empty).

    Mode "r", and mode "complete" for matrices with more rows than columns, have no derivative.
    """
    fixed = mode == "r" or (mode == "complete" and A.dim() >= 2 and A._shape[-2] > A._shape[-1])
    return return_types.linalg_qr(*ops["linalg_qr"](refusing(A, "linalg.qr") if fixed else A, mode))


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of the product of the reflectors I - tau_i v_i v_i^H from geqrf.

    A is [*, m, n] with v_i below the diagonal of column i, and tau is [*, k].
    """
    if not wants_gradient(A, tau):
        return ops["linalg_householder_product"](A, tau)
    ops["linalg_householder_product"](A.detach(), tau.detach())  # raises an error for wrong shapes
    m, n = A._shape[-2:]
    out = identity(m, A, n).expand(A._shape)
    for i in range(tau._shape[-1] - 1, -1, -1):
        v = ops["tril"](A, -1).narrow(-1, i, 1) + identity(m, A).narrow(-1, i, 1)
        scale = tau.narrow(-1, i, 1).unsqueeze(-1)
        out = out - scale * (v @ (adjoint(v) @ out))
    return out


# ---------------------------------------------------------------- spectra
# All functions wait for their results, and raise LinAlgError if an algorithm does not converge.


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> return_types.linalg_svd:
    """The factors of A = U diag(S) Vh, with S in descending order. `driver` is PyTorch's argument for
    CUDA."""
    _no_driver(driver, "svd")
    return return_types.linalg_svd(*settled(A, ops["linalg_svd"](A, full_matrices)))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values in descending order."""
    _no_driver(driver, "svdvals")
    if wants_gradient(A):
        return settled(A, ops["linalg_svd"](A, False))[1]
    return settled(A, ops["linalg_svdvals"](A))


def _no_driver(driver: str | None, name: str) -> None:
    if driver is not None:
        raise RuntimeError(f"linalg.{name}: keyword argument `driver=` is only supported on CUDA "
                           "inputs with cuSOLVER backend.")


def eig(A: Tensor) -> return_types.linalg_eig:
    """The eigenvalues, in no particular order, and eigenvectors of norm 1 of square matrices, as complex
    tensors."""
    return return_types.linalg_eig(*settled(A, ops["linalg_eig"](A)))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of square matrices, in no particular order, as a complex tensor."""
    return settled(A, ops["linalg_eigvals"](A))


def eigh(A: Tensor, UPLO: str = "L") -> return_types.linalg_eigh:
    """The eigenvalues, in ascending order, and orthonormal eigenvectors of Hermitian matrices.

    Reads only the triangle that UPLO names.
    """
    return return_types.linalg_eigh(*settled(A, ops["linalg_eigh"](A, UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian matrices, in ascending order."""
    if wants_gradient(A):
        return settled(A, ops["linalg_eigh"](A, UPLO))[0]
    return settled(A, ops["linalg_eigvalsh"](A, UPLO))


def unpack(data: Tensor, pivots: Tensor, unpack_data: Any, unpack_pivots: Any) -> return_types.lu_unpack:
    """P, L and U from the factors; an empty tensor in place of each that was not asked for."""
    empty = data.new_zeros(0)
    lower, upper = triangles(data) if unpack_data else (empty, empty)
    return return_types.lu_unpack(permutation(pivots, data) if unpack_pivots else empty, lower, upper)
