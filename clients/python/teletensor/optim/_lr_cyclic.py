"""Cyclic learning rates: CyclicLR, OneCycleLR. Both can move the momentum in the opposite direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ._lr_base import LRScheduler, per_group, set_rate
from .optimizer import Optimizer

__all__ = ["CyclicLR", "OneCycleLR"]


class _WithMomentum(LRScheduler):
    cycle_momentum: bool
    use_beta1: bool

    def _begin_momentum(
        self, optimizer: Optimizer, cycle: bool, base: Any, top: Any, last_epoch: int
    ) -> None:
        self.cycle_momentum = cycle
        if not cycle:
            return
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
            )
        self.use_beta1 = "betas" in optimizer.defaults
        bases = per_group("base_momentum", optimizer, base)
        tops = per_group("max_momentum", optimizer, top)
        if last_epoch == -1:
            for group, low, high in zip(optimizer.param_groups, bases, tops, strict=True):
                self._set_momentum(group, high)
                group["max_momentum"] = high
                group["base_momentum"] = low

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(_WithMomentum):
    """Raises the rate from base_lr to max_lr in step_size_up batches and lowers it again in step_size_down
    batches, repeatedly. The amplitude of cycle n is scaled by 1 ("triangular"), 1 / 2^(n-1)
    ("triangular2"), gamma^batches ("exp_range"), or by scale_fn of the cycle or of the batch (scale_mode
    "cycle" or "iterations"). Momentum moves in the opposite direction, between max_momentum and
    base_momentum. Source: Smith 2015."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        base_lrs = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                set_rate(group, rate)
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up) + float(down)
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode = mode
        self.gamma = gamma
        self._scale_fn = scale_fn
        if scale_fn is None:
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.scale_mode = scale_mode
        self._begin_momentum(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The factor of the amplitude of a cycle."""
        if self._scale_fn is not None:
            return self._scale_fn(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        if x <= self.step_ratio:
            part = x / self.step_ratio
        else:
            part = (x - 1) / (self.step_ratio - 1)
        part *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                low, high = group["base_momentum"], group["max_momentum"]
                self._set_momentum(group, high - (high - low) * part)
        return [
            base + (top - base) * part
            for base, top in zip(self.base_lrs, self.max_lrs, strict=True)
        ]


class OneCycleLR(_WithMomentum):
    """Raises the rate from max_lr / div_factor to max_lr in the first pct_start of all steps, then lowers
    it to the initial rate divided by final_div_factor. With three_phase it is first lowered to the initial
    rate in as many steps as it was raised, and to the final rate in the remaining steps. anneal_strategy is
    "cos" or "linear". Momentum moves in the opposite direction, between max_momentum and base_momentum.
    Call step() once per batch. Source: Smith, Topin 2017."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError(
                    "You must define either total_steps OR (epochs AND steps_per_epoch)"
                )
            for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
                if not isinstance(value, int) or value <= 0:
                    raise ValueError(f"Expected positive integer {name}, but got {value}")
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        # For each phase: its last step, then the rate and the momentum at its start and end.
        up = (
            pct_start * total_steps - 1,
            "initial_lr",
            "max_lr",
            "max_momentum",
            "base_momentum",
        )
        if three_phase:
            self._phases = [
                up,
                (
                    2 * pct_start * total_steps - 2,
                    "max_lr",
                    "initial_lr",
                    "base_momentum",
                    "max_momentum",
                ),
                (total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self._phases = [
                up,
                (total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"),
            ]
        if last_epoch == -1:
            tops = per_group("max_lr", optimizer, max_lr)
            for group, rate in zip(optimizer.param_groups, tops, strict=True):
                group["initial_lr"] = rate / div_factor
                group["max_lr"] = rate
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self._begin_momentum(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        last = len(self._phases) - 1
        now = next((i for i, phase in enumerate(self._phases) if step <= phase[0]), last)
        begin = self._phases[now - 1][0] if now else 0.0
        end, *names = self._phases[now]
        part = (step - begin) / (end - begin)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[names[0]], group[names[1]], part))
            if self.cycle_momentum:
                self._set_momentum(
                    group, self._between(group[names[2]], group[names[3]], part)
                )
        return rates
