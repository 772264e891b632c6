"""Linear algebra at the package's top level: PyTorch's older names of functions that `linalg` has."""

from __future__ import annotations

from typing import Any

from .. import linalg, return_types
from .._core import Tensor, ops
from ..linalg._common import adjoint, identity, is_complex
from ..linalg._decompositions import unpack
from .common import function_only

__all__ = [
    "chain_matmul", "cholesky", "cholesky_inverse", "cholesky_solve", "cross", "det", "geqrf",
    "inverse", "logdet", "lu", "lu_solve", "lu_unpack", "matrix_exp", "matrix_power", "orgqr", "ormqr",
    "pinverse", "qr", "slogdet", "svd", "triangular_solve", "vdot",
]


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """As `linalg.cholesky`."""
    return linalg.cholesky(input, upper=upper)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The solution X of A X = B, given the Cholesky factor of A."""
    first, second = (adjoint(L), L) if upper else (L, adjoint(L))
    y = linalg.solve_triangular(first, B, upper=False)
    return linalg.solve_triangular(second, y, upper=True)


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A, given its Cholesky factor."""
    return cholesky_solve(identity(input._shape[-1], input), input, upper)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along dim; without dim, along the first dimension of size 3."""
    if dim is None:
        found = [d for d, size in enumerate(input._shape) if size == 3]
        if not found:
            raise RuntimeError("no dimension of size 3 in input")
        dim = found[0] - input.dim()
    return linalg.cross(input, other, dim=dim)


def det(input: Tensor) -> Tensor:
    """The determinant of square matrices."""
    return linalg.det(input)


def slogdet(input: Tensor) -> return_types.slogdet:
    """The sign of the determinant and the logarithm of its absolute value."""
    return return_types.slogdet(*linalg.slogdet(input))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant: -inf if it is 0, NaN if it is negative; for complex matrices the
    principal value."""
    sign, log = linalg.slogdet(input)
    if sign.dtype.is_complex:
        return ops["log"](sign) + log
    return ops["where"](sign < 0, float("nan"), log)


def inverse(input: Tensor) -> Tensor:
    """As `linalg.inv`."""
    return linalg.inv(input)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse; singular values up to rcond times the largest one are treated as 0."""
    return linalg.pinv(input, rtol=rcond)


def matrix_power(input: Tensor, n: int) -> Tensor:
    """As `linalg.matrix_power`."""
    return linalg.matrix_power(input, n)


def matrix_exp(input: Tensor) -> Tensor:
    """As `linalg.matrix_exp`."""
    return linalg.matrix_exp(input)


def geqrf(input: Tensor) -> return_types.geqrf:
    """The QR decomposition in LAPACK's form: R on and above the diagonal, Householder vectors below it, and
    their scale factors tau."""
    return return_types.geqrf(*ops["geqrf"](input))


def orgqr(input: Tensor, input2: Tensor) -> Tensor:
    """As `linalg.householder_product`."""
    return linalg.householder_product(input, input2)


def ormqr(input: Tensor, input2: Tensor, input3: Tensor, left: bool = True,
          transpose: bool = False) -> Tensor:
    """Q @ input3, or input3 @ Q if not `left`; Q is the complete product of the reflectors from geqrf."""
    m, n = input._shape[-2:]
    wide = input[..., :m]
    if m > n:
        wide = ops["cat"]([input, input.new_zeros(*input._shape[:-1], m - n)], -1)
    q = linalg.householder_product(wide, input2)
    q = adjoint(q) if transpose else q
    return q @ input3 if left else input3 @ q


def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """(LU, pivots), and info if `get_infos`; see `linalg.lu_factor_ex`."""
    factors = linalg.lu_factor_ex(input, pivot=pivot)
    return tuple(factors) if get_infos else (factors.LU, factors.pivots)


def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """The solution X of A X = b, given the factors of A."""
    return linalg.lu_solve(LU_data, LU_pivots, b)


@function_only
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True,
              unpack_pivots: bool = True) -> return_types.lu_unpack:
    """P, L and U from the result of lu_factor; an empty tensor in place of each that was not asked for."""
    return unpack(LU_data, LU_pivots, unpack_data, unpack_pivots)


def qr(input: Tensor, some: bool = True) -> return_types.qr:
    """As `linalg.qr`; the complete decomposition if not `some`."""
    return return_types.qr(*linalg.qr(input, "reduced" if some else "complete"))


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> return_types.svd:
    """U, S and V (not its adjoint); if not `compute_uv`, U and V are zeros."""
    if not compute_uv:
        m, n = input._shape[-2:]
        lead = input._shape[:-2]
        u, v = input.new_zeros(*lead, m, m), input.new_zeros(*lead, n, n)
        return return_types.svd(u, linalg.svdvals(input), v)
    u, s, vh = linalg.svd(input, not some)
    return return_types.svd(u, s, adjoint(vh))


def triangular_solve(b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,
                     unitriangular: bool = False) -> return_types.triangular_solve:
    """The solution X of A X = b, or of A^T X = b, using one triangle of A only; and A."""
    a, upper_now = (A.transpose(-2, -1), not upper) if transpose else (A, upper)
    return return_types.triangular_solve(
        linalg.solve_triangular(a, b, upper=upper_now, unitriangular=unitriangular), A.clone())


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors; the first is conjugated."""
    return ops["dot"](ops["conj"](input) if is_complex(input) else input, other)


def chain_matmul(*matrices: Any) -> Tensor:
    """`linalg.multi_dot` of the arguments, or of a single list."""
    return linalg.multi_dot(matrices[0] if len(matrices) == 1 else matrices)
