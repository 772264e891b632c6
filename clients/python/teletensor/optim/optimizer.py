"""Optimizer: parameter groups, state, and their dictionary form (PyTorch's layout)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import teletensor as tt

from .. import _core
from .._tensor import Tensor

__all__ = ["Optimizer"]


class Optimizer:
    """Base class: keeps `param_groups` (dicts with "params" and the options of each group) and
    `state` (one dict per parameter).

    `params` is an iterable of tensors or of groups; options that a group lacks come from
    `defaults`. Subclasses define `_update(group)`. Raises TypeError for anything that is not an
    iterable of tensors, ValueError for an empty list, a tensor that is no leaf, or a parameter in
    two groups.
    """

    state: defaultdict[Tensor, dict[str, Any]]
    param_groups: list[dict[str, Any]]

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], defaults: dict[str, Any]
    ) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts, but got {type(params).__name__}"
            )
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self._steps = 0  # counts step(); schedulers look at it
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if isinstance(groups[0], dict):
            for group in groups:
                self.add_param_group(group)  # type: ignore[arg-type]
        else:
            self.add_param_group({"params": groups})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group: {"params": tensor or tensors, options...}."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the "
                "ordering of tensors in sets will change between runs. Please use a list instead."
            )
        params = [params] if isinstance(params, Tensor) else list(params)
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for parameter in params:
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is "
                    f"{type(parameter).__name__}"
                )
            if not parameter.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(parameter) in known:
                raise ValueError("some parameters appear in more than one parameter group")
        if len({id(parameter) for parameter in params}) != len(params):
            raise ValueError("some parameters appear twice in a parameter group")
        group = {**self.defaults, **param_group, "params": params}
        self._check_group(group)
        self.param_groups.append(group)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raises ValueError for options out of range."""

    def _update(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient. `closure`, if given, is called first, with
        gradients recorded, and its result is returned. Reads nothing back."""
        loss = None
        if closure is not None:
            with tt.enable_grad():
                loss = closure()
        self._steps += 1
        recording = _core.grad_mode()
        _core.set_grad_mode(False)  # as no_grad(), without an object on this hot path
        try:
            for group in self.param_groups:
                self._update(group)
        finally:
            _core.set_grad_mode(recording)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters, or fills them with zero."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                    continue
                gradient = parameter.grad
                if gradient is not None:
                    if gradient.requires_grad:
                        parameter.grad = gradient = gradient.detach()
                    gradient.zero_()

    # ---- dictionary form

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: {...}}, "param_groups": [{..., "params": [numbers]}]}, parameters
        being numbered across the groups. The tensors are the optimizer's own."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = [numbers[id(parameter)] for parameter in group["params"]]
            groups.append(packed)
        state = {
            numbers[id(parameter)]: dict(values)
            for parameter, values in self.state.items()
            if id(parameter) in numbers
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over options and (copies of) the state of a state_dict, also of PyTorch's if its
        tensors were converted by `from_torch`. Raises ValueError if groups do not fit."""
        groups, saved = self.param_groups, list(state_dict["param_groups"])
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, saved, strict=True)):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group"
            )
        parameters: dict[Any, Tensor] = {}
        for group, old in zip(groups, saved, strict=True):
            parameters.update(zip(old["params"], group["params"], strict=True))
        state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        for number, values in state_dict["state"].items():
            # Dictionaries that went through JSON have their numbers as text.
            key = number if number in parameters or not isinstance(number, str) else int(number)
            if key in parameters:
                parameter = parameters[key]
                state[parameter] = {
                    name: self._own_copy(name, value, parameter) for name, value in values.items()
                }
        self.state = state
        for group, old in zip(groups, saved, strict=True):
            group.update({key: value for key, value in old.items() if key != "params"})

    @staticmethod
    def _own_copy(name: str, value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        if name == "step":
            return int(value.item())
        with tt.no_grad():
            moved = value.detach().to(parameter.device)
            if parameter.is_floating_point():
                moved = moved.to(parameter.dtype)
            return moved.clone()

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _check_range(name: str, value: Any, valid: bool) -> None:
    """Raises ValueError("Invalid NAME: VALUE") unless valid."""
    if not valid:
        raise ValueError(f"Invalid {name}: {value}")
