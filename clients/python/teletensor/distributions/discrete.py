"""Distributions of counts and choices: Poisson, Geometric, Binomial, NegativeBinomial, Multinomial,
OneHotCategorical."""

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
    broadcast,
    kl_divergence,
    register_kl,
    shape_of_probs,
)
from .gammas import Gamma
from .kinds import Categorical

__all__ = [
    "Binomial", "Geometric", "Multinomial", "NegativeBinomial", "OneHotCategorical", "Poisson",
]  # fmt: skip


def _one_of(probs: Any, logits: Any) -> tuple[Tensor, Tensor]:
    """The probabilities and their logits, from whichever of the two is given."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    if probs is not None:
        (probs,) = broadcast(probs)
        limits = tt.finfo(probs.dtype).eps
        inside = probs.clamp(limits, 1 - limits)
        return probs, inside.log() - tt.log1p(-inside)
    (logits,) = broadcast(logits)
    return tt.sigmoid(logits), logits


class Poisson(ExponentialFamily):
    """The number of independent events, of which there are `rate` on average."""

    arg_constraints: Any = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            return tt.poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.rate)
        result: Tensor = tt.xlogy(value, self.rate) - self.rate - tt.lgamma(value + 1)
        return result


class Geometric(Distribution):
    """The number of failures before the first success, which has probability `probs`."""

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.probs, self.logits = _one_of(probs, logits)
        super().__init__(self.probs.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return tt.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            u = tt.rand(
                self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device
            )
            u = u.clamp(min=tt.finfo(self.probs.dtype).tiny)
            return (u.log() / tt.log1p(-self.probs)).floor()

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.probs)
        failed = tt.where((self.probs == 1) & (value == 0), 0.0, tt.log1p(-self.probs))
        result: Tensor = value * failed + self.probs.log()
        return result

    def entropy(self) -> Tensor:
        return (
            F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
            / self.probs
        )


class Binomial(Distribution):
    """The number of successes in `total_count` trials."""

    has_enumerate_support = True
    arg_constraints: Any = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """The values that can be drawn."""
        return constraints.integer_interval(0, self.total_count)

    param_shape = property(shape_of_probs)

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        given, scores = _one_of(probs, logits)
        self.total_count, self.probs, self.logits = broadcast(
            tt.as_tensor(total_count, device=given.device).to(given.dtype), given, scores)  # fmt: skip
        super().__init__(self.probs.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with tt.no_grad():
            count, probs = (x.expand(shape).contiguous() for x in (self.total_count, self.probs))
            return tt.binomial(count, probs)

    def log_prob(self, value: Any) -> Tensor:
        value, n = self._at(value, self.logits), self.total_count
        ways = tt.lgamma(n + 1) - tt.lgamma(value + 1) - tt.lgamma(n - value + 1)
        size = n * self.logits.clamp(min=0) + n * tt.log1p((-self.logits.abs()).exp())
        result: Tensor = value * self.logits - size + ways
        return result

    def enumerate_support(self, expand: bool = True) -> Tensor:
        most = int(self.total_count.max())
        if int(self.total_count.min()) != most:
            raise NotImplementedError("Inhomogeneous total count not supported by `enumerate_support`.")
        values = tt.arange(1 + most, dtype=self.probs.dtype, device=self.probs.device)
        return self._enumerated(values, expand)

    def entropy(self) -> Tensor:
        logs = self.log_prob(self.enumerate_support(False))
        return -(logs.exp() * logs).sum(0)


class NegativeBinomial(Distribution):
    """The number of successes, each with probability `probs`, before `total_count` failures."""

    arg_constraints: Any = {
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    param_shape = property(shape_of_probs)

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        given, scores = _one_of(probs, logits)
        self.total_count, self.probs, self.logits = broadcast(
            tt.as_tensor(total_count, device=given.device).to(given.dtype), given, scores)  # fmt: skip
        super().__init__(self.probs.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.mean / tt.sigmoid(-self.logits)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            rate = Gamma(self.total_count, (-self.logits).exp()).sample(sample_shape)
            return tt.poisson(rate)

    def log_prob(self, value: Any) -> Tensor:
        value, n = self._at(value, self.logits), self.total_count
        own = n * F.logsigmoid(-self.logits) + value * F.logsigmoid(self.logits)
        ways = tt.lgamma(n + value) - tt.lgamma(value + 1) - tt.lgamma(n)
        result: Tensor = own + tt.where(n + value == 0, 0.0, ways)
        return result


class Multinomial(Distribution):
    """The number of occurrences of each class in `total_count` draws; the last dimension is that of the
    classes."""

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        """The values that can be drawn."""
        return constraints.multinomial(self.total_count)

    total_count: int

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self.probs.shape[-1:], validate_args=validate_args)

    param_shape = property(shape_of_probs)

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            drawn = self._categorical.sample((self.total_count, *sample_shape))
            counts = tt.zeros(
                self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device
            )
            places = drawn.movedim(0, -1)
            return counts.scatter_add(-1, places, tt.ones_like(places, dtype=counts.dtype))

    def log_prob(self, value: Any) -> Tensor:
        value = self._at(value, self.probs)
        logits, value = tt.broadcast_tensors(self.logits, value)
        logits = logits.masked_fill((value == 0) & (logits == -math.inf), 0.0)
        ways = tt.lgamma(value.sum(-1) + 1) - tt.lgamma(value + 1).sum(-1)
        result: Tensor = ways + (logits * value).sum(-1)
        return result

    def entropy(self) -> Tensor:
        """Computed from the binomial counts of each class."""
        n, p = self.total_count, self.probs
        counts = tt.arange(1 + n, dtype=p.dtype, device=p.device)
        counts = counts.reshape((-1, *[1] * p.dim()))
        own = Binomial(n, p, validate_args=False).log_prob(counts)[1:]
        repeats = (own.exp() * tt.lgamma(counts[1:] + 1)).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + repeats


class OneHotCategorical(Distribution):
    """The result of Categorical as a one-hot vector."""

    has_enumerate_support = True
    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.one_hot

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self.probs.shape[-1:], validate_args=validate_args)

    param_shape = property(shape_of_probs)

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return F.one_hot(self.probs.argmax(-1), self.probs.shape[-1]).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self._categorical.sample(sample_shape)
        return F.one_hot(drawn, self.probs.shape[-1]).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Tensor:
        return self._categorical.log_prob(self._at(value, self.probs).max(-1)[1])

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        size = self.event_shape[0]
        return self._enumerated(tt.eye(size, dtype=self.probs.dtype, device=self.probs.device), expand)


@register_kl(Poisson, Poisson)
def _poissons(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Geometric, Geometric)
def _geometrics(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - tt.log1p(-q.probs) / p.probs - q.logits


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)


@register_kl(Binomial, Binomial)
def _binomials(p: Binomial, q: Binomial) -> Tensor:
    own = p.total_count * (
        p.probs * (p.logits - q.logits) + tt.log1p(-p.probs) - tt.log1p(-q.probs)
    )
    result: Tensor = tt.where(p.total_count > q.total_count, math.inf, own)
    return result
