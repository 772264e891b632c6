"""Implements state_dict and load_state_dict of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _api as tt
from .._tensors.tensor import Tensor
from .parameter import Parameter, UninitializedTensorMixin

if TYPE_CHECKING:
    from .module import Module

__all__ = ["IncompatibleKeys", "load_state", "save_state"]


class IncompatibleKeys(NamedTuple):
    """The keys that load_state_dict found only in the module (missing) or only in the state_dict
    (unexpected)."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


def _entries(module: Module, prefix: str) -> list[tuple[Module, str, str]]:
    """Yields (owner, attribute, full name) of everything that belongs to the state, in its order. A module
    or tensor that is used twice is listed under both names."""
    own = module.__dict__
    entries = [(module, name, prefix + name) for name in module._parameter_names]
    entries += [(module, name, prefix + name) for name, keep in module._buffer_names.items() if keep]
    entries = [entry for entry in entries if own[entry[1]] is not None]
    for name in module._module_names:
        if own[name] is not None:
            entries += _entries(own[name], f"{prefix}{name}.")
    return entries


# The key of the value of get_extra_state.
EXTRA = "_extra_state"


def save_state(
    module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool
) -> dict[str, Any]:
    hooks = module._state_hooks
    for hook in list(hooks["save_pre"].values()) if hooks else ():
        hook(module, prefix, keep_vars)
    own = module.__dict__
    names = [*module._parameter_names]
    names += [name for name, keep in module._buffer_names.items() if keep]
    for name in names:
        tensor = own[name]
        if tensor is not None:
            whole = keep_vars or isinstance(tensor, UninitializedTensorMixin)
            destination[prefix + name] = tensor if whole else tensor.detach()
    if _overrides(module, "get_extra_state"):
        destination[prefix + EXTRA] = module.get_extra_state()
    for name in module._module_names:
        if own[name] is not None:
            own[name].state_dict(
                destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
            )
    for hook in list(hooks["save_post"].values()) if hooks else ():
        if hook(module, destination, prefix, {}) is not None:
            raise RuntimeError("state_dict post-hook must return None")
    return destination


def _overrides(module: Module, method: str) -> bool:
    """Returns whether the module's class overrides this method of Module."""
    from .module import Module

    return getattr(type(module), method) is not getattr(Module, method)


def _each_module(module: Module, prefix: str) -> list[tuple[Module, str]]:
    """Yields each module with its prefix; a module that is used twice has both prefixes."""
    found = [(module, prefix)]
    for name in module._module_names:
        below = module.__dict__[name]
        if below is not None:
            found += _each_module(below, f"{prefix}{name}.")
    return found


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def load_state(
    module: Module, state: Mapping[str, Tensor], strict: bool, assign: bool
) -> IncompatibleKeys:
    if not isinstance(state, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state).__name__}.")
    state = dict(state)
    modules = _each_module(module, "")
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    for each, prefix in modules:
        for hook in list(each._state_hooks["load_pre"].values()) if each._state_hooks else ():
            hook(each, state, prefix, {}, strict, missing, unexpected, errors)
    entries = _entries(module, "")
    extras = {prefix + EXTRA: each for each, prefix in modules
              if _overrides(each, "set_extra_state")}
    known = {full_name for _, _, full_name in entries}
    known.update(extras)
    missing += [name for name in [*(e[2] for e in entries), *extras] if name not in state]
    unexpected += [key for key in state if key not in known]
    if strict and missing:
        errors.append(f"Missing key(s) in state_dict: {_quoted(missing)}. ")
    if strict and unexpected:
        errors.append(f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
    for owner, name, full_name in entries:
        if full_name in state:
            problem = _problem(full_name, owner.__dict__[name], state[full_name])
            if problem:
                errors.append(problem)
    if errors:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {module._get_name()}:\n\t" + "\n\t".join(errors)
        )
    with tt.no_grad():
        for owner, name, full_name in entries:
            if full_name in state:
                _load(owner, name, state[full_name], assign)
    for full_name, each in extras.items():
        if full_name in state:
            each.set_extra_state(state[full_name])
    result = IncompatibleKeys(missing, unexpected)
    for each, _ in reversed(modules):
        for hook in list(each._state_hooks["load_post"].values()) if each._state_hooks else ():
            hook(each, result)
    return result


def _problem(name: str, old: Tensor, new: Any) -> str:
    if not isinstance(new, Tensor):
        hint = (
            " (teletensor.from_torch converts a state_dict of PyTorch)"
            if type(new).__module__.startswith("torch")
            else ""
        )
        return (
            f'While copying the parameter named "{name}", expected teletensor.Tensor but '
            f"received {type(new).__module__}.{type(new).__name__}{hint}"
        )
    if isinstance(new, UninitializedTensorMixin):
        if isinstance(old, UninitializedTensorMixin):
            return ""
        return f"{name} has the shape {_shape(old)}, and cannot take the shape of an uninitialized one."
    if tuple(new.shape) != tuple(old.shape):
        return (
            f"size mismatch for {name}: copying a param with shape {_shape(new)} from "
            f"checkpoint, the shape in current model is {_shape(old)}."
        )
    return ""


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _load(owner: Module, name: str, value: Tensor, assign: bool) -> None:
    if isinstance(value, UninitializedTensorMixin):
        return
    old = owner.__dict__[name]
    if not assign:
        old.copy_(value)
    elif isinstance(old, Parameter):
        if not isinstance(value, Parameter):
            value = Parameter(value, requires_grad=old.requires_grad)
        owner.__dict__[name] = value
    else:
        owner.__dict__[name] = value
