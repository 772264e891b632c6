"""The optimizers Adam, AdamW and SparseAdam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _api as tt, _core
from .._names import ops as _ops
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ..sparse._gradients import Rows
from ._lists import ListOptimizer, check_common, options
from .optimizer import Optimizer

__all__ = ["Adam", "AdamW", "SparseAdam"]


class Adam(ListOptimizer):
    """Adam: with m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2,
    p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Source: Kingma, Ba 2014.

    weight_decay * p is added to g; with decoupled_weight_decay p is instead reduced by lr * weight_decay *
    p (Loshchilov, Hutter 2017). amsgrad uses the largest v so far (Reddi et al. 2018); maximize negates g.
    State: "step" (a number), "exp_avg", "exp_avg_sq", and with amsgrad "max_exp_avg_sq". `lr` may be a 0-d
    tensor. foreach, capturable, differentiable and fused are accepted and have no effect.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if group["amsgrad"] else None)

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["exp_avg"] = tt.zeros_like(parameter)
        state["exp_avg_sq"] = tt.zeros_like(parameter)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = tt.zeros_like(parameter)

    def _sparse_step(self, group: dict[str, Any], parameter: Tensor, gradient: SparseTensor) -> None:
        raise RuntimeError("Adam does not support sparse gradients, please consider SparseAdam instead")

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        beta1, beta2 = group["betas"]
        _ops.adam_step(
            *lists,
            group["lr"],
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            self._count(numbers),
            self._skip,
            group["amsgrad"],
            group["decoupled_weight_decay"],
            group["maximize"],
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself: p -= lr * weight_decay * p, instead of
    changing the gradient. Source: Loshchilov, Hutter 2017."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class SparseAdam(Optimizer):
    """Adam that changes only the rows that a sparse gradient has, and only these rows of the states: those
    of an embedding (`sparse=True`) that a batch looked up. RuntimeError for dense gradients.

    State: "step" (a number), "exp_avg", "exp_avg_sq".
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        for name, text in (("lr", "learning rate"), ("eps", "epsilon value")):
            if not group[name] > 0:
                raise ValueError(f"Invalid {text}: {group[name]}")
        if _core.any_complex(group["params"]):
            raise ValueError("SparseAdam does not support complex parameters")

    def _update(self, group: dict[str, Any]) -> None:
        gradients = [(each, each.grad) for each in group["params"] if each.grad is not None]
        if any(not isinstance(gradient, SparseTensor) for _, gradient in gradients):
            raise RuntimeError("SparseAdam does not support dense gradients, please consider Adam instead")
        for parameter, gradient in gradients:
            self._sparse_step(group, parameter, gradient)

    def _sparse_step(self, group: dict[str, Any], parameter: Tensor, gradient: SparseTensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = tt.zeros_like(parameter)
            state["exp_avg_sq"] = tt.zeros_like(parameter)
        step = state["step"] = int(state["step"]) + 1
        beta1, beta2 = group["betas"]
        rows = Rows(gradient)
        found = -rows.sums if group["maximize"] else rows.sums
        mean = rows.of(state["exp_avg"]).lerp(found, 1 - beta1)
        square = rows.of(state["exp_avg_sq"]).lerp(found * found, 1 - beta2)
        rows.put(state["exp_avg"], mean)
        rows.put(state["exp_avg_sq"], square)
        size = group["lr"] * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        rows.put(parameter, rows.of(parameter) - size * mean / (square.sqrt() + group["eps"]))
