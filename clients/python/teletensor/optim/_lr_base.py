"""LRScheduler: the base class of learning rate schedules."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _api as tt
from .._script import capturing as _capturing
from .._tensors.tensor import Tensor
from .optimizer import Optimizer

__all__ = ["LRScheduler", "per_group", "set_rate"]


def _copy(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, Tensor) else rate


def set_rate(group: dict[str, Any], rate: Any) -> None:
    """Sets a group's learning rate; a rate that is a tensor is overwritten in place."""
    if isinstance(group["lr"], Tensor):
        with tt.no_grad():
            group["lr"].copy_(rate) if isinstance(rate, Tensor) else group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group, from a list or tuple of them or from one value for all."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} must have the same length as optimizer.param_groups. {name} has "
                         f"{len(value)} values, param_groups has {count}.")
    return list(value)


class LRScheduler:
    """Base class of schedules. Subclasses define `get_lr()`, which returns the learning rates of all groups
    for epoch `self.last_epoch`, usually computed from the present rates.

    last_epoch=-1 starts a new run; any other number resumes a run whose groups have "initial_lr". The
    private names are PyTorch's, because schedulers of programs and libraries read and write them.
    """

    _get_lr_called_within_step = False
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copy(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "an optimizer"
                )
        self.base_lrs = [_copy(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._first_steps = optimizer._steps
        self._initial_step()

    def _initial_step(self) -> None:
        """Sets the first rates; get_lr() sees `_is_initial`."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The learning rates of all groups for `self.last_epoch`."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The learning rates that the last step() has set."""
        return self._last_lr

    @property
    def _rates(self) -> list[float]:
        return [_copy(group["lr"]) for group in self.optimizer.param_groups]

    def _write(self, rates: Iterable[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)
        self._last_lr: list[float] = self._rates

    def step(self, epoch: float | None = None) -> None:
        """Advances by one epoch, or to the given epoch."""
        if _capturing.current is not None:
            _capturing.on_call(lambda: self.step(epoch))
            with _capturing.repeated:
                self._go_on(epoch)
        else:
            self._go_on(epoch)

    def _go_on(self, epoch: float | None) -> None:
        if self._step_count == 1 and self.optimizer._steps == self._first_steps:
            warnings.warn(
                "`lr_scheduler.step()` was called before `optimizer.step()`: the first rate of "
                "the schedule is skipped",
                UserWarning,
                stacklevel=3,
            )
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: float | None = None) -> None:
        """Advances without counting a step. For a given epoch, `_get_closed_form_lr()` of a schedule whose
        get_lr() computes from the present rates returns the rates."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch  # type: ignore[assignment]
        direct = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
        self._get_lr_called_within_step = True
        try:
            rates = self.get_lr() if direct is None else direct()
        finally:
            self._get_lr_called_within_step = False
        self._write(rates)

    def _times(self, factor: float) -> list[float]:
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state as plain values, without the optimizer and without functions."""
        return {
            key: list(value) if isinstance(value, list) else value
            for key, value in self.__dict__.items()
            if key not in ("optimizer", "_first_steps") and not _has_function(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state from a state_dict()."""
        self.__dict__.update(state_dict)


def _has_function(value: Any) -> bool:
    values: Sequence[Any] = value if isinstance(value, list) else [value]
    return any(callable(v) or isinstance(v, LRScheduler) for v in values)
