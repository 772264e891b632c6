"""The optimizers Rprop, which uses the signs of gradients, and ASGD, which averages the parameters.
foreach, capturable and differentiable are accepted and have no effect; maximize negates the gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from .. import _api as tt
from .._names import ops as _ops
from .._tensors.tensor import Tensor
from ._lists import ListOptimizer, options
from .optimizer import _check_range

__all__ = ["ASGD", "Rprop"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class Rprop(ListOptimizer):
    """Each element has its own step size and moves by it against the sign of its gradient. The size is
    multiplied by etas[1] if the sign is the same as in the previous step and by etas[0] if it has changed,
    and stays within step_sizes. Source: Riedmiller, Braun 1993. State: "step", "prev" (the previous
    gradient), "step_size"."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        minus, plus = group["etas"]
        if not 0.0 < minus < 1.0 < plus:
            raise ValueError(f"Invalid eta values: {minus}, {plus}")

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("prev", "step_size")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["prev"] = tt.zeros_like(parameter)
        lr = group["lr"]
        first = complex(lr, lr) if parameter.is_complex() else lr
        state["step_size"] = tt.full_like(parameter, first)

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        state["step"] = int(state["step"]) + 1
        return None

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.rprop_step(
            *lists, *group["etas"], *group["step_sizes"], self._skip, group["maximize"]
        )


class ASGD(ListOptimizer):
    """Averaged SGD: p is reduced by lambd * eta * p and then by eta * g, where eta = lr / (1 + lambd lr
    t)^alpha; from step t0 on, "ax" is the average of all p. Source: Polyak, Juditsky 1992. State: "step",
    "eta" and "mu" (numbers), "ax"."""

    counts_only = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        _check_range("alpha value", group["alpha"], group["alpha"] >= 0.0)

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("ax",)

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["eta"] = float(group["lr"])
        state["mu"] = 1.0
        state["ax"] = tt.zeros_like(parameter)

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        now = float(state["eta"]), float(state["mu"])
        step = state["step"] = int(state["step"]) + 1
        lr = float(group["lr"])
        state["eta"] = lr / (1 + group["lambd"] * lr * step) ** group["alpha"]
        state["mu"] = 1 / max(1, step - group["t0"])
        return now

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        eta, mu = numbers
        _ops.asgd_step(
            *lists, eta, group["lambd"], mu, group["weight_decay"], self._skip, group["maximize"]
        )
