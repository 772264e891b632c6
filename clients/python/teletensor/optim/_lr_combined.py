"""Schedules made of schedules: SequentialLR, ChainedScheduler."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ._lr_base import LRScheduler
from .optimizer import Optimizer

__all__ = ["ChainedScheduler", "SequentialLR"]


class _Combined(LRScheduler):
    """Keeps the schedulers' states under "_schedulers"."""

    _schedulers: list[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        """The schedulers' states under "_schedulers"."""
        state = super().state_dict()
        state["_schedulers"] = [scheduler.state_dict() for scheduler in self._schedulers]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state_dict()."""
        state = dict(state_dict)
        for scheduler, saved in zip(self._schedulers, state.pop("_schedulers"), strict=True):
            scheduler.load_state_dict(saved)
        super().load_state_dict(state)


class SequentialLR(_Combined):
    """Each scheduler in turn: the next one begins at each milestone."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, but got number of schedulers {len(schedulers)} "
                f"and the number of milestones to be equal to {len(milestones)}"
            )
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError("SequentialLR: all schedulers need the optimizer given to it")
        self.optimizer = optimizer
        self._schedulers = list(schedulers)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        # Each scheduler's construction changed the rates; begin again with the first one.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self._schedulers:
            scheduler.last_epoch -= 1
        first = self._schedulers[0]
        first._initial = True
        first.step()
        first._initial = False
        self._last_lr = first.get_last_lr()

    def _go_on(self, epoch: float | None) -> None:
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            scheduler.last_epoch = -1
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]
        scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """All schedulers at each step, one after the other, each on the rates that the last one left.
    They belong to one optimizer; ReduceLROnPlateau is not possible here."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                "ChainedScheduler expects at least one scheduler to be chained, but got no scheduler."
            )
        self.optimizer = optimizer or schedulers[0].optimizer
        for i, scheduler in enumerate(schedulers):
            if getattr(scheduler, "needs_metrics", False):
                raise ValueError(
                    "ChainedScheduler does not support `ReduceLROnPlateau`, got one at index "
                    f"{i}: its step needs an argument"
                )
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(
                    "ChainedScheduler expects all schedulers to belong to the same optimizer; "
                    f"that of the scheduler at index {i} is another one"
                )
        self._schedulers = list(schedulers)
        self._last_lr = self._rates

    def _go_on(self, epoch: float | None) -> None:
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates
