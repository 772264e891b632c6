"""Gradients of losses by their weights and variances, and at their kinks."""

import numpy as np
import pytest

LIMITED = [(1e-6, 0.0), (1e-6, 1e-8), (0.1, 0.05), (0.1, 0.1), (0.1, 0.2)]


@pytest.mark.parametrize(("eps", "variance"), LIMITED)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_variance_below_eps_keeps_its_gradient(tt, eps, variance, full, reduction):
    """The derivative is that by v = max(var, eps) itself: 0.5 (1 / v - d^2 / v^2)."""
    F = tt.nn.functional
    difference = np.array([1.0, 2.0])
    d = tt.tensor(difference)

    def loss(v):
        return F.gaussian_nll_loss(d, tt.zeros(2, dtype=d.dtype), v, full, eps, reduction).sum()

    var = tt.full((2,), variance, dtype=tt.float64)
    v = max(variance, eps)
    expected = 0.5 * (1 / v - difference**2 / v**2) / (2 if reduction == "mean" else 1)
    value = (0.5 * (np.log(v) + difference**2 / v + (np.log(2 * np.pi) if full else 0)))
    assert np.allclose(loss(var).item(), value.mean() if reduction == "mean" else value.sum())
    for gradient in (tt.func.grad(loss)(var), tt.func.jacfwd(loss)(var), tt.compile(tt.func.grad(loss))(var)):
        assert np.allclose(gradient.numpy(), expected)
