"""The optimizer SGD."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _api as tt
from .._names import ops as _ops
from .._script import capturing as _capturing
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ..sparse._coo import CooTensor
from ._lists import ListOptimizer, options, reals

__all__ = ["SGD"]


class SGD(ListOptimizer):
    """Stochastic gradient descent: p -= lr * d, where d is g + weight_decay * p (with maximize, g is
    negated). With momentum, d is replaced by the buffer b = momentum * b + (1 - dampening) * d (at the
    first step b = d), or with nesterov by d + momentum * b. Source: Sutskever et al. 2013.

    State: "momentum_buffer", only with momentum. `lr` may be a 0-d tensor. foreach, differentiable and
    fused are accepted and have no effect.

    >>> w = tt.nn.Parameter(tt.tensor([1.0]))
    >>> optimizer = tt.optim.SGD([w], lr=0.5)
    >>> (w * 3).sum().backward()
    >>> optimizer.step()
    >>> w.item()
    -0.5
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, options(**locals()))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def _update(self, group: dict[str, Any]) -> None:
        group = _capturing.group(group)
        params: list[Tensor] = []
        grads: list[Tensor] = []
        if not group["momentum"]:
            for parameter in group["params"]:
                gradient = parameter.grad
                if isinstance(gradient, SparseTensor):
                    self._sparse_step(group, parameter, gradient)
                elif gradient is not None:
                    params.append(parameter)
                    grads.append(gradient)
            if params:
                self._step(group, params, grads, [])
            return
        buffers: list[Tensor] = []
        new: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if isinstance(gradient, SparseTensor):
                self._sparse_step(group, parameter, gradient)
                continue
            state = self.state[parameter]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = tt.zeros_like(parameter)
                new[0].append(parameter)
                new[1].append(gradient)
                new[2].append(buffer)
            else:
                params.append(parameter)
                grads.append(gradient)
                buffers.append(buffer)
        if new[0]:
            self._step(group, *new, first=True)
        if params:
            self._step(group, params, grads, buffers)

    def can_skip(self) -> bool:
        """As ListOptimizer.can_skip; false with dampening, because then the first step differs from later
        ones."""
        return super().can_skip() and not any(group["dampening"] for group in self.param_groups)

    def _sparse_step(self, group: dict[str, Any], parameter: Tensor, gradient: Any) -> None:
        if group["maximize"]:
            gradient = -gradient
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        momentum = group["momentum"]
        if momentum:
            state = self.state[parameter]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = gradient.detach().clone()
            else:
                buffer.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
            if isinstance(buffer, CooTensor):
                buffer.compact()
            gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        parameter.add_(gradient * -group["lr"])

    def _step(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor],
        first: bool = False,
    ) -> None:
        _ops.sgd_step(
            *reals([params, grads, buffers]),
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            self._skip,
            group["nesterov"],
            group["maximize"],
            first,
        )
