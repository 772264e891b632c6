"""`capture`: a training step of PyTorch as one command."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .. import _core
from . import _trace

__all__ = ["Captured", "capture"]

TRACES = 4  # of which two in a row must be equal
RESTARTS = 8  # in a row without a call of a program

_ADVICE = (
    "Keep what changes in a tensor on the device: capturable=True for torch.optim.Adam and its kin, "
    "lr=torch.tensor(..., device=\"tt\") for a learning rate that a scheduler sets in each step, an "
    "argument of the step for data.")


class _Guards:
    """The state on which a step depends beside its arguments: modes and tensors of modules, numbers and
    state of optimizers, gradients, and tensors in host memory."""

    def __init__(self) -> None:
        self.modules: dict[int, torch.nn.Module] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}

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

    def settle(self, watch: _trace.Watch) -> None:
        """Notes the state after the step."""
        self._leaves = list(watch.leaves.values())
        self._gradients = [each.grad for each in self._leaves]
        self._host = [(each, each._version) for each in watch.outside()]
        self._numbers = self._read_numbers()
        containers = self._containers()
        # keeps the storages, so that no other storage has their addresses
        self._held = [each.detach() for part in containers
                      for each in (part.values() if isinstance(part, dict) else part)
                      if isinstance(each, torch.Tensor)]
        self._storages = _trace.bridge.storages(containers)

    def _containers(self) -> list[Any]:
        found: list[Any] = [self._leaves]
        for module in self.modules.values():
            found += [module._parameters, module._buffers]
        for optimizer in self._optimizers.values():
            found += [*optimizer.state.values(), *optimizer.param_groups]
        return found

    def _read_numbers(self) -> list[Any]:
        modes: list[Any] = [module.training for module in self.modules.values()]
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                modes += [value for value in group.values()
                          if not isinstance(value, (list, torch.Tensor))]
                modes.append(len(group["params"]))
        return modes

    def owns(self, weak: Any) -> bool:
        """Returns whether the storage is that of a gradient, which each call sets."""
        return any(StorageWeakRef(each.untyped_storage()).cdata == weak.cdata
                   for each in self._gradients if each is not None)

    def outside_is_same(self) -> bool:
        """Returns whether a trace now would see the same modes, numbers and tensors."""
        return (self._read_numbers() == self._numbers
                and _trace.bridge.storages(self._containers()) == self._storages
                and all(each._version == version for each, version in self._host))

    def hold(self) -> bool:
        """Returns whether the step would do the same as it did, if as many gradients exist as then."""
        if not self.outside_is_same():
            return False
        for leaf, gradient in zip(self._leaves, self._gradients, strict=True):
            now = leaf.grad
            if now is not None and now is not gradient:
                return False
        return True

    def set_gradients(self) -> None:
        """Gives the leaves the gradients that they had after the step."""
        for leaf, gradient in zip(self._leaves, self._gradients, strict=True):
            if leaf.grad is not gradient:
                leaf.grad = gradient


class _Variant:
    """The step for one form of its arguments: the last trace, and whether it may be called."""

    def __init__(self) -> None:
        self.ready = False
        self.traces = 0
        self.guards: _Guards | None = None
        self.program: _trace.Program | None = None


def _difference(before: str, after: str) -> str:
    """The first line in which the texts of two programs differ, in both forms."""
    old, new = before.splitlines()[1:], after.splitlines()[1:]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            left = old[a].strip() if a < b else "(nothing)"
            right = new[c].strip() if c < d else "(nothing)"
            return f"\n  once:  {left}\n  again: {right}\n"
    return " values that it has sent from host memory differ. "


def _problem(before: _trace.Program, after: _trace.Program) -> str:
    """How two traces differ; nothing if calls of the second do what the step does."""
    if before.blob != after.blob:
        return f"its operators are not the same in each call:{_difference(before.text, after.text)}"
    if not _core.same_sources(before.program, after.program):
        return ("in each call it reads other tensors from outside, or sends them from host memory. Write "
                "new contents in place (copy_), or pass them as arguments. ")
    if not before.same_result(after):
        return "it returns other values, which are not tensors made in the step, in each call. "
    again = {weak.cdata for weak in after.kept}
    if any(not weak.expired() and weak.cdata not in again for weak in before.kept):
        return "in each call it keeps a tensor that it has made, which a later call would not. Return it. "
    return ""


class _Call:
    """The arguments of a call: tensors, and all else."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._leaves, self._spec = tree_flatten((args, kwargs))
        self._places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors: list[torch.Tensor] = [self._leaves[i].to("tt") for i in self._places]
        for i in self._places:
            self._leaves[i] = None

    def key(self) -> Any:
        """Returns a key that is equal for two calls if the program of one can serve the other."""
        return (self._spec, tuple(self._leaves), tuple(map(type, self._leaves)), tuple(self._places),
                _trace.bridge.signature(self.tensors), torch.is_grad_enabled(),
                torch.is_autocast_enabled("tt"), torch.get_autocast_dtype("tt"), torch.get_default_dtype())

    def run(self, step: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
        """The step with these tensors in place of its own."""
        leaves = list(self._leaves)
        for i, tensor in zip(self._places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        return step(*args, **kwargs)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


class Captured:
    """A captured step, as `capture` returns it. `programs` is the number of programs that it can call."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._warm = False
        self._variants: dict[Any, _Variant] = {}
        self._restarts = 0
        # what has been seen so far: their modes and their gradients tell programs apart
        self._modules: dict[int, torch.nn.Module] = {}
        self._leaves: dict[int, torch.Tensor] = {}
        self._had_gradient: bool | None = None
        # Gradients by leaf, once calls have begun with gradients and without: all programs then write
        # to these.
        self._gradients: dict[int, torch.Tensor] = {}
        functools.update_wrapper(self, step)

    @property
    def programs(self) -> int:
        return sum(variant.ready for variant in self._variants.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _Call(args, kwargs)
        if any(each.requires_grad for each in call.tensors):
            raise ValueError("an argument of a captured step cannot require a gradient: detach() it")
        if not self._warm:
            return self._first(call)
        if self._leaves:
            self._note_gradients()
        key = (call.key(), *[module.training for module in self._modules.values()],
               *[leaf.grad is None for leaf in self._leaves.values()])
        variant = self._variants.setdefault(key, _Variant())
        if variant.ready:
            assert variant.guards is not None and variant.program is not None
            valid, result = variant.program.run(call.tensors) if variant.guards.hold() else (False, None)
            if valid:
                variant.guards.set_gradients()
                self._restarts = 0
                return result
            variant = self._restart(key)
        elif variant.guards is not None and not variant.guards.outside_is_same():
            variant = self._restart(key)
        try:
            return self._learn(variant, call)
        except BaseException:
            self._variants.pop(key, None)
            raise

    def _first(self, call: _Call) -> Any:
        """Runs the step line by line: optimizers make their state, and lazy modules their parameters."""
        guards, watch = _Guards(), _trace.Watch()
        with guards.seeing(), watch:
            result = tree_map(_detached, call.run(self._step, call.tensors))
        # Modules that the step makes are other ones in each call, so that later calls add none.
        self._modules = guards.modules
        self._leaves.update(watch.leaves)
        self._warm = True
        return result

    def _note_gradients(self) -> None:
        has = next(iter(self._leaves.values())).grad is not None
        if self._had_gradient is None:
            self._had_gradient = has
        if has != self._had_gradient and not self._gradients:
            with torch.no_grad():
                self._gradients = {id(leaf): torch.zeros_like(leaf) for leaf in self._leaves.values()}
            self._variants.clear()

    def _run(self, call: _Call, tensors: list[torch.Tensor]) -> Any:
        result = call.run(self._step, tensors)
        with torch.no_grad():
            for key, own in self._gradients.items():
                leaf = self._leaves[key]
                if leaf.grad is not None and leaf.grad is not own:
                    leaf.grad = own.copy_(leaf.grad)
        return result

    def _restart(self, key: Any) -> _Variant:
        self._restarts += 1
        if self._restarts > RESTARTS:
            self._restarts = 0
            raise RuntimeError(
                f"a captured step was traced {RESTARTS} times without a call of its program: between its "
                "calls the mode of a module, a number of an optimizer, a tensor in host memory or a "
                f"gradient changes, or its arguments share memory to which it writes. {_ADVICE}")
        self._variants[key] = made = _Variant()
        return made

    def _learn(self, variant: _Variant, call: _Call) -> Any:
        """Runs the step as a trace. The variant is ready if the trace is equal to the one before."""
        guards, watch = _Guards(), _trace.Watch()
        variant.guards = None  # else it would hold the gradients of the trace before
        # The step sees copies: a tensor that it reads from outside as well is not taken for an argument.
        own = _trace.copies(call.tensors)
        with guards.seeing():
            result, program = _trace.trace(lambda *tensors: self._run(call, list(tensors)), own, watch)
        with torch.no_grad():
            program.write_back(own, call.tensors)
        before, variant.program = variant.program, program
        variant.guards = guards
        guards.settle(watch)
        self._leaves.update(watch.leaves)
        program.kept = [weak for weak in program.kept if not guards.owns(weak)]
        variant.traces += 1
        if before is not None:
            problem = _problem(before, program)
            if not problem:
                program.finish()
                variant.ready = True
            elif variant.traces >= TRACES:
                raise RuntimeError(f"{getattr(self._step, '__qualname__', 'the step')} cannot be captured: "
                                   f"{problem}{_ADVICE}")
        return result


def capture(step: Callable[..., Any]) -> Captured:
    """A training step on the device "tt" as one command of the daemon.

    The result is called like `step`. Its first three calls, or a few more, run the operators one by
    one, and what they do becomes a program; each later call sends that program's number. Modules,
    autograd and optimizers are PyTorch's. Parameters, buffers, gradients and the optimizer's state are
    changed in place, as by the step itself.

    Arguments are tensors, in tuples, lists and dictionaries, and values that can be hashed. There is a
    program for each combination of shapes, dtypes and values. Tensors in host memory are sent to the
    device first. Returned tensors have no history.

    A step cannot read a value (`.item()`, `print`), and needs operators of the device. RuntimeError,
    with the line, if it does, or if two traces of it differ: a number that Python computes anew in each
    call would otherwise be the same in all. Where the mode of a module or a number of an optimizer
    changes between calls, the step is traced anew. Other Python code of the step does not run again.
    """
    return Captured(step)
