"""Checks that what a captured step depends on, beside its arguments, is unchanged."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from .. import _core
from . import _trace

__all__ = ["Guards", "averages", "modes"]

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def _is_constant(value: Any) -> bool:
    """Returns whether a value is a number, a text, None, a function, a class, or a tuple of these."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return (value is None or type(value) in (bool, int, float, complex, str)
            or isinstance(value, (type, *_FUNCTIONS)))


def averages(module: torch.nn.Module) -> bool:
    """Returns whether a module is a DistributedDataParallel, which in its first steps notes in host memory
    which parameters a step uses, and then reads how other processes sort them into buckets."""
    found = sys.modules.get("torch.nn.parallel.distributed")
    return found is not None and isinstance(module, found.DistributedDataParallel)


def _names(module: torch.nn.Module) -> tuple[str, ...]:
    if averages(module):
        return ("training", "require_backward_grad_sync", "require_forward_param_sync")
    return ("training",)


def modes(modules: dict[int, torch.nn.Module]) -> list[tuple[torch.nn.Module, str, Any]]:
    """(module, name, value) of the modes of modules: "training", and of a DistributedDataParallel whether
    it averages, as no_sync() changes it."""
    return [(module, name, getattr(module, name))
            for module in modules.values() for name in _names(module)]


class Guards:
    """The state on which a step depends beside its arguments: modes, numbers, functions, tensors, children
    and hooks of modules, numbers, state and hooks of optimizers, hooks of leaves, gradients, tensors in
    host memory, and whatever else the program's own code has read: globals, variables of enclosing
    functions, attributes of objects, and items of lists and dictionaries.

    `known` are the modules whose modes tell programs apart."""

    def __init__(self, known: dict[int, torch.nn.Module]) -> None:
        self._known = known
        self.modules: dict[int, torch.nn.Module] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._before = modes(known)
        self.reads = _core.Guards()
        self.own_change = ""  # the first place that the step has read and then changed

    @contextlib.contextmanager
    def seeing(self) -> Iterator[None]:
        """Notes the modules and optimizers that run in the block."""

        def module_runs(module: torch.nn.Module, _: Any) -> None:
            self.modules.setdefault(id(module), module)

        def optimizer_runs(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._optimizers.setdefault(id(optimizer), optimizer)

        hooks = [register_module_forward_pre_hook(module_runs),
                 register_optimizer_step_pre_hook(optimizer_runs)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def all_modules(self) -> dict[int, torch.nn.Module]:
        """The modules that have run, and those in them: a ModuleList does not run, but its children do."""
        return {id(each): each for module in self.modules.values() for each in module.modules()}

    def run(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """step(*args, **kwargs), of which is noted what the program's code reads from outside."""
        reads = _core.Reads(self.reads)
        reads.know(step)
        for each in tree_leaves((args, kwargs)):
            if not isinstance(each, torch.Tensor):
                reads.know(each)
        for module in self._known.values():
            reads.know(module)
            for name in _names(module):
                reads.overlook(module.__dict__, name)
        try:
            return reads.run(step, args, kwargs)
        finally:
            reads.clear()

    def settle(self, watch: _trace.Watch) -> None:
        """Notes the state after the step."""
        self.own_change = self.reads.why()
        self.modes = [(module, name, getattr(module, name)) for module, name, before in self._before
                      if getattr(module, name) != before]
        self.leaves = list(watch.leaves.values())
        self.gradients = [each.grad for each in self.leaves]
        self.host = [(each, each._version) for each in watch.outside()]
        self.written = watch.written()
        self.modules = self.all_modules()
        seen = ([*self.modules.values()], [*self._optimizers.values()],
                [*self.leaves, *self._other_tensors(watch)])
        # holds the storages, so that no other storage has their addresses
        self.values, tensors, self._held = _trace.bridge.read_state(*seen)
        self.state = (*seen, self.values, tensors)
        self.attributes = [
            (module.__dict__, name, value) for module in self.modules.values()
            for name, value in module.__dict__.items()
            if not (name == "forward" or name in _names(module) and id(module) in self._known)
            and _is_constant(value)]

    def _other_tensors(self, watch: _trace.Watch) -> list[torch.Tensor]:
        """The tensors of outside that are no leaves, no gradients, and belong to no module or optimizer."""
        own = {id(each) for each in (*self.leaves, *self.gradients)}
        for module in self.modules.values():
            own.update(map(id, (*module._parameters.values(), *module._buffers.values())))
        for optimizer in self._optimizers.values():
            own.update(map(id, tree_leaves([*optimizer.state.values(), optimizer.param_groups])))
        return [each for each in watch.read() if id(each) not in own]

    def keep_attributes(self, before: list[tuple[Any, ...]]) -> None:
        """Leaves out the numbers of modules that the step changes itself: `before` are those after the
        trace before. Later calls do not change them, as they do not run other Python code of the step."""
        known = {(id(owner), name): value for owner, name, value in before}
        self.attributes = [
            (owner, name, value) for owner, name, value in self.attributes
            if _trace.bridge.items_hold([(known, (id(owner), name), value)])]

    def changed(self) -> str:
        """The first attribute of a module, or place that was read, that has changed, for a message."""
        for owner, name, value in self.attributes:
            if not _trace.bridge.items_hold([(owner, name, value)]):
                module = next(each for each in self.modules.values() if each.__dict__ is owner)
                return f" The attribute {name!r} of {type(module).__name__} was {value!r}."
        place = self.reads.why()
        return f" It reads {place}, which is another one now." if place else ""

    def advice(self) -> str:
        """The advice of a message about a step that differs between calls: what the program can change."""
        said: dict[str, None] = {}  # in order
        for optimizer in self._optimizers.values():
            name, group = type(optimizer).__name__, optimizer.param_groups[0]
            means = "capturable=True" if "capturable" in group else "fused=True" if "fused" in group else ""
            if not means:
                said[f"call the step() of {name} outside of the captured step, as it keeps numbers in host "
                     "memory"] = None
            elif means == "capturable=True" and not (group["capturable"] or group.get("fused")):
                said[f"give {name} {means}"] = None
            if means and not isinstance(group.get("lr"), torch.Tensor):
                said[f"for a learning rate that changes give {name} {means} and "
                     "lr=torch.tensor(..., device=\"tt\")"] = None
        said["call the step() of a learning rate's scheduler outside of the captured step, with "
             "cycle_momentum=False where it has that"] = None
        said["hand data, and numbers that have few values, over as arguments of the step"] = None
        return f" Keep what changes in a tensor on the device: {'; '.join(said)}."

    def owns(self, weak: Any) -> bool:
        """Returns whether the storage is that of a gradient, which each call sets."""
        return any(StorageWeakRef(each.untyped_storage()).cdata == weak.cdata
                   for each in self.gradients if each is not None)

    def outside_is_same(self) -> bool:
        """Returns whether a trace now would see the same modes, numbers and tensors."""
        return (_trace.bridge.state_holds(self.state) and _trace.bridge.items_hold(self.attributes)
                and (bool(self.own_change) or self.reads.check())
                and all(each._version == version for each, version in self.host))

    def hold(self) -> bool:
        """Returns whether the step would do the same as it did, if as many gradients exist as then."""
        if not self.outside_is_same():
            return False
        for leaf, gradient in zip(self.leaves, self.gradients, strict=True):
            now = leaf.grad
            if now is not None and now is not gradient:
                return False
        return True

    def set_modes(self) -> None:
        """Gives the modules the modes that the step gives them."""
        for module, name, value in self.modes:
            setattr(module, name, value)

    def set_gradients(self) -> None:
        """Gives the leaves the gradients that they had after the step."""
        for leaf, gradient in zip(self.leaves, self.gradients, strict=True):
            if leaf.grad is not gradient:
                leaf.grad = gradient
        _trace.bridge.written([each for each in self.gradients if each is not None] + self.written)
