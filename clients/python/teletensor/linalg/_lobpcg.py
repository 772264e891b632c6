"""Some extreme eigenpairs of a symmetric matrix by block conjugate gradients. Source: Knyazev 2001,
"Toward the optimal preconditioned eigensolver"; the basis is orthogonalised as in Stathopoulos and Wu
2002."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._decompositions import eigh

__all__ = ["lobpcg"]


def _times(matrix: Any) -> Callable[[Tensor], Tensor]:
    """The product with a dense or sparse matrix; None is the identity."""
    return (lambda x: x) if matrix is None else (lambda x: tt.matmul(matrix, x))


def _pairs(quotient: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    values, vectors = eigh((quotient + quotient.mH) / 2)
    return (values.flip(-1), vectors.flip(-1)) if largest else (values, vectors)


def _ritz(basis: Tensor, apply_a: Any, apply_b: Any, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The best `count` values in the span of the basis, and the coefficients [basis, count] of their
    vectors, which are B-orthonormal. Directions of which the basis has nothing but rounding are left out;
    no shape depends on their number."""
    gram = basis.mH @ apply_b(basis)
    diagonal = gram.diagonal(dim1=-2, dim2=-1).real
    scale = tt.where(
        diagonal > 0,
        diagonal.abs().clamp(min=1e-300 if gram.dtype == tt.float64 else 1e-38) ** -0.5,
        tt.zeros_like(diagonal),
    )
    scaled = gram * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    sizes, turned = eigh((scaled + scaled.mH) / 2)
    least = sizes[..., -1:] * (tt.finfo(sizes.dtype).eps * sizes.shape[-1] * 10)
    kept = sizes > least
    shrink = tt.where(kept, tt.where(kept, sizes, tt.ones_like(sizes)) ** -0.5, tt.zeros_like(sizes))
    transform = scale.unsqueeze(-1) * turned * shrink.unsqueeze(-2)
    inner = transform.mH @ (basis.mH @ apply_a(basis)) @ transform
    bound = inner.abs().sum((-2, -1), keepdim=True).squeeze(-1) * 2 + 1
    last = tt.where(kept, tt.zeros_like(sizes), -bound if largest else bound)
    values, vectors = _pairs(inner + tt.diag_embed(last).to(inner.dtype), largest)
    return values[..., :count], transform @ vectors[..., :count]


def _checked(A: Any, k: int, n: int, method: str | None) -> None:
    if len(A.shape) < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"lobpcg: A must be a square matrix or a batch of them, got shape {list(A.shape)}")
    if not (A.dtype.is_floating_point or A.dtype.is_complex):
        raise ValueError(f"lobpcg: expected a floating-point or complex dtype, got {A.dtype}")
    if method not in (None, "basic", "ortho"):
        raise ValueError(f"lobpcg: method must be 'basic' or 'ortho', got {method!r}")
    if not 0 < k <= n:
        raise ValueError(f"lobpcg: k must be in 1..n, got k={k} and n={n}")
    if A.shape[-1] < 3 * n:
        raise ValueError(
            f"LPBPCG algorithm is not applicable when the number of A rows (={A.shape[-1]}) is smaller "
            f"than 3 x the number of requested eigenpairs (={n})"
        )


def lobpcg(
    A: Any,
    k: int | None = None,
    B: Any = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Any = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: None = None,
    ortho_iparams: Any = None,
    ortho_fparams: Any = None,
    ortho_bparams: Any = None,
) -> tuple[Tensor, Tensor]:
    """Returns (E, V): the k largest (or smallest) eigenvalues [..., k] of A x = e B x, and their vectors
    [..., m, k], which are B-orthonormal.

    A [..., m, m] is symmetric (Hermitian), dense or sparse; B is positive definite, by default the
    identity. X [m, n] are the first guesses, by default n (k by default) random vectors; iK approximates
    the inverse of A. It stops after niter iterations (1000; -1 for no limit), or if the residuals are
    below tol (the square root of the dtype's precision) times the norms of A and the vectors. Each
    iteration waits for the residuals.

    If A requires grad, `linalg.eigh` computes all eigenpairs, because their derivative needs them: A is
    dense and real then, and B is None. `method` and the parameters of orthogonalisation have no effect;
    ValueError if m < 3 n.
    """
    columns = (k or 1) if n is None and X is None else (X.shape[-1] if X is not None else n)
    assert columns is not None
    count = columns if k is None else k
    if k is None and X is None and n is None:
        count = 1
    _checked(A, count, columns, method)
    if tracker is not None:
        raise NotImplementedError("lobpcg: a tracker is not supported")
    down = True if largest is None else largest
    if A.requires_grad or (B is not None and B.requires_grad):
        return _differentiable(A, B, count, down)
    size = A.shape[-1]
    shape = (*A.shape[:-2], size, columns)
    guess = X if X is not None else tt.randn(*shape, dtype=A.dtype, device=A.device)
    if tuple(guess.shape) != shape:
        raise ValueError(f"lobpcg: X must have shape {list(shape)}, got {list(guess.shape)}")
    with tt.no_grad():
        limit = tt.finfo(A.dtype).eps ** 0.5 if tol is None else tol
        values, vectors = _iterate(
            _times(A), _times(B), _times(iK), guess, count, down, 1000 if niter is None else niter, limit
        )
    return values[..., :count], vectors[..., :count]


def _norm(x: Tensor) -> Tensor:
    return x.abs().square().sum((-2, -1), keepdim=True).sqrt().squeeze(-1)


def _iterate(
    apply_a: Any,
    apply_b: Any,
    precondition: Any,
    guess: Tensor,
    count: int,
    largest: bool,
    niter: int,
    limit: float,
) -> tuple[Tensor, Tensor]:
    size_a, size_b = _norm(apply_a(guess)) / _norm(guess), _norm(apply_b(guess)) / _norm(guess)
    columns = guess.shape[-1]
    values, turn = _ritz(guess, apply_a, apply_b, columns, largest)
    vectors, steps, done = guess @ turn, None, 0
    while True:
        residuals = apply_a(vectors) - apply_b(vectors) * values.unsqueeze(-2)
        lengths = vectors.abs().square().sum(-2).sqrt()
        errors = residuals.abs().square().sum(-2).sqrt() / (lengths * (size_a + values.abs() * size_b))
        if done == niter or bool((errors[..., :count] < limit).all()):
            return values, vectors
        done += 1
        parts = [vectors, precondition(residuals)] + ([] if steps is None else [steps])
        basis = tt.cat(parts, -1)
        values, turn = _ritz(basis, apply_a, apply_b, columns, largest)
        vectors = basis @ turn
        steps = basis[..., columns:] @ turn[..., columns:, :]


def _differentiable(A: Any, B: Any, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    if not isinstance(A, Tensor):
        raise ValueError("lobpcg.backward does not support sparse input; call to_dense()")
    if A.dtype.is_complex:
        raise ValueError("lobpcg.backward does not support complex input")
    if B is not None:
        raise ValueError("lobpcg.backward does not support backward with B != I")
    values, vectors = _pairs(A, largest)
    return values[..., :count], vectors[..., :count]
