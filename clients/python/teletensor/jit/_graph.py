"""The programs of captured and scripted functions in the form in which PyTorch shows them: `.graph`,
`.code`."""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

__all__ = ["Graph", "Node", "Shown"]

_STEP = re.compile(r"^\s*(?P<outputs>v\d+[^=#]*?) = (?P<kind>[\w.]+)\(.*?\)(?:  # (?P<line>.*))?$")
_HEAD = re.compile(r"^program (?P<name>.*?)\((?P<parameters>.*)\):$")
_TYPE = re.compile(r": \w+\[[^\]]*\]")
_PLACE = re.compile(r"  # .*$")


class Node(NamedTuple):
    """A step of a graph."""

    op: str
    text: str
    line: str  # the source line of the program; "" if it is not known

    def kind(self) -> str:
        """The name of the op."""
        return self.op

    def sourceRange(self) -> str:
        """The source line of the op."""
        return self.line


class Graph:
    """The steps of a program; print() shows them with dtypes, shapes and source lines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def nodes(self) -> list[Node]:
        """The ops in order, including those in branches and loops."""
        found = ((line, _STEP.match(line)) for line in self._text.splitlines())
        return [Node(m["kind"], line.strip(), m["line"] or "") for line, m in found if m]


def code_of(text: str) -> str:
    """The text of a program as lines of Python, without dtypes, shapes and source lines."""
    lines = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name = re.sub(r"\W+", "_", head["name"]).strip("_") or "program"
            name += "_" * keyword.iskeyword(name)
            line = f"def {name}({_TYPE.sub(': Tensor', head['parameters'])}):"
        lines.append(_TYPE.sub("", _PLACE.sub("", line)) if not head else line)
    return "\n".join(lines) + "\n"


class Shown:
    """The attributes of a captured, scripted or loaded function that show its program. Attributes of a
    module with the same names have priority."""

    program: Any
    _function: Callable[..., Any]

    def _own(self, name: str) -> Any:
        return getattr(self.__dict__.get("_function"), name, None)

    def _text(self) -> str:
        """The text of the program of the latest call. AttributeError before the first call."""
        if getattr(self, "_latest", None) is None:
            raise AttributeError("the function has no captured program yet: call it")
        return str(self.program)

    def _code(self) -> str:
        return code_of(self._text())

    @property
    def graph(self) -> Any:
        """The program of the latest call as it was captured. Before the first call, that of a scripted
        function has neither dtypes nor shapes, and that of a compiled function raises AttributeError."""
        own = self._own("graph")
        return Graph(self._text()) if own is None else own

    @property
    def code(self) -> Any:
        """The program of the latest call as text that reads like Python. Before the first call, that of a
        scripted function is its source, and that of a compiled function raises AttributeError."""
        own = self._own("code")
        return self._code() if own is None else own

    @property
    def inlined_graph(self) -> Any:
        """As graph, in which all functions that are called are inlined."""
        own = self._own("inlined_graph")
        return self.graph if own is None else own

    @property
    def save(self) -> Callable[..., Any]:
        """The method `save(f)`, which writes the function to a file as `jit.save` does."""
        from ._files import save

        own: Callable[..., Any] | None = self._own("save")
        return functools.partial(save, cast(Any, self)) if own is None else own

    def graph_for(self, *args: Any, **kwargs: Any) -> Graph:
        """The program that runs for these arguments, after all passes. Calls the function with them."""
        self(*args, **kwargs)  # type: ignore[operator]
        return Graph(self.program.passes()[-1][2])
