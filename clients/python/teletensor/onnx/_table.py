"""The table of operators: name and first version to a function of a few lines over `tt`.

The parameters of such a function are the operator's inputs and attributes, under ONNX's names, so that
an operator whose attribute has become an input later is one function. What an annotation says decides
how a value is handed over: `Tensor` on the daemon; `Ints`, a list on the host; `Host`, a NumPy array;
`str`, text; `Run` and `Node`, the interpreter and the node; `Any`, as it is.
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
Run: TypeAlias = Any  # _run.Interpreter, which imports the operators


@dataclass
class Op:
    """One row. `kinds`: what each parameter's annotation says; `attributes`: what a node may have."""

    function: Callable[..., Any]
    since: int
    kinds: dict[str, str]
    positional: list[str]
    rest: str | None  # of the parameter that takes all further inputs
    attributes: frozenset[str]
    required: frozenset[str]

    def check(self, node: Node) -> None:
        """Raises OnnxError where the node has inputs or attributes that the operator has not."""
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
# The same operators for what is known on the host: sizes, indices, small constants.
HOST: dict[str, Callable[..., Any]] = {}


def op(*names: str, since: int = 1, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under these names, from a version of the operator set on."""

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
    """The row for a node: the newest that is not newer than its version."""
    return next((row for row in OPS.get((node.domain, node.op), ()) if row.since <= node.version), None)
