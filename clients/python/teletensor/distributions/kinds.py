"""The distributions Normal, Uniform, Exponential, Bernoulli and Categorical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .distribution import (
    Distribution,
    ExponentialFamily,
    as_value,
    broadcast,
    register_kl,
    shape_of_probs,
)

__all__ = ["Bernoulli", "Categorical", "Exponential", "Normal", "Uniform"]


class Normal(ExponentialFamily):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    has_rsample = True
    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.pow(2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = tt.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Any) -> Tensor:
        distance = self._at(value, self.loc) - self.loc
        return (
            -(distance**2) / (2 * self.variance)
            - self.scale.log()
            - math.log(math.sqrt(2 * math.pi))
        )

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        distance = self._at(value, self.loc) - self.loc
        result: Tensor = 0.5 * (1 + tt.erf(distance / (self.scale * math.sqrt(2))))
        return result

    def entropy(self) -> Tensor:
        result: Tensor = 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
        return result

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return self.loc + self.scale * tt.erfinv(2 * as_value(value, self.loc) - 1) * math.sqrt(2)


class Uniform(Distribution):
    """The uniform distribution between `low` and `high`."""

    has_rsample = True

    @property
    def arg_constraints(self) -> Any:
        """The constraint of each parameter."""
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The values that can be drawn."""
        return constraints.interval(self.low, self.high)

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low).pow(2) / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = tt.rand(shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + noise * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.low)
        inside = (self.low <= value) & (self.high > value)
        return tt.log(inside.to(self.low.dtype)) - tt.log(self.high - self.low)

    def entropy(self) -> Tensor:
        return tt.log(self.high - self.low)

    @property
    def mode(self) -> Tensor:
        return tt.full_like(self.low, math.nan)

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        value = self._at(value, self.low)
        result: Tensor = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return result

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return as_value(value, self.low) * (self.high - self.low) + self.low


class Exponential(ExponentialFamily):
    """The exponential distribution: waiting times for events that occur at `rate`."""

    has_rsample = True
    arg_constraints: Any = {"rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        uniform = tt.rand(shape, dtype=self.rate.dtype, device=self.rate.device)
        return -tt.log1p(-uniform) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        return self.rate.log() - self.rate * self._at(value, self.rate)

    def entropy(self) -> Tensor:
        return 1.0 - tt.log(self.rate)

    @property
    def mode(self) -> Tensor:
        return tt.zeros_like(self.rate)

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        return 1 - (-self.rate * self._at(value, self.rate)).exp()

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return -tt.log1p(-as_value(value, self.rate)) / self.rate


class _Discrete(Distribution):
    """Base class of distributions that are given by probabilities or by logits; the other one is computed
    when it is needed."""

    _probs: Tensor | None = None
    _logits: Tensor | None = None

    param_shape = property(shape_of_probs)

    def _given(self, probs: Any, logits: Any) -> Tensor:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        (tensor,) = broadcast(logits if probs is None else probs)
        return tensor


class Bernoulli(_Discrete, ExponentialFamily):
    """1 with probability `probs`, or sigmoid(`logits`), and 0 otherwise."""

    has_enumerate_support = True
    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._given(probs, logits)
        if probs is None:
            self._logits = given
        else:
            self._probs = given
        super().__init__(given.shape, validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """The probabilities of 1."""
        if self._probs is None:
            assert self._logits is not None
            self._probs = tt.sigmoid(self._logits)
        return self._probs

    @property
    def logits(self) -> Tensor:
        """log(p / (1 - p))."""
        if self._logits is None:
            assert self._probs is not None
            near = tt.finfo(self._probs.dtype).eps if hasattr(tt, "finfo") else 1.2e-7
            p = self._probs.clamp(near, 1 - near)
            self._logits = tt.log(p) - tt.log1p(-p)
        return self._logits

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            return tt.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        logits, target = tt.broadcast_tensors(self.logits, self._at(value, self.logits))
        return -F.binary_cross_entropy_with_logits(
            logits, target.to(logits.dtype), reduction="none"
        )

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        like = self._logits if self._probs is None else self._probs
        assert like is not None
        return self._enumerated(tt.arange(2, dtype=like.dtype, device=like.device), expand)

    @property
    def mode(self) -> Tensor:
        likelier = (self.probs >= 0.5).to(self.probs.dtype)
        result: Tensor = tt.where(self.probs == 0.5, math.nan, likelier)
        return result


class Categorical(_Discrete):
    """One of the numbers 0 ... n-1, with probabilities along the last dimension, or logits, which are the
    logarithms of the probabilities up to a constant.

    >>> tt.distributions.Categorical(tt.tensor([0.0, 1.0])).sample((3,)).tolist()
    [1, 1, 1]
    """

    has_enumerate_support = True
    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """The values that can be drawn."""
        return constraints.integer_interval(0, self._num_events - 1)

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._given(probs, logits)
        if given.dim() < 1:
            raise ValueError("`probs` and `logits` parameters must be at least one-dimensional.")
        if probs is None:
            self._logits = given - given.logsumexp(-1, keepdim=True)
        else:
            self._probs = given / given.sum(-1, keepdim=True)
        self._num_events = int(given.shape[-1])
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """The probabilities, which sum to 1."""
        if self._probs is None:
            assert self._logits is not None
            self._probs = tt.softmax(self._logits, -1)
        return self._probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        if self._logits is None:
            assert self._probs is not None
            near = tt.finfo(self._probs.dtype).eps if hasattr(tt, "finfo") else 1.2e-7
            self._logits = tt.log(self._probs.clamp(near, 1 - near))
        return self._logits

    @property
    def mode(self) -> Tensor:
        """The most probable number."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        count = math.prod(sample_shape)
        with tt.no_grad():
            rows = self.probs.reshape(-1, self._num_events)
            drawn = tt.multinomial(rows, count, True)
            return drawn.t().reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.logits).to(tt.int64).unsqueeze(-1)
        shape = tt.broadcast_shapes(tuple(value.shape[:-1]), tuple(self.logits.shape[:-1]))
        logits = self.logits.expand((*shape, self._num_events))
        return logits.gather(-1, value.expand((*shape, 1))).squeeze(-1)

    def entropy(self) -> Tensor:
        low = -3.4028234663852886e38
        result: Tensor = -(self.logits.clamp(min=low) * self.probs).sum(-1)
        return result

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(tt.arange(self._num_events, device=self.logits.device), expand)

    @property
    def mean(self) -> Tensor:
        return tt.full(self.batch_shape, math.nan, dtype=self.probs.dtype, device=self.probs.device)

    @property
    def variance(self) -> Tensor:
        return tt.full(self.batch_shape, math.nan, dtype=self.probs.dtype, device=self.probs.device)


@register_kl(Normal, Normal)
def _kl_normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).pow(2)
    distance = ((p.loc - q.loc) / q.scale).pow(2)
    return 0.5 * (ratio + distance - 1 - ratio.log())


@register_kl(Categorical, Categorical)
def _kl_categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = tt.where(q.probs == 0, math.inf, terms)
    total: Tensor = tt.where(p.probs == 0, 0.0, terms).sum(-1)
    return total


@register_kl(Bernoulli, Bernoulli)
def _kl_bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    yes = p.probs * (F.softplus(-q.logits) - F.softplus(-p.logits))
    no = (1 - p.probs) * (F.softplus(q.logits) - F.softplus(p.logits))
    return yes + no


@register_kl(Exponential, Exponential)
def _kl_exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1
