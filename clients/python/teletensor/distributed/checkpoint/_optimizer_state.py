"""The state of optimizers that have not made a step, and of those of sharded parameters."""

from __future__ import annotations

from typing import Any

from ... import _api as tt
from ..._core import Tensor
from ...optim import LBFGS, Optimizer
from ..fsdp._shards import ShardedParameter, alias

__all__ = ["initialise", "marked_state"]


def initialise(optimizer: Optimizer) -> None:
    """Creates the state of an optimizer that has none, by a step with a learning rate and gradients of
    zero, so that a checkpoint can be loaded into it. Like PyTorch's function it counts as a step, and does
    nothing if a parameter has a gradient. LBFGS, whose step calls a closure, is left as it is."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if optimizer.state or isinstance(optimizer, LBFGS):
        return
    if any(each.grad is not None for each in parameters):
        return
    rates = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
    try:
        for each in parameters:
            if each.requires_grad:
                each.grad = tt.zeros_like(each)
        for group, rate in rates:
            group["lr"] = tt.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
        optimizer.step()
    finally:
        for group, rate in rates:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)


def marked_state(optimizer: Optimizer) -> dict[str, Any]:
    """Returns optimizer.state_dict(), in which the tensors that are divided like a sharded parameter are
    marked as its parts. The optimizer is initialised first."""
    initialise(optimizer)
    whole = optimizer.state_dict()
    parameters: dict[Any, Any] = {}
    for group, saved in zip(optimizer.param_groups, whole["param_groups"], strict=True):
        parameters.update(zip(saved["params"], group["params"], strict=True))

    def marked(value: Any, parameter: Any) -> Any:
        if isinstance(parameter, ShardedParameter) and isinstance(value, Tensor):
            return alias(value, parameter, parameter.name) if value.shape == parameter.shape else value
        return value

    state = {
        number: {key: marked(value, parameters.get(number)) for key, value in values.items()}
        if isinstance(values, dict) else values
        for number, values in whole["state"].items()
    }
    return {**whole, "state": state}
