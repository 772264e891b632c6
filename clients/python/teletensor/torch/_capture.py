"""`capture`: a training step of PyTorch as one command."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _core
from . import _trace
from ._guards import Guards, averages, modes

__all__ = ["Captured", "capture"]

BEGIN = 3  # calls that run line by line, if DistributedDataParallel needs them
TRACES = 4  # of which two in a row must be equal
REPLAYS = 16  # calls that are compared with a call
RESTARTS = 8  # in a row without a call of a program

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
    unchanged: Any  # a function: whether all that the program's code has read is unchanged
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
    modes_after: list[tuple[Any, ...]]  # (module, name, value) of the modes that the step sets

    def result(self, leaves: list[Any]) -> Any:
        """The result with these leaves. Sets the modes of modules."""
        for module, name, value in self.modes_after:
            setattr(module, name, value)
        return leaves[0] if self.spec.is_leaf() else tree_unflatten(leaves, self.spec)


class _Variant:
    """The step for one form of its arguments: the last trace, and whether it may be called."""

    def __init__(self) -> None:
        self.ready = False
        self.traces = 0
        self.guards: Guards | None = None
        self.program: _trace.Program | None = None


def _difference(before: str, after: str) -> str:
    """The first line in which the texts of two programs differ, in both forms."""
    old, new = before.splitlines()[1:], after.splitlines()[1:]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            left = old[a].strip() if a < b else "(nothing)"
            right = new[c].strip() if c < d else "(nothing)"
            return f"\n  once:  {left}\n  again: {right}"
    return " values that it has sent from host memory differ."


def _problem(before: _trace.Program, after: _trace.Program, same_numbers: bool, own_change: str) -> str:
    """How two traces differ; nothing if calls of the second do what the step does. `same_numbers`: whether
    optimizers have the same numbers after both. `own_change`: the place that the step reads and changes."""
    if not _core.same_steps(before.program, after.program):
        return f"its operators are not the same in each call:{_difference(before.text, after.text)}"
    if not _core.same_sources(before.program, after.program):
        return ("in each call it reads other tensors from outside, or sends them from host memory. Write "
                "new contents in place (copy_), or pass them as arguments.")
    if not before.same_result(after):
        return "it returns other values, which are not tensors made in the step, in each call."
    again = {weak.cdata for weak in after.kept}
    if any(not weak.expired() and weak.cdata not in again for weak in before.kept):
        return "in each call it keeps a tensor that it has made, which a later call would not. Return it."
    if not same_numbers:
        return "in each call it changes a number of an optimizer, which a later call would not."
    if own_change:
        return f"it reads {own_change}, and changes it in each call, which a later call would not."
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

    def run(self, run: Callable[..., Any], step: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
        """run(step, args, kwargs) with these tensors in place of its own."""
        leaves = list(self._leaves)
        for i, tensor in zip(self._places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        return run(step, args, kwargs)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


class Captured:
    """A captured step, as `capture` returns it. `programs` is the number of programs that it can call."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._cold = True  # the next call runs line by line
        self._begun = 0  # calls that have run line by line
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
        if self._cold:
            return self._first(call)
        if self._leaves:
            self._note_gradients()
        key = (call.key(), *[value for _, _, value in modes(self._modules)],
               *[leaf.grad is None for leaf in self._leaves.values()])
        variant = self._variants.setdefault(key, _Variant())
        if variant.ready:
            assert variant.guards is not None and variant.program is not None
            replay = self._replay(call, variant.guards, variant.program)
            valid, result = variant.program.run(call.tensors) if variant.guards.hold() else (False, None)
            if valid:
                variant.guards.set_gradients()
                variant.guards.set_modes()
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

    def _replay(self, call: _Call, guards: Guards, program: _trace.Program) -> Replay | None:
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
            attributes=[*guards.attributes, *((module.__dict__, name, value) for module, name, value
                                              in modes(self._modules) if name != "training")],
            unchanged=guards.reads.check, host=guards.host,
            leaves=guards.leaves, gradients=guards.gradients, step=program.step, written=program.written,
            own_written=guards.written, results=program.leaves, spec=program.spec,
            kept=_get_current_function_mode_stack(), modes_after=guards.modes)

    def _remember(self, key: Any, replay: Replay | None) -> None:
        self._replays.pop(key, None)
        if replay is None:
            return
        if len(self._replays) >= REPLAYS:
            self._replays.pop(next(iter(self._replays)))
        self._replays[key] = replay

    def _first(self, call: _Call) -> Any:
        """Runs the step line by line: optimizers make their state, lazy modules their parameters, and
        DistributedDataParallel, in its second or third step, other buckets."""
        guards = Guards({})

        watch = _trace.Watch(lambda: any(map(averages, guards.modules.values())))
        with guards.seeing(), watch:
            result = tree_map(_detached, call.run(guards.run, self._step, call.tensors))
        # Modules that the step makes are other ones in each call, so that later calls add none.
        self._modules = guards.all_modules()
        self._leaves.update(watch.leaves)
        for parameter in tree_leaves([each._parameters for each in self._modules.values()]):
            if parameter is not None:
                _trace.refuse_class(parameter)
        self._begun += 1
        averaging = [*filter(averages, guards.modules.values())]
        if any(each.find_unused_parameters and not each.static_graph for each in averaging):
            raise RuntimeError(
                "DistributedDataParallel with find_unused_parameters=True cannot be a part of a captured "
                "step, because it reads in each step which parameters other processes use: use "
                "static_graph=True")
        self._cold = self._begun < BEGIN and not all(each._has_rebuilt_buckets for each in averaging)
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

    def _run(self, call: _Call, guards: Guards, tensors: list[torch.Tensor]) -> Any:
        result = call.run(guards.run, self._step, tensors)
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
                f"memory to which it writes."
                f"{guards.changed() + guards.advice() if guards is not None else ''}")
        self._replays.pop(key, None)
        self._variants[key] = made = _Variant()
        return made

    def _learn(self, variant: _Variant, call: _Call) -> Any:
        """Runs the step as a trace. The variant is ready if the trace is equal to the one before."""
        guards, watch = Guards(self._modules), _trace.Watch()
        seen = variant.guards
        values, attributes = (seen.values, seen.attributes) if seen is not None else ([], [])
        del seen
        variant.guards = None  # else it would hold the gradients of the trace before
        # The step sees copies: a tensor that it reads from outside as well is not taken for an argument.
        own = _trace.copies(call.tensors)
        watch.made(own)
        with guards.seeing():
            result, program = _trace.trace(
                lambda *tensors: self._run(call, guards, list(tensors)), own, watch)
        with torch.no_grad():
            program.write_back(own, call.tensors)
        before, variant.program = variant.program, program
        variant.guards = guards
        guards.settle(watch)
        self._leaves.update(watch.leaves)
        program.kept = [weak for weak in program.kept if not guards.owns(weak)]
        variant.traces += 1
        if before is not None:
            problem = _problem(before, program, values == guards.values, guards.own_change)
            if not problem:
                guards.keep_attributes(attributes)
                program.finish()
                variant.ready = True
            elif variant.traces >= TRACES:
                raise RuntimeError(f"{getattr(self._step, '__qualname__', 'the step')} cannot be captured: "
                                   f"{problem}{guards.advice()}")
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
    module changes between calls, or a number or a hook of an optimizer, or whatever else the program's own
    code reads from outside of the step, the step is traced anew. RuntimeError if the step itself changes
    what it reads, as a learning rate's scheduler does. Other Python code of the step does not run again,
    nor does that of its hooks.

    RuntimeError under a version of Python whose reads cannot be seen; 3.11 to 3.13 are good.
    """
    if not _core.can_capture():
        version = ".".join(map(str, sys.version_info[:2]))
        raise RuntimeError(f"capture needs Python 3.11 to 3.13: under {version} it cannot be seen what a "
                           "step reads")
    return Captured(step)
