"""The syntax trees of functions, with their positions in the source file."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from .. import _core

__all__ = ["ScriptError", "Source"]


class ScriptError(NotImplementedError):
    """A scripted function cannot be compiled; the message gives file, line and column."""


class Source:
    """The syntax tree of a function, and the values of names where it was defined."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        try:
            lines, first = inspect.getsourcelines(function)
            self.file = inspect.getsourcefile(function) or "?"
        except (OSError, TypeError):
            raise ScriptError(
                f"script: the source of {getattr(function, '__name__', function)!r} is not available"
            ) from None
        text = "".join(lines)
        self.indent = len(lines[0]) - len(lines[0].lstrip())
        tree = ast.parse(textwrap.dedent(text)).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise ScriptError(f"script: {self.file}:{first}: only functions made by def can be scripted")
        self.tree = tree
        self.first = first
        code = function.__code__
        self.names: dict[str, Any] = dict(function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.names[name] = cell.cell_contents
            except ValueError:
                continue

    def note(self, name: str, reads: _core.Reads) -> None:
        """Records that a name from outside of the function is read."""
        function: Any = self.function
        free = function.__code__.co_freevars
        if name in free:
            reads.cell(function.__closure__[free.index(name)], name)
        else:
            reads.item(function.__globals__, name)

    def place(self, node: ast.AST) -> str:
        """The position of a node as file:line:column."""
        line = getattr(node, "lineno", 1) + self.first - 1
        column = getattr(node, "col_offset", 0) + self.indent + 1
        return f"{self.file}:{line}:{column}"

    def fail(self, node: ast.AST, text: str) -> ScriptError:
        """The error to raise for a node."""
        return ScriptError(f"{self.place(node)}: script: {text}")
