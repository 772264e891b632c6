"""Distribution: what all have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import teletensor as tt

from .._tensor import Size, Tensor

__all__ = ["Distribution", "as_value", "broadcast", "kl_divergence", "register_kl"]


class Distribution:
    """A distribution over values of shape event_shape, one for each place of batch_shape.

    `sample(shape)` draws values [*shape, *batch_shape, *event_shape] without gradients, `rsample`
    with them where that is possible; `log_prob(value)` is the logarithm of the density or the
    probability.
    """

    has_rsample = False

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = ()) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)

    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one value."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Values, without gradients."""
        with tt.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Values through which gradients reach the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density (or probability) at value."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The expected value of -log_prob."""
        raise NotImplementedError

    def cdf(self, value: Any) -> Tensor:
        """The probability of a smaller value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Any) -> Tensor:
        """The value below which lie so many."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def perplexity(self) -> Tensor:
        """exp(entropy())."""
        return self.entropy().exp()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape: {self.batch_shape}, event_shape: {self.event_shape})"

    def _extended(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)


def broadcast(*values: Any) -> list[Tensor]:
    """Parameters as tensors of one shape and floating dtype; numbers take the tensors' dtype."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = tt.get_default_dtype() if like is None else like.dtype
    device = None if like is None else like.device
    tensors = [
        v if isinstance(v, Tensor) else tt.tensor(float(v), dtype=dtype, device=device)
        for v in values
    ]
    return list(tt.broadcast_tensors(*tensors)) if len(tensors) > 1 else tensors


def as_value(value: Any, like: Tensor) -> Tensor:
    """A value as a tensor on the parameters' device."""
    return value if isinstance(value, Tensor) else tt.tensor(value, dtype=like.dtype, device=like.device)


_Rule = Callable[[Any, Any], Tensor]
_KL: dict[tuple[type, type], _Rule] = {}


def register_kl(p: type, q: type) -> Callable[[_Rule], _Rule]:
    """A decorator: the function gives kl_divergence of these two classes."""

    def add(rule: _Rule) -> _Rule:
        _KL[p, q] = rule
        return rule

    return add


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of q from p: the expected value under p of log p - log q.
    Raises NotImplementedError for a pair that has no formula here."""
    for left in type(p).__mro__:
        for right in type(q).__mro__:
            rule = _KL.get((left, right))
            if rule is not None:
                return rule(p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )
