"""`capture`: a training step of PyTorch as one command."""

from __future__ import annotations

import contextlib
import difflib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .. import _core
from . import _trace

__all__ = ["Captured", "capture"]

TRACES = 4  # of which two in a row must be equal
REPLAYS = 16  # calls that are compared with a call
RESTARTS = 8  # in a row without a call of a program

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)

_ADVICE = (
    "Keep what changes in a tensor on the device: capturable=True for torch.optim.Adam and its kin, "
    "lr=torch.tensor(..., device=\"tt\") for a learning rate that a scheduler sets in each step, an "
    "argument of the step for data.")


def _is_constant(value: Any) -> bool:
    """Returns whether a value is a number, a text, None, a function, a class, or a tuple of these."""
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return (value is None or type(value) in (bool, int, float, complex, str)
            or isinstance(value, (type, *_FUNCTIONS)))


class _Guards:
    """The state on which a step depends beside its arguments: modes, numbers, functions, tensors, children
    and hooks of modules, numbers, state and hooks of optimizers, hooks of leaves, gradients, and tensors in
    host memory."""

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
        self.leaves = list(watch.leaves.values())
        self.gradients = [each.grad for each in self.leaves]
        self.host = [(each, each._version) for each in watch.outside()]
        self.written = watch.written()
        for module in [*self.modules.values()]:  # a ModuleList does not run, but its children do
            self.modules.update({id(each): each for each in module.modules()})
        seen = [*self.modules.values()], [*self._optimizers.values()], self.leaves
        # holds the storages, so that no other storage has their addresses
        self.values, tensors, self._held = _trace.bridge.read_state(*seen)
        self.state = (*seen, self.values, tensors)
        self.attributes = [
            (module.__dict__, name, value) for module in self.modules.values()
            for name, value in module.__dict__.items()
            if name not in ("training", "forward") and _is_constant(value)]

    def keep_attributes(self, before: list[tuple[Any, ...]]) -> None:
        """Leaves out the numbers of modules that the step changes itself: `before` are those after the
        trace before. Later calls do not change them, as they do not run other Python code of the step."""
        known = {(id(owner), name): value for owner, name, value in before}
        self.attributes = [
            (owner, name, value) for owner, name, value in self.attributes
            if _trace.bridge.items_hold([(known, (id(owner), name), value)])]

    def changed(self) -> str:
        """The first attribute of a module that is another one now, for a message."""
        for owner, name, value in self.attributes:
            if not _trace.bridge.items_hold([(owner, name, value)]):
                module = next(each for each in self.modules.values() if each.__dict__ is owner)
                return f" The attribute {name!r} of {type(module).__name__} was {value!r}."
        return ""

    def owns(self, weak: Any) -> bool:
        """Returns whether the storage is that of a gradient, which each call sets."""
        return any(StorageWeakRef(each.untyped_storage()).cdata == weak.cdata
                   for each in self.gradients if each is not None)

    def outside_is_same(self) -> bool:
        """Returns whether a trace now would see the same modes, numbers and tensors."""
        return (_trace.bridge.state_holds(self.state) and _trace.bridge.items_hold(self.attributes)
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

    def set_gradients(self) -> None:
        """Gives the leaves the gradients that they had after the step."""
        for leaf, gradient in zip(self.leaves, self.gradients, strict=True):
            if leaf.grad is not gradient:
                leaf.grad = gradient
        _trace.bridge.written([each for each in self.gradients if each is not None] + self.written)


class Replay(NamedTuple):
    """A valid call, which the extension compares with later ones: where all is equal, it runs the program
    without any Python code. The extension knows the fields by their order."""

    arguments: Any  # (args, kwargs), with `mark` in place of tensors
    mark: Any
    signature: bytes  # of the tensors
    modes: bytes
    trained: list[Any]  # modules whose modes tell programs apart
    training: list[bool]
    key_leaves: list[Any]  # tensors of which it matters whether they have gradients
    have_gradient: list[bool]
    state: tuple[Any, ...]
    attributes: list[tuple[Any, ...]]  # of modules: (dictionary, key, value)
    host: list[tuple[Any, int]]
    leaves: list[Any]
    gradients: list[Any]
    step: Any
    written: list[int]
    own_written: list[Any]
    results: list[tuple[Any, ...]]
    # of no concern to the extension
    spec: Any
    kept: Any  # keeps objects alive that `modes` has the addresses of

    def result(self, leaves: list[Any]) -> Any:
        """The result with these leaves."""
        return leaves[0] if self.spec.is_leaf() else tree_unflatten(leaves, self.spec)


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


def _problem(before: _trace.Program, after: _trace.Program, same_numbers: bool) -> str:
    """How two traces differ; nothing if calls of the second do what the step does. `same_numbers`: whether
    modes and optimizers have the same numbers after both."""
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
    if not same_numbers:
        return ("in each call it changes a number of an optimizer or the mode of a module, which a later "
                "call would not. ")
    return ""


_MARK = object()  # stands for a tensor among the arguments of a Replay


def _is_plain(value: Any) -> bool:
    """Returns whether a value is made of tuples, lists, dictionaries and leaves only."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return bool(tree_flatten(value)[1].is_leaf())


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
        return (self._spec, tuple(map(_trace.exact, self._leaves)), tuple(map(type, self._leaves)),
                tuple(self._places), _trace.bridge.signature(self.tensors), torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(), torch.is_autocast_enabled("tt"),
                torch.get_autocast_dtype("tt"), torch.get_default_dtype(), torch.get_default_device())

    def marked(self) -> Any:
        """Returns (args, kwargs) with a mark in place of tensors; None if there are other containers."""
        leaves = list(self._leaves)
        for i in self._places:
            leaves[i] = _MARK
        found = tree_unflatten(leaves, self._spec)
        return found if _is_plain(found) else None

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
        self._replays: dict[Any, Replay] = {}
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
        if self._replays:
            found = _trace.bridge.replay(self._replays, (args, kwargs))
            if found is not None:
                self._restarts = 0
                return found[0].result(found[1])
        return self._call(_Call(args, kwargs))

    def _call(self, call: _Call) -> Any:
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
            replay = self._replay(call, variant.guards, variant.program)
            valid, result = variant.program.run(call.tensors) if variant.guards.hold() else (False, None)
            if valid:
                variant.guards.set_gradients()
                self._restarts = 0
                self._remember(key, replay)
                return result
            variant = self._restart(key)
        elif variant.guards is not None and not variant.guards.outside_is_same():
            variant = self._restart(key)
        try:
            return self._learn(variant, call)
        except BaseException:
            self._variants.pop(key, None)
            raise

    def _replay(self, call: _Call, guards: _Guards, program: _trace.Program) -> Replay | None:
        """The call as the extension compares it with later ones. Before it runs, which sets gradients."""
        marked = call.marked()
        if marked is None:
            return None
        modules, leaves = [*self._modules.values()], [*self._leaves.values()]
        return Replay(
            arguments=marked, mark=_MARK, signature=_trace.bridge.signature(call.tensors),
            modes=_trace.bridge.modes(), trained=modules,
            training=[module.training for module in modules], key_leaves=leaves,
            have_gradient=[leaf.grad is not None for leaf in leaves], state=guards.state,
            attributes=guards.attributes, host=guards.host, leaves=guards.leaves,
            gradients=guards.gradients, step=program.step, written=program.written,
            own_written=guards.written, results=program.leaves, spec=program.spec,
            kept=_get_current_function_mode_stack())

    def _remember(self, key: Any, replay: Replay | None) -> None:
        self._replays.pop(key, None)
        if replay is None:
            return
        if len(self._replays) >= REPLAYS:
            self._replays.pop(next(iter(self._replays)))
        self._replays[key] = replay

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
            self._replays.clear()

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
        guards = self._variants[key].guards
        if self._restarts > RESTARTS:
            self._restarts = 0
            raise RuntimeError(
                f"a captured step was traced {RESTARTS} times without a call of its program: between its "
                "calls the mode, a number, a function, a child or a hook of a module, a number or a hook "
                "of an optimizer, a tensor in host memory or a gradient changes, or its arguments share "
                f"memory to which it writes.{guards.changed() if guards is not None else ''} {_ADVICE}")
        self._replays.pop(key, None)
        self._variants[key] = made = _Variant()
        return made

    def _learn(self, variant: _Variant, call: _Call) -> Any:
        """Runs the step as a trace. The variant is ready if the trace is equal to the one before."""
        guards, watch = _Guards(), _trace.Watch()
        seen = variant.guards
        values, attributes = (seen.values, seen.attributes) if seen is not None else ([], [])
        del seen
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
            problem = _problem(before, program, values == guards.values)
            if not problem:
                guards.keep_attributes(attributes)
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
    call would otherwise be the same in all. Where the mode, a number, a function, a child or a hook of a
    module changes between calls, or a number or a hook of an optimizer, the step is traced anew. Other
    Python code of the step does not run again, nor does that of its hooks.
    """
    return Captured(step)
