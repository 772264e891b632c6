"""Kullback-Leibler divergences of distributions of different types: minus the entropy of p, minus the
expected log-density of q."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt, linalg
from .._tensors.tensor import Tensor
from .composed import TransformedDistribution
from .continuous import Cauchy, Gumbel, HalfCauchy, Laplace, MultivariateNormal, Pareto
from .discrete import Binomial, Poisson
from .distribution import kl_divergence, register_kl
from .gammas import Beta, Gamma, InverseGamma
from .kinds import Bernoulli, Exponential, Normal, Uniform
from .matrices import LowRankMultivariateNormal, Wishart
from .relaxed import ContinuousBernoulli

__all__: list[str] = []

_EULER = 0.57721566490153286060

# For each type of p, the types of q that cannot draw some values of p: the divergence is infinite.
_OUTSIDE = {
    Beta: (Pareto,),
    ContinuousBernoulli: (Pareto,),
    Exponential: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gamma: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gumbel: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Laplace: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Normal: (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform),
    Pareto: (Beta, ContinuousBernoulli, Uniform),
    Poisson: (Bernoulli, Binomial),
}


def _infinite(p: Any, q: Any) -> Tensor:
    return tt.full_like(p.mean, math.inf)


for _p, _kinds in _OUTSIDE.items():
    for _q in _kinds:
        register_kl(_p, _q)(_infinite)


# ---- expected values under p

def _log_mean(p: Any) -> Tensor:
    """E log x, for positive x."""
    if isinstance(p, Beta):
        return tt.digamma(p.concentration1) - tt.digamma(p.concentration1 + p.concentration0)
    if isinstance(p, Gamma):
        return tt.digamma(p.concentration) - p.rate.log()
    if isinstance(p, Exponential):
        return -_EULER - p.rate.log()
    if isinstance(p, Pareto):
        return p.scale.log() + p.alpha.reciprocal()
    result: Tensor = (tt.xlogy(p.high, p.high) - tt.xlogy(p.low, p.low)) / (p.high - p.low) - 1
    return result


def _decay(p: Any, t: Tensor) -> Tensor:
    """E exp(-t x)."""
    if isinstance(p, Exponential):
        return p.rate / (p.rate + t)
    if isinstance(p, Gamma):
        return (1 + t / p.rate) ** -p.concentration
    if isinstance(p, Normal):
        return (0.5 * (t * p.scale) ** 2 - t * p.loc).exp()
    result: Tensor = ((-t * p.low).exp() - (-t * p.high).exp()) / (t * (p.high - p.low))
    return result


# ---- expected log-densities of q under p

def _of_exponential(p: Any, q: Exponential) -> Tensor:
    result: Tensor = q.rate.log() - q.rate * p.mean
    return result


def _of_gamma(p: Any, q: Gamma) -> Tensor:
    a = q.concentration
    result: Tensor = a * q.rate.log() - tt.lgamma(a) + (a - 1) * _log_mean(p) - q.rate * p.mean
    return result


def _of_normal(p: Any, q: Normal) -> Tensor:
    square = p.variance + (p.mean - q.loc) ** 2
    result: Tensor = -0.5 * math.log(2 * math.pi) - q.scale.log() - 0.5 * square / q.scale**2
    return result


def _of_uniform(p: Any, q: Uniform) -> Tensor:  # for p on [0, 1]
    result: Tensor = tt.where((q.low > 0) | (q.high < 1), -math.inf, -(q.high - q.low).log())
    return result


def _of_continuous_bernoulli(p: Any, q: ContinuousBernoulli) -> Tensor:
    result: Tensor = q._log_norm() + tt.log1p(-q.probs) + p.mean * q.logits
    return result


def _of_gumbel(p: Any, q: Gumbel) -> Tensor:
    shift, steep = q.loc / q.scale, q.scale.reciprocal()
    result: Tensor = shift + steep.log() - p.mean * steep - shift.exp() * _decay(p, steep)
    return result


def _limited(expected: Callable[[Any, Any], Tensor], outside: Callable[[Any, Any], Tensor]
             ) -> Callable[[Any, Any], Tensor]:  # fmt: skip
    """Minus infinity where p can draw values that q cannot, or where the expectation does not exist."""
    def found(p: Any, q: Any) -> Tensor:
        result: Tensor = tt.where(outside(p, q), -math.inf, expected(p, q))
        return result
    return found


def _below_zero(p: Uniform, q: Any) -> Tensor:
    return p.low < 0


def _outside_one(p: Uniform, q: Any) -> Tensor:
    return (p.low < 0) | (p.high > 1)


def _heavy(power: int) -> Callable[[Any, Any], Tensor]:
    return lambda p, q: p.alpha <= power


def _beta_of_uniform(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    turned = Uniform(1 - p.high, 1 - p.low, False)
    norm = tt.lgamma(a) + tt.lgamma(b) - tt.lgamma(a + b)
    return (a - 1) * _log_mean(p) + (b - 1) * _log_mean(turned) - norm


def _pareto_of_uniform(p: Uniform, q: Pareto) -> Tensor:
    return q.alpha.log() + q.alpha * q.scale.log() - (q.alpha + 1) * _log_mean(p)


def _laplace_of_normal(p: Normal, q: Laplace) -> Tensor:
    off = p.loc - q.loc
    near = p.scale * math.sqrt(2 / math.pi) * (-0.5 * (off / p.scale) ** 2).exp()
    far = off * tt.erf(off / (p.scale * math.sqrt(2)))
    return -(2 * q.scale).log() - (near + far) / q.scale


_EXPECTED: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {
    (Bernoulli, Poisson): lambda p, q: p.probs * q.rate.log() - q.rate,
    (Beta, ContinuousBernoulli): _of_continuous_bernoulli,
    (Beta, Exponential): _of_exponential,
    (Beta, Gamma): _of_gamma,
    (Beta, Normal): _of_normal,
    (Beta, Uniform): _of_uniform,
    (ContinuousBernoulli, ContinuousBernoulli): _of_continuous_bernoulli,
    (ContinuousBernoulli, Exponential): _of_exponential,
    (ContinuousBernoulli, Normal): _of_normal,
    (ContinuousBernoulli, Uniform): _of_uniform,
    (Exponential, Gamma): _of_gamma,
    (Exponential, Gumbel): _of_gumbel,
    (Exponential, Normal): _of_normal,
    (Gamma, Exponential): _of_exponential,
    (Gamma, Gumbel): _of_gumbel,
    (Gamma, Normal): _of_normal,
    (Gumbel, Normal): _of_normal,
    (Laplace, Normal): _of_normal,
    (Normal, Gumbel): _of_gumbel,
    (Normal, Laplace): _laplace_of_normal,
    (Pareto, Exponential): _limited(_of_exponential, _heavy(1)),
    (Pareto, Gamma): _limited(_of_gamma, _heavy(1)),
    (Pareto, Normal): _limited(_of_normal, _heavy(2)),
    (Uniform, Beta): _limited(_beta_of_uniform, _outside_one),
    (Uniform, ContinuousBernoulli): _limited(_of_continuous_bernoulli, _outside_one),
    (Uniform, Exponential): _limited(_of_exponential, _below_zero),
    (Uniform, Gamma): _limited(_of_gamma, _below_zero),
    (Uniform, Gumbel): _of_gumbel,
    (Uniform, Normal): _of_normal,
    (Uniform, Pareto): _limited(_pareto_of_uniform, lambda p, q: p.low < q.scale),
}


def _by_entropy(expected: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda p, q: -p.entropy() - expected(p, q)


for _pair, _expected in _EXPECTED.items():
    register_kl(*_pair)(_by_entropy(_expected))


@register_kl(Cauchy, Cauchy)
def _cauchys(p: Cauchy, q: Cauchy) -> Tensor:
    apart = (p.scale + q.scale).pow(2) + (p.loc - q.loc).pow(2)
    return apart.log() - (4 * p.scale * q.scale).log()


for _kind in (HalfCauchy, InverseGamma):
    register_kl(_kind, _kind)(lambda p, q: kl_divergence(p.base_dist, q.base_dist))


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    same = [type(t) for t in p.transforms] == [type(t) for t in q.transforms]
    if not same or p.event_shape != q.event_shape:
        raise NotImplementedError
    return kl_divergence(p.base_dist, q.base_dist)


def _normals(p: Any, q: Any) -> Tensor:
    """The divergence of normal vectors."""
    size = p.event_shape[0]
    left, right = (m.scale_tril for m in (p, q))
    shape = tt.broadcast_shapes(p.batch_shape, q.batch_shape)
    left, right = left.expand((*shape, size, size)), right.expand((*shape, size, size))
    off = (q.loc - p.loc).expand((*shape, size)).unsqueeze(-1)
    trace = linalg.solve_triangular(right, left, upper=False).pow(2).sum((-2, -1))
    far = linalg.solve_triangular(right, off, upper=False).pow(2).sum((-2, -1))
    logs = [m.diagonal(dim1=-2, dim2=-1).log().sum(-1) for m in (left, right)]
    result: Tensor = logs[1] - logs[0] + 0.5 * (trace + far - size)
    return result


for _left in (MultivariateNormal, LowRankMultivariateNormal):
    for _right in (MultivariateNormal, LowRankMultivariateNormal):
        register_kl(_left, _right)(_normals)


@register_kl(Wishart, Wishart)
def _wisharts(p: Wishart, q: Wishart) -> Tensor:
    size, shape = p.event_shape[-1], tt.broadcast_shapes(p.batch_shape, q.batch_shape)
    left, right = (m.scale_tril.expand((*shape, size, size)) for m in (p, q))
    trace = linalg.solve_triangular(right, left, upper=False).pow(2).sum((-2, -1))
    norms = tt.mvlgamma(q.df / 2, size) - tt.mvlgamma(p.df / 2, size)
    logs = q.df * (q._half_logs() - p._half_logs())
    result: Tensor = logs + 0.5 * p.df * (trace - size) + norms + 0.5 * (p.df - q.df) * p._slopes()
    return result
