"""state_dict and load_state_dict of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import teletensor as tt

from .._tensor import Tensor
from .parameter import Parameter

if TYPE_CHECKING:
    from .module import Module

__all__ = ["IncompatibleKeys", "load_state", "save_state"]


class IncompatibleKeys(NamedTuple):
    """What load_state_dict found on one side only."""

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
    """(owner, attribute, full name) of everything that belongs into the state, in its order. A
    module or tensor that is used twice is listed under both names."""
    own = module.__dict__
    entries = [(module, name, prefix + name) for name in module._parameter_names]
    entries += [(module, name, prefix + name) for name, keep in module._buffer_names.items() if keep]
    entries = [entry for entry in entries if own[entry[1]] is not None]
    for name in module._module_names:
        if own[name] is not None:
            entries += _entries(own[name], f"{prefix}{name}.")
    return entries


def save_state(
    module: Module, destination: dict[str, Tensor], prefix: str, keep_vars: bool
) -> dict[str, Tensor]:
    for owner, name, full_name in _entries(module, prefix):
        tensor = owner.__dict__[name]
        destination[full_name] = tensor if keep_vars else tensor.detach()
    return destination


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def load_state(
    module: Module, state: Mapping[str, Tensor], strict: bool, assign: bool
) -> IncompatibleKeys:
    if not isinstance(state, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state).__name__}.")
    entries = _entries(module, "")
    known = {full_name for _, _, full_name in entries}
    missing = [full_name for _, _, full_name in entries if full_name not in state]
    unexpected = [key for key in state if key not in known]
    errors: list[str] = []
    if strict and unexpected:
        errors.append(f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
    if strict and missing:
        errors.append(f"Missing key(s) in state_dict: {_quoted(missing)}. ")
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
    return IncompatibleKeys(missing, unexpected)


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
    if tuple(new.shape) != tuple(old.shape):
        return (
            f"size mismatch for {name}: copying a param with shape {_shape(new)} from "
            f"checkpoint, the shape in current model is {_shape(old)}."
        )
    return ""


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _load(owner: Module, name: str, value: Tensor, assign: bool) -> None:
    old = owner.__dict__[name]
    if not assign:
        old.copy_(value)
    elif isinstance(old, Parameter):
        if not isinstance(value, Parameter):
            value = Parameter(value, requires_grad=old.requires_grad)
        owner.__dict__[name] = value
    else:
        owner.__dict__[name] = value
