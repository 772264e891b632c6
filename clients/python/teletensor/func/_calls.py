"""Modules called as functions of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._core import Tensor, ops

if TYPE_CHECKING:
    from ..nn import Module

__all__ = ["functional_call", "stack_module_state"]


def functional_call(module: Module, parameter_and_buffer_dicts: Any, args: Any = None,
                    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True,
                    strict: bool = False) -> Any:
    """Calls the module with the given tensors, by dotted name, in place of its parameters and buffers.

    The module itself is unchanged afterwards. With tie_weights, a name that shares its tensor with a
    given one takes the new tensor too. strict: the names must be exactly the module's.
    """
    given: dict[str, Tensor] = {}
    dicts = parameter_and_buffer_dicts
    for each in [dicts] if isinstance(dicts, Mapping) else list(dicts):
        repeated = given.keys() & each.keys()
        if repeated:
            raise ValueError(f"{sorted(repeated)} appear in multiple dictionaries; behavior of "
                             "functional call is ambiguous")
        given.update(each)
    places: dict[str, tuple[Module, str]] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name in [*part._parameter_names, *part._buffer_names]:
            if part.__dict__[name] is not None:
                places[f"{prefix}.{name}" if prefix else name] = (part, name)
    unknown = sorted(given.keys() - places.keys())
    missing = sorted(places.keys() - given.keys())
    if strict and (unknown or missing):
        raise RuntimeError(
            "Error(s) in functional_call: "
            + "; ".join(text for text in (
                f"Unexpected key(s): {', '.join(unknown)}." if unknown else "",
                f"Missing key(s): {', '.join(missing)}." if missing else "") if text))
    if unknown:
        raise AttributeError(f"'{type(module).__name__}' object has no attribute '{unknown[0]}'")
    replaced = {places[name]: tensor for name, tensor in given.items()}
    if tie_weights:
        by_tensor = {places[name][0].__dict__[places[name][1]]: tensor
                     for name, tensor in given.items()}
        for part, name in places.values():
            tied = by_tensor.get(part.__dict__[name])
            if tied is not None and (part, name) not in replaced:
                replaced[part, name] = tied
    before = {(part, name): part.__dict__[name] for part, name in replaced}
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        args = (args,)
    try:
        for (part, name), tensor in replaced.items():
            part.__dict__[name] = tensor
        return module(*args, **(kwargs or {}))
    finally:
        for (part, name), tensor in before.items():
            part.__dict__[name] = tensor


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of several models of one structure, stacked: for vmap over an ensemble."""
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
