"""The interpreter of a model: runs node after node, by the table of operators, on the daemon and on the
host.

A value is a Tensor on the daemon, a NumPy array on the host (sizes, indices, small constants and what is
computed from them alone), a Narrow, a list (a sequence) or None (an absent optional).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._core import Tensor
from .._script import capturing as _capturing
from .._sessions.errors import SessionLostError, TeletensorError
from ..jit._symbols import Symbol
from . import _control, _host, _math, _neural, _quantized, _recurrent, _shapes, _signal  # noqa: F401
from ._file import NUMPY, Function, Graph, Model, Node, OnnxError, Stored, all_nodes, subgraphs
from ._table import HOST, OPS, Op, find
from ._values import (
    Narrow,
    NotCaptured,
    constant,
    dtype_name,
    host,
    on_daemon,
    shape_of,
)

__all__ = ["Interpreter"]

MAX_ON_HOST = 4096  # elements that an operator on the host takes or returns
MAX_STEPS = 2**22  # nodes that run in one call, including all iterations of loops
MAX_CAPTURED = 2**15  # nodes in a call that becomes a program
# Operators whose result on the host may be larger than their inputs.
_GROWING = frozenset(("ConstantOfShape", "Expand", "Range", "Tile"))


class Interpreter:
    """A model that can run. Its constants with more than MAX_KEPT elements are tensors of the session."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.weights: dict[str, Tensor] = {}
        self._steps = 0
        graphs = [model.graph, *(function.graph for function in model.functions.values())]
        self._find_ops(graphs)
        for graph in graphs:
            self._prepare(graph)
        for function in model.functions.values():
            function.attributes = {
                key: constant(value) if isinstance(value, Stored) else value
                for key, value in function.attributes.items()
            }

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by name; jit.save reads them."""
        return iter(self.weights.items())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yields nothing: the constants of a model are weights."""
        return iter(())

    # ---- before the first run

    def _find_ops(self, graphs: list[Graph]) -> None:
        missing: dict[str, list[str]] = {}
        for graph in graphs:
            for node in all_nodes(graph):
                if self._function(node) is not None:
                    continue
                row = find(node)
                if row is None:
                    domain = f"{node.domain}." if node.domain else ""
                    known = " (in this version of the set)" if (node.domain, node.op) in OPS else ""
                    missing.setdefault(f"{domain}{node.op}{known}", []).append(
                        repr(node.name or (node.outputs or [""])[0])
                    )
                else:
                    row.check(node)
                    node.row = row
        if missing:
            rows = (
                f"{name} (node {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''})"
                for name, nodes in sorted(missing.items())
            )
            raise OnnxError(f"operators that this version does not have: {'; '.join(rows)}")

    def _function(self, node: Node) -> Function | None:
        return self.model.functions.get((node.domain, node.op, node.overload))

    def _prepare(self, graph: Graph) -> None:
        """Moves the constants of a graph to where they are used, and records which node reads each name
        last."""
        values: dict[str, Any] = {name: constant(stored) for name, stored in graph.constants.items()}
        graph.constants = values
        self.weights |= {name: value for name, value in values.items() if isinstance(value, Tensor)}
        uses: dict[str, int] = {}
        for place, node in enumerate(graph.nodes):
            uses.update(dict.fromkeys(node.inputs, place))
            for inner in subgraphs(node):
                uses.update(dict.fromkeys(_reads(inner), place))
            for key, value in node.attributes.items():
                if isinstance(value, Stored):
                    found = node.attributes[key] = constant(value)
                    if isinstance(found, Tensor):
                        self.weights[(node.outputs or [node.name])[0]] = found
                elif isinstance(value, Graph):
                    self._prepare(value)
        outputs = {value.name for value in graph.outputs}
        last: list[list[str]] = [[] for _ in graph.nodes]
        for name, place in uses.items():
            if name and name not in outputs:
                last[place].append(name)
        graph.last = last

    # ---- a run

    def run(self, /, **inputs: Any) -> Any:
        """Returns the outputs of the model in order: the only one, or a list."""
        graph = self.model.graph
        self._steps = 0
        types = {value.name: value.type for value in graph.inputs}
        inputs = {
            name: np.array(int(value), NUMPY[types[name]]) if isinstance(value, (int, Symbol)) else value
            for name, value in inputs.items()
        }
        outputs = [_result(value) for value in self.graph(graph, ChainMap(), inputs)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def graph(self, graph: Graph, outer: ChainMap[str, Any], inputs: dict[str, Any]) -> list[Any]:
        """Runs a graph in the scope of another one and returns its outputs."""
        self._count(len(graph.nodes) + 1)
        scope = outer.new_child({**graph.constants, **inputs})
        for node, done in zip(graph.nodes, graph.last):
            results = self._node(node, scope)
            for name, value in zip(node.outputs, results):
                if name:
                    scope[name] = value
            for name in done:
                scope.maps[0].pop(name, None)
        return [scope.get(value.name) for value in graph.outputs]

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise OnnxError(f"more than {MAX_STEPS} nodes in one call, all rounds of loops together")
        if self._steps > MAX_CAPTURED and _capturing.active() is not None:
            raise NotCaptured(f"more than {MAX_CAPTURED} nodes in one call, all rounds of loops together")

    def _node(self, node: Node, scope: ChainMap[str, Any]) -> Sequence[Any]:
        lost = [name for name in node.inputs if name and name not in scope]
        if lost:
            raise OnnxError(f"{node} reads {lost[0]!r}, which its node has not computed")
        inputs = [scope[name] if name else None for name in node.inputs]
        try:
            function = self._function(node)
            if function is not None:
                return self._call(node, function, inputs)
            found = self._on_host(node, inputs)
            if found is None:
                found = self._apply(node.row, node, inputs, scope)
            return found if isinstance(found, tuple) else (found,)
        except NotCaptured as error:
            error.node = error.node or str(node)
            raise
        except (OnnxError, MemoryError, SessionLostError):
            raise
        except Exception as error:  # a faulty file may cause any exception: AttributeError, KeyError, ...
            if isinstance(error, TeletensorError) and type(error) is not TeletensorError:
                raise
            given = ", ".join(map(_shown, inputs))
            raise OnnxError(f"{node} of ({given}): {error}") from error

    def _call(self, node: Node, function: Function, inputs: list[Any]) -> list[Any]:
        graph = _with_attributes(function.graph, function.attributes | node.attributes)
        names = [value.name for value in graph.inputs]
        return self.graph(graph, ChainMap(), dict.fromkeys(names) | dict(zip(names, inputs)))

    def _on_host(self, node: Node, inputs: list[Any]) -> Any:
        """Returns the node's result if everything that it reads is on the host and small, and None if
        not."""
        function = None if node.domain else HOST.get(node.op)
        if (
            function is None
            or not inputs
            or not all(v is None or isinstance(v, np.ndarray) for v in inputs)
        ):
            return None
        arrays = [v for v in inputs if v is not None]
        if any(v.dtype == object or v.size > MAX_ON_HOST for v in arrays):
            return None
        if node.op in _GROWING and _host.count(node.op, inputs) > MAX_ON_HOST:
            return None
        attributes = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in node.attributes.items()
        }
        with np.errstate(all="ignore"):
            found = function(node, *inputs, **attributes)
        if isinstance(found, (Tensor, Narrow)):  # a type that NumPy does not have
            return found
        return tuple(map(np.asarray, found)) if isinstance(found, (tuple, list)) else np.asarray(found)

    def _apply(self, row: Op, node: Node, inputs: list[Any], scope: ChainMap[str, Any]) -> Any:
        kinds = row.kinds
        rest = inputs[len(row.positional) :] if row.rest else []
        keywords: dict[str, Any] = {}
        for name, value in zip(row.positional, inputs):
            if value is not None:
                keywords[name] = _converted(kinds[name], value)
        for name, value in node.attributes.items():
            keywords[name] = _converted(kinds[name], value)
        for name, kind in kinds.items():
            if kind == "Run":
                keywords[name] = Frame(self, scope)
            elif kind == "Node":
                keywords[name] = node
        if not row.rest:
            return row.function(**keywords)
        first = [keywords.pop(name, None) for name in row.positional]
        return row.function(*first, *(_converted(kinds[row.rest], value) for value in rest), **keywords)


class Frame:
    """The interface of the interpreter to an operator that has subgraphs."""

    def __init__(self, interpreter: Interpreter, scope: ChainMap[str, Any]) -> None:
        self._interpreter, self._scope = interpreter, scope

    def __call__(self, graph: Graph, *inputs: Any) -> list[Any]:
        """Runs a subgraph of the node with these inputs and returns its outputs."""
        names = [value.name for value in graph.inputs]
        if len(names) != len(inputs):
            raise OnnxError(f"graph {graph.name!r} has {len(names)} inputs, {len(inputs)} are given")
        return self._interpreter.graph(graph, self._scope, dict(zip(names, inputs)))


def _with_attributes(graph: Graph, given: dict[str, Any]) -> Graph:
    """A function's graph with the attributes that its caller passes."""
    nodes = []
    for node in graph.nodes:
        own = {
            key: _with_attributes(value, given) if isinstance(value, Graph) else value
            for key, value in node.attributes.items()
        }
        own |= {key: given[name] for key, name in node.references.items() if name in given}
        nodes.append(replace(node, attributes=own, references={}))
    return replace(graph, nodes=nodes)


def _reads(graph: Graph) -> Iterator[str]:
    """The names that a graph and the graphs nested in it read."""
    for node in all_nodes(graph):
        yield from node.inputs
        for inner in subgraphs(node):
            yield from (value.name for value in inner.outputs)
    yield from (value.name for value in graph.outputs)


def _converted(kind: str, value: Any) -> Any:
    if kind == "Tensor":
        return on_daemon(value)
    if kind == "Ints":
        found = value if isinstance(value, list) else host(value)
        return [int(v) for v in np.asarray(found).reshape(-1)]
    if kind == "Host":
        return value if isinstance(value, list) else host(value)
    if kind == "str" and isinstance(value, bytes):
        return value.decode()
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return f"{dtype_name(value)}{list(shape_of(value))}"


def _result(value: Any) -> Any:
    """Converts a result for the caller: a tensor or a list of tensors; strings stay a NumPy array."""
    if isinstance(value, list):
        return [_result(each) for each in value]
    if isinstance(value, Narrow):
        return value.tensor
    if isinstance(value, np.ndarray) and value.dtype != object:
        return on_daemon(value)
    return value
