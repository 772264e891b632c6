"""Optimizers that scale the step of each element by its past gradients: Adamax, NAdam, RAdam, Adagrad,
Adadelta, RMSprop. All accept foreach, fused, capturable and differentiable without effect; `lr` may be a
0-d tensor; maximize negates the gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from .. import _api as tt
from .._names import ops as _ops
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ..sparse._gradients import Rows
from ._lists import ListOptimizer, options
from .optimizer import _check_range

__all__ = ["Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class Adamax(ListOptimizer):
    """Adam with the infinity norm: u = max(beta2 u, |g| + eps), p -= lr / (1 - beta1^t) * m / u.
    Source: Kingma, Ba 2014. State: "step", "exp_avg", "exp_inf"."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_inf")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["exp_avg"] = tt.zeros_like(parameter)
        state["exp_inf"] = tt.zeros_like(parameter)

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.adamax_step(
            *lists,
            group["lr"],
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            self._count(numbers),
            self._skip,
            group["maximize"],
        )


class NAdam(ListOptimizer):
    """Adam with Nesterov's momentum, which grows from step to step: mu_t = beta1 (1 - 0.96^(t
    momentum_decay) / 2). Source: Dozat 2016. State: "step" and "mu_product" (numbers), "exp_avg",
    "exp_avg_sq"."""

    counts_only = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["mu_product"] = 1.0
        state["exp_avg"] = tt.zeros_like(parameter)
        state["exp_avg_sq"] = tt.zeros_like(parameter)

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        step = state["step"] = int(state["step"]) + 1
        beta1, decay = group["betas"][0], group["momentum_decay"]
        mu = beta1 * (1.0 - 0.5 * 0.96 ** (step * decay))
        mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((step + 1) * decay))
        product = state["mu_product"] = float(state["mu_product"]) * mu
        return mu, mu_next, product, step

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.nadam_step(
            *lists,
            group["lr"],
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            *numbers,
            self._skip,
            group["decoupled_weight_decay"],
            group["maximize"],
        )


class RAdam(ListOptimizer):
    """Adam that omits the second moment until it is based on enough gradients, and rectifies it afterwards.
    Source: Liu et al. 2019. State: "step", "exp_avg", "exp_avg_sq"."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["exp_avg"] = tt.zeros_like(parameter)
        state["exp_avg_sq"] = tt.zeros_like(parameter)

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.radam_step(
            *lists,
            group["lr"],
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            self._count(numbers),
            self._skip,
            group["decoupled_weight_decay"],
            group["maximize"],
        )


class Adagrad(ListOptimizer):
    """s += g^2, p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps). Source: Duchi et al. 2011. State:
    "step" and "sum", whose initial value is initial_accumulator_value."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, options(**locals()))
        for group in self.param_groups:
            for parameter in group["params"]:
                self._begin(group, parameter, self.state[parameter])

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        value = group["initial_accumulator_value"]
        _check_range("initial_accumulator_value value", value, value >= 0.0)

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("sum",)

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        with tt.no_grad():
            value = group["initial_accumulator_value"]
            first = complex(value, value) if parameter.is_complex() else value
            state["sum"] = tt.full_like(parameter, first)

    def _sparse_step(self, group: dict[str, Any], parameter: Tensor, gradient: SparseTensor) -> None:
        if group["weight_decay"] != 0:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        state = self.state[parameter]
        step = state["step"] = int(state["step"]) + 1
        rows = Rows(gradient)
        found = -rows.sums if group["maximize"] else rows.sums
        total = rows.of(state["sum"]) + found * found
        rows.put(state["sum"], total)
        rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        rows.put(parameter, rows.of(parameter) - rate * found / (total.sqrt() + group["eps"]))

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.adagrad_step(
            *lists,
            group["lr"],
            group["lr_decay"],
            group["eps"],
            group["weight_decay"],
            self._count(numbers),
            self._skip,
            group["maximize"],
        )


class Adadelta(ListOptimizer):
    """v = rho v + (1 - rho) g^2, d = sqrt(u + eps) / sqrt(v + eps) * g, u = rho u + (1 - rho) d^2,
    p -= lr d. Source: Zeiler 2012. State: "step", "square_avg" (v), "acc_delta" (u)."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        _check_range("rho value", group["rho"], 0.0 <= group["rho"] <= 1.0)

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("square_avg", "acc_delta")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["square_avg"] = tt.zeros_like(parameter)
        state["acc_delta"] = tt.zeros_like(parameter)

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        state["step"] = int(state["step"]) + 1
        return None

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.adadelta_step(
            *lists,
            group["lr"],
            group["rho"],
            group["eps"],
            group["weight_decay"],
            self._skip,
            group["maximize"],
        )


class RMSprop(ListOptimizer):
    """v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps). `centered` subtracts the square of the
    average of g from v; with momentum, p -= lr b with the buffer b = momentum b + g / (sqrt(v) + eps).
    Source: Hinton 2012; Graves 2013. State: "step", "square_avg", with momentum "momentum_buffer", with
    centered "grad_avg"."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        _check_range("alpha value", group["alpha"], group["alpha"] >= 0.0)

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return (
            "square_avg",
            "momentum_buffer" if group["momentum"] > 0 else None,
            "grad_avg" if group["centered"] else None,
        )

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        for name in self._states(group):
            if name is not None:
                state[name] = tt.zeros_like(parameter)

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        state["step"] = int(state["step"]) + 1
        return None

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        _ops.rmsprop_step(
            *lists,
            group["lr"],
            group["alpha"],
            group["eps"],
            group["weight_decay"],
            group["momentum"],
            self._skip,
            group["maximize"],
        )
