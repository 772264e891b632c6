"""The steps of a scripted function as its source has them: what `.graph` and `.code` show before a call
decides dtypes and shapes."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

from .._script import Source

__all__ = ["source_code", "source_steps"]

_OPS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder", ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor", ast.LShift: "bitwise_left_shift",
    ast.RShift: "bitwise_right_shift", ast.USub: "neg", ast.UAdd: "positive", ast.Invert: "bitwise_not",
    ast.Not: "logical_not", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge",
}  # fmt: skip


def _source(function: Any) -> Source:
    return Source(getattr(function, "forward", function))


def source_code(function: Callable[..., Any]) -> str:
    """The source of a function, or of a module's forward, without decorators. ScriptError if the source is
    not available."""
    tree = _source(function).tree
    return ast.unparse(ast.FunctionDef(**{**dict(ast.iter_fields(tree)), "decorator_list": []},
                                       lineno=tree.lineno)) + "\n"


def source_steps(function: Callable[..., Any]) -> str:
    """The text of the program of a function, or of a module's forward: one line for each op, without dtypes
    and shapes. ScriptError if the source is not available."""
    return _Steps(_source(function)).text()


class _Steps:
    """Writes the lines of one function."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: list[str] = []
        self._count = 0
        self._depth = 1
        given = source.tree.args
        self._own = {each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]}
        self._own |= {node.id for node in ast.walk(source.tree)
                      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}

    def text(self) -> str:
        tree = self._source.tree
        self._block(tree.body)
        return f"program {tree.name}({ast.unparse(tree.args)}):\n" + "".join(
            line + "\n" for line in self._lines)

    def _line(self, text: str, node: ast.AST | None = None) -> None:
        place = "" if node is None else "  # " + self._source.place(node).rpartition(":")[0]
        self._lines.append("  " * self._depth + text + place)

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _nested(self, head: str, body: list[ast.stmt]) -> None:
        self._line(head)
        self._depth += 1
        self._block(body)
        self._depth -= 1

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = self._value(node.value)
            self._line(" = ".join([*map(ast.unparse, targets), value]))
        elif isinstance(node, ast.AugAssign):
            target = ast.unparse(node.target)
            value = self._step(node, _OPS[type(node.op)], target, self._value(node.value))
            self._line(f"{target} = {value}")
        elif isinstance(node, ast.Return):
            self._line("return" if node.value is None else f"return {self._value(node.value)}")
        elif isinstance(node, ast.If):
            self._nested(f"if {self._value(node.test)}:", node.body)
            if node.orelse:
                self._nested("else:", node.orelse)
        elif isinstance(node, ast.While):
            self._line("while:")
            self._depth += 1
            self._nested("condition():", [ast.Return(node.test)])
            self._nested("body():", node.body)
            self._depth -= 1
        elif isinstance(node, ast.For):
            self._nested(f"for {ast.unparse(node.target)} in {self._value(node.iter)}:", node.body)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self._value(node.value)
        else:
            self._line(ast.unparse(node))

    def _step(self, node: ast.AST, kind: str, *operands: str) -> str:
        """Adds the line of an op and returns the name of its result."""
        name = f"v{self._count}"
        self._count += 1
        self._line(f"{name} = {kind}({', '.join(operands)})", node)
        return name

    def _value(self, node: ast.expr) -> str:
        """Adds the lines of the ops in an expression; returns the name or text of its value."""
        if isinstance(node, ast.BinOp):
            return self._step(node, _OPS[type(node.op)], self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            return self._step(node, _OPS[type(node.op)], self._value(node.operand))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPS:
            return self._step(node, _OPS[type(node.ops[0])], self._value(node.left),
                              self._value(node.comparators[0]))
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Tuple, ast.List)):
            parts = ", ".join(map(self._value, node.elts))
            if isinstance(node, ast.List):
                return f"[{parts}]"
            return f"({parts},)" if len(node.elts) == 1 else f"({parts})"
        if isinstance(node, ast.Subscript):
            return f"{self._value(node.value)}[{ast.unparse(node.slice)}]"
        if isinstance(node, ast.Attribute):
            return f"{self._value(node.value)}.{node.attr}"
        return ast.unparse(node)

    def _call(self, node: ast.Call) -> str:
        kind, first = self._callee(node.func)
        given = [f"*{self._value(each.value)}" if isinstance(each, ast.Starred) else self._value(each)
                 for each in node.args]
        named = [f"{each.arg}={self._value(each.value)}" if each.arg else f"**{self._value(each.value)}"
                 for each in node.keywords]
        return self._step(node, kind, *first, *given, *named)

    def _callee(self, function: ast.expr) -> tuple[str, list[str]]:
        """The name of what is called, and the object whose method it is: "relu" both for F.relu(x) and for
        x.relu(), and "self.fc" for a part of the module."""
        if not isinstance(function, ast.Attribute):
            return ast.unparse(function), []
        root: ast.expr = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            if root.id == "self":
                return ast.unparse(function), []
            if root.id not in self._own and isinstance(self._source.names.get(root.id), types.ModuleType):
                return function.attr, []
        return function.attr, [self._value(function.value)]
