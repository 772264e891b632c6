"""Approximate decompositions of low rank from random projections. Source: Halko, Martinsson, Tropp
2009, algorithms 4.4 and 5.1."""

from __future__ import annotations

from .. import _api as tt
from .._core import Tensor
from ._decompositions import qr, svd

__all__ = ["pca_lowrank", "svd_lowrank"]


def _basis(A: Tensor, q: int, niter: int) -> Tensor:
    """Returns (..., m, q) orthonormal columns whose span approximates the range of A."""
    Q: Tensor = qr(A @ tt.randn(A.shape[-1], q, dtype=A.dtype, device=A.device)).Q
    for _ in range(niter):
        Q = qr(A.mH @ Q).Q
        Q = qr(A @ Q).Q
    return Q


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (U, S, V) such that U diag(S) V^H approximates A - M with rank at most q. A has shape (...,
    m, n); M is None or broadcasts to A's shape. niter is the number of power iterations. The projections
    are random, so the generator's seed affects the last digits."""
    q, niter = 6 if q is None else q, 2 if niter is None else niter
    if M is not None:
        A = A - M
    wide = A.shape[-2] < A.shape[-1]
    if wide:
        A = A.mH
    Q = _basis(A, q, niter)
    U, S, Vh = svd(Q.mH @ A, full_matrices=False)
    left, right = Q @ U, Vh.mH
    return (right, S, left) if wide else (left, S, right)


def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (U, S, V) of A, from whose columns their means are subtracted if `center`: the columns of V
    are the principal directions of the rows. A has shape (..., m, n); q is the number of components, min(6,
    m, n) if None. ValueError for q outside 0..min(m, n) or a negative niter."""
    most = min(A.shape[-2:])
    if q is None:
        q = min(6, most)
    elif not 0 <= q <= most:
        raise ValueError(
            f"q(={q}) must be non-negative integer and not greater than min(m, n)={most}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter)
