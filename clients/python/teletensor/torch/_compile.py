"""`torch.compile(backend="teletensor")`: each graph of PyTorch's compiler as one command of the daemon.

PyTorch finds `backend` by the entry point "torch_dynamo_backends" of this distribution. Its AOTAutograd
makes a graph of the forward and one of the backward. A graph that cannot be one command runs operator
by operator, with one warning for each function.
"""

from __future__ import annotations

import operator
import re
import warnings
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch.utils.checkpoint import CheckpointPolicy

from . import _trace

__all__ = ["backend"]

PROGRAMS = 16  # of a graph: one for each combination of sizes

_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')
_warned: set[tuple[str, str]] = set()  # files and names of functions

# PyTorch's compiler does not look at the code of the collectives' backend.
trace_rules.add("teletensor.integrations")


def _warn(graph: Any, reason: str) -> None:
    """Warns that the graph runs operator by operator, once for the function that it is from."""
    file, number, name = "", "", "a graph"
    for node in graph.graph.nodes:
        lines = _LINE.findall(node.meta.get("stack_trace") or "")
        own = [line for line in lines if not line[0].startswith(_trace.PACKAGES)] or lines
        if own:
            file, number, name = own[-1]
            break
    if (file, name) in _warned:
        return
    _warned.add((file, name))
    place = f" ({file}:{number})" if file else ""
    warnings.warn(f'torch.compile(backend="teletensor"): {name}{place} is not one command of the daemon '
                  f"but runs operator by operator: {reason}", stacklevel=3)


class _Graph:
    """A graph without side effects, and its programs by the sizes of its inputs. A graph with tensors in
    host memory, or one that cannot be captured, runs operator by operator."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._programs: dict[Any, _trace.Program] = {}
        self._line_by_line = False

    def __call__(self, *inputs: Any) -> Any:
        places = [i for i, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
        tensors: list[torch.Tensor] = [inputs[i] for i in places]
        if self._line_by_line:
            return self._graph(*inputs)
        elsewhere = sum(each.device.type != "tt" for each in tensors)
        if elsewhere:
            _warn(self._graph, f"{elsewhere} of its {len(tensors)} tensors are not on the device tt. Move "
                               'them there: .to("tt")')
            return self._graph(*inputs)
        with torch.no_grad():
            key = (_trace.bridge.signature(tensors),
                   *(_trace.exact(each) for each in inputs if not isinstance(each, torch.Tensor)))
            program = self._programs.get(key)
            if program is not None:
                valid, result = program.run(tensors)
                if not valid:
                    _warn(self._graph, "its arguments share memory, or a tensor that it reads from outside "
                                       "is another one now")
                return result if valid else self._graph(*inputs)
            return self._first(key, inputs, places, tensors)

    def _first(self, key: Any, inputs: Any, places: list[int], tensors: list[torch.Tensor]) -> Any:
        def run(*own: torch.Tensor) -> Any:
            given = list(inputs)
            for i, each in zip(places, own, strict=True):
                given[i] = each
            return self._graph(*given)

        own = _trace.copies(tensors)
        try:
            result, program = _trace.trace(run, own, _trace.Watch())
        except (RuntimeError, NotImplementedError) as error:
            # The graph has written to copies only.
            self._line_by_line = True
            _warn(self._graph, str(error))
            return self._graph(*inputs)
        program.write_back(own, tensors)
        program.finish()
        if len(self._programs) >= PROGRAMS:
            self._programs.pop(next(iter(self._programs)))
        self._programs[key] = program
        return result


def _compiled(graph: Any, _: Any) -> Any:
    aten = torch.ops.aten
    for node in graph.graph.nodes:
        # PyTorch's compiler has chosen views by the strides that its own kernels would give results.
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    graph.recompile()
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(_Graph(graph))


def _partition(joint: Any, *arguments: Any, **options: Any) -> Any:
    """PyTorch's default partition, in which a checkpoint keeps its random numbers: the operators with
    which PyTorch draws them again in the backward are for other devices."""
    from torch._functorch.partitioners import default_partition

    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for each in (node, *(user for user in node.users if user.target is operator.getitem)):
                if "recompute" in each.meta:
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return default_partition(joint, *arguments, **options)


def backend(graph: Any, inputs: Any, **options: Any) -> Any:
    """The compiler of `torch.compile(backend="teletensor")`. It has no options; a mode has no effect."""
    from torch._dynamo.backends.common import aot_autograd

    mode = options.pop("mode", None)
    if mode is not None:
        warnings.warn(f"the backend teletensor has no modes: mode={mode!r} has no effect", stacklevel=2)
    if options:
        raise ValueError(f"the backend teletensor has no options, but was given {', '.join(options)}")
    compiler = aot_autograd(fw_compiler=_compiled, bw_compiler=_compiled, partition_fn=_partition)
    return compiler(graph, inputs)
