"""Distributions that are made from other distributions: Independent, TransformedDistribution, LogNormal,
MixtureSameFamily, RelaxedBernoulli."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _api as tt
from .._tensors.tensor import Tensor
from . import constraints
from .distribution import Distribution, as_value, broadcast, kl_divergence, register_kl
from .kinds import Categorical, Normal
from .transforms import ComposeTransform, ExpTransform, SigmoidTransform, Transform

__all__ = [
    "Independent",
    "LogNormal",
    "MixtureSameFamily",
    "RelaxedBernoulli",
    "TransformedDistribution",
]


def _summed(x: Tensor, dims: int) -> Tensor:
    for _ in range(dims):
        x = x.sum(-1)
    return x


class Independent(Distribution):
    """A distribution in which the last dimensions of the base's batch belong to one value."""

    arg_constraints: Any = {}

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch, event = base_distribution.batch_shape, base_distribution.event_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = (
            base_distribution,
            reinterpreted_batch_ndims,
        )
        cut = len(batch) - reinterpreted_batch_ndims
        super().__init__(batch[:cut], (*batch[cut:], *event), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients can flow through samples."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether all values can be enumerated."""
        return self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        """The values that can be drawn."""
        inner = self.base_dist.support
        count = self.reinterpreted_batch_ndims
        return constraints.independent(inner, count) if count else inner

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return _summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return _summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)


class TransformedDistribution(Distribution):
    """The distribution of transforms(x), where x has the base distribution."""

    arg_constraints: Any = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole = ComposeTransform(self.transforms)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        dims = max(whole.event_dim, len(base_distribution.event_shape))
        taken = dims - len(base_distribution.event_shape)
        self.base_dist = (
            Independent(base_distribution, taken, validate_args) if taken else base_distribution)
        after = whole.forward_shape(shape)
        cut = len(after) - dims
        super().__init__(after[:cut], after[cut:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients can flow through samples."""
        return self.base_dist.has_rsample

    @constraints.dependent_property
    def support(self) -> Any:
        """The values that can be drawn."""
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        extra = len(self.event_shape) - support.event_dim
        return constraints.independent(support, extra) if extra > 0 else support

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        dims = len(self.event_shape)
        y, total = value, None
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            term = _summed(transform.log_abs_det_jacobian(x, y), dims - transform.event_dim)
            total, y = -term if total is None else total - term, x
        own = self.base_dist.log_prob(y)
        own = _summed(own, dims - len(self.base_dist.event_shape))
        return own if total is None else total + own

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        if self._validate_args:
            self._validate_sample(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._by_sign(self.base_dist.cdf(value))

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        return self._through(self.base_dist.icdf(self._by_sign(value)))

    def _by_sign(self, probability: Any) -> Tensor:
        """Converts a probability of the base distribution: it stays the same where the transforms are
        increasing, and becomes 1 - p where they are decreasing."""
        sign = ComposeTransform(self.transforms).sign
        if isinstance(sign, int) and sign == 1:
            return probability  # type: ignore[no-any-return]
        result: Tensor = sign * (probability - 0.5) + 0.5
        return result


class LogNormal(TransformedDistribution):
    """exp(x), where x is normal with mean loc and standard deviation scale."""

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._normal = Normal(loc, scale, validate_args)
        super().__init__(self._normal, ExpTransform(), validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithm."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithm."""
        return self._normal.scale

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.pow(2) / 2).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.pow(2)
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self._normal.entropy() + self.loc


class RelaxedBernoulli(TransformedDistribution):
    """A continuous relaxation of Bernoulli: numbers between 0 and 1 through which gradients flow, and which
    approach 0 and 1 as temperature decreases."""

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self._logit = _LogitRelaxed(temperature, probs, logits, validate_args)
        super().__init__(self._logit, SigmoidTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Tensor:
        """The temperature of the relaxation."""
        return self._logit.temperature

    @property
    def logits(self) -> Tensor:
        """log(p / (1 - p))."""
        return self._logit.logits

    @property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return tt.sigmoid(self._logit.logits)


class _LogitRelaxed(Distribution):
    has_rsample = True
    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        if probs is not None:
            (given,) = broadcast(probs)
            self._probs = given
            eps = tt.finfo(given.dtype).eps
            given = given.clamp(eps, 1 - eps)
            self.logits = given.log() - tt.log1p(-given)
        else:
            (self.logits,) = broadcast(logits)
        self.temperature = as_value(temperature, self.logits)
        super().__init__(self.logits.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = tt.rand(
            self._extended_shape(sample_shape), dtype=self.logits.dtype, device=self.logits.device
        )
        eps = tt.finfo(u.dtype).eps
        u = u.clamp(eps, 1 - eps)
        return (u.log() - tt.log1p(-u) + self.logits) / self.temperature

    def log_prob(self, value: Any) -> Tensor:
        distance = self.logits - value * self.temperature
        result: Tensor = self.temperature.log() + distance - 2 * tt.log1p(distance.exp())
        return result


class MixtureSameFamily(Distribution):
    """One of several distributions of the same type (along the last dimension of their batch), chosen by a
    Categorical."""

    arg_constraints: Any = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        batch = component_distribution.batch_shape
        if not batch or batch[-1] != mixture_distribution.probs.shape[-1]:
            raise ValueError(
                "`mixture_distribution component` does not equal `component_distribution.batch_shape[-1]`"
            )
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        """The values that can be drawn."""
        return self.component_distribution.support

    def _weights(self) -> Tensor:
        probs = self.mixture_distribution.probs
        return probs.reshape((*probs.shape, *([1] * len(self.event_shape))))

    @property
    def _dim(self) -> int:
        return -1 - len(self.event_shape)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(self._dim)

    @property
    def variance(self) -> Tensor:
        own = self.component_distribution
        inside = (self._weights() * own.variance).sum(self._dim)
        apart = own.mean - self.mean.unsqueeze(self._dim)
        return inside + (self._weights() * apart.pow(2)).sum(self._dim)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with tt.no_grad():
            chosen = self.mixture_distribution.sample(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            dim = drawn.dim() + self._dim
            index = chosen.reshape((*chosen.shape, *([1] * (drawn.dim() - chosen.dim()))))
            size = (*drawn.shape[:dim], 1, *drawn.shape[dim + 1 :])
            return drawn.gather(dim, index.expand(size)).squeeze(dim)

    def log_prob(self, value: Any) -> Tensor:
        wide = self._at(value, self.mixture_distribution.probs).unsqueeze(self._dim)
        own = self.component_distribution.log_prob(wide)
        return tt.logsumexp(own + tt.log_softmax(self.mixture_distribution.logits, -1), -1)

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        probs = self.mixture_distribution.probs
        wide = self._at(value, probs).unsqueeze(self._dim)
        return (self.component_distribution.cdf(wide) * probs).sum(-1)


@register_kl(Independent, Independent)
def _independents(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return _summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(LogNormal, LogNormal)
def _log_normals(p: LogNormal, q: LogNormal) -> Tensor:
    return kl_divergence(p._normal, q._normal)
