"""Sets of values, which constrain the parameters and the samples of a distribution.

A constraint's `check(value)` returns a bool tensor of value's shape without the last `event_dim`
dimensions, which belong together. Names are those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _api as tt, linalg
from .._tensors.tensor import Tensor

__all__ = [
    "Constraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property", "greater_than",
    "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent",
    "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer",
    "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite", "real",
    "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A set of values."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """Returns which values are in the set."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__.lstrip("_") + "()"


class _Test(Constraint):
    """The set of values for which a function returns true."""

    def __init__(self, name: str, test: Callable[[Tensor], Any], event_dim: int = 0,
                 is_discrete: bool = False) -> None:  # fmt: skip
        self._name, self._test = name, test
        self.event_dim, self.is_discrete = event_dim, is_discrete

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = self._test(value)
        return result

    def __repr__(self) -> str:
        return self._name


class _Dependent(Constraint):
    """A constraint that depends on other parameters: without them nothing is checked."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> _Dependent:
        """The same constraint with other properties."""
        return _Dependent(is_discrete=self.is_discrete if is_discrete is None else is_discrete,
                          event_dim=self.event_dim if event_dim is None else event_dim)  # fmt: skip

    def check(self, value: Tensor) -> Tensor:
        raise ValueError("Cannot determine validity of dependent constraint")


class dependent_property(property, _Dependent):
    """A property that is a constraint of each instance of a distribution; on the class it is
    `dependent`."""

    def __init__(self, fn: Callable[..., Any] | None = None, *, is_discrete: bool = False,
                 event_dim: int = 0) -> None:  # fmt: skip
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Callable[..., Any]) -> dependent_property:  # type: ignore[override]
        """Used as a decorator with properties of the constraint."""
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Constraint) -> bool:
    """Returns whether the constraint is known only together with other parameters."""
    return isinstance(constraint, _Dependent)


class independent(Constraint):
    """The constraint `base` for each position in the last dimensions."""

    def __init__(self, base: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base.is_discrete
        self.event_dim = base.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        inside = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        if inside.dim() < count:
            raise ValueError(
                f"Expected value.dim() >= {self.event_dim} but got {value.dim()}"
            )
        return inside.flatten(-count).all(-1) if count else inside

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class _Bounded(Constraint):
    """Base class of numbers between bounds, which are numbers or tensors."""

    _bounds: tuple[str, ...] = ("lower_bound", "upper_bound")
    _shown: str

    def __init__(self, *bounds: Any) -> None:
        for name, bound in zip(self._bounds, bounds, strict=True):
            setattr(self, name, bound)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in self._bounds)
        return f"{self._shown}({shown})"


class greater_than(_Bounded):
    """x > lower_bound."""

    _shown = "GreaterThan"
    _bounds = ("lower_bound",)
    lower_bound: Any

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = self.lower_bound < value
        return inside


class greater_than_eq(_Bounded):
    """x >= lower_bound."""

    _shown = "GreaterThanEq"
    _bounds = ("lower_bound",)
    lower_bound: Any

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = self.lower_bound <= value
        return inside


class less_than(_Bounded):
    """x < upper_bound."""

    _shown = "LessThan"
    _bounds = ("upper_bound",)
    upper_bound: Any

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = value < self.upper_bound
        return inside


class interval(_Bounded):
    """lower_bound <= x <= upper_bound."""

    _shown = "Interval"
    lower_bound: Any
    upper_bound: Any

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = (self.lower_bound <= value) & (value <= self.upper_bound)
        return inside


class half_open_interval(_Bounded):
    """lower_bound <= x < upper_bound."""

    _shown = "HalfOpenInterval"
    lower_bound: Any
    upper_bound: Any

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = (self.lower_bound <= value) & (value < self.upper_bound)
        return inside


class integer_interval(interval):
    """Integers from lower_bound to upper_bound."""

    _shown = "IntegerInterval"
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & super().check(value)


class _AtLeast(greater_than_eq):
    """Integers that are at least lower_bound."""

    _shown = "IntegerGreaterThan"
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & super().check(value)


class multinomial(_Bounded):
    """Vectors of counts whose sum is at most upper_bound."""

    _shown = "Multinomial"
    _bounds = ("upper_bound",)
    upper_bound: Any
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        inside: Tensor = (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)
        return inside


class _Parts(Constraint):
    """Base class of several constraints for parts of a value."""

    def __init__(self, parts: Sequence[Constraint]) -> None:
        self.cseq = list(parts)
        self.is_discrete = any(part.is_discrete for part in self.cseq)
        self.event_dim = max(part.event_dim for part in self.cseq)


class cat(_Parts):
    """Constraints for consecutive pieces along `dim`, whose lengths are `lengths`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0,
                 lengths: Sequence[int] | None = None) -> None:  # fmt: skip
        super().__init__(cseq)
        self.dim = dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise ValueError(f"cat: {len(self.cseq)} constraints and {len(self.lengths)} lengths")

    def check(self, value: Tensor) -> Tensor:
        pieces = value.split(self.lengths, self.dim)
        return tt.cat([c.check(v) for c, v in zip(self.cseq, pieces, strict=True)], self.dim)


class stack(_Parts):
    """Constraints for the slices along `dim`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        super().__init__(cseq)
        self.dim = dim

    def check(self, value: Tensor) -> Tensor:
        slices = value.unbind(self.dim)
        return tt.stack([c.check(v) for c, v in zip(self.cseq, slices, strict=True)], self.dim)


def _near(a: Tensor, b: Any, tolerance: float) -> Tensor:
    inside: Tensor = (a - b).abs() <= tolerance
    return inside


def _is_simplex(x: Tensor) -> Tensor:
    return (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6)


def _is_one_hot(x: Tensor) -> Tensor:
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)


def _is_lower(x: Tensor) -> Tensor:
    return (x.tril() == x).flatten(-2).all(-1)


def _is_lower_cholesky(x: Tensor) -> Tensor:
    return _is_lower(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


def _is_corr_cholesky(x: Tensor) -> Tensor:
    tolerance = tt.finfo(x.dtype).eps * x.shape[-1] * 10
    unit = _near((x * x).sum(-1).sqrt(), 1.0, tolerance).all(-1)
    return _is_lower_cholesky(x) & unit


def _is_square(x: Tensor) -> Tensor:
    return tt.full(x.shape[:-2], x.shape[-2] == x.shape[-1], dtype=tt.bool, device=x.device)


def _is_symmetric(x: Tensor) -> Tensor:
    if x.shape[-2] != x.shape[-1]:
        return _is_square(x)
    return tt.isclose(x, x.mT, atol=1e-6).flatten(-2).all(-1)


def _is_positive_semidefinite(x: Tensor) -> Tensor:
    if x.shape[-2] != x.shape[-1]:
        return _is_square(x)
    return _is_symmetric(x) & (linalg.eigvalsh(x) >= 0).all(-1)


def _is_positive_definite(x: Tensor) -> Tensor:
    if x.shape[-2] != x.shape[-1]:
        return _is_square(x)
    return _is_symmetric(x) & (linalg.cholesky_ex(x).info == 0)


dependent = _Dependent()
boolean: Constraint = _Test("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot: Constraint = _Test("OneHot()", _is_one_hot, 1, True)
real: Constraint = _Test("Real()", lambda x: x == x)
real_vector: Constraint = independent(real, 1)
positive: Constraint = greater_than(0.0)
nonnegative: Constraint = greater_than_eq(0.0)
nonnegative_integer: Constraint = _AtLeast(0)
positive_integer: Constraint = _AtLeast(1)
unit_interval: Constraint = interval(0.0, 1.0)
simplex: Constraint = _Test("Simplex()", _is_simplex, 1)
lower_triangular: Constraint = _Test("LowerTriangular()", _is_lower, 2)
lower_cholesky: Constraint = _Test("LowerCholesky()", _is_lower_cholesky, 2)
corr_cholesky: Constraint = _Test("CorrCholesky()", _is_corr_cholesky, 2)
square: Constraint = _Test("Square()", _is_square, 2)
symmetric: Constraint = _Test("Symmetric()", _is_symmetric, 2)
positive_semidefinite: Constraint = _Test("PositiveSemidefinite()", _is_positive_semidefinite, 2)
positive_definite: Constraint = _Test("PositiveDefinite()", _is_positive_definite, 2)
