"""freeze() and optimize_for_inference(): copies of captured modules whose weights are constants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from .._core import Tensor
from ._compiled import Compiled, traced
from ._files import Loaded
from ._scripted import Scripted

__all__ = ["freeze", "optimize_for_inference"]


def freeze(mod: Any, preserved_attrs: Sequence[str] | None = None, optimize_numerics: bool = True) -> Any:
    """Returns a copy of a scripted or traced module in eval mode in which parameters and buffers are
    ordinary tensors: `parameters()` is empty, gradients are not recorded, and later changes of the original
    have no effect. The attributes in preserved_attrs ("weight", "fc.bias") stay what they are.

    optimize_numerics has no effect: the passes that always run keep the numbers. A function of `jit.load`
    is returned as it is, because its file contains the program and its tensors.

    RuntimeError if mod is not scripted or traced from a module, is in training mode, or lacks an attribute.
    """
    if isinstance(mod, Loaded):
        return mod
    if not _of_module(mod):
        raise RuntimeError("Freezing expects a ScriptModule as input. Please use jit.script or jit.trace "
                           "to script your 'nn.Module'.")
    module = mod._function
    if module.training:
        raise RuntimeError("Freezing is currently only implemented for modules in eval mode. Please call "
                           ".eval() on your module before freezing.")
    kept = set(preserved_attrs or ())
    for name in kept:
        _check_exists(mod, name)
    frozen = _with_constants(copy.deepcopy(module), kept)
    if isinstance(mod, Scripted):
        return Scripted(frozen)
    if mod._examples is not None:
        args, kwargs = mod._examples
        made = traced(frozen, args, kwargs, mod.name)
    else:
        made = Compiled(frozen, mod.name, traced=mod._traced)
    for name in kept:
        method = vars(mod).get(name)  # of trace_module
        if isinstance(method, Compiled) and method._examples is not None:
            object.__setattr__(made, name, traced(getattr(frozen, name), *method._examples))
    return made


def optimize_for_inference(mod: Any, other_methods: Sequence[str] | None = None) -> Any:
    """Puts a scripted or traced module into eval mode and returns `freeze` of it. Every program is
    optimized for its daemon before it runs, so that nothing more is done. RuntimeError as for `freeze`."""
    if _of_module(mod):
        mod._function.eval()
    elif not isinstance(mod, Loaded):
        raise RuntimeError("optimize_for_inference expects a ScriptModule as input. Please use "
                           "jit.script or jit.trace to script your 'nn.Module'.")
    return freeze(mod, other_methods)


def _of_module(mod: Any) -> bool:
    return isinstance(mod, (Compiled, Scripted)) and hasattr(mod._function, "named_parameters")


def _check_exists(mod: Any, path: str) -> None:
    for part in path.split("."):
        if not hasattr(mod, part):
            raise RuntimeError(f"Unknown name: {path}")
        mod = getattr(mod, part)


def _with_constants(module: Any, kept: set[str]) -> Any:
    """Makes the parameters and buffers of a module ordinary attributes, and returns the module. A tensor
    that has two names remains one tensor."""
    constants: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: the tensor, and what replaces it
    for prefix, part in module.named_modules():
        for named in (part._parameters, part._buffers):
            for name, tensor in list(named.items()):
                if tensor is None or (f"{prefix}.{name}" if prefix else name) in kept:
                    continue
                _, constant = constants.setdefault(id(tensor), (tensor, tensor.detach()))
                delattr(part, name)
                object.__setattr__(part, name, constant)
    return module
