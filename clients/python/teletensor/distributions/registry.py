"""Transforms that map the real numbers to the values of a constraint: `biject_to` one to one,
`transform_to` not necessarily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import constraints
from .constraints import Constraint
from .transforms import (
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
    Transform,
    identity_transform,
)

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

_Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Finds the transform for a constraint: by the constraint itself, or by its class."""

    def __init__(self) -> None:
        self._factories: dict[Any, _Factory] = {}

    def register(self, constraint: Any, factory: _Factory | None = None) -> Any:
        """Registers `factory(constraint)` as the constructor of the transform for a constraint or a class
        of constraints; without a factory it is a decorator."""
        if factory is None:
            return lambda made: self.register(constraint, made)
        if not isinstance(constraint, Constraint) and not (
            isinstance(constraint, type) and issubclass(constraint, Constraint)
        ):
            raise TypeError(
                "Expected constraint to be either a Constraint subclass or instance, but got "
                f"{constraint}"
            )
        self._factories[constraint] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        factory = self._factories.get(constraint, self._factories.get(type(constraint)))
        if factory is None:
            raise NotImplementedError(
                f"Cannot transform {type(constraint).__name__} constraints: {constraint!r}"
            )
        return factory(constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _half_line(bound: Any, sign: int) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(bound, sign)])


def _segment(rule: Any) -> Transform:
    low, high = rule.lower_bound, rule.upper_bound
    if isinstance(low, float) and isinstance(high, float) and (low, high) == (0.0, 1.0):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])


def _each(registry: ConstraintRegistry) -> None:
    """Registers the transforms that both registries have."""
    registry.register(constraints.real, lambda rule: identity_transform)
    registry.register(constraints.positive, lambda rule: ExpTransform())
    registry.register(constraints.nonnegative, lambda rule: ExpTransform())
    for kind in (constraints.greater_than, constraints.greater_than_eq):
        registry.register(kind, lambda rule: _half_line(rule.lower_bound, 1))
    registry.register(constraints.less_than, lambda rule: _half_line(rule.upper_bound, -1))
    for segment in (constraints.interval, constraints.half_open_interval):
        registry.register(segment, _segment)
    registry.register(constraints.corr_cholesky, lambda rule: CorrCholeskyTransform())
    registry.register(constraints.independent, lambda rule: IndependentTransform(
        registry(rule.base_constraint), rule.reinterpreted_batch_ndims))
    registry.register(constraints.cat, lambda rule: CatTransform(
        [registry(part) for part in rule.cseq], rule.dim, rule.lengths))
    registry.register(constraints.stack, lambda rule: StackTransform(
        [registry(part) for part in rule.cseq], rule.dim))


_each(biject_to)
_each(transform_to)
biject_to.register(constraints.simplex, lambda rule: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda rule: SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda rule: LowerCholeskyTransform())
transform_to.register(constraints.positive_definite, lambda rule: PositiveDefiniteTransform())
transform_to.register(constraints.positive_semidefinite, lambda rule: PositiveDefiniteTransform())
