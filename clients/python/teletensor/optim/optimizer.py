"""Optimizer: the base class of optimizers, with parameter groups, state, and their dictionary form (in
PyTorch's layout)."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _api as tt, _core
from .._script import capturing as _capturing
from .._tensors.tensor import Tensor
from ..nn._hooks import RemovableHandle
from ..sparse import SparseTensor

__all__ = ["Optimizer", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"]

_HOOKS = ("step_pre", "step_post", "state_pre", "state_post", "load_pre", "load_post")


# The hooks of all optimizers.
_shared: dict[str, OrderedDict[int, Callable[..., Any]]] = {
    "step_pre": OrderedDict(), "step_post": OrderedDict()}


def _register_shared(kind: str, hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(_shared[kind])
    _shared[kind][handle.id] = hook
    return handle


# Does not record gradients, as no_grad(), and defers Ctrl-C until all parameters have been updated.
_UPDATE = _core.Uninterrupted(recording=False)


class _RequiredParameter:
    """The default of an option that each group must have; optimizers of programs use `required`."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()


def _use_grad_for_differentiable(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the step() of optimizers of programs: gradients are recorded if the option
    "differentiable" is True."""

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with tt.set_grad_enabled(bool(self.defaults["differentiable"])):
            return step(self, *args, **kwargs)

    return wrapper


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls hook(optimizer, args, kwargs) before the step() of every optimizer, and before the optimizer's
    own hooks; it may return new (args, kwargs)."""
    return _register_shared("step_pre", hook)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls hook(optimizer, args, kwargs) after the step() of every optimizer, and after the optimizer's
    own hooks."""
    return _register_shared("step_post", hook)


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps step() so that it counts its calls and calls the hooks."""

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _capturing.current is not None:
            _capturing.on_call(lambda: setattr(self, "_steps", self._steps + 1))
        if self._hooks is None and not any(_shared.values()):
            self._steps += 1
            return step(self, *args, **kwargs)
        own = self._hooks or {kind: OrderedDict() for kind in _shared}
        for hook in [*_shared["step_pre"].values(), *own["step_pre"].values()]:
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        f"{step} must return None or a tuple of (new_args, new_kwargs), but got "
                        f"{changed}."
                    )
                args, kwargs = changed
        self._steps += 1
        result = step(self, *args, **kwargs)
        own = self._hooks or own
        for hook in [*own["step_post"].values(), *_shared["step_post"].values()]:
            hook(self, args, kwargs)
        return result

    return wrapper


class _State(defaultdict[Any, Any]):
    """The state of an optimizer. Unlike a plain dictionary it supports weak references: a captured step
    uses one, so that it does not keep a replaced state alive."""


class Optimizer:
    """Base class of optimizers, with `param_groups` (dicts with "params" and the options of each group) and
    `state` (one dict for each parameter).

    `params` is an iterable of tensors or of groups; options that a group does not have are taken from
    `defaults`. Subclasses define `_update(group)`. TypeError for anything that is not an iterable of
    tensors; ValueError for an empty list, a tensor that is not a leaf, or a parameter that is in two
    groups. Pairs of name and tensor are accepted too; the names are stored as "param_names".
    """

    _steps = 0  # the number of calls of step(), which schedulers read
    # whether updating a part of a parameter gives another result than updating the whole
    _needs_whole = False
    _hooks: dict[str, OrderedDict[int, Callable[..., Any]]] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

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
        self.state = _State(dict)
        self.param_groups = []
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
        names = {}
        named = [isinstance(p, tuple) and len(p) == 2 for p in params]
        if any(named):
            if not all(named):
                raise ValueError(
                    "all optimizer params should be with/without names. Some param names are missing"
                )
            names = {"param_names": [name for name, _ in params]}
            params = [p for _, p in params]
        if any(("param_names" in group) != bool(names) for group in self.param_groups):
            raise ValueError(
                "all optimizer param groups should be with/without names. cannot add param group "
                f"{'with' if names else 'without'} names to the optimizer"
            )
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for parameter in params:
            if isinstance(parameter, SparseTensor):
                kind = type(self).__name__
                raise ValueError(f"{kind} requires dense parameter tensors, got a sparse one")
            if not isinstance(parameter, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is "
                    f"{_core.described(parameter)}"
                )
            if self._needs_whole and hasattr(parameter, "sharding"):
                name: str = parameter.name  # type: ignore[attr-defined]
                raise ValueError(
                    f"{type(self).__name__} computes with whole parameters, and {name} is divided among "
                    "ranks by fully_shard: use an optimizer that treats each element alone, such as Adam"
                )
            if not parameter.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(parameter) in known:
                raise ValueError("some parameters appear in more than one parameter group")
        if len({id(parameter) for parameter in params}) != len(params):
            raise ValueError("some parameters appear twice in a parameter group")
        group = {"params": params, **self.defaults, **param_group, **names}
        group["params"] = params
        for option in self.defaults:
            if group[option] is required:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter {option}"
                )
        self._check_group(group)
        self.param_groups.append(group)

    def _cuda_graph_capture_health_check(self) -> None:
        """Does nothing; step() of optimizers that are copies of PyTorch's calls it."""

    def _check_group(self, group: dict[str, Any]) -> None:
        """ValueError for options out of range."""

    def _update(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _sparse_step(self, group: dict[str, Any], parameter: Tensor, gradient: SparseTensor) -> None:
        """Updates a parameter whose gradient is sparse. RuntimeError if the optimizer cannot do that."""
        raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")

    @_with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient. `closure`, if given, is called first, with gradients
        recorded, and its result is returned. Does not wait for any value."""
        loss = None
        if closure is not None:
            with tt.enable_grad():
                loss = closure()
        with _UPDATE:
            for group in self.param_groups:
                self._update(group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients of all parameters, or fills them with zeros."""
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

    # ---- hooks

    def _call(self, kind: str, state: Any = None) -> Any:
        """Calls the hooks of a kind; each gets the `state` that the previous one returned."""
        for hook in list(self._hooks[kind].values()) if self._hooks else ():
            changed = hook(self) if state is None else hook(self, state)
            if changed is not None and state is not None:
                state = changed
        return state

    def _register(
        self, kind: str, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        if self._hooks is None:
            self._hooks = {name: OrderedDict() for name in _HOOKS}
        hooks = self._hooks[kind]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(optimizer, args, kwargs) before step(); it may return new (args, kwargs)."""
        return self._register("step_pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(optimizer, args, kwargs) after step()."""
        return self._register("step_post", hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls hook(optimizer) before state_dict()."""
        return self._register("state_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls hook(optimizer, state_dict) after state_dict(); it may return another dictionary."""
        return self._register("state_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls hook(optimizer, state_dict) before load_state_dict() with a shallow copy of the dictionary;
        it may return another dictionary."""
        return self._register("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls hook(optimizer) after load_state_dict()."""
        return self._register("load_post", hook, prepend)

    # ---- dictionary form

    def state_dict(self) -> dict[str, Any]:
        """Returns {"state": {number: {...}}, "param_groups": [{..., "params": [numbers]}]}, where
        parameters are numbered across the groups. The tensors are the optimizer's own, not copies. Other
        entries that the program keeps in `state` are included unchanged."""
        self._call("state_pre")
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = [numbers[id(parameter)] for parameter in group["params"]]
            groups.append(packed)
        state = {
            numbers[id(key)] if isinstance(key, Tensor) else key:
                dict(values) if isinstance(key, Tensor) else values
            for key, values in self.state.items()
            if id(key) in numbers or not isinstance(key, Tensor)
        }
        whole: dict[str, Any] = self._call("state_post", {"state": state, "param_groups": groups})
        return whole

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores options and (copies of) the state from a state_dict, which may be PyTorch's if its
        tensors were converted by `from_torch`. ValueError if the groups do not fit."""
        state_dict = self._call("load_pre", dict(state_dict))
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
        state: defaultdict[Any, Any] = _State(dict)
        for number, values in state_dict["state"].items():
            # In dictionaries that were stored as JSON the numbers are strings.
            text = isinstance(number, str) and number not in parameters and number.isdigit()
            key = int(number) if text else number
            if key not in parameters and not isinstance(key, int):
                state[key] = values
            elif key in parameters:
                parameter = parameters[key]
                state[parameter] = {
                    name: self._own_copy(name, value, parameter) for name, value in values.items()
                }
        self.state = state
        for group, old in zip(groups, saved, strict=True):
            group.update({key: value for key, value in old.items() if key != "params"})
        self.__setstate__({"state": state, "param_groups": groups})
        self._call("load_post")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Sets attributes, after unpickling and in load_state_dict. Optimizers of programs extend it,
        mostly by defaults of options that older groups do not have."""
        self.__dict__.update(state)

    @classmethod
    def _own_copy(cls, name: str, value: Any, parameter: Tensor) -> Any:
        if isinstance(value, (list, tuple)):
            return [cls._own_copy(name, each, parameter) for each in value]
        if not isinstance(value, (Tensor, SparseTensor)):
            return value
        if name == "step":
            return int(value.item())
        if name in ("mu_product", "eta", "mu"):  # these are numbers here, but 0-d tensors in PyTorch
            return float(value.item())
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


def _check_rate(lr: float | Tensor) -> None:
    """ValueError for a negative rate, or a tensor with more than one element."""
    if not isinstance(lr, Tensor):
        _check_range("learning rate", lr, lr >= 0.0)
    elif lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")


def _check_range(name: str, value: Any, valid: bool) -> None:
    """ValueError("Invalid NAME: VALUE") unless valid."""
    if not valid:
        raise ValueError(f"Invalid {name}: {value}")
