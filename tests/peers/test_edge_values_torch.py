"""Compares values at edges with PyTorch's: ties, masked elements, zero vectors, infinite norms, 16-bit floats,
and derivatives of derivatives there. Each line is evaluated with both libraries."""

import importlib

import numpy as np
import pytest

LINES = """
F.lp_pool1d(t.tensor([[1.0, -7.0, 3.0, 4.0]]), norm, 2) for norm in (t.inf, -t.inf)
F.lp_pool2d(t.arange(-8.0, 8).reshape(1, 4, 4), t.inf, (2, 3), stride=1, ceil_mode=True)
F.lp_pool1d(t.ones(1, 4), 0, 2)
F.rms_norm(t.tensor([[0.05], [0.01], [3.0]], dtype=dtype), (1,)) for dtype in (t.float16, t.bfloat16, t.float32)
t.nn.RMSNorm(2).to(dtype)(t.tensor([0.002, 0.001], dtype=dtype)) for dtype in (t.float16, t.bfloat16)
t.histc(t.arange(9.0), 3, 2, 2), t.histc(t.arange(9.0), 4, -1, -1), t.histc(t.full((3,), 5.0), 2)
t.linalg.cond(t.zeros(2, 0, 0), p) for p in (None, 2, 1, "nuc")
t.ldexp(t.ones(2), t.tensor([1j, 2.0]))
t.isin(t.tensor([1, 2]), t.tensor([2]), out=t.empty(0, dtype=t.bool))
t.tensor([1.0, -1.0]).nanmean(dtype=t.int32)
t.tensor([0.4, 2.0]).cumsum(0, dtype=t.bool)
t.tensor([0.4, 2.0]).cumprod(0, dtype=t.bool)
F.pad(t.zeros(1, 1, 0), (1, 1), mode="circular")
hessian(lambda x: t.logaddexp(x, t.tensor([1.0, 3.0])).sum(), t.tensor([1.0, 2.0]))
hessian(lambda x: t.logaddexp2(x, t.tensor([1.0, 3.0])).sum(), t.tensor([1.0, 2.0]))
grad(lambda x: t.where(y > 0, t.xlogy(x, y), 0.0).sum(), t.tensor([1.0, 2.0])) for y in (t.tensor([0.0, -1.0]),)
grad(lambda x: t.where(y > -1, t.special.xlog1py(x, y), 0.0).sum(), t.ones(2)) for y in (t.tensor([-1.0, -2.0]),)
grad(lambda x: t.xlogy(x, y).sum(), t.tensor([0.0, 1.0, 0.0])) for y in (t.tensor([0.0, 0.5, -1.0]), 2.0, 0.5)
grad(lambda q: (F.kl_div(t.zeros(2), q, reduction="none") * t.tensor([0.0, 1.0])).sum(), t.tensor([-1.0, 0.5]))
t.func.jvp(f, (t.zeros(3),), (t.ones(3),)) for f in (t.norm, t.linalg.norm, lambda x: t.linalg.vector_norm(x, 3))
t.func.jvp(lambda x: F.pairwise_distance(x, t.zeros(3), eps=0.0), (t.zeros(3),), (t.ones(3),))
t.func.jvp(t.std, (t.ones(3),), (t.arange(3.0),))
hessian(lambda x: t.cos(x.unfold(0, size, step)).sum(), t.arange(5.0)) for size, step in ((2, 1), (3, 2), (1, 1))
hessian(lambda x: t.cos(x.unfold(1, 2, 1)).sum(), t.arange(6.0).reshape(2, 3))
hessian(lambda x: t.cos(x.as_strided((3, 2), (1, 1))).sum(), t.arange(1, 5.0))
t.vmap(lambda x: x.unfold(-1, 2, 1))(t.arange(12.0).reshape(2, 2, 3))
t.vmap(lambda x: x.unfold(0, 1, 1))(t.arange(3.0))
t.vmap(t.take)(t.arange(6.0).reshape(2, 3), t.tensor([[0, -1], [-3, 1]]))
d.MixtureSameFamily(d.Categorical(t.tensor([0.3, 0.7])), d.Normal(t.tensor([0.0, 2]), 0.5)).cdf(t.linspace(-3, 3, 7))
d.Kumaraswamy(2.0, 3.0, validate_args=False).cdf(t.tensor([0.5, 2.0, 1.0]))
d.MultivariateNormal(t.zeros(2), t.eye(2)).log_prob(t.ones(2, dtype=t.float64))
D(t.full((2, 3), 0.25)).param_shape for D in (d.Bernoulli, d.Categorical, d.ContinuousBernoulli, d.OneHotCategorical)
d.Binomial(3, logits=t.zeros(2)).param_shape, d.Multinomial(3, t.ones(2, 3)).param_shape
both(d.StickBreakingTransform(), t.tensor([[50.0, -50.0], [0.0, 1e-6]]))
init(t, name) for name in ("uniform_", "normal_", "xavier_uniform_", "xavier_normal_", "orthogonal_", "trunc_normal_")
init(t, name) for name in ("kaiming_uniform_", "kaiming_normal_")
orthogonal_error(t)
stft(t, mode, n, hop) for mode in ("reflect", "replicate", "circular", "constant") for n, hop in ((8, 2), (7, 3))
""".strip().splitlines()


def hessian(t, f, x):
    return t.func.hessian(f)(x)


def grad(t, f, x):
    return t.func.grad(f)(x)


def both(t, transform, x):
    y = transform(x)
    return transform.inv(y), transform.log_abs_det_jacobian(x, y)


def init(t, name):
    """Whether two generators with one seed give one result, and the default generator is not used."""
    t.manual_seed(1)
    first = t.rand(1)
    t.manual_seed(1)
    made = getattr(t.nn.init, name)(t.empty(4, 3), generator=t.Generator().manual_seed(3))
    again = getattr(t.nn.init, name)(t.empty(4, 3), generator=t.Generator().manual_seed(3))
    return made.equal(again), first.equal(t.rand(1)), made.shape


def orthogonal_error(t):
    q = t.nn.init.orthogonal_(t.empty(6, 4, dtype=t.float64))
    return q.dtype, bool(((q.T @ q) - t.eye(4, dtype=t.float64)).abs().max() < 1e-14)


def stft(t, mode, n, hop):
    x = t.sin(t.arange(60, dtype=t.float64) ** 1.3).reshape(2, 30).requires_grad_()
    window = t.linspace(0.5, 1, n, dtype=t.float64)
    y = t.stft(x, n, hop, window=window, pad_mode=mode, return_complex=True)
    back = t.istft(y, n, hop, window=window, length=30)
    (back.pow(2).sum() + y.abs().pow(3).sum()).backward()
    return y, back, x.grad


def plain(value):
    """The value as nested lists of arrays, numbers and names."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "detach"):
        value = value.detach()
        name = str(value.dtype).split(".")[-1]
        return [name, np.array((value.float() if name == "bfloat16" else value).numpy())]
    return str(value).split(".")[-1]


def evaluated(t, line):
    space = {"t": t, "F": t.nn.functional, "d": t.distributions, "both": lambda *a: both(t, *a), "init": init,
             "stft": stft, "orthogonal_error": orthogonal_error, "hessian": lambda f, x: hessian(t, f, x),
             "grad": lambda f, x: grad(t, f, x)}
    try:
        return plain(eval(f"[{line}]", space))
    except Exception as error:
        return type(error).__name__


def same(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.allclose(a, b, rtol=1e-3 if a.dtype == np.float16 else 2e-5, atol=1e-6,
                                                  equal_nan=True)
    return a == b


@pytest.mark.parametrize("line", LINES)
def test_line(tt, line):
    theirs = evaluated(importlib.import_module("torch"), line)
    assert same(evaluated(tt, line), theirs), (evaluated(tt, line), theirs)


def test_truth_of_sums_is_not_guessed(tt):
    for f in (tt.sum, tt.prod, tt.nansum):
        with pytest.raises(NotImplementedError, match="dtype bool"):
            f(tt.tensor([0.4, 0.6]), dtype=tt.bool)
    assert tt.tensor([True, False]).sum(dtype=tt.bool).item() is True


def test_equal_infinities_share_the_gradient(tt):
    x, y = tt.tensor([tt.inf, -tt.inf, 0.0], requires_grad=True), tt.tensor([tt.inf, -tt.inf, 0.0])
    (gradient,) = tt.autograd.grad(tt.logaddexp(x, y).sum(), x, create_graph=True)
    assert gradient.tolist() == [0.5, 0.5, 0.5]
    assert tt.autograd.grad(gradient.sum(), x)[0].tolist() == [0.0, 0.0, 0.25]


def test_distributions_outside_of_their_support(tt):
    d = tt.distributions
    assert d.Pareto(1.0, 2.0, validate_args=False).cdf(tt.tensor([-0.5, 0.5, 2.0])).tolist() == [0.0, 0.0, 0.75]
    values = d.GeneralizedPareto(0.0, 1.0, tt.tensor([0.1, 0.0, -0.5]), validate_args=False).cdf(tt.tensor(-0.5))
    assert values.tolist() == [0.0, 0.0, 0.0]


def test_running_results_do_not_stop_growing(tt):
    large = tt.cat([tt.tensor([2.0**24]), tt.ones(8)])
    for x in (large, tt.complex(large, large).real, large.reshape(-1, 1).expand(9, 5)[:, 3]):
        assert x.cumsum(0)[-1].item() == 2.0**24 + 8
    assert tt.complex(large, -large).cumsum(0)[-1].item() == (2.0**24 + 8) * (1 - 1j)
    assert large.reshape(-1, 1).repeat(1, 40).cumsum(0)[-1].tolist() == [2.0**24 + 8] * 40
    assert tt.full((10**6,), 1 + 2.0**-23).cumprod(0)[-1].item() == pytest.approx((1 + 2.0**-23) ** 10**6, rel=1e-6)
    x = tt.cat([tt.tensor([20.0]), tt.full((100000,), 2.0)])
    assert x.logcumsumexp(0)[-1].item() == pytest.approx(20 + np.log1p(1e5 * np.exp(-18.0)), abs=2e-6)


def test_counts_above_the_integers_of_float32(tt):
    x = tt.ones(1).expand(2**24 + 2)
    assert tt.histc(x, 3, 0, 3).tolist() == [0, 2**24 + 2, 0]
    assert tt.histogram(x, 3, range=(0.0, 3.0))[0].tolist() == [0, 2**24 + 2, 0]
