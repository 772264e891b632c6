"""Relaxations of discrete choices through which gradients flow, and continuous relatives of discrete
distributions: ContinuousBernoulli, LogisticNormal, OneHotCategoricalStraightThrough,
RelaxedOneHotCategorical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .composed import TransformedDistribution
from .discrete import OneHotCategorical
from .distribution import Distribution, ExponentialFamily, as_value, shape_of_probs
from .kinds import Bernoulli, Categorical, Normal
from .transforms import ExpTransform, StickBreakingTransform

__all__ = [
    "ContinuousBernoulli", "LogisticNormal", "OneHotCategoricalStraightThrough",
    "RelaxedOneHotCategorical",
]  # fmt: skip


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical whose samples have the gradients of their probabilities (Bengio et al. 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class _LogRelaxed(Distribution):
    """The distribution of the logarithm of a RelaxedOneHotCategorical."""

    has_rsample = True
    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits, validate_args)
        self.temperature = as_value(temperature, self._categorical.logits)
        own = self._categorical
        super().__init__(own.batch_shape, own.logits.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        new = super().expand(batch_shape, _instance)
        new.temperature = self.temperature
        return new

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        logits = self._categorical.logits
        u = tt.rand(self._extended_shape(sample_shape), dtype=logits.dtype, device=logits.device)
        limits = tt.finfo(u.dtype)
        scores = (logits - (-u.clamp(limits.tiny, 1 - limits.eps).log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Any) -> Tensor:
        logits = self._categorical.logits
        size = logits.shape[-1]
        scores = logits - self._at(value, logits) * self.temperature
        scores = (scores - scores.logsumexp(-1, keepdim=True)).sum(-1)
        return scores + math.lgamma(size) + (size - 1) * self.temperature.log()


class RelaxedOneHotCategorical(TransformedDistribution):
    """Vectors of positive numbers whose sum is 1, which approach one-hot vectors as temperature decreases
    (Maddison et al. 2017, Jang et al. 2017)."""

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self._log = _LogRelaxed(temperature, probs, logits, validate_args)
        super().__init__(self._log, ExpTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Tensor:
        """The temperature of the relaxation."""
        return self._log.temperature

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._log._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return self._log._categorical.logits


class LogisticNormal(TransformedDistribution):
    """Vectors of positive numbers whose sum is 1, computed from normal numbers by
    StickBreakingTransform."""

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        normal = Normal(loc, scale, validate_args)
        self._normal = normal if normal.batch_shape else normal.expand((1,))
        super().__init__(self._normal, StickBreakingTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        size = self._normal.batch_shape[-1]
        wide = self._normal.expand((*batch_shape, size))
        return type(self)(wide.loc, wide.scale, validate_args=False)

    @property
    def loc(self) -> Tensor:
        """The means of the normal numbers."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviations of the normal numbers."""
        return self._normal.scale


class ContinuousBernoulli(ExponentialFamily):
    """Numbers between 0 and 1 with a density proportional to p^x (1 - p)^(1 - x); for p near 1/2, within
    `lims`, computed by Taylor series (Loaiza-Ganem, Cunningham 2019)."""

    has_rsample = True
    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    param_shape = property(shape_of_probs)

    def __init__(self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self._bernoulli = Bernoulli(probs, logits, validate_args)
        self._lims = lims
        super().__init__(self._bernoulli.batch_shape, validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """The parameter, between 0 and 1."""
        near = tt.finfo(self._bernoulli.probs.dtype).eps
        return self._bernoulli.probs.clamp(near, 1 - near)

    @property
    def logits(self) -> Tensor:
        """log(p / (1 - p))."""
        return self._bernoulli.logits

    def _apart(self) -> tuple[Tensor, Tensor, Tensor]:
        """Whether p is far from 1/2; p where it is, and a harmless number elsewhere; and p - 1/2."""
        p = self.probs
        far = (p <= self._lims[0]) | (p > self._lims[1])
        return far, tt.where(far, p, self._lims[0]), p - 0.5

    def _log_norm(self) -> Tensor:
        far, p, x = self._apart()
        exact = (tt.log1p(-p) - p.log()).abs().log() - (1 - 2 * p).abs().log()
        near = math.log(2.0) + (4 / 3 + 104 / 45 * x**2) * x**2
        result: Tensor = tt.where(far, exact, near)
        return result

    @property
    def mean(self) -> Tensor:
        far, p, x = self._apart()
        exact = p / (2 * p - 1) + 1 / (tt.log1p(-p) - p.log())
        result: Tensor = tt.where(far, exact, 0.5 + (1 / 3 + 16 / 45 * x**2) * x)
        return result

    @property
    def variance(self) -> Tensor:
        far, p, x = self._apart()
        exact = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / (tt.log1p(-p) - p.log()) ** 2
        result: Tensor = tt.where(far, exact, 1 / 12 - (1 / 15 - 128 / 945 * x**2) * x**2)
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        like = self.probs
        return self.icdf(tt.rand(self._extended_shape(sample_shape), dtype=like.dtype, device=like.device))

    def log_prob(self, value: Any) -> Tensor:
        logits, value = tt.broadcast_tensors(self.logits, self._at(value, self.logits))
        loss = F.binary_cross_entropy_with_logits(logits, value, reduction="none")
        return self._log_norm() - loss

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        value = self._at(value, self.probs)
        far, p, _ = self._apart()
        exact = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        result: Tensor = tt.where(far, exact, value).clamp(0.0, 1.0)
        return result

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        value = as_value(value, self.probs)
        far, p, _ = self._apart()
        exact = (tt.log1p(-p + value * (2 * p - 1)) - tt.log1p(-p)) / (p.log() - tt.log1p(-p))
        result: Tensor = tt.where(far, exact, value)
        return result

    def entropy(self) -> Tensor:
        none, one = tt.log1p(-self.probs), self.probs.log()
        return self.mean * (none - one) - self._log_norm() - none
