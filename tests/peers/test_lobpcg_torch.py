"""Compares lobpcg with PyTorch's, and both with all eigenvalues."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def matrix(size, seed=0, batch=(), positive=False):
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((*batch, size, size)))[0]
    values = np.arange(1, size + 1) ** 1.5 if positive else np.arange(1, size + 1) ** 1.5 - 20
    return (turned * values) @ np.swapaxes(turned, -1, -2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "batch", "sparse", "csr", "generalised", "preconditioned"])
def test_eigenpairs(tt, kind, k, largest, dtype):
    a = matrix(24, batch=(2, 3) if kind == "batch" else (), positive=kind == "preconditioned").astype(dtype)
    b = matrix(24, 1, positive=True).astype(dtype) / 20 if kind == "generalised" else None
    inverse = np.linalg.inv(a).astype(dtype) if kind == "preconditioned" else None
    found = []
    for m in (torch, tt):
        m.manual_seed(3)
        A = m.tensor(a)
        A = A.to_sparse() if kind == "sparse" else A.to_sparse_csr() if kind == "csr" and m is tt else A
        B, iK = (None if x is None else m.tensor(x) for x in (b, inverse))
        E, V = m.lobpcg(A, k=k, B=B, iK=iK, largest=largest, niter=200)
        found.append((E.numpy(), V.numpy()))
        assert E.shape == (*a.shape[:-2], k) and V.shape == (*a.shape[:-1], k)
    scale = np.abs(a).max()
    (theirs, _), (ours, vectors) = found
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * scale)
    metric = np.eye(24) if b is None else b
    close = 5e-3 if dtype == "float64" else 0.1 if kind == "generalised" else 2e-2
    np.testing.assert_allclose(a @ vectors, (metric @ vectors) * ours[..., None, :], atol=close * scale)
    np.testing.assert_allclose(np.swapaxes(vectors, -1, -2) @ metric @ vectors, np.broadcast_to(
        np.eye(k), (*a.shape[:-2], k, k)), atol=1e-4)


@pytest.mark.parametrize("largest", [True, False])
def test_gradients(tt, largest):
    """The gradients of the eigenvalues, and of the vectors, whose signs do not matter."""
    found = []
    for m in (torch, tt):
        m.manual_seed(0)
        A = m.tensor(matrix(12), requires_grad=True)
        E, V = m.lobpcg((A + A.mT) / 2, k=2, largest=largest, niter=300, tol=1e-12)
        (E.square().sum() + (V.square() * m.arange(24, dtype=m.float64).reshape(12, 2)).sum()).backward()
        found.append(A.grad.numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_degenerate_bases(tt):
    """The identity converges at once, and a basis that has nothing new is no error."""
    for a in (np.eye(9), np.zeros((9, 9)), np.diag(np.r_[np.full(5, 3.0), np.zeros(4)])):
        E, V = tt.lobpcg(tt.tensor(a), k=2, niter=20)
        np.testing.assert_allclose(E.numpy(), np.sort(np.diag(a))[::-1][:2], atol=1e-9)
        np.testing.assert_allclose((V.mT @ V).numpy(), np.eye(2), atol=1e-9)


def sparse_leaf(m):
    return m.eye(9).to_sparse().requires_grad_()


@pytest.mark.parametrize("call, text", [
    (lambda m: m.lobpcg(m.eye(5), k=2), "is smaller than 3 x the number of requested eigenpairs"),
    (lambda m: m.lobpcg(m.ones(3, 4)), "must be a square matrix"), (lambda m: m.lobpcg(m.ones(3)), "must be a square"),
    (lambda m: m.lobpcg(m.eye(9), k=0, n=2), "k must be in 1..n"),
    (lambda m: m.lobpcg(m.eye(9), k=2, n=1), "k must be in 1..n"),
    (lambda m: m.lobpcg(m.eye(9), method="other"), "method must be"),
    (lambda m: m.lobpcg(m.eye(9), X=m.ones(8, 1)), "X must have shape"),
    (lambda m: m.lobpcg(m.eye(9, dtype=m.int64)), "floating-point or complex"),
    (lambda m: m.lobpcg(sparse_leaf(m)), "does not support sparse input"),
    (lambda m: m.lobpcg(m.eye(9, requires_grad=True), B=m.eye(9)), "B != I"),
    (lambda m: m.lobpcg(m.eye(9, dtype=m.complex64, requires_grad=True)), "complex input"),
])
def test_errors(tt, call, text):
    with pytest.raises(ValueError, match=text):
        call(tt)
