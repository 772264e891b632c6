"""Distribution: the base class of all distributions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from .. import _api as tt, _core
from .._script import capturing as _capturing
from .._tensors.tensor import Size, Tensor
from ..autograd import enable_grad, grad
from .constraints import Constraint, is_dependent

__all__ = [
    "Distribution", "ExponentialFamily", "as_value", "broadcast", "kl_divergence", "register_kl",
    "shape_of_probs",
]


class Distribution:
    """A distribution of values of shape event_shape, one for each index of batch_shape.

    `sample(shape)` draws values [*shape, *batch_shape, *event_shape] without gradients, and `rsample` draws
    them with gradients if that is possible; `log_prob(value)` is the logarithm of the density or of the
    probability.

    Parameters are checked against `arg_constraints` and values against `support` if `validate_args` is true
    (the default is that of `set_default_validate_args`, initially True); each check waits for one value.
    Nothing is checked under `vmap` and while a function is captured.
    """

    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Sets whether arguments are checked if a distribution is constructed without `validate_args`."""
        if value not in (True, False):
            raise ValueError
        Distribution._validate_args = value

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (),
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            try:
                constraints = self.arg_constraints
            except NotImplementedError:
                return  # a class of the program that does not define it
            self._check({name: (rule, given) for name, rule in constraints.items()
                         if (given := self._parameter(name)) is not None})

    def _parameter(self, name: str) -> Any:
        """The value of a parameter if the program has given it, or None."""
        held = self.__dict__
        return held.get(name, held.get(f"_{name}"))

    def _check(self, parameters: dict[str, tuple[Constraint, Any]]) -> None:
        """ValueError for the first parameter that violates its constraint."""
        known = {name: given for name, (rule, given) in parameters.items()
                 if isinstance(given, Tensor) and not is_dependent(rule)}
        bad = _first_false([parameters[name][0].check(given) for name, given in known.items()])
        if bad is None:
            return
        name = list(known)[bad]
        rule, given = parameters[name]
        raise ValueError(
            f"Expected parameter {name} ({type(given).__name__} of shape {tuple(given.shape)}) of "
            f"distribution {self!r} to satisfy the constraint {rule!r}, but found invalid values:\n"
            f"{given}")

    @property
    def arg_constraints(self) -> dict[str, Constraint]:
        """The constraint of each parameter."""
        raise NotImplementedError

    @property
    def support(self) -> Any:
        """The values that can be drawn, as a constraint."""
        raise NotImplementedError

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distribution with its batch broadcast to batch_shape."""
        new = copy.copy(self) if _instance is None else _instance
        shape, own = tuple(batch_shape), tuple(self._batch_shape)
        for name, held in self.__dict__.items():
            if isinstance(held, Distribution):
                held = held.expand((*shape, *held.batch_shape[len(own):]))
            elif isinstance(held, Tensor) and tuple(held.shape[:len(own)]) == own:
                held = held.expand((*shape, *held.shape[len(own):]))
            new.__dict__[name] = held
        new._batch_shape = Size(shape)
        return new

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution along a new first dimension; unless `expand`, the batch
        dimensions have size 1."""
        raise NotImplementedError(f"{type(self).__name__} does not support enumerate_support")

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        ranks = len(self._batch_shape)
        values = values.reshape((-1, *[1] * ranks, *self._event_shape))
        shape = (-1, *self._batch_shape, *self._event_shape)
        return values.expand(shape) if expand else values

    def _at(self, value: Any, like: Tensor) -> Tensor:
        """Converts the argument of log_prob or cdf to a tensor and checks it."""
        if self._validate_args:
            self._validate_sample(value)
        return as_value(value, like)

    def _validate_sample(self, value: Tensor) -> None:
        """ValueError for a value whose shape does not fit, or which is not in the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        events = len(self._event_shape)
        own = (*self._batch_shape, *self._event_shape)
        if tuple(value.shape[len(value.shape) - events:]) != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.shape} vs "
                f"{self._event_shape}.")
        for i, j in zip(reversed(value.shape), reversed(own)):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs {own}.")
        try:
            support = self.support
        except NotImplementedError:
            return
        if _first_false([support.check(value)]) is not None:
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be "
                f"within the support ({support!r}) of the distribution {self!r}, but found invalid "
                f"values:\n{value}")

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
        """The most probable value."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Values, without gradients."""
        with tt.no_grad():
            return self.rsample(sample_shape)

    def sample_n(self, n: int) -> Tensor:
        """n values; PyTorch's older name of `sample((n,))`."""
        return self.sample((n,))

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
        """The probability that a sample is at most the value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def perplexity(self) -> Tensor:
        """exp(entropy())."""
        return self.entropy().exp()

    def __repr__(self) -> str:
        try:
            names = [name for name in self.arg_constraints if isinstance(self._parameter(name), Tensor)]
        except NotImplementedError:
            names = []
        held = ((name, self._parameter(name)) for name in names)
        shown = ", ".join(f"{name}: {x if x.numel() == 1 else x.shape}" for name, x in held)
        return f"{type(self).__name__}({shown})"

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        """The shape of a sample; distributions of programs use it."""
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """The object that the expand() of a program's distribution fills: `_instance`, or a new one without
        attributes."""
        if _instance is not None:
            return _instance
        if type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(
                f"Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ method "
                "must also define a custom .expand() method."
            )
        return type(self).__new__(type(self))


def _first_false(flags: list[Tensor]) -> int | None:
    """The index of the first of these flags that is not true everywhere; flags that cannot be read (in a
    capture, under vmap) are skipped."""
    if not flags or _capturing.active() is not None:
        return None
    if _core.depth() and _core.innermost(flags) is not None:
        return None
    seen: list[bool] = tt.stack([flag.all().to(tt.bool) for flag in flags]).tolist()
    return None if all(seen) else seen.index(False)


def broadcast(*values: Any) -> list[Tensor]:
    """The parameters as tensors of the same shape and floating-point dtype; numbers get the dtype of the
    tensors."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = tt.get_default_dtype() if like is None else like.dtype
    device = None if like is None else like.device
    tensors = [
        v if isinstance(v, Tensor) else tt.tensor(float(v), dtype=dtype, device=device)
        for v in values
    ]
    return list(tt.broadcast_tensors(*tensors)) if len(tensors) > 1 else tensors


class ExponentialFamily(Distribution):
    """Base class of distributions whose density is exp(<t(x), theta> - F(theta) + k(x)) with the natural
    parameters theta. A subclass that defines `_natural_params`, `_log_normalizer` (F) and
    `_mean_carrier_measure` (the mean of k) inherits the entropy, by the gradient of F. Source: Nielsen,
    Nock 2010, Entropies and cross-entropies of exponential families."""

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self) -> Any:
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """F(theta) - <theta, F'(theta)>, less the mean of k."""
        parameters = [p.detach().requires_grad_() for p in self._natural_params]
        with enable_grad():
            normalizer = self._log_normalizer(*parameters)
            slopes = grad(normalizer.sum(), parameters, create_graph=True)
        result: Tensor = normalizer - self._mean_carrier_measure
        for p, slope in zip(parameters, slopes, strict=True):
            result = result - (p * slope).reshape(*self._batch_shape, -1).sum(-1)
        return result


def shape_of_probs(self: Any) -> Size:
    """The shape of `probs`, which is also that of `logits`."""
    shape: Size = self.probs.shape
    return shape


def as_value(value: Any, like: Tensor) -> Tensor:
    """A value as a tensor on the parameters' device."""
    return value if isinstance(value, Tensor) else tt.tensor(value, dtype=like.dtype, device=like.device)


_Rule = Callable[[Any, Any], Tensor]
_KL: dict[tuple[type, type], _Rule] = {}


def register_kl(p: type, q: type) -> Callable[[_Rule], _Rule]:
    """A decorator that registers a function as the implementation of kl_divergence for these two
    classes."""

    def add(rule: _Rule) -> _Rule:
        _KL[p, q] = rule
        return rule

    return add


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of q from p: the expected value under p of log p - log q.
    NotImplementedError if no formula for the pair is registered."""
    for left in type(p).__mro__:
        for right in type(q).__mro__:
            rule = _KL.get((left, right))
            if rule is not None:
                return rule(p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )
