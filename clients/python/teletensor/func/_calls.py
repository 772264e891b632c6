"""Calls modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from .._core import Tensor, ops
from .._sessions.scopes import Restoring

if TYPE_CHECKING:
    from ..nn import Module

__all__ = ["functional_call", "stack_module_state"]


_ABSENT: Any = object()


def _tensors_of(dicts: Any) -> dict[str, Tensor]:
    listed = [dicts] if isinstance(dicts, Mapping) else dicts
    if isinstance(listed, str) or not all(isinstance(each, Mapping) for each in listed):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    given: dict[str, Tensor] = {}
    for each in listed:
        repeated = given.keys() & each.keys()
        if repeated:
            raise ValueError(f"{sorted(repeated)} appear in multiple dictionaries; behavior of "
                             "functional call is ambiguous")
        given.update(each)
    for name, tensor in given.items():
        if not name:
            raise KeyError('tensor name can\'t be empty string ""')
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {tensor!r} is not an instance of Tensor")
    return given


def _extra_place(module: Module, name: str) -> tuple[Module, str]:
    """The place for a name that is not a parameter or buffer of the module."""
    *path, last = name.split(".")
    part: Any = module
    for step in path:
        if step not in part._modules:
            raise AttributeError(f"{type(part).__name__} has no attribute `{step}`")
        part = part._modules[step]
    if hasattr(type(part), last):
        raise AttributeError(f"'{type(part).__name__}' object has no tensor '{last}' to replace")
    if not isinstance(part.__dict__.get(last), (Tensor, NoneType)):
        raise TypeError(f"attribute `{last}`: {part.__dict__[last]!r} is not an instance of Tensor")
    return part, last


def _tied(places: dict[str, tuple[Module, str]], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors, also under the names that share a tensor with theirs."""
    groups: dict[Any, list[str]] = {}
    for name, (part, last) in places.items():
        groups.setdefault(part.__dict__[last], []).append(name)
    found = dict(given)
    for names in groups.values():
        own = [name for name in names if name in given]
        if any(given[name] is not given[own[0]] for name in own[1:]):
            raise ValueError(f"functional_call got multiple values for keys {sorted(own)}, which are "
                             "tied. Consider using tie_weights=False")
        if own:
            found.update(dict.fromkeys(names, given[own[0]]))
    return found


def functional_call(module: Module, parameter_and_buffer_dicts: Any, args: Any = None,
                    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True,
                    strict: bool = False) -> Any:
    """Calls the module with the given tensors, by dotted name, instead of its parameters and buffers.

    The module is unchanged afterwards; if the call assigns a tensor to one of the given names, that tensor
    is stored in the given dictionary. With tie_weights, a name that shares its tensor with a given name
    gets the new tensor too. strict: the names must be exactly those of the module.
    """
    given = _tensors_of(parameter_and_buffer_dicts)
    places: dict[str, tuple[Module, str]] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name in [*part._parameter_names, *part._buffer_names]:
            if part.__dict__[name] is not None:
                places[f"{prefix}.{name}" if prefix else name] = (part, name)
    wanted = _tied(places, given) if tie_weights else given
    unknown = sorted(wanted.keys() - places.keys())
    missing = sorted(places.keys() - wanted.keys())
    if strict and (unknown or missing):
        raise RuntimeError(
            f"Error(s) in reparametrizing for {type(module).__name__}:"
            + (f"\n\tUnexpected key(s): {', '.join(map(repr, unknown))}." if unknown else "")
            + (f"\n\tMissing key(s): {', '.join(map(repr, missing))}." if missing else ""))
    for name in unknown:
        places[name] = _extra_place(module, name)
    replaced = {places[name]: tensor for name, tensor in wanted.items()}
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)

    def put(tensors: dict[tuple[Module, str], Any]) -> None:
        for (part, name), tensor in tensors.items():
            if tensor is _ABSENT:
                part.__dict__.pop(name, None)
            else:
                part.__dict__[name] = tensor

    def restore(before: dict[tuple[Module, str], Any]) -> None:
        assigned = {}
        if isinstance(parameter_and_buffer_dicts, MutableMapping):
            for key in given:
                part, name = places[key]
                now = part.__dict__.get(name, _ABSENT)
                if not any(now is each for each in (given[key], before[part, name], _ABSENT)):
                    assigned[key] = now
            parameter_and_buffer_dicts.update(assigned)
        put(before)

    with Restoring(lambda: {(part, name): part.__dict__.get(name, _ABSENT) for part, name in replaced},
                   lambda: put(replaced), restore):
        return module(*args, **(kwargs or {}))


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the stacked (parameters, buffers) of several models of the same structure, for vmap over an
    ensemble."""
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval "
                           "mode.")
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = {}
    for name, first in models[0].named_parameters():
        joined = ops["stack"]([dict(m.named_parameters())[name].detach() for m in models])
        parameters[name] = joined.requires_grad_(first.requires_grad)
    buffers = {name: ops["stack"]([dict(m.named_buffers())[name] for m in models])
               for name, _ in models[0].named_buffers()}
    return parameters, buffers
