"""Schedules of learning rates as functions of the number of epochs (or of whatever `step()` counts).

A scheduler sets `group["lr"]` of its optimizer; call its `step()` after the optimizer's.

>>> optimizer = tt.optim.SGD([tt.nn.Parameter(tt.ones(1))], lr=0.5)
>>> scheduler = tt.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
>>> for epoch in range(4):
...     optimizer.step()
...     scheduler.step()
>>> scheduler.get_last_lr()
[0.125]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._lr_base import LRScheduler, per_group
from ._lr_combined import ChainedScheduler, SequentialLR
from ._lr_cyclic import CyclicLR, OneCycleLR
from .optimizer import Optimizer

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class _LRScheduler(LRScheduler):
    """LRScheduler under its name before PyTorch 2.0, for programs that derive from it."""


class LambdaLR(LRScheduler):
    """The initial rate times lr_lambda(epoch); there is one function, or one for each group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [
            base * factor(self.last_epoch)
            for factor, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(LambdaLR):
    """The previous rate times lr_lambda(epoch)."""

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._is_initial:
            return self._rates
        return [
            rate * factor(self.last_epoch)
            for factor, rate in zip(self.lr_lambdas, self._rates, strict=True)
        ]


class StepLR(LRScheduler):
    """Multiplies the rate by gamma every step_size epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._rates
        return [rate * self.gamma for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        return self._times(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(LRScheduler):
    """Multiplies the rate by gamma at each epoch in `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [rate * self.gamma ** self.milestones[self.last_epoch] for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        passed = sum(count for epoch, count in self.milestones.items() if epoch <= self.last_epoch)
        return self._times(self.gamma**passed)


class ExponentialLR(LRScheduler):
    """Multiplies the rate by gamma at each epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._is_initial:
            return self._rates
        return [rate * self.gamma for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        return self._times(self.gamma**self.last_epoch)


class ConstantLR(LRScheduler):
    """The initial rate times factor in the first total_iters epochs, and the initial rate afterwards."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [rate * self.factor for rate in self._rates]
        if self.last_epoch != self.total_iters:
            return self._rates
        return [rate * (1.0 / self.factor) for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        return self._times(1.0 if self.last_epoch >= self.total_iters else self.factor)


class LinearLR(LRScheduler):
    """The initial rate times a factor that changes linearly from start_factor to end_factor in total_iters
    epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError("Starting multiplicative factor expected to be in (0, 1].")
        if not 0 <= end_factor <= 1.0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self._rates]
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates
        slope = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * slope
        return [rate * (1.0 + slope / before) for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        part = min(self.total_iters, self.last_epoch) / self.total_iters
        return self._times(self.start_factor + (self.end_factor - self.start_factor) * part)


class PolynomialLR(LRScheduler):
    """The initial rate times (1 - epoch / total_iters) ** power, and 0 afterwards."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._is_initial or self.last_epoch > self.total_iters:
            return self._rates
        now = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return [rate * (now / before) ** self.power for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        part = min(self.total_iters, self.last_epoch) / self.total_iters
        return self._times((1.0 - part) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """Lowers the rate from its initial value to eta_min along half a cosine of T_max epochs, and raises it
    again. Source: Loshchilov, Hutter 2016 (without restarts); computed by PyTorch's recursion, so that
    other changes of the rate are preserved."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, period, low = self.last_epoch, self.T_max, self.eta_min
        if epoch == 0 or self._is_initial:
            return self._rates
        if (epoch - 1 - period) % (2 * period) == 0:
            rise = (1 - math.cos(math.pi / period)) / 2
            return [
                rate + (base - low) * rise
                for rate, base in zip(self._rates, self.base_lrs, strict=True)
            ]
        now = 1 + math.cos(math.pi * epoch / period)
        before = 1 + math.cos(math.pi * (epoch - 1) / period)
        return [now / before * (rate - low) + low for rate in self._rates]

    def _get_closed_form_lr(self) -> list[float]:
        cosine = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * cosine for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Lowers the rate from its initial value to eta_min along half a cosine of T_0 epochs, and then
    restarts; each period is T_mult times as long as the previous one. T_cur epochs of the present period of
    T_i epochs have passed. Source: Loshchilov, Hutter 2016."""

    T_cur: float
    T_i: int

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _update_lr(self, epoch: float | None = None) -> None:
        """The epoch may be a fraction: the rate is that of the exact position on the cosine, and later
        steps without an epoch advance from there."""
        if epoch is None and not self._is_initial:
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur - self.T_i, self.T_i * self.T_mult
        else:
            self._place(self.last_epoch + 1 if epoch is None else epoch)
        super()._update_lr(epoch)
        self.last_epoch = math.floor(self.last_epoch)

    def _place(self, epoch: float) -> None:
        if epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        self.T_cur, self.T_i = epoch, self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur, self.T_i = self.T_cur - self.T_i, self.T_i * self.T_mult
            if self.T_mult == 1:
                self.T_cur %= self.T_i

    def get_lr(self) -> list[float]:
        cosine = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * cosine for base in self.base_lrs]


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rate by `factor` if the value given to step() has not improved for more than
    `patience` epochs.

    An improvement is a value below best * (1 - threshold) with mode "min" and threshold_mode "rel", below
    best - threshold with "abs", and above the corresponding bounds with mode "max". After a reduction,
    `cooldown` epochs are not counted; rates stay at or above min_lr, and reductions of at most eps are not
    made.
    """

    needs_metrics = True

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.eps = eps
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.last_epoch = 0
        self._last_lr = self._rates
        self._reset()

    def _reset(self) -> None:
        """Forgets the best value and the epochs that were counted."""
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs are not counted because of an earlier reduction."""
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            limit = best * (1.0 + sign * self.threshold)
        else:
            limit = best + sign * self.threshold
        return a > limit if self.mode == "max" else a < limit

    def _reduce_lr(self, epoch: float) -> None:
        """Lowers the rates; programs override it to see reductions."""
        lower = [
            max(rate * self.factor, low) for rate, low in zip(self._rates, self.min_lrs, strict=True)
        ]
        self._write(
            new if old - new > self.eps else old for old, new in zip(self._rates, lower, strict=True)
        )

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Records the value of the epoch: a number, or a 0-d tensor, whose value is waited for."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value, self.best):
            self.best = value
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(self.last_epoch)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._rates
