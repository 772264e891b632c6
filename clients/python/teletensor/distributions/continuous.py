"""Continuous distributions: Laplace, Cauchy, HalfCauchy, HalfNormal, Gumbel, Weibull, Pareto,
Kumaraswamy, MultivariateNormal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt, linalg
from .._tensors.tensor import Tensor
from . import constraints
from .distribution import Distribution, as_value, broadcast, register_kl
from .kinds import Normal, Uniform

__all__ = [
    "Cauchy",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Kumaraswamy",
    "Laplace",
    "MultivariateNormal",
    "Pareto",
    "Weibull",
]

_EULER = 0.57721566490153286060


class _Placed(Distribution):
    """Base class of distributions with the parameters loc and scale."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _uniform(self, sample_shape: Sequence[int]) -> Tensor:
        """Uniform random numbers in the open interval (0, 1)."""
        shape = self._extended_shape(sample_shape)
        u = tt.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        limits = tt.finfo(self.loc.dtype)
        return u.clamp(limits.tiny, 1 - limits.eps)

    def _standard(self, value: Any) -> Tensor:
        return (self._at(value, self.loc) - self.loc) / self.scale


class Laplace(_Placed):
    """The Laplace distribution, with density exp(-|x - loc| / scale) / (2 scale)."""

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.pow(2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(self._uniform(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        return -(2 * self.scale).log() - self._standard(value).abs()

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * tt.expm1(-z.abs())

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        term = as_value(value, self.loc) - 0.5
        return self.loc - self.scale * term.sign() * tt.log1p(-2 * term.abs())

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Cauchy(_Placed):
    """The Cauchy distribution: the ratio of two normal numbers, multiplied by scale and shifted by loc."""

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    @property
    def mean(self) -> Tensor:
        return tt.full_like(self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return tt.full_like(self.loc, math.inf)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(self._uniform(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - tt.log1p(self._standard(value) ** 2)

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return tt.atan(self._standard(value)) / math.pi + 0.5

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return tt.tan(math.pi * (as_value(value, self.loc) - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(_Placed):
    """The Gumbel distribution of maxima: -log(-log(u)), multiplied by scale and shifted by loc."""

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * _EULER

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (math.pi**2 / 6) * self.scale.pow(2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = self._uniform(sample_shape)
        return self.loc - self.scale * (-u.log()).log()

    def log_prob(self, value: Any) -> Tensor:
        y = -self._standard(value)
        return (y - y.exp()) - self.scale.log()

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return (-(-self._standard(value)).exp()).exp()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + _EULER)

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return self.loc - self.scale * (-as_value(value, self.loc).log()).log()


class HalfNormal(Distribution):
    """The absolute value of a normal number with mean 0 and standard deviation `scale`."""

    has_rsample = True
    arg_constraints: Any = {"scale": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self.base_dist = Normal(0, scale, False)
        self.scale = self.base_dist.scale
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return tt.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.scale.pow(2) * (1 - 2 / math.pi)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape).abs()

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.scale)
        result: Tensor = tt.where(
            value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf
        )
        return result

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return 2 * self.base_dist.cdf(self._at(value, self.scale)) - 1

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return self.base_dist.icdf((as_value(value, self.scale) + 1) / 2)


class HalfCauchy(Distribution):
    """The absolute value of a number of the Cauchy distribution with loc 0."""

    has_rsample = True
    arg_constraints: Any = {"scale": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self.base_dist = Cauchy(0, scale, False)
        self.scale = self.base_dist.scale
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return tt.full_like(self.scale, math.inf)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return tt.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape).abs()

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.scale)
        result: Tensor = tt.where(
            value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf
        )
        return result

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return 2 * self.base_dist.cdf(self._at(value, self.scale)) - 1

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return self.base_dist.icdf((as_value(value, self.scale) + 1) / 2)


class Weibull(Distribution):
    """The Weibull distribution: scale * x^(1 / concentration), where x is exponential."""

    has_rsample = True
    arg_constraints: Any = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast(scale, concentration)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * tt.lgamma(1 + self.concentration.reciprocal()).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        k = self.concentration
        return self.scale * ((k - 1) / k) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        inverse = self.concentration.reciprocal()
        second = tt.lgamma(1 + 2 * inverse).exp()
        return self.scale.pow(2) * (second - (2 * tt.lgamma(1 + inverse)).exp())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = tt.rand(self._extended_shape(sample_shape), dtype=self.scale.dtype, device=self.scale.device)
        return self.scale * (-tt.log1p(-u)) ** self.concentration.reciprocal()

    def log_prob(self, value: Any) -> Tensor:
        k, ratio = self.concentration, self._at(value, self.scale) / self.scale
        return k.log() - self.scale.log() + (k - 1) * ratio.log() - ratio**k

    def entropy(self) -> Tensor:
        k = self.concentration
        return _EULER * (1 - k.reciprocal()) + (self.scale / k).log() + 1

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return 1 - (-((self._at(value, self.scale) / self.scale) ** self.concentration)).exp()

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        more = -tt.log1p(-as_value(value, self.scale))
        return self.scale * more ** self.concentration.reciprocal()


class Pareto(Distribution):
    """The Pareto distribution: numbers above `scale` with density alpha scale^alpha / x^(alpha + 1)."""

    has_rsample = True
    arg_constraints: Any = {"alpha": constraints.positive, "scale": constraints.positive}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The values that can be drawn."""
        return constraints.greater_than_eq(self.scale)

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast(scale, alpha)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)
        return self.scale.pow(2) * a / ((a - 1).pow(2) * (a - 2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = tt.rand(self._extended_shape(sample_shape), dtype=self.scale.dtype, device=self.scale.device)
        return self.scale * (-tt.log1p(-u) / self.alpha).exp()

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.scale)
        result: Tensor = (
            self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * value.log()
        )
        return result

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        value = self._at(value, self.scale)
        return 1 - (self.scale / tt.maximum(value, self.scale)) ** self.alpha

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        less = tt.log1p(-as_value(value, self.scale))
        return self.scale * (-less / self.alpha).exp()


class Kumaraswamy(Distribution):
    """The Kumaraswamy distribution: numbers between 0 and 1 with density a b x^(a - 1) (1 - x^a)^(b -
    1)."""

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
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    def _moment(self, n: int) -> Tensor:
        a, b = self.concentration1, self.concentration0
        first = 1 + n / a
        return (b.log() + tt.lgamma(first) + tt.lgamma(b) - tt.lgamma(first + b)).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1).pow(2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        like = self.concentration1
        u = tt.rand(self._extended_shape(sample_shape), dtype=like.dtype, device=like.device)
        return (1 - (1 - u) ** self.concentration0.reciprocal()) ** like.reciprocal()

    def log_prob(self, value: Any) -> Tensor:
        a, b = self.concentration1, self.concentration0
        value = self._at(value, a)
        return a.log() + b.log() + tt.xlogy(a - 1, value) + (b - 1) * tt.log1p(-(value**a))

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        found = ((a - 1) / (a * b - 1)) ** a.reciprocal()
        result: Tensor = tt.where((a < 1) | (b < 1), math.nan, found)
        return result

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = tt.digamma(b + 1) + _EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        value = self._at(value, self.concentration1).clamp(0.0, 1.0)
        result: Tensor = 1 - (1 - value**self.concentration1) ** self.concentration0
        return result

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        left = (1 - as_value(value, self.concentration1)) ** self.concentration0.reciprocal()
        return (1 - left) ** self.concentration1.reciprocal()


def _factor_of_inverse(precision: Tensor) -> Tensor:
    """The lower Cholesky factor of a matrix's inverse."""
    flipped = linalg.cholesky(tt.flip(precision, (-2, -1)))
    inverse = tt.transpose(tt.flip(flipped, (-2, -1)), -2, -1)
    eye = tt.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    result: Tensor = linalg.solve_triangular(inverse, eye.expand(inverse.shape), upper=False)
    return result


class MultivariateNormal(Distribution):
    """Normal vectors with mean `loc`, and with a covariance that is given by the covariance matrix, the
    precision matrix, or the lower Cholesky factor of the covariance."""

    has_rsample = True
    arg_constraints: Any = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    scale_tril: Tensor

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = {
            "_covariance_matrix": covariance_matrix,
            "_precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        chosen = {name: matrix for name, matrix in given.items() if matrix is not None}
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if len(chosen) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
            )
        ((name, matrix),) = chosen.items()
        if matrix.dim() < 2:
            raise ValueError(
                f"{name.lstrip('_')} must be at least two-dimensional, with optional leading batch "
                "dimensions"
            )
        batch = tt.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        size = loc.shape[-1]
        self.loc = loc.expand((*batch, size))
        setattr(self, name, matrix.expand((*batch, size, size)))
        super().__init__(batch, (size,), validate_args=validate_args)
        if covariance_matrix is not None:
            self.scale_tril = linalg.cholesky(matrix).expand((*batch, size, size))
        elif precision_matrix is not None:
            self.scale_tril = _factor_of_inverse(matrix).expand((*batch, size, size))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance matrix."""
        result: Tensor = tt.cholesky_inverse(self.scale_tril)
        return result

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.pow(2).sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = tt.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_determinant(self) -> Tensor:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Any) -> Tensor:
        distance = (self._at(value, self.loc) - self.loc).to(self.loc.dtype).unsqueeze(-1)
        shape = tt.broadcast_shapes(distance.shape[:-2], self.scale_tril.shape[:-2])
        factor = self.scale_tril.expand((*shape, *self.scale_tril.shape[-2:]))
        solved = linalg.solve_triangular(
            factor, distance.expand((*shape, *distance.shape[-2:])), upper=False
        )
        square = solved.squeeze(-1).pow(2).sum(-1)
        size = self.loc.shape[-1]
        return -0.5 * (size * math.log(2 * math.pi) + square) - self._half_log_determinant()

    def entropy(self) -> Tensor:
        size = self.loc.shape[-1]
        return 0.5 * size * (1 + math.log(2 * math.pi)) + self._half_log_determinant()


@register_kl(Uniform, Uniform)
def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    result: Tensor = tt.where((q.low > p.low) | (q.high < p.high), math.inf, found)
    return result


@register_kl(Laplace, Laplace)
def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + ratio * (-distance / p.scale).exp() + distance / q.scale - 1


@register_kl(HalfNormal, HalfNormal)
def _half_normals(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = (p.scale / q.scale).pow(2)
    return 0.5 * (ratio - 1 - ratio.log())


@register_kl(Gumbel, Gumbel)
def _gumbels(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    moved, other = q.loc / q.scale, p.loc / q.scale
    return (
        -ratio.log()
        - moved
        + other
        + ratio * _EULER
        + (moved + tt.lgamma(1 + ratio) - other).exp()
        - (1 + _EULER)
    )


@register_kl(Pareto, Pareto)
def _paretos(p: Pareto, q: Pareto) -> Tensor:
    ratio = p.scale / q.scale
    shape = q.alpha / p.alpha
    found = q.alpha * ratio.log() - shape.log() + shape - 1
    result: Tensor = tt.where(p.scale < q.scale, math.inf, found)
    return result
