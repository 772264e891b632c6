"""Compares properties of distributions other than densities with PyTorch's: checks of parameters and
values, supports, expand, enumerate_support, quantiles, divergences of all pairs, transforms of all
constraints."""

import itertools

import numpy as np
import pytest
import teletensor
import torch

RNG = np.random.default_rng(0)
P, Q = RNG.uniform(0.4, 3, (2, 3, 4))
U = RNG.uniform(0.1, 0.9, (3, 4))
L, M = RNG.normal(size=(2, 3, 4))
_A = RNG.normal(size=(3, 4, 4))
S = _A @ _A.swapaxes(-1, -2) + np.eye(4)
W = RNG.normal(size=(3, 4, 2))

CASES = {
    "Normal": (L, P), "Uniform": (-P, Q), "Exponential": (P,), "Laplace": (L, P), "Cauchy": (L, P),
    "Gumbel": (L, P), "HalfNormal": (P,), "HalfCauchy": (P,), "Weibull": (P, Q), "Pareto": (P, Q + 2),
    "Kumaraswamy": (P, Q), "Gamma": (P, Q), "Chi2": (P,), "InverseGamma": (P + 2, Q), "Beta": (P, Q),
    "Dirichlet": (P,), "StudentT": (P + 2, L, Q), "FisherSnedecor": (P, Q + 5), "LogNormal": (L, P),
    "Poisson": (P,), "Geometric": (U,), "Binomial": (5, U), "NegativeBinomial": (np.full((3, 4), 3.0), U),
    "OneHotCategorical": (U,), "Bernoulli": (U,), "Categorical": (U,), "MultivariateNormal": (L, S),
    "RelaxedBernoulli": (np.array(0.5), U), "Multinomial": (6, U), "ContinuousBernoulli": (U,),
    "LKJCholesky": (3, np.array([0.5, 2.0])), "LogisticNormal": (L, P),
    "LowRankMultivariateNormal": (L, W, P), "OneHotCategoricalStraightThrough": (U,),
    "RelaxedOneHotCategorical": (np.array(0.7), U), "VonMises": (L, P), "Wishart": (np.array([5.0, 6, 7]), S),
}  # fmt: skip
# In PyTorch 2.15 the mode of these is NaN, or the parameters are checked after they have been clamped to
# the allowed range.
OTHER = {("Kumaraswamy", "mode"), ("ContinuousBernoulli", "parameters")}


@pytest.fixture(autouse=True)
def checked():
    """PyTorch's compiler, which other tests in the process use, disables the checks of its distributions
    permanently."""
    torch.distributions.Distribution.set_default_validate_args(True)


def build(m, name, parameters=None, **kwargs):
    made = [m.tensor(p, dtype=m.float64) if isinstance(p, np.ndarray) else p
            for p in (CASES[name] if parameters is None else parameters)]
    return getattr(m.distributions, name)(*made, **kwargs)


def outcome(call):
    """The result as an array or a Python value; for an error, its type."""
    try:
        found = call()
    except Exception as error:
        return ("error", next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"))
    if isinstance(found, teletensor.Tensor | torch.Tensor):
        return found.detach().numpy()
    return tuple(found) if isinstance(found, tuple) else found


def same(ours, theirs, what):
    a, b = outcome(ours), outcome(theirs)
    if isinstance(b, np.ndarray):
        assert isinstance(a, np.ndarray), (what, a)
        np.testing.assert_allclose(a, b, 1e-5, 1e-7, err_msg=str(what))
    else:
        assert a == b, what


@pytest.mark.parametrize("name", CASES)
def test_facts(tt, name):
    ours, theirs = build(tt, name), build(torch, name)
    torch.manual_seed(0)
    value = theirs.sample((2,))
    own = tt.tensor(value.numpy())
    same(lambda: ours.log_prob(own), lambda: theirs.log_prob(value), "log_prob")
    for fact in ("mean", "variance", "stddev", "mode", "batch_shape", "event_shape", "has_rsample",
                 "has_enumerate_support"):
        if (name, fact) not in OTHER:
            same(lambda fact=fact: getattr(ours, fact), lambda fact=fact: getattr(theirs, fact), fact)
    for call in ("entropy", "perplexity", "enumerate_support"):
        same(lambda call=call: getattr(ours, call)(), lambda call=call: getattr(theirs, call)(), call)
    same(lambda: ours.enumerate_support(False), lambda: theirs.enumerate_support(False), "one enumeration")
    same(lambda: ours.cdf(own), lambda: theirs.cdf(value), "cdf")
    middle = np.full(tuple(value.shape), 0.3)
    same(lambda: ours.icdf(tt.tensor(middle)), lambda: theirs.icdf(torch.tensor(middle)), "icdf")
    assert bool(ours.support.check(ours.sample((5,))).all())
    assert ours.support.event_dim == theirs.support.event_dim


@pytest.mark.parametrize("name", CASES)
def test_expand(tt, name):
    ours, theirs = build(tt, name), build(torch, name)
    shape = (2, *theirs.batch_shape)
    ours, theirs = ours.expand(shape), theirs.expand(shape)
    assert type(ours).__name__ == name
    torch.manual_seed(0)
    value = theirs.sample((3,))
    assert ours.sample((3,)).shape == tuple(value.shape)
    same(lambda: ours.log_prob(tt.tensor(value.numpy())), lambda: theirs.log_prob(value), "log_prob")
    same(lambda: ours.batch_shape, lambda: theirs.batch_shape, "batch_shape")
    if (name, "mode") not in OTHER:
        same(lambda: ours.mean, lambda: theirs.mean, "mean")


@pytest.mark.parametrize("name", sorted(set(CASES) - {"ContinuousBernoulli", "LowRankMultivariateNormal"}))
def test_parameters_are_checked(tt, name):
    for place, given in enumerate(CASES[name]):
        if isinstance(given, int):
            continue
        for change in (lambda a: -np.abs(a) - 0.5, lambda a: a * np.nan, lambda a: np.abs(a) + 5):
            bad = list(CASES[name])
            bad[place] = np.array(change(given))
            same(lambda bad=bad: build(tt, name, bad) and 0, lambda bad=bad: build(torch, name, bad) and 0, place)


@pytest.mark.parametrize("name", CASES)
def test_values_are_checked(tt, name):
    ours, theirs = build(tt, name), build(torch, name)
    torch.manual_seed(0)
    value = theirs.sample((2,)).double()
    for bad in (-value.abs() - 1.5, value + 0.37, value * float("nan"), torch.ones(7, 7, 7).double()):
        same(lambda bad=bad: ours.log_prob(tt.tensor(bad.numpy())), lambda bad=bad: theirs.log_prob(bad), bad)
    unchecked = build(tt, name, validate_args=False)
    unchecked.log_prob(tt.tensor(value.numpy()))


def test_the_default_of_checks(tt):
    with pytest.raises(ValueError, match=r"Expected parameter scale \(Tensor of shape \(2,\)\) of distribution "
                       r"Normal\(loc: .*, scale: .*\) to satisfy the constraint GreaterThan\(lower_bound=0.0\)"):
        tt.distributions.Normal(0.0, tt.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="within the support"):
        tt.distributions.Bernoulli(0.5).log_prob(tt.tensor(2.0))
    with pytest.raises(ValueError, match="must be a Tensor"):
        tt.distributions.Normal(0.0, 1.0).log_prob(0.5)
    tt.distributions.Distribution.set_default_validate_args(False)
    try:
        assert np.isnan(tt.distributions.Normal(0.0, -1.0).log_prob(tt.tensor(1.0)).item())
    finally:
        tt.distributions.Distribution.set_default_validate_args(True)


def test_under_vmap_and_captured_nothing_is_checked(tt):
    def density(scale):
        return tt.distributions.Normal(0.0, scale).log_prob(tt.tensor(0.5))

    scales = tt.tensor([0.5, 1.0, 2.0])
    want = tt.stack([density(s) for s in scales])
    tt.testing.assert_close(tt.vmap(density)(scales), want)
    tt.testing.assert_close(tt.compile(density)(scales), want)


# For these PyTorch has divergences only if parameters are equal.
_SAME_BASE = {"Weibull", "Kumaraswamy"}


@pytest.mark.parametrize("name", sorted(set(CASES) - _SAME_BASE))
def test_divergences(tt, name):
    for other in CASES:
        same(lambda other=other: tt.distributions.kl_divergence(build(tt, name), build(tt, other)),
             lambda other=other: torch.distributions.kl_divergence(build(torch, name), build(torch, other)), other)


@pytest.mark.parametrize("name", ["ContinuousBernoulli", "LowRankMultivariateNormal", "Wishart"])
def test_samples_of_the_new_have_the_moments(tt, name):
    tt.manual_seed(5)
    own = build(tt, name)
    drawn = own.sample((20000,)).numpy()
    spread = np.sqrt(own.variance.numpy())
    assert (np.abs(drawn.mean(0) - own.mean.numpy()) / np.maximum(spread, 1e-3)).max() < 0.06
    assert np.abs(drawn.std(0) / np.maximum(spread, 1e-3) - 1).max() < 0.06


def test_a_divergence_of_two_wisharts(tt):
    """The mean of log p - log q over samples of p (PyTorch's formula gives negative numbers)."""
    tt.manual_seed(3)
    p, q = (tt.distributions.Wishart(tt.tensor(df), tt.tensor(v), validate_args=False)
            for df, v in ((np.array([5.0, 6, 7]), S), (np.array([8.0, 6, 9]), S * 0.5 + np.eye(4))))
    drawn = p.sample((20000,))
    ratio = (p.log_prob(drawn) - q.log_prob(drawn)).numpy()
    np.testing.assert_allclose(tt.distributions.kl_divergence(p, q).numpy(), ratio.mean(0),
                               atol=5 * ratio.std() / np.sqrt(len(ratio)))


def test_the_mode_of_kumaraswamy_is_the_likeliest_value(tt):
    own = tt.distributions.Kumaraswamy(tt.tensor([2.0, 3.0]), tt.tensor([1.5, 4.0]))
    values = tt.linspace(0.01, 0.99, 99)
    best = values[own.log_prob(values.unsqueeze(-1)).argmax(0)]
    np.testing.assert_allclose(own.mode.numpy(), best.numpy(), atol=0.01)


def test_samples_of_angles_and_correlations(tt):
    tt.manual_seed(7)
    angles = build(tt, "VonMises").sample((20000,)).numpy()
    circle = np.exp(1j * angles).mean(0)
    np.testing.assert_allclose(1 - np.abs(circle), build(tt, "VonMises").variance.numpy(), atol=0.02)
    np.testing.assert_allclose(np.angle(circle / np.exp(1j * L)), 0, atol=0.06)
    factors = tt.distributions.LKJCholesky(3, tt.tensor(2.0)).sample((20000,)).numpy()
    correlations = factors @ factors.swapaxes(-1, -2)
    np.testing.assert_allclose(correlations.mean(0), np.eye(3), atol=0.02)
    # Each is 2 Beta(a, a) - 1 with a = concentration + (dim - 2) / 2, so its variance is 1 / (2 a + 1).
    np.testing.assert_allclose(correlations[:, 1, 0].var(), 1 / 6, atol=0.01)
    np.testing.assert_allclose(correlations[:, 2, 1].var(), 1 / 6, atol=0.01)


def transforms(m):
    d = m.distributions
    yield d.ReshapeTransform((4,), (2, 2)), L
    yield d.IndependentTransform(d.ExpTransform(), 1), L
    yield d.CumulativeDistributionTransform(d.Normal(0.0, 1.0)), L
    yield d.CatTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)], -1, [1, 3]), L
    yield d.StackTransform([d.ExpTransform(), d.SigmoidTransform(), d.TanhTransform()], 0), L
    yield d.LowerCholeskyTransform(), S
    yield d.PositiveDefiniteTransform(), S * 0.3
    yield d.CorrCholeskyTransform(), RNG.normal(size=(2, 6)) * 0 + np.linspace(-1, 1, 12).reshape(2, 6)
    yield d.ComposeTransform([d.AffineTransform(0.5, -2.0), d.ExpTransform(), d.PowerTransform(2.0)]), L * 0.3
    yield d.ComposeTransform([d.ExpTransform(), d.StickBreakingTransform()]), L


@pytest.mark.parametrize("index", range(10))
def test_transforms(tt, index):
    (ours, x), (theirs, _) = (next(itertools.islice(transforms(m), index, None)) for m in (tt, torch))
    own, other = tt.tensor(x), torch.tensor(x)
    same(lambda: ours(own), lambda: theirs(other), "forward")
    same(lambda: ours.inv(ours(own)), lambda: theirs.inv(theirs(other)), "inverse")
    same(lambda: ours.log_abs_det_jacobian(own, ours(own)),
         lambda: theirs.log_abs_det_jacobian(other, theirs(other)), "jacobian")
    same(lambda: ours.forward_shape(x.shape), lambda: theirs.forward_shape(x.shape), "shape")
    same(lambda: ours.sign, lambda: theirs.sign, "sign")
    for place in ("domain", "codomain"):
        assert getattr(ours, place).event_dim == getattr(theirs, place).event_dim


def constraints(m):
    c = m.distributions.constraints
    return [c.real, c.real_vector, c.positive, c.nonnegative, c.greater_than(-2.0), c.less_than(1.5),
            c.interval(-1.0, 2.0), c.half_open_interval(0.0, 3.0), c.unit_interval, c.simplex, c.lower_cholesky,
            c.positive_definite, c.corr_cholesky, c.independent(c.positive, 1),
            c.cat([c.positive, c.real], -1, [2, 4]), c.boolean, c.one_hot, c.integer_interval(0, 3),
            c.nonnegative_integer, c.positive_integer, c.square, c.symmetric, c.lower_triangular,
            c.positive_semidefinite, c.multinomial(3)]


@pytest.mark.parametrize("index", range(25))
def test_constraints(tt, index):
    ours, theirs = constraints(tt)[index], constraints(torch)[index]
    assert (ours.event_dim, ours.is_discrete) == (theirs.event_dim, theirs.is_discrete)
    for x in (L, P, U, np.floor(P), S, np.tril(S), U / U.sum(-1, keepdims=True), np.eye(4), np.full((2, 6), 0.5)):
        same(lambda x=x: ours.check(tt.tensor(x)), lambda x=x: theirs.check(torch.tensor(x)), x)
    x = np.linspace(-1, 1, 6) if index in (12, 14) else _A
    for name in ("biject_to", "transform_to"):
        same(lambda name=name: getattr(tt.distributions, name)(ours)(tt.tensor(x)),
             lambda name=name: getattr(torch.distributions, name)(theirs)(torch.tensor(x)), name)
