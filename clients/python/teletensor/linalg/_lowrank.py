"""Approximate decompositions of low rank from random projections. Source: Halko, Martinsson, Tropp
2009, algorithms 4.4 and 5.1."""

from __future__ import annotations

from .. import _api as tt
from .._core import Tensor
from ._decompositions import qr, svd

__all__ = ["pca_lowrank", "svd_lowrank"]


def _basis(A: Tensor, q: int, niter: int) -> Tensor:
    """(..., m, q) orthonormal columns whose span holds almost all of the range of A."""
    Q: Tensor = qr(A @ tt.randn(A.shape[-1], q, dtype=A.dtype, device=A.device)).Q
    for _ in range(niter):
        Q = qr(A.mH @ Q).Q
        Q = qr(A @ Q).Q
    return Q


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) with A - M close to U diag(S) V^H, of rank at most q. A: (..., m, n); M: None or of a
    shape that broadcasts to A's. niter: power iterations. Random: the generator's seed decides the
    last digits."""
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
    """(U, S, V) of the columns of A less their means (center): V's columns are the principal
    directions of the rows. A: (..., m, n); q: how many, min(6, m, n) for None. ValueError for q
    outside 0..min(m, n) or a negative niter."""
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
