"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import teletensor as tt

from .. import _ops
from .._tensor import Tensor
from .optimizer import Optimizer, _check_range

__all__ = ["Adam", "AdamW"]

# params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs
_Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


class Adam(Optimizer):
    """Adam: with m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2,
    p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Source: Kingma, Ba 2014.

    weight_decay * p is added to g, or with decoupled_weight_decay p shrinks by lr * weight_decay
    (Loshchilov, Hutter 2017). amsgrad uses the largest v so far (Reddi et al. 2018); maximize
    negates g. State: "step" (a number), "exp_avg", "exp_avg_sq", with amsgrad "max_exp_avg_sq".
    `lr` may be a 0-d tensor. foreach and fused are accepted and change nothing.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        lr, eps, betas = group["lr"], group["eps"], group["betas"]
        if not isinstance(lr, Tensor):
            _check_range("learning rate", lr, lr >= 0.0)
        _check_range("epsilon value", eps, eps >= 0.0)
        for i, beta in enumerate(betas):
            _check_range(f"beta parameter at index {i}", beta, 0.0 <= beta < 1.0)
        _check_range("weight_decay value", group["weight_decay"], group["weight_decay"] >= 0.0)

    def _update(self, group: dict[str, Any]) -> None:
        amsgrad = group["amsgrad"]
        # Parameters whose gradients began at different steps need different bias corrections.
        by_step: dict[int, _Lists] = {}
        lists: _Lists | None = None
        last_step = -1
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["exp_avg"] = tt.zeros_like(parameter)
                state["exp_avg_sq"] = tt.zeros_like(parameter)
            if amsgrad and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = tt.zeros_like(parameter)
            step = state["step"] = int(state["step"]) + 1
            if step != last_step or lists is None:
                last_step = step
                lists = by_step.setdefault(step, ([], [], [], [], []))
            lists[0].append(parameter)
            lists[1].append(gradient)
            lists[2].append(state["exp_avg"])
            lists[3].append(state["exp_avg_sq"])
            if amsgrad:
                lists[4].append(state["max_exp_avg_sq"])
        beta1, beta2 = group["betas"]
        for step, full in by_step.items():
            _ops.adam_step(
                *full,
                group["lr"],
                beta1,
                beta2,
                group["eps"],
                group["weight_decay"],
                step,
                amsgrad,
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
            decoupled_weight_decay=True,
        )
