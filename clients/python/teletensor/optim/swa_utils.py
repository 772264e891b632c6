"""Averages of a model's weights during training: AveragedModel (equal or exponential weights), a learning
rate schedule, and the batch norm statistics of the averaged model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..nn.module import Module
from ._lr_base import LRScheduler, per_group
from .optimizer import Optimizer

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

_Average = Callable[[Tensor, Tensor, Any], Tensor]
_MultiAverage = Callable[[list[Tensor], list[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )


def get_ema_multi_avg_fn(decay: float = 0.999) -> _MultiAverage:
    """Returns a function of lists of averages and parameters: average = decay * average + (1 - decay) *
    parameter, in place."""
    _check_decay(decay)

    def ema_update(averages: list[Tensor], parameters: list[Tensor], _: Any) -> None:
        with tt.no_grad():
            for average, parameter in zip(averages, parameters, strict=True):
                average.copy_(average * decay + parameter * (1 - decay))

    return ema_update


def get_swa_multi_avg_fn() -> _MultiAverage:
    """Returns a function of lists of averages and parameters and the number n of values in the average:
    average += (parameter - average) / (n + 1), in place."""

    def swa_update(averages: list[Tensor], parameters: list[Tensor], number: Any) -> None:
        with tt.no_grad():
            for average, parameter in zip(averages, parameters, strict=True):
                average.copy_(average + (parameter - average) / (number + 1))

    return swa_update


def get_ema_avg_fn(decay: float = 0.999) -> _Average:
    """As get_ema_multi_avg_fn for one parameter; the function returns the new average."""
    _check_decay(decay)

    def ema_update(average: Tensor, parameter: Tensor, _: Any) -> Tensor:
        with tt.no_grad():
            new: Tensor = decay * average + (1 - decay) * parameter
            return new

    return ema_update


def get_swa_avg_fn() -> _Average:
    """As get_swa_multi_avg_fn for one parameter; the function returns the new average."""

    def swa_update(average: Tensor, parameter: Tensor, number: Any) -> Tensor:
        with tt.no_grad():
            new: Tensor = average + (parameter - average) / (number + 1)
            return new

    return swa_update


class AveragedModel(Module):
    """A copy of a model (`module`) whose parameters are averages of the model's; calling it calls the copy.
    `update_parameters(model)` adds the present parameters to the average: the first values are copied,
    later ones are combined by avg_fn or multi_avg_fn (by default with equal weights). Buffers are copied,
    or averaged with use_buffers. Source: Izmailov et al. 2018.

    >>> model = tt.nn.Linear(1, 1)
    >>> ema = tt.optim.swa_utils.AveragedModel(
    ...     model, multi_avg_fn=tt.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    >>> ema.update_parameters(model)
    >>> ema.n_averaged.item()
    1
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: _Average | None = None,
        multi_avg_fn: _MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tt.tensor(0, dtype=tt.int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers
        # The value of n_averaged as the client knows it, so that no step needs to read it.
        self._count: int | None = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As Module.load_state_dict."""
        self._count = None
        return super().load_state_dict(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Adds the present parameters of the model to the average. Does not wait for any value."""
        if self._count is None:
            self._count = int(self.n_averaged.item())
        mine: list[Tensor] = list(self.module.parameters())
        theirs: list[Tensor] = list(model.parameters())
        my_buffers, their_buffers = list(self.module.buffers()), list(model.buffers())
        if self.use_buffers:
            mine += my_buffers
            theirs += their_buffers
        with tt.no_grad():
            averages = [average.detach() for average in mine]
            values = [
                value.detach().to(average.device)
                for average, value in zip(averages, theirs, strict=True)
            ]
            if self._count == 0:
                for average, value in zip(averages, values, strict=True):
                    average.copy_(value)
            elif self.avg_fn is not None:
                for average, value in zip(averages, values, strict=True):
                    average.copy_(self.avg_fn(average, value, self._count))
            else:
                average_all = self.multi_avg_fn or get_swa_multi_avg_fn()
                average_all(averages, values, self._count)
            if not self.use_buffers:
                for buffer, value in zip(my_buffers, their_buffers, strict=True):
                    buffer.detach().copy_(value.detach().to(buffer.device))
            self.n_averaged += 1
        self._count += 1


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Makes one pass over the batches of the loader (or the first elements of batches), in which every
    batch norm of the model sets its running statistics to the average over all batches."""
    momenta: dict[Any, Any] = {}
    module: Any
    for module in model.modules():
        if hasattr(module, "reset_running_stats") and hasattr(module, "running_mean"):
            module.reset_running_stats()
            momenta[module] = module.momentum
    if not momenta:
        return
    was_training = model.training
    model.train()
    for norm in momenta:
        norm.momentum = None
    with tt.no_grad():
        for batch in loader:
            input = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(input if device is None else input.to(device))
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Changes the rates from their present values to swa_lr in anneal_epochs epochs, along half a cosine
    ("cos") or a line ("linear"), and then keeps swa_lr."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        rates = per_group("swa_lr", optimizer, swa_lr)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(
                f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}"
            )
        self.anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _weight(self, step: int) -> float:
        part = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return part if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * part)) / 2

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._weight(step - 1), self._weight(step)
        rates = []
        for group in self.optimizer.param_groups:
            end, rate = group["swa_lr"], group["lr"]
            start = end if before == 1 else (rate - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates
