"""The optimizers Adam, AdamW and SparseAdam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _api as tt, _core
from .._names import ops as _ops
from .._tensors.tensor import Tensor
from ._lists import ListOptimizer, options

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


class SparseAdam(ListOptimizer):
    """Adam that does not change rows (along dimension 0) whose gradient is zero, nor their states: those of
    an embedding that a batch did not look up. Gradients are dense, even with `sparse=True`.

    State: "step" (a number), "exp_avg", "exp_avg_sq".
    """

    counts_only = False

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
        super()._check_group(group)
        for name, text in (("lr", "learning rate"), ("eps", "epsilon value")):
            if not group[name] > 0:
                raise ValueError(f"Invalid {text}: {group[name]}")
        if _core.any_complex(group["params"]):
            raise ValueError("SparseAdam does not support complex parameters")

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        state["exp_avg"] = tt.zeros_like(parameter)
        state["exp_avg_sq"] = tt.zeros_like(parameter)

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        beta1, beta2 = group["betas"]
        size = group["lr"] * (1 - beta2**numbers) ** 0.5 / (1 - beta1**numbers)
        for parameter, gradient, mean, square in zip(*lists, strict=True):
            gradient = -gradient if group["maximize"] else gradient
            inner = tuple(range(1, gradient.dim()))
            rows = (gradient != 0).any(inner, keepdim=True).to(parameter.dtype)
            mean.lerp_(gradient, rows * (1 - beta1))
            square.lerp_(gradient * gradient, rows * (1 - beta2))
            parameter.sub_(rows * size * mean / (square.sqrt() + group["eps"]))
