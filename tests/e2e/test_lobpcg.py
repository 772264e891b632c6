"""lobpcg: extreme eigenpairs of dense and sparse matrices (tests/peers/test_lobpcg_torch.py compares PyTorch)."""

import pytest


def laplacian(tt, size):
    """The tridiagonal matrix (-1, 2, -1), whose smallest eigenvalue is 2 - 2 cos(pi / (size + 1))."""
    lines = tt.stack([tt.full((size,), -1.0), tt.full((size,), 2.0), tt.full((size,), -1.0)]).double()
    return tt.sparse.spdiags(lines, tt.tensor([-1, 0, 1]), (size, size), tt.sparse_csr)


@pytest.mark.parametrize("dense", [False, True])
def test_extreme_eigenvalues(tt, dense):
    matrix = laplacian(tt, 50)
    values = tt.linalg.eigvalsh(matrix.to_dense())
    tt.manual_seed(1)
    for largest in (True, False):
        wanted = values.flip(0)[:2] if largest else values[:2]
        found, vectors = tt.lobpcg(matrix.to_dense() if dense else matrix, k=2, largest=largest, niter=500)
        assert (found - wanted).abs().max().item() < 1e-7
        assert (matrix @ vectors - vectors * found).abs().max().item() < 1e-5


def test_limits_of_iterations(tt):
    tt.manual_seed(1)
    matrix = laplacian(tt, 50)
    rough, fine = (tt.lobpcg(matrix, k=1, niter=n)[0].item() for n in (2, 40))
    assert 0 < rough < fine <= 4  # the quotient of a random vector grows towards the largest eigenvalue, below 4


def test_gradients_use_all_pairs(tt):
    matrix = laplacian(tt, 12).to_dense().requires_grad_()
    values, vectors = tt.lobpcg(matrix, k=1)
    values.sum().backward()
    outer = vectors @ vectors.mT
    assert (matrix.grad - outer).abs().max().item() < 1e-9
    with pytest.raises(ValueError, match="does not support sparse input"):
        tt.lobpcg(laplacian(tt, 12).requires_grad_())
