"""The table of operators: maps the name and the first version of an operator to a function of a few lines
over `tt`.

The parameters of such a function are the operator's inputs and attributes under their ONNX names, so that
one function also serves if an attribute has become an input in a later version. The annotation determines
how a value is passed: `Tensor`, on the daemon; `Ints`, a list on the host; `Host`, a NumPy array; `str`, a
string; `Run` and `Node`, the interpreter and the node; `Any`, unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ._file import Node, OnnxError

__all__ = ["HOST", "OPS", "Host", "Ints", "Node", "Op", "Run", "find", "op"]

Ints: TypeAlias = list[int]
Host: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Any  # stands for _run.Interpreter, which imports the operators


@dataclass
class Op:
    """One row of the table. `kinds` are the annotations of the parameters; `attributes` are the attributes
    that a node may have."""

    function: Callable[..., Any]
    since: int
    kinds: dict[str, str]
    positional: list[str]
    rest: str | None  # the parameter that takes all further inputs
    attributes: frozenset[str]
    required: frozenset[str]

    def check(self, node: Node) -> None:
        """OnnxError if the node has inputs or attributes that the operator does not have."""
        if self.rest is None and len(node.inputs) > len(self.positional):
            raise OnnxError(f"{node}: {len(node.inputs)} inputs, at most {len(self.positional)} are known")
        given = set(node.attributes) | set(node.references)
        unknown = sorted(given - self.attributes)
        if unknown:
            raise OnnxError(f"{node}: unknown attributes {', '.join(unknown)}")
        have = given | {name for name, value in zip(self.positional, node.inputs) if value}
        missing = sorted(self.required - have)
        if missing:
            raise OnnxError(f"{node}: {', '.join(missing)} is missing")


OPS: dict[tuple[str, str], list[Op]] = {}
# The same operators for values that are on the host: sizes, indices, small constants.
HOST: dict[str, Callable[..., Any]] = {}


def op(*names: str, since: int = 1, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function under these names, from a version of the operator set on."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters.values()
        kinds = {p.name: str(p.annotation).removesuffix(" | None") for p in parameters}
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        named = [
            p
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and kinds[p.name] not in ("Run", "Node")
        ]
        row = Op(
            function,
            since,
            kinds,
            positional,
            rest,
            frozenset(p.name for p in named),
            frozenset(p.name for p in named if p.default is p.empty),
        )
        for name in names:
            rows = OPS.setdefault((domain, name), [])
            rows.append(row)
            rows.sort(key=lambda each: -each.since)
        return function

    return enter


def find(node: Node) -> Op | None:
    """The row for a node: the newest one that is not newer than the node's version."""
    return next((row for row in OPS.get((node.domain, node.op), ()) if row.since <= node.version), None)
