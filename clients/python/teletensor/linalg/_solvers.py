"""Linear systems, inverses, determinants, least squares and functions of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import return_types
from .._core import Tensor, ops
from ._common import floating, identity, settled, square, tolerances

__all__ = [
    "det", "inv", "inv_ex", "lstsq", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "slogdet",
    "solve", "solve_ex", "solve_triangular", "tensorinv", "tensorsolve",
]


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices. Waits for the result, and raises LinAlgError if a matrix is singular;
    `inv_ex` does not wait."""
    return settled(A, ops["linalg_inv_ex"](A, True))[0]


def inv_ex(A: Tensor, *, check_errors: bool = False) -> return_types.linalg_inv_ex:
    """The inverse, and info (int32): 0, or the 1-based index of the diagonal element of U that is zero."""
    made = ops["linalg_inv_ex"](A, check_errors)
    return return_types.linalg_inv_ex(*(settled(A, made) if check_errors else made))


def _solve(A: Tensor, B: Tensor, left: bool, check: bool) -> tuple[Tensor, Tensor]:
    square(A, "solve")
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B._shape == A._shape[:-1])
    if not vector:
        result, info = ops["linalg_solve_ex"](A, B, left, check)
        return result, info
    if not left:
        raise RuntimeError("linalg.solve: Vector broadcasting of the left hand side is not supported "
                           "for left=False.")
    result, info = ops["linalg_solve_ex"](A, B.unsqueeze(-1), True, check)
    return result.squeeze(-1), info


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution X of A X = B, or of X A = B if not `left`; B is a matrix or a vector, and batch
    dimensions broadcast.

    Waits for the result, and raises LinAlgError if a matrix is singular; `solve_ex` does not wait.
    """
    return settled(A, _solve(A, B, left, True))[0]


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> return_types.linalg_solve_ex:
    """The result of solve, and info (int32): 0, or the 1-based index of the diagonal element of U that is
    zero."""
    made = _solve(A, B, left, check_errors)
    return return_types.linalg_solve_ex(*(settled(A, made) if check_errors else made))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True,
                     unitriangular: bool = False) -> Tensor:
    """The solution X of A X = B, or of X A = B if not `left`, using one triangle of A only; with
    `unitriangular` its diagonal is taken to be ones."""
    return ops["linalg_solve_triangular"](A, B, upper, left, unitriangular)


def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
    return ops["linalg_det"](A)


def slogdet(A: Tensor) -> return_types.linalg_slogdet:
    """The sign of the determinant and the logarithm of its absolute value; (0, -inf) if it is 0."""
    return return_types.linalg_slogdet(*ops["linalg_slogdet"](A))


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> return_types.linalg_lstsq:
    """The X that minimises the norm of A X - B; of several such X the one with the smallest norm.

    B is [*, m, k], or vectors [*, m]. Drivers: gelsy (the default: QR with pivoting), gels (full rank
    only), gelsd and gelss (singular values; those up to rcond times the largest are treated as 0, where
    rcond defaults to max(m, n) times the machine epsilon). `residuals` are the squared norms if m > n and
    the driver is not gelsy; `rank` is empty for gels, and `singular_values` for gels and gelsy.
    """
    floating(A, "lstsq")
    if A.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if B.dim() < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    driver = "gelsy" if driver is None else driver
    vector = A.dim() - 1 == B.dim() and B._shape == A._shape[:-1]
    right = B.unsqueeze(-1) if vector or B.dim() == 1 else B
    cut = tolerances(A, None, rcond)[1]
    solution, rank, values = settled(A, ops["linalg_lstsq"](A, right, float(cut), driver))
    empty = A.detach().new_zeros(0, dtype=A.dtype.to_real())
    # empty residuals are a part of the solution, so that they too require grad
    residuals = solution.flatten()[:0]
    residuals = residuals.real if A.dtype.is_complex else residuals
    if driver != "gelsy" and A._shape[-2] > A._shape[-1]:
        off = ops["abs"](A @ solution - right)
        residuals = (off * off).sum(-2)
    if driver in ("gels", "gelsy"):
        values = empty
    if driver == "gels":
        rank = rank.new_zeros(0)
    solution = solution.squeeze(-1) if right is not B else solution
    return return_types.linalg_lstsq(solution, residuals, rank, values)


def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None,
         rtol: Any = None) -> Tensor:
    """The Moore-Penrose inverse; singular values up to max(atol, rtol * the largest) are treated as 0.

    rtol defaults to max(m, n) times the machine epsilon unless atol is given. Tolerances may be tensors
    with one value for each matrix.
    """
    if A.dim() < 2:
        raise RuntimeError("linalg.pinv: The input tensor A must have at least 2 dimensions.")
    atol, rtol = tolerances(A, atol, rcond if rtol is None else rtol)
    return settled(A, ops["linalg_pinv"](A, atol, rtol, hermitian))


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None,
                rtol: Any = None) -> Tensor:
    """The number of singular values (absolute eigenvalues if `hermitian`) above the tolerance.

    The tolerance is max(atol, rtol * the largest singular value), with the defaults of pinv; `tol` is an
    atol with an rtol of 0.
    """
    floating(A, "matrix_rank")
    if A.dim() < 2:
        raise RuntimeError("linalg.matrix_rank: The input tensor A must have at least 2 dimensions.")
    if tol is not None:
        atol, rtol = tol, 0.0
    else:
        atol, rtol = tolerances(A, atol, rtol)
    A = A.detach()
    values = settled(A, ops["linalg_eigvalsh"](A, "L") if hermitian else ops["linalg_svdvals"](A))
    values = ops["abs"](values) if hermitian else values
    if values._shape[-1] == 0:
        return values.sum(-1).long()
    cut = rtol * values.amax(-1)
    cut = ops["maximum"](cut, atol if isinstance(atol, Tensor) else cut * 0 + atol)
    return (values > cut.unsqueeze(-1)).sum(-1)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A to the power n; n = 0 gives identity matrices, and a negative n powers of the inverse."""
    square(A, "matrix_power")
    if n < 0:
        A, n = inv(A), -n
    result = None
    while n:
        if n % 2:
            result = A if result is None else result @ A
        n //= 2
        if n:
            A = A @ A
    if result is None:
        return A.clone().copy_(identity(A._shape[-1], A))  # with a gradient of zeros, as in PyTorch
    return result


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices (N. J. Higham's scaling and squaring)."""
    return ops["linalg_matrix_exp"](A)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse with respect to tensordot over the first `ind` dimensions of A."""
    if ind <= 0:
        raise RuntimeError("Expected a strictly positive integer for 'ind'")
    lead, tail = tuple(A._shape[:ind]), tuple(A._shape[ind:])
    if math.prod(lead) != math.prod(tail):
        raise RuntimeError("Expected self to satisfy the requirement prod(self.shape[ind:]) == "
                           f"prod(self.shape[:ind]), but got {math.prod(tail)} != {math.prod(lead)}")
    return inv(A.reshape(math.prod(lead), -1 if A.numel() else math.prod(tail))).reshape(*tail, *lead)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The X for which tensordot(A, X, X.dim()) == B; the dims of A that `dims` lists are first moved to its
    end."""
    if dims is not None:
        moved = [d % A.dim() for d in dims]
        A = A.permute([d for d in range(A.dim()) if d not in moved] + moved)
    tail = tuple(A._shape[B.dim():])
    n = math.prod(tail)
    if math.prod(B._shape) != n:
        raise RuntimeError("Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
                           f"prod(self.shape[:other.ndim]), but got {n} != {math.prod(B._shape)}")
    return solve(A.reshape(n, n), B.reshape(n)).reshape(tail)
