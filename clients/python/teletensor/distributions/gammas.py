"""Distributions that are based on the gamma distribution: Gamma, Chi2, InverseGamma, Beta, Dirichlet,
StudentT, FisherSnedecor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt, special
from .._tensors.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .distribution import Distribution, ExponentialFamily, broadcast, register_kl

__all__ = [
    "Beta", "Chi2", "Dirichlet", "FisherSnedecor", "Gamma", "InverseGamma", "StudentT",
]  # fmt: skip

_ROUNDS = 12  # a candidate is rejected with a probability below 0.05


def _standard_gamma(concentration: Tensor) -> Tensor:
    """One value for each concentration (Marsaglia and Tsang 2000: the first accepted of 12 candidates)."""
    own = concentration.detach()
    small = own < 1
    a = tt.where(small, own + 1, own)
    d = a - 1 / 3
    shape = (_ROUNDS, *own.shape)
    x = tt.randn(shape, dtype=own.dtype, device=own.device)
    u = tt.rand(shape, dtype=own.dtype, device=own.device)
    v = (1 + x / (9 * d).sqrt()) ** 3
    accepted = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(min=1e-30).log())
    first = accepted.to(tt.uint8).argmax(0, keepdim=True)
    drawn = d * v.gather(0, first)[0]
    power = tt.rand(own.shape, dtype=own.dtype, device=own.device).log() / own
    result: Tensor = tt.where(small, drawn * power.exp(), drawn).clamp(min=tt.finfo(own.dtype).tiny)
    return result


def _slope(a: Tensor, z: Tensor) -> Tensor:
    """The derivative of a gamma sample z with respect to its concentration: minus dF/da divided by the
    density."""
    a, z = a.detach().to(tt.float64), z.to(tt.float64)
    h = 1e-4 * a.clamp(max=1.0)
    above = z > a  # where the upper tail is more accurate
    change = tt.where(
        above,
        special.gammaincc(a - h, z) - special.gammaincc(a + h, z),
        special.gammainc(a + h, z) - special.gammainc(a - h, z),
    ) / (2 * h)
    density = ((a - 1) * z.log() - z - tt.lgamma(a)).exp()
    result: Tensor = -change / density.clamp(min=1e-300)
    return result


def _gamma(concentration: Tensor, sample_shape: Sequence[int]) -> Tensor:
    """Samples through which gradients reach the concentration."""
    wide = concentration.expand((*sample_shape, *concentration.shape))
    drawn = _standard_gamma(wide)
    if not (wide.requires_grad and tt.is_grad_enabled()):
        return drawn
    return drawn + (wide - wide.detach()) * _slope(wide, drawn).to(drawn.dtype)


class Gamma(ExponentialFamily):
    """The gamma distribution of shape `concentration` and `rate`."""

    has_rsample = True
    arg_constraints: Any = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.pow(2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return _gamma(self.concentration, sample_shape) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        value, a = self._at(value, self.rate), self.concentration
        result: Tensor = (
            tt.xlogy(a, self.rate) + tt.xlogy(a - 1, value) - self.rate * value - tt.lgamma(a)
        )
        return result

    def entropy(self) -> Tensor:
        a = self.concentration
        result: Tensor = a - self.rate.log() + tt.lgamma(a) + (1 - a) * tt.digamma(a)
        return result

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        result: Tensor = special.gammainc(
            self.concentration, self.rate * self._at(value, self.rate)
        )
        return result


class Chi2(Gamma):
    """The chi-squared distribution: the sum of the squares of `df` standard normal numbers."""

    arg_constraints: Any = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self._df,) = broadcast(df)
        super().__init__(0.5 * self._df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom."""
        return self._df


class InverseGamma(Distribution):
    """1 / x, where x has the distribution Gamma(concentration, rate)."""

    has_rsample = True
    arg_constraints: Any = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.base_dist = Gamma(concentration, rate, False)
        self.concentration, self.rate = self.base_dist.concentration, self.base_dist.rate
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        result: Tensor = tt.where(a > 1, self.rate / (a - 1), math.inf)
        return result

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        result: Tensor = tt.where(
            a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), math.inf
        )
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape).reciprocal()

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.rate)
        result: Tensor = self.base_dist.log_prob(value.reciprocal()) - 2 * value.log()
        return result

    def entropy(self) -> Tensor:
        a = self.concentration
        result: Tensor = a + self.rate.log() + tt.lgamma(a) - (1 + a) * tt.digamma(a)
        return result

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return 1 - self.base_dist.cdf(self._at(value, self.rate).reciprocal())


class Dirichlet(ExponentialFamily):
    """Vectors of positive numbers whose sum is 1, along the last dimension of `concentration`."""

    has_rsample = True
    arg_constraints: Any = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        a = self.concentration
        return a * (total - a) / (total.pow(2) * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = _gamma(self.concentration, sample_shape)
        return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Any) -> Tensor:
        a = self.concentration
        result: Tensor = (
            tt.xlogy(a - 1, self._at(value, a)).sum(-1)
            + tt.lgamma(a.sum(-1))
            - tt.lgamma(a).sum(-1)
        )
        return result

    def entropy(self) -> Tensor:
        a = self.concentration
        k, total = a.size(-1), a.sum(-1)
        result: Tensor = (
            tt.lgamma(a).sum(-1)
            - tt.lgamma(total)
            - (k - total) * tt.digamma(total)
            - ((a - 1) * tt.digamma(a)).sum(-1)
        )
        return result

    @property
    def mode(self) -> Tensor:
        a = self.concentration
        above = (a - 1).clamp(min=0.0)
        found = above / above.sum(-1, keepdim=True)
        corner = F.one_hot(above.argmax(-1), a.shape[-1]).to(a.dtype)
        result: Tensor = tt.where((a < 1).all(-1, keepdim=True), corner, found)
        return result


class Beta(ExponentialFamily):
    """The beta distribution: numbers between 0 and 1 with density x^(concentration1 - 1) (1 -
    x)^(concentration0 - 1) / B."""

    has_rsample = True
    arg_constraints: Any = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast(concentration1, concentration0)
        self._dirichlet = Dirichlet(tt.stack([self.concentration1, self.concentration0], -1), False)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.pow(2) * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.concentration1)
        return self._dirichlet.log_prob(tt.stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]


class StudentT(Distribution):
    """Student's t-distribution with `df` degrees of freedom, multiplied by scale and shifted by loc."""

    has_rsample = True
    arg_constraints: Any = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast(df, loc, scale)
        self._chi2 = Chi2(self.df, False)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        result: Tensor = tt.where(self.df > 1, self.loc, math.nan)
        return result

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.scale.pow(2) * self.df / (self.df - 2)
        wide = tt.where(self.df > 1, math.inf, math.nan)
        result: Tensor = tt.where(self.df > 2, finite, wide.to(finite.dtype))
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        x = tt.randn(shape, dtype=self.df.dtype, device=self.df.device)
        return self.loc + self.scale * x * tt.rsqrt(self._chi2.rsample(sample_shape) / self.df)

    def log_prob(self, value: Any) -> Tensor:
        y = (self._at(value, self.loc) - self.loc) / self.scale
        half = 0.5 * self.df
        result: Tensor = (
            -0.5 * (self.df + 1) * tt.log1p(y**2 / self.df)
            - self.scale.log()
            - 0.5 * self.df.log()
            - 0.5 * math.log(math.pi)
            - tt.lgamma(half)
            + tt.lgamma(half + 0.5)
        )
        return result

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        beta = tt.lgamma(half) + math.lgamma(0.5) - tt.lgamma(more)
        result: Tensor = (
            self.scale.log()
            + more * (tt.digamma(more) - tt.digamma(half))
            + 0.5 * self.df.log()
            + beta
        )
        return result


class FisherSnedecor(Distribution):
    """The F-distribution: the ratio of two Chi2 numbers, each divided by its degrees of freedom."""

    has_rsample = True
    arg_constraints: Any = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast(df1, df2)
        self._above = Gamma(self.df1 * 0.5, self.df1, False)
        self._below = Gamma(self.df2 * 0.5, self.df2, False)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        result: Tensor = tt.where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)
        return result

    @property
    def variance(self) -> Tensor:
        df1, df2 = self.df1, self.df2
        known = 2 * df2**2 * (df1 + df2 - 2) / (df1 * (df2 - 2) ** 2 * (df2 - 4))
        result: Tensor = tt.where(df2 > 4, known, math.nan)
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._above.rsample(sample_shape) / self._below.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        value, a, b = self._at(value, self.df1), self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        result: Tensor = (
            tt.lgamma(a + b) - tt.lgamma(a) - tt.lgamma(b)
            + a * ratio.log()
            + (a - 1) * value.log()
            - (a + b) * tt.log1p(ratio * value)
        )  # fmt: skip
        return result

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        result: Tensor = tt.where(self.df1 <= 2, math.nan, found)
        return result


@register_kl(Gamma, Gamma)
def _gammas(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log()
        + tt.lgamma(b) - tt.lgamma(a)
        + (a - b) * tt.digamma(a)
        + (q.rate - p.rate) * (a / p.rate)
    )  # fmt: skip


@register_kl(Dirichlet, Dirichlet)
def _dirichlets(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    return (
        tt.lgamma(total) - tt.lgamma(b.sum(-1))
        - (tt.lgamma(a) - tt.lgamma(b)).sum(-1)
        + ((a - b) * (tt.digamma(a) - tt.digamma(total).unsqueeze(-1))).sum(-1)
    )  # fmt: skip


@register_kl(Beta, Beta)
def _betas(p: Beta, q: Beta) -> Tensor:
    return _dirichlets(p._dirichlet, q._dirichlet)
