"""Compares distributions with PyTorch's: densities, entropies, moments and divergences; samples are
compared by their moments."""

import numpy as np
import pytest
import teletensor
import torch

RNG = np.random.default_rng(3)
P, Q = RNG.uniform(0.4, 3.0, (2, 3, 4))
U, V = RNG.uniform(0.1, 0.9, (2, 3, 4))
L, M = RNG.normal(size=(2, 3, 4))
_A = RNG.normal(size=(2, 3, 4, 4))
S, R = (_A[0] @ _A[0].swapaxes(-1, -2) + np.eye(4), _A[1] @ _A[1].swapaxes(-1, -2) + np.eye(4))

# name: (parameters, those of another one of the same type, values in the support)
CASES = {
    "Normal": ((L, P), (M, Q), L), "Uniform": ((-P, Q), (-P - 1, Q + 1), U * 0.3),
    "Exponential": ((P,), (Q,), Q), "Laplace": ((L, P), (M, Q), M), "Cauchy": ((L, P), None, M),
    "Gumbel": ((L, P), (M, Q), M), "HalfNormal": ((P,), (Q,), Q), "HalfCauchy": ((P,), None, Q),
    "Weibull": ((P, Q), None, Q), "Pareto": ((P, Q + 2), (P * 0.5, Q), P + Q), "Kumaraswamy": ((P, Q), None, U),
    "Gamma": ((P, Q), (Q, P), Q), "Chi2": ((P * 2,), (Q,), Q), "InverseGamma": ((P + 2, Q), None, Q),
    "Beta": ((P, Q), (Q, P), U), "Dirichlet": ((P,), (Q,), V / V.sum(-1, keepdims=True)),
    "StudentT": ((P + 2, L, Q), None, M), "FisherSnedecor": ((P, Q + 5), None, Q), "LogNormal": ((L, P), (M, Q), Q),
    "Poisson": ((P,), (Q,), np.floor(Q)), "Geometric": ((U,), (V,), np.floor(P)),
    "Binomial": ((5.0, U), (5.0, V), np.floor(Q)), "NegativeBinomial": ((np.full((3, 4), 3.0), U), None, np.floor(Q)),
    "OneHotCategorical": ((U,), (V,), np.eye(4)[[0, 2, 3]]), "Bernoulli": ((U,), (V,), np.floor(U * 2)),
    "Categorical": ((U,), (V,), np.array([0.0, 3, 1])), "MultivariateNormal": ((L, S), (M, R), M),
    "RelaxedBernoulli": ((0.5, U), None, V),
}  # fmt: skip


def build(m, name, parameters):
    made = [m.tensor(p, dtype=m.float64) if isinstance(p, np.ndarray) else p for p in parameters]
    if name == "Binomial":
        made[0] = int(made[0])
    if name == "RelaxedBernoulli":
        made[0] = m.tensor(made[0], dtype=m.float64)
    return getattr(m.distributions, name)(*made)


def close(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-6, 1e-8)


@pytest.mark.parametrize("name", CASES)
def test_facts(tt, name):
    parameters, others, value = CASES[name]
    ours, theirs = build(tt, name, parameters), build(torch, name, parameters)
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape)
    assert tuple(ours.event_shape) == tuple(theirs.event_shape)
    close(ours.log_prob(tt.tensor(value)), theirs.log_prob(torch.tensor(value)))
    for fact in ("mean", "variance", "mode", "stddev"):
        # PyTorch's mode is NaN; see test_distribution_checks_torch.py
        if (name, fact) == ("Kumaraswamy", "mode"):
            continue
        try:
            want = getattr(theirs, fact)
        except (NotImplementedError, AttributeError):
            continue
        close(getattr(ours, fact), want)
    for call in ("entropy",):
        try:
            want = getattr(theirs, call)()
        except NotImplementedError:
            continue
        close(getattr(ours, call)(), want)
    if others is not None:
        close(tt.distributions.kl_divergence(ours, build(tt, name, others)),
              torch.distributions.kl_divergence(theirs, build(torch, name, others)))


@pytest.mark.parametrize("name", sorted(set(CASES) - {"Cauchy", "HalfCauchy", "RelaxedBernoulli", "Pareto"}))
def test_samples_have_the_moments(tt, name):
    tt.manual_seed(5)
    parameters = CASES[name][0]
    own = build(tt, name, parameters)
    drawn = own.sample((20000,))
    assert tuple(drawn.shape) == (20000, *own.batch_shape, *own.event_shape)
    if name == "Categorical":
        probs = np.stack([(drawn.numpy() == k).mean(0) for k in range(4)], -1)
        np.testing.assert_allclose(probs, own.probs.numpy(), atol=0.02)
        return
    values = drawn.to(tt.float64).numpy()
    assert np.isfinite(values).all()
    spread = np.sqrt(own.variance.numpy())
    spread = np.where(np.isfinite(spread), spread, 10.0)
    error = np.abs(values.mean(0) - own.mean.numpy()) / np.maximum(spread, 1e-3)
    assert error.max() < (0.4 if name in {"InverseGamma", "StudentT", "FisherSnedecor"} else 0.06), error.max()


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "StudentT", "Laplace", "Weibull", "LogNormal"])
def test_gradients_through_samples(tt, name):
    """The derivative of the mean of samples is that of the mean, if it is known."""
    tt.manual_seed(1)
    parameters = [tt.tensor(p[:1, :2].copy() + (1.5 if name == "StudentT" and i == 0 else 0), requires_grad=True)
                  for i, p in enumerate(CASES[name][0])]
    own = getattr(tt.distributions, name)(*parameters)
    assert own.has_rsample
    at = 1 if name == "StudentT" else 0
    got = tt.autograd.grad(own.rsample((60000,)).mean(0)[..., 0].sum(), parameters[at])[0]
    want = tt.autograd.grad(own.mean[..., 0].sum(), parameters[at])[0]
    np.testing.assert_allclose(got.numpy(), want.numpy(), 0.12, 0.03)


def test_gamma_slopes_are_those_of_pytorch(tt):
    from teletensor.distributions.gammas import _slope

    a, z = RNG.uniform(0.2, 20, 500), RNG.uniform(0.05, 25, 500)
    keep = np.abs(z - a) < 3 * np.sqrt(a)
    a, z = a[keep], z[keep]
    want = torch._standard_gamma_grad(torch.tensor(a), torch.tensor(z)).numpy()
    np.testing.assert_allclose(_slope(tt.tensor(a), tt.tensor(z)).numpy(), want, 5e-3, 1e-4)


def transforms(m):
    d = m.distributions
    return [d.ExpTransform(), d.AffineTransform(0.5, -2.0), d.SigmoidTransform(), d.TanhTransform(),
            d.SoftplusTransform(), d.PowerTransform(m.tensor(1.5, dtype=m.float64)), d.StickBreakingTransform(),
            d.ComposeTransform([d.AffineTransform(0.1, 0.3), d.TanhTransform()])]


@pytest.mark.parametrize("index", range(8))
def test_transforms(tt, index):
    ours, theirs = transforms(tt)[index], transforms(torch)[index]
    x = np.abs(L) if index == 5 else L
    y, want = ours(tt.tensor(x)), theirs(torch.tensor(x))
    close(y, want)
    close(ours.inv(y), torch.tensor(x))
    close(ours.log_abs_det_jacobian(tt.tensor(x), y), theirs.log_abs_det_jacobian(torch.tensor(x), want))


def both_of(m):
    d = m.distributions
    t = lambda a: m.tensor(a, dtype=m.float64)  # noqa: E731
    yield d.Independent(d.Normal(t(L), t(P)), 1), t(M)
    yield d.MixtureSameFamily(d.Categorical(t(U)), d.Normal(t(L), t(P))), t(M[:, 0])
    yield d.MixtureSameFamily(d.Categorical(t(U[0])), d.Independent(d.Normal(t(S[0]), t(np.abs(R[0]))), 1)), t(M)
    yield d.TransformedDistribution(d.Normal(t(L), t(P)), [d.AffineTransform(1.0, 2.0), d.SigmoidTransform()]), t(U)
    yield d.Multinomial(6, t(U)), t(np.array([[1.0, 2, 3, 0], [6, 0, 0, 0], [1, 1, 1, 3]]))
    yield d.TransformedDistribution(d.Normal(t(L), t(P)), d.StickBreakingTransform()), t(
        np.full((3, 5), 0.2))


def test_composed(tt):
    for (ours, value), (theirs, same) in zip(both_of(teletensor), both_of(torch)):
        assert tuple(ours.batch_shape) == tuple(theirs.batch_shape)
        assert tuple(ours.event_shape) == tuple(theirs.event_shape)
        close(ours.log_prob(value), theirs.log_prob(same))
        assert tuple(ours.sample((7,)).shape) == tuple(theirs.sample((7,)).shape)
