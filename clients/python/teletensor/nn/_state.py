"""Implements state_dict and load_state_dict of modules, in the steps that PyTorch has: subclasses override
`_save_to_state_dict` and `_load_from_state_dict`, which concern one module without those below it."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ._hooks import RemovableHandle
from .parameter import Parameter, UninitializedTensorMixin

if TYPE_CHECKING:
    from .module import Module

__all__ = ["IncompatibleKeys", "StateHooks", "load_own", "load_state", "save_own", "save_state"]

# The key of the value of get_extra_state.
EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """The keys that load_state_dict found only in the module (missing) or only in the state_dict
    (unexpected)."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"_IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


class StateHooks:
    """The hooks of one module around state_dict and load_state_dict. Created when the first is
    registered."""

    def __init__(self) -> None:
        self.save_before: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.save_after: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.load_before: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.load_after: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        # The hooks of save_after whose result replaces the dict, and those of load_before that do not
        # receive the module.
        self.special: dict[int, bool] = {}

    def add(
        self, hooks: OrderedDict[int, Callable[..., Any]], hook: Callable[..., Any], special: bool = False
    ) -> RemovableHandle:
        handle = RemovableHandle(hooks, self.special)
        hooks[handle.id] = hook
        if special:
            self.special[handle.id] = True
        return handle


_NO_HOOKS = StateHooks()


def _hooks_of(module: Module) -> StateHooks:
    return module._state_hooks or _NO_HOOKS


def _own_state(module: Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the names and tensors of the module itself that belong to its state, in their order."""
    own = module.__dict__
    kept = (name for name, keep in module._buffer_names.items() if keep)
    for name in itertools.chain(module._parameter_names, kept):
        if own[name] is not None:
            yield name, own[name]


def _below(module: Module) -> Iterator[tuple[str, Module]]:
    for name in list(module._module_names):
        child = module.__dict__[name]
        if child is not None:
            yield name, child


def _overrides(module: Module, method: str) -> bool:
    """Returns whether the module's class overrides this method of Module."""
    from .module import Module

    return getattr(type(module), method) is not getattr(Module, method)


# ---------------------------------------------------------------- saving


def save_own(module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    for name, tensor in _own_state(module):
        whole = keep_vars or isinstance(tensor, UninitializedTensorMixin)
        destination[prefix + name] = tensor if whole else tensor.detach()
    if _overrides(module, "get_extra_state"):
        destination[prefix + EXTRA] = module.get_extra_state()


def save_state(module: Module, destination: Any, prefix: str, keep_vars: bool) -> Any:
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()
    local_metadata = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = local_metadata
    for hook in list(_hooks_of(module).save_before.values()):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in _below(module):
        child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    hooks = _hooks_of(module)
    for key, hook in list(hooks.save_after.items()):
        result = hook(module, destination, prefix, local_metadata)
        if result is not None:
            if key not in hooks.special:
                raise RuntimeError("state_dict post-hook must return None")
            destination = result
    return destination


# ---------------------------------------------------------------- loading


def load_state(
    module: Module, given: Mapping[str, Any], strict: bool, assign: bool
) -> IncompatibleKeys:
    if not isinstance(given, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(given)}.")
    metadata = getattr(given, "_metadata", None)
    state: Any = OrderedDict(given)
    if metadata is not None:
        state._metadata = metadata
    name = type(module).__name__  # before a lazy module becomes an ordinary one
    errors: list[str] = []
    result = IncompatibleKeys([], [])
    _load_all(module, state, "", metadata, assign, result, errors)
    if strict:
        if result.unexpected_keys:
            errors.insert(0, f"Unexpected key(s) in state_dict: {_quoted(result.unexpected_keys)}. ")
        if result.missing_keys:
            errors.insert(0, f"Missing key(s) in state_dict: {_quoted(result.missing_keys)}. ")
    if errors:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {name}:\n\t" + "\n\t".join(errors)
        )
    return result


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _load_all(module: Module, state: dict[str, Any], prefix: str, metadata: Any, assign: bool,
              result: IncompatibleKeys, errors: list[str]) -> None:
    """Loads the module and those below it, each with the part of the state that has its prefix."""
    local_metadata = dict(metadata.get(prefix[:-1], {})) if metadata is not None else {}
    if assign:
        local_metadata["assign_to_params_buffers"] = assign
    module._load_from_state_dict(state, prefix, local_metadata, True, result.missing_keys,
                                 result.unexpected_keys, errors)
    for name, child in _below(module):
        start = f"{prefix}{name}."
        part = {key: value for key, value in state.items() if key.startswith(start)}
        _load_all(child, part, start, metadata, assign, result, errors)
    for hook in list(_hooks_of(module).load_after.values()):
        if hook(module, result) is not None:
            raise AssertionError("a hook of register_load_state_dict_post_hook must return None; it may "
                                 "change incompatible_keys in place")


def load_own(module: Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any],
             strict: bool, missing: list[str], unexpected: list[str], errors: list[str]) -> None:
    hooks = _hooks_of(module)
    for key, hook in list(hooks.load_before.items()):
        to_module = () if key in hooks.special else (module,)
        hook(*to_module, state, prefix, local_metadata, strict, missing, unexpected, errors)
    known = dict(_own_state(module))
    assign = local_metadata.get("assign_to_params_buffers", False)
    for name, tensor in known.items():
        if prefix + name in state:
            problem = _load(module, name, tensor, state[prefix + name], prefix + name, assign)
            if problem:
                errors.append(problem)
        elif strict:
            missing.append(prefix + name)
    extra = prefix + EXTRA
    if _overrides(module, "set_extra_state"):
        if extra in state:
            module.set_extra_state(state[extra])
        elif strict:
            missing.append(extra)
    elif strict and extra in state:
        unexpected.append(extra)
    if strict:
        own_keys = [key for key in state if key.startswith(prefix) and key != extra]
        unexpected += [key for key in own_keys if not _knows(module, known, key, prefix)]


def _knows(module: Module, known: Mapping[str, Tensor], key: str, prefix: str) -> bool:
    first, *rest = key[len(prefix) :].split(".", 1)
    return first in module._module_names if rest else first in known


def _load(owner: Module, name: str, old: Tensor, new: Any, key: str, assign: bool) -> str:
    """Copies or assigns a value. Returns the text of an error, "" if there is none."""
    if not isinstance(new, (Tensor, SparseTensor)):
        hint = (
            " (teletensor.from_torch converts a state_dict of PyTorch)"
            if type(new).__module__.startswith("torch")
            else ""
        )
        return (
            f'While copying the parameter named "{key}", expected teletensor.Tensor but '
            f"received {type(new).__module__}.{type(new).__name__}{hint}"
        )
    if isinstance(new, UninitializedTensorMixin):
        if isinstance(old, UninitializedTensorMixin):
            return ""
        return f"{key} has the shape {old.shape}, and cannot take the shape of an uninitialized one."
    # Files of early versions of PyTorch have numbers of this shape.
    if isinstance(new, Tensor) and old.dim() == 0 and tuple(new.shape) == (1,):
        new = new[0]
    if tuple(new.shape) != tuple(old.shape):
        return (
            f"size mismatch for {key}: copying a param with shape {new.shape} from "
            f"checkpoint, the shape in current model is {old.shape}."
        )
    with tt.no_grad():
        if not assign:
            if old.is_meta and not new.is_meta:
                warnings.warn(
                    f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter "
                    "in the current model, which is a no-op. (Did you mean to pass `assign=True` to assign "
                    "items in the state dictionary to their corresponding key in the module instead of "
                    "copying them in place?)", stacklevel=2)
            elif new.is_meta and not old.is_meta:
                return f"{key} has no data in the checkpoint: it is a tensor of the device meta."
            old.copy_(new)
            return ""
        if isinstance(old, Parameter):
            if isinstance(new, Parameter):
                new.requires_grad_(old.requires_grad)
            else:
                new = Parameter(new, requires_grad=old.requires_grad)
        setattr(owner, name, new)
    return ""
