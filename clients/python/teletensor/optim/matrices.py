"""Optimizers that treat a gradient as a matrix: Adafactor and Muon. A step is a few instructions for each
parameter, and does not wait for any value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ._lists import options
from .optimizer import Optimizer, _check_range, _check_rate

__all__ = ["Adafactor", "Muon"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class Adafactor(Optimizer):
    """Adam whose second moments are stored as the row and column means of matrices. Source: Shazeer, Stern
    2018, in PyTorch's variant. State: "step", "row_var" and "col_var", or "variance" for vectors."""

    _needs_whole = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        _check_rate(group["lr"])
        if group["beta2_decay"] > 0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {group['beta2_decay']}")
        for number, epsilon in enumerate(group["eps"], 1):
            if epsilon is not None and epsilon < 0:
                raise ValueError(f"epsilon{number} should be >= 0 but is: {epsilon}")
        if group["d"] < 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {group['d']}")
        _check_range("weight_decay", group["weight_decay"], group["weight_decay"] >= 0.0)

    def _update(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.is_complex():
                raise RuntimeError("Adafactor does not support complex parameters")
            if isinstance(p.grad, SparseTensor):
                self._sparse_step(group, p, p.grad)
            elif p.grad is not None:
                self._one(group, p, -p.grad if group["maximize"] else p.grad)

    def _one(self, group: dict[str, Any], p: Tensor, g: Tensor) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            if p.dim() > 1:
                state["row_var"] = tt.zeros((*p.shape[:-1], 1), dtype=p.dtype, device=p.device)
                state["col_var"] = tt.zeros(
                    (*p.shape[:-2], 1, p.shape[-1]), dtype=p.dtype, device=p.device
                )
            else:
                state["variance"] = tt.zeros_like(p)
        step = state["step"] = int(state["step"]) + 1
        lr, (first, second) = float(group["lr"]), group["eps"]
        epsilon = tt.finfo(p.dtype).eps if first is None else first
        kept = step ** group["beta2_decay"]
        rho = min(lr, 1 / math.sqrt(step))
        alpha = (p.norm(2) / math.sqrt(p.numel())).clamp(min=second) * rho
        if group["weight_decay"] != 0:
            p.mul_(1 - lr * group["weight_decay"])
        if p.dim() > 1:
            rows, columns = state["row_var"], state["col_var"]
            rows.lerp_(g.norm(dim=-1, keepdim=True).square().div(g.size(-1)), kept)
            columns.lerp_(g.norm(dim=-2, keepdim=True).square().div(g.size(-2)), kept)
            estimate = (rows @ columns) / rows.mean(-2, keepdim=True).clamp(min=epsilon)
        else:
            state["variance"].lerp_(g * g, kept)
            estimate = state["variance"].clone()
        update = estimate.clamp(min=epsilon * epsilon).rsqrt() * g
        limit = (update.norm(2) / (math.sqrt(update.numel()) * group["d"])).clamp(min=1.0)
        p.sub_(update * (alpha / limit))


# The factor of Muon's learning rate for a matrix of a rows and b columns, by adjust_lr_fn.
_RATE_OF_SHAPE: dict[str | None, Callable[[int, int], float]] = {
    None: lambda a, b: math.sqrt(max(1, a / b)),
    "original": lambda a, b: math.sqrt(max(1, a / b)),
    "match_rms_adamw": lambda a, b: 0.2 * math.sqrt(max(a, b)),
    "spectral_unclamped": lambda a, b: math.sqrt(a / b),
}


class Muon(Optimizer):
    """Momentum whose update is orthogonalised by Newton-Schulz iterations; for matrices only. Source:
    Jordan 2024, in PyTorch's variant. State: "momentum_buffer"."""

    _needs_whole = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        _check_rate(group["lr"])
        for name in ("momentum", "weight_decay"):
            _check_range(name, group[name], group[name] >= 0.0)
        if group["adjust_lr_fn"] not in _RATE_OF_SHAPE:
            raise ValueError(
                f"Adjust learning rate function {group['adjust_lr_fn']} is not supported"
            )
        if group["ns_steps"] >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
        for p in group["params"]:
            if p.dim() != 2:
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: "
                    f"{p.size()}"
                )

    def _update(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.grad is None:
                continue
            if isinstance(p.grad, SparseTensor):
                self._sparse_step(group, p, p.grad)
                continue
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = tt.zeros_like(p.grad)
            average = state["momentum_buffer"]
            average.lerp_(p.grad, 1 - group["momentum"])
            update = p.grad.lerp(average, group["momentum"]) if group["nesterov"] else average
            update = _orthogonal(update, group)
            lr, (a, b) = float(group["lr"]), p.shape
            scaled = lr * _RATE_OF_SHAPE[group["adjust_lr_fn"]](a, b)
            p.mul_(1 - lr * group["weight_decay"])
            p.add_(update, alpha=-scaled)


def _orthogonal(g: Tensor, group: dict[str, Any]) -> Tensor:
    """An approximation of the orthogonal matrix closest to g, computed in bfloat16. Each `addmm` rounds
    once."""
    a, b, c = group["ns_coefficients"]
    x = g.to(tt.bfloat16)
    turned = g.shape[0] > g.shape[1]
    if turned:
        x = x.t()
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.t()
        x = tt.addmm(x, tt.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.t() if turned else x).to(g.dtype)
