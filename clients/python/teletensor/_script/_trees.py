"""Functions that query and transform the syntax trees of scripted functions and the structures of their
results, independently of a compilation."""

from __future__ import annotations

import ast
import operator
from collections.abc import MutableMapping
from typing import Any

from .._core import Tensor

__all__ = [
    "BINARY", "COMPARE", "INPLACE", "UNARY", "assigned", "is_total", "own_steps", "placed", "rebuild",
    "returns", "show", "type_text", "without_leaving", "word", "written",
]


BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
INPLACE = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.Pow: operator.ipow,
    ast.MatMult: operator.imatmul, ast.BitAnd: operator.iand, ast.BitOr: operator.ior,
    ast.BitXor: operator.ixor, ast.LShift: operator.ilshift, ast.RShift: operator.irshift,
}
UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}


def returns(body: list[ast.stmt]) -> bool:
    """Returns whether there is a `return` among the statements."""
    return any(isinstance(each, ast.Return) for stmt in body for each in ast.walk(stmt))


def placed(place: ast.AST, tree: Any) -> Any:
    """Returns the tree with `place` as the source position of its new nodes."""
    for each in ast.walk(tree):
        if not hasattr(each, "lineno"):
            ast.copy_location(each, place)
    return tree


def own_steps(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a loop's body, without those of nested loops."""
    found = []
    for stmt in body:
        found.append(stmt)
        if isinstance(stmt, ast.If):
            found += own_steps(stmt.body) + own_steps(stmt.orelse)
    return found


def without_leaving(variables: MutableMapping[str, Any], node: ast.While) -> ast.While:
    """Returns an equivalent loop without `break` and `continue`: the statements after them are moved into
    the other side of the enclosing `if`, and a variable says whether to continue."""
    go = ".go"
    while go in variables:
        go += "_"
    variables[go] = True

    def rewrite(body: list[ast.stmt]) -> list[ast.stmt]:
        for i, stmt in enumerate(body):
            if isinstance(stmt, ast.Continue):
                return body[:i] or [placed(stmt, ast.Pass())]
            if isinstance(stmt, ast.Break):
                stop = ast.Assign(targets=[ast.Name(id=go)], value=ast.Constant(value=False))
                return [*body[:i], placed(stmt, stop)]
            if isinstance(stmt, ast.If) and any(
                    isinstance(each, (ast.Break, ast.Continue)) for each in own_steps([stmt])):
                rest = body[i + 1:]
                both = ast.If(test=stmt.test, body=rewrite(stmt.body + rest),
                              orelse=rewrite(stmt.orelse + rest))
                return [*body[:i], placed(stmt, both)]
        return body

    test = ast.BoolOp(op=ast.And(), values=[ast.Name(id=go), node.test])
    loop: ast.While = placed(node, ast.While(test=test, body=rewrite(node.body), orelse=[]))
    return loop


def _targets(node: ast.AST) -> list[str]:
    """The variables among the targets of an assignment."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Starred):
        return _targets(node.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return [name for each in node.elts for name in _targets(each)]
    return []


def assigned(body: list[ast.stmt], augmented: bool = True) -> list[str]:
    """The variables that are assigned, with `augmented` also by operators such as `+=`."""
    names = []
    for stmt in body:
        for each in ast.walk(stmt):
            if isinstance(each, ast.Assign):
                names += [name for target in each.targets for name in _targets(target)]
            elif isinstance(each, (ast.AnnAssign, ast.For)) or (
                    augmented and isinstance(each, ast.AugAssign)):
                names += _targets(each.target)
    return list(dict.fromkeys(names))


def written(nodes: list[Any]) -> list[Tensor]:
    """The tensors that these nodes write to in place but that were created earlier."""
    found: list[Tensor] = []
    for kind, *parts in nodes:
        if kind == "segment":
            found += [parts[1][i] for i in parts[0].rebound]
        else:
            for inner in (parts[1], parts[3]) if kind == "if" else (parts[2], parts[5]):
                found += written(inner)
    return found


def is_total(node: ast.expr) -> bool:
    """Returns whether the expression can be evaluated for all values without an error, so that it does not
    matter when it is evaluated."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        return False
    kinds = (ast.Name, ast.Constant, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)
    return isinstance(node, kinds) and all(
        is_total(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))


def rebuild(shape: Any, tensors: list[Any]) -> Any:
    """Rebuilds the value of this structure with these tensors."""
    if isinstance(shape, int):
        return tensors[shape]
    kind, inner = shape
    if kind == "constant":
        return inner
    if kind is dict:
        return {key: rebuild(each, tensors) for key, each in inner.items()}
    parts = [rebuild(each, tensors) for each in inner]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def type_text(tensor: Tensor) -> str:
    """The dtype and shape of a tensor, for error messages."""
    return f"{str(tensor.dtype).rpartition('.')[2]}{list(tensor._shape)}"


def show(shape: Any) -> str:
    """A structure as text, for error messages."""
    if isinstance(shape, int):
        return "a tensor"
    kind, inner = shape
    if kind == "constant":
        return repr(inner)
    if kind is dict:
        return "{" + ", ".join(f"{key!r}: {show(each)}" for key, each in inner.items()) + "}"
    inside = ", ".join(map(show, inner))
    return f"[{inside}]" if kind is list else f"({inside}{',' * (len(inner) == 1)})"


def word(node: ast.AST) -> str:
    """The name of the statement or expression in a program's source."""
    words = {ast.With: "with", ast.Try: "try", ast.Raise: "raise", ast.Import: "import",
             ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.Lambda: "lambda",
             ast.Break: "break", ast.Continue: "continue", ast.FunctionDef: "def",
             ast.ClassDef: "class", ast.Yield: "yield", ast.Await: "await",
             ast.ListComp: "comprehension"}
    return words.get(type(node), type(node).__name__)
