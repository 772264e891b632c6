"""Runs a function's tree over stand-in tensors. Straight lines are captured; `if` and `while` on a
tensor become branches and loops of the program, each side compiled once."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .._core import Tensor
from .._session import Session, _sessions
from .._tree import flatten, unflatten
from ._source import ScriptError, Source

__all__ = ["Compiler", "NoGradient", "ScriptError"]

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
_UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
MOST_ROUNDS = 256  # of a `for` over Python values: they are written out
MOST_DEPTH = 32  # of calls
_MISSING = object()


class _Leave(Exception):
    """`break` or `continue` in a loop that is written out."""

    def __init__(self, frame: _Frame, node: ast.stmt) -> None:
        self.frame, self.node = frame, node


class NoGradient(Exception):
    """The gradients of this function cannot be a program."""


class _StandIn(Session):
    """A session without a daemon, which the stand-ins live in."""

    def __init__(self, core: Any, devices: list[str]) -> None:
        self._core = core
        self.devices = devices
        self._inline = 1 << 30
        self._closed = True
        self._pid = -1
        self.name = "script"


class _Frame:
    """One function's variables while its tree is walked."""

    def __init__(self, source: Source, variables: dict[str, Any]) -> None:
        self.source = source
        self.variables = variables


class Compiler:
    """One compilation: of a function, for arguments of these layouts."""

    def __init__(self, real: Session, gradients: bool, reads: _core.Reads) -> None:
        self._gradients = gradients
        self._reads = reads
        core = _core.Session(
            credit_upto=1 << 62, credit_bytes=1 << 62, frame_bytes=1 << 20, frame_commands=4096,
            frame_items=1 << 16, inline_bytes=1 << 20, quota=0, keeps=False,
            retained_bytes=0)
        self._session = _StandIn(core, real.devices)
        core.owner = lambda: self._session
        self._core = core
        self._real = real._core
        self._stand_ins: dict[int, Tensor] = {}  # by id of the real tensor
        self._arguments = True
        self.inputs: list[tuple[Tensor, Tensor, bool]] = []  # (real, stand-in, is it an argument?)
        self._nodes: list[Any] = []  # of the block being compiled
        self._ordinal = 0
        self._loops = 0
        self._blocks = 0
        self._depth = 0
        self._line = ""
        self._kept: list[Any] = []

    # ---- pieces

    def compile(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
                ) -> tuple[dict[str, Any], Any]:
        """The program (with its backward, if that was asked for), and the structure of the result with
        its tensors' places."""
        _sessions().append(self._session)
        grad = _core.grad_mode()
        _core.set_grad_mode(self._gradients)
        try:
            leaves, spec = flatten((list(args), kwargs))
            given, named = unflatten(
                [self.stand_in(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
            self._stand_ins.clear()  # read from outside, the same tensor is another input
            self._arguments = False
            self._open()
            result = self._call(function, given, named)
            outputs: list[Tensor] = []
            shape = self._shape_of(result, outputs)
            outputs = [self._own(t) for t in outputs]
            self._close()
            linked: dict[str, Any] = _core.link_program(
                self._real, getattr(function, "__name__", "script"), self._nodes,
                [stand_in for _, stand_in, _ in self.inputs], outputs, self._gradients)
            return linked, shape
        finally:
            _core.abandon_trace(self._core)
            _core.set_grad_mode(grad)
            _sessions().remove(self._session)
            self._core.close()  # who reads a stand-in afterwards is told so

    def stand_in(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of the real session."""
        if tensor._session is self._core:
            return tensor
        found = self._stand_ins.get(id(tensor))
        if found is None:
            open_ = _core.tracing(self._core)
            if open_:
                self._close()
            found = self._like(tensor, self._gradients and tensor.requires_grad)
            self._stand_ins[id(tensor)] = found
            self.inputs.append((tensor, found, self._arguments))
            if open_:
                self._open()
        return found

    def _like(self, tensor: Tensor, requires_grad: bool) -> Tensor:
        made: Tensor = _core.like(self._core, tensor, requires_grad)
        return made

    def _open(self) -> None:
        self._ordinal = _core.begin_trace(self._core)

    def _close(self) -> None:
        """What was issued so far becomes a node; everything that is still held stays nameable."""
        alive = _core.alive_in_trace(self._core)
        traced = _core.end_trace(self._core, alive, self._ordinal, self._line, keep=self._gradients)
        program = traced["program"]
        if program.rebinds:
            raise ScriptError(f"{self._line}: script: writes in place to a tensor from before a branch, "
                              "a loop or the call; make a new one")
        if program.random_steps and self._loops:
            raise ScriptError(f"{self._line}: script: random numbers inside a loop on a tensor")
        if program.random_steps and self._blocks and self._gradients:
            raise NoGradient
        if program.steps or program.results:
            self._nodes.append(("segment", program, program.fixed(), program.outputs, alive,
                                self._line, traced.get("trace")))
        self._kept.append(alive)

    def _own(self, tensor: Tensor) -> Tensor:
        """Row-major and on memory of its own: what blocks hand over."""
        strides, size = [], 1
        for extent in reversed(tensor._shape):
            strides.append(size)
            size *= max(extent, 1)
        return _core.ops["relayout"](tensor, tuple(reversed(strides)))

    # ---- values

    def _shape_of(self, value: Any, outputs: list[Tensor]) -> Any:
        if isinstance(value, Tensor):
            outputs.append(self.stand_in(value))
            return len(outputs) - 1
        if isinstance(value, (tuple, list)):
            return type(value), [self._shape_of(each, outputs) for each in value]
        if isinstance(value, dict):
            return dict, {key: self._shape_of(each, outputs) for key, each in value.items()}
        return "constant", value

    def _tensor(self, value: Any) -> Tensor:
        """A number that changes with the data is a 0-d tensor."""
        if isinstance(value, Tensor):
            return self.stand_in(value)
        import teletensor as tt

        return tt.tensor(value)

    # ---- calls

    def _call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, type) or not inspect.isroutine(function):
            if hasattr(function, "named_parameters") and not isinstance(function, type):
                return self._module(function, args, kwargs)
            inner = getattr(function, "_function", None)  # scripted or compiled
            if inner is not None:
                return self._call(inner, args, kwargs)
            return function(*args, **kwargs)
        bound = getattr(function, "__self__", None)
        plain = getattr(function, "__func__", function)
        code = getattr(plain, "__code__", None)
        package = __name__.partition(".")[0]
        if code is None or str(getattr(plain, "__module__", "")).partition(".")[0] == package:
            self._reads.called(function, tuple(args))
            return function(*args, **kwargs)
        if bound is not None and not inspect.ismodule(bound):
            args = [bound, *args]
        if self._depth == MOST_DEPTH:
            raise ScriptError(f"{self._line}: script: more than {MOST_DEPTH} calls inside each other")
        source = Source(plain)
        try:
            variables = dict(inspect.signature(plain).bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ScriptError(f"{self._line}: script: {plain.__name__}(): {error}") from None
        for name, parameter in inspect.signature(plain).parameters.items():
            if name not in variables and parameter.default is not inspect.Parameter.empty:
                variables[name] = parameter.default
        self._depth += 1
        line = self._line
        try:
            found, value = self._block(_Frame(source, variables), source.tree.body)
        finally:
            self._depth -= 1
            self._line = line
        return value if found else None

    def _module(self, module: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        forward = type(module).forward
        if forward.__module__.partition(".")[0] != __name__.partition(".")[0]:
            return self._call(forward, [module, *args], kwargs)
        children = list(module.children())
        if children and type(module).__name__ == "Sequential":
            value = args[0]
            for child in children:
                value = self._call(child, [value], {})
            return value
        from ..func import functional_call

        named = {name: self.stand_in(t)
                 for listed in (module.named_parameters(), module.named_buffers())
                 for name, t in listed}
        return functional_call(module, named, tuple(args), kwargs)

    # ---- statements: (True, value) where the block has returned

    def _block(self, frame: _Frame, body: list[ast.stmt]) -> tuple[bool, Any]:
        for i, node in enumerate(body):
            self._line = frame.source.place(node).rpartition(":")[0]
            if isinstance(node, ast.If):
                test = self._test(frame, node.test)
                if not isinstance(test, Tensor):
                    found, value = self._block(frame, node.body if test else node.orelse)
                elif _returns(node.body) or _returns(node.orelse):
                    # The rest of the function belongs to the side that goes on.
                    rest = body[i + 1:]
                    return True, self._branch(frame, node, test, node.body + rest,
                                              node.orelse + rest, returning=True)
                else:
                    self._branch(frame, node, test, node.body, node.orelse, returning=False)
                    continue
            else:
                found, value = self._statement(frame, node)
            if found:
                return True, value
        return False, None

    def _statement(self, frame: _Frame, node: ast.stmt) -> tuple[bool, Any]:
        if isinstance(node, ast.Return):
            return True, None if node.value is None else self._value(frame, node.value)
        if isinstance(node, ast.Assign):
            value = self._value(frame, node.value)
            for target in node.targets:
                self._assign(frame, target, value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(frame, node.target, self._value(frame, node.value))
        elif isinstance(node, ast.AugAssign):
            if not isinstance(node.target, ast.Name):
                raise frame.source.fail(node, "only variables can be assigned to")
            now = self._name(frame, node.target)
            value = self._value(frame, node.value)
            self._assign(frame, node.target, self._apply(frame, node, _BINARY, node.op, now, value))
        elif isinstance(node, ast.While):
            self._while(frame, node)
        elif isinstance(node, ast.For):
            return self._for(frame, node)
        elif isinstance(node, (ast.Break, ast.Continue)):
            raise _Leave(frame, node)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self._value(frame, node.value)
        elif isinstance(node, ast.Assert):
            test = self._value(frame, node.test)
            if isinstance(test, Tensor):
                raise frame.source.fail(node, "assert on a tensor's value")
            if not test:
                raise frame.source.fail(node, "this assertion does not hold")
        elif not isinstance(node, ast.Pass):
            raise frame.source.fail(node, f"`{_word(node)}` is not supported")
        return False, None

    def _assign(self, frame: _Frame, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            frame.variables[target.id] = value
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise frame.source.fail(target, "only variables can be assigned to")
        if isinstance(value, Tensor):
            value = value.unbind(0)
        values = list(value)
        if len(values) != len(target.elts):
            raise frame.source.fail(target, f"{len(values)} values for {len(target.elts)} names")
        for each, one in zip(target.elts, values, strict=True):
            self._assign(frame, each, one)

    def _test(self, frame: _Frame, node: ast.expr) -> Any:
        test = self._value(frame, node)
        if isinstance(test, Tensor):
            test = self.stand_in(test)
            if test.numel() != 1:
                raise frame.source.fail(node, f"a condition of shape {tuple(test._shape)} is ambiguous")
            test = (test != 0 if test.dtype != _core.bool else test).reshape(())
            return self._own(test)
        return test

    # ---- branches and loops on tensors

    def _inside(self, run: Callable[[], Any]) -> tuple[list[Any], Any]:
        """A block of its own: its nodes, and what `run` gives."""
        outer, self._nodes = self._nodes, []
        self._blocks += 1
        self._open()
        try:
            value = run()
            self._close()
            return self._nodes, value
        finally:
            _core.abandon_trace(self._core)
            self._blocks -= 1
            self._nodes = outer

    def _branch(self, frame: _Frame, node: ast.If, test: Tensor, yes: list[ast.stmt],
                no: list[ast.stmt], returning: bool) -> Any:
        self._close()
        before = dict(frame.variables)
        sides = []
        for body in (yes, no):
            def run(body: list[ast.stmt] = body) -> Any:
                frame.variables = dict(before)
                try:
                    found, value = self._block(frame, body)
                except _Leave as leave:
                    raise leave.frame.source.fail(
                        leave.node, f"`{_word(leave.node)}` under a condition on a tensor, in a loop on "
                                    "Python values") from None
                outputs: list[Tensor] = []
                if returning:
                    if not found and _returns(yes + no):
                        value = None
                    shape = self._shape_of(value, outputs)
                    return shape, [self._own(t) for t in outputs]
                return frame.variables, None

            sides.append(self._inside(run))
        frame.variables = dict(before)
        if not returning:
            sides = self._joined(frame, node, before, sides)
        (nodes_yes, (shape, outs_yes)), (nodes_no, (other, outs_no)) = sides
        if shape != other:
            raise frame.source.fail(node, f"the two ways of this `if` give {_show(shape)} and "
                                          f"{_show(other)}")
        self._same(frame, node, outs_yes, outs_no, "the two ways of this `if`")
        results = [self._like(a, a.requires_grad or b.requires_grad)
                   for a, b in zip(outs_yes, outs_no, strict=True)]
        self._nodes.append(("if", test, nodes_yes, outs_yes, nodes_no, outs_no, results))
        self._open()
        if returning:
            return _rebuild(shape, results)
        frame.variables = {**before, **_rebuild(shape, results)}
        return None

    def _either(self, frame: _Frame, node: ast.IfExp, test: Tensor) -> Any:
        """`a if test else b` on a tensor: an `if` that assigns."""
        def side(value: ast.expr) -> list[ast.stmt]:
            return [_at(node, ast.Assign(targets=[ast.Name(id=".either")], value=value))]

        branch = _at(node, ast.If(test=node.test, body=side(node.body), orelse=side(node.orelse)))
        self._branch(frame, branch, test, branch.body, branch.orelse, returning=False)
        return frame.variables.pop(".either")

    def _joined(self, frame: _Frame, node: ast.If, before: dict[str, Any], sides: list[Any]
                ) -> list[Any]:
        """The variables that the sides leave, each in a block's last piece."""
        names = [name for name in dict.fromkeys([*sides[0][1][0], *sides[1][1][0]])
                 if any(side[1][0].get(name, _MISSING) is not before.get(name, _MISSING)
                        for side in sides)]
        names = [n for n in names if all(n in side[1][0] for side in sides)]
        # Tensors where a side has one, or where numbers differ.
        joined = []
        for nodes, (variables, _) in sides:
            outer, self._nodes = self._nodes, nodes
            self._open()
            try:
                chosen = {}
                for name in names:
                    values = [side[1][0][name] for side in sides]
                    plain = not any(isinstance(v, Tensor) for v in values)
                    same = plain and type(values[0]) is type(values[1]) and values[0] == values[1]
                    number = all(isinstance(v, (bool, int, float, Tensor)) for v in values)
                    value = variables[name]
                    chosen[name] = self._tensor(value) if number and not same else value
                outputs: list[Tensor] = []
                shape = self._shape_of(chosen, outputs)
                outputs = [self._own(t) for t in outputs]
                self._close()
                joined.append((self._nodes, (shape, outputs)))
            finally:
                _core.abandon_trace(self._core)
                self._nodes = outer
        return joined

    def _same(self, frame: _Frame, node: ast.AST, a: list[Tensor], b: list[Tensor], what: str) -> None:
        for x, y in zip(a, b, strict=True):
            if x.dtype != y.dtype or x._shape != y._shape or x.device != y.device:
                raise frame.source.fail(
                    node, f"{what} give tensors of two types: {_type(x)} and {_type(y)}")

    def _while(self, frame: _Frame, node: ast.While) -> None:
        if node.orelse:
            raise frame.source.fail(node, "`else` of a loop is not supported")
        if _returns(node.body):
            raise frame.source.fail(node, "`return` inside a loop is not supported")
        names = [n for n in dict.fromkeys(_assigned(node.body)) if n in frame.variables]
        if not _on_tensor(self, frame, node.test):
            rounds = 0
            while self._test(frame, node.test):
                if self._round(frame, node.body)[0]:
                    break
                rounds += 1
                if rounds > MOST_ROUNDS:
                    raise frame.source.fail(node, f"more than {MOST_ROUNDS} rounds of a loop on Python "
                                                  "numbers, which are written out")
            return
        if any(isinstance(each, (ast.Break, ast.Continue)) for each in _own_steps(node.body)):
            self._while(frame, _without_leaving(frame, node))
            return
        for name in names:
            value = frame.variables[name]
            if not isinstance(value, (Tensor, bool, int, float)):
                raise frame.source.fail(node, f"{name!r} changes in this loop and is no tensor or number")
        operands = [self._own(self._tensor(frame.variables[n])) for n in names]
        self._close()
        before = dict(frame.variables)
        heads = [self._like(t, False) for t in operands]
        flags = [t.requires_grad for t in operands]
        self._loops += 1

        def condition() -> Any:
            frame.variables = {**before, **dict(zip(names, heads, strict=True))}
            return self._test(frame, node.test)

        def rest() -> Any:
            frame.variables = {**before, **dict(zip(names, bodies, strict=True))}
            self._block(frame, node.body)
            return [self._own(self._tensor(frame.variables[n])) for n in names]

        head_nodes, test = self._inside(condition)
        while True:
            bodies = [self._like(t, flag) for t, flag in zip(operands, flags, strict=True)]
            body_nodes, outs = self._inside(rest)
            self._same(frame, node, operands, outs, "a round of this loop and what it begins with")
            found = [flag or t.requires_grad for flag, t in zip(flags, outs, strict=True)]
            if found == flags:
                break
            flags = found  # what a round makes of parameters has a gradient in the next
        self._loops -= 1
        results = [self._like(t, flag) for t, flag in zip(operands, flags, strict=True)]
        self._nodes.append(("while", operands, heads, head_nodes, test, bodies, body_nodes, outs,
                            results))
        frame.variables = {**before, **dict(zip(names, results, strict=True))}
        self._open()

    def _for(self, frame: _Frame, node: ast.For) -> tuple[bool, Any]:
        if node.orelse:
            raise frame.source.fail(node, "`else` of a loop is not supported")
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            limits = [self._value(frame, a) for a in call.args]
            if any(isinstance(v, Tensor) for v in limits):
                return self._for_range(frame, node, limits)
            values: Any = range(*limits)
        else:
            values = self._value(frame, call)
            if isinstance(values, Tensor):
                values = values.unbind(0)
        if len(values) > MOST_ROUNDS:
            raise frame.source.fail(node, f"{len(values)} rounds of a loop on Python values: at most "
                                          f"{MOST_ROUNDS} are written out; loop on a tensor instead")
        for value in values:
            self._assign(frame, node.target, value)
            over, found, result = self._round(frame, node.body)
            if found:
                return True, result
            if over:
                break
        return False, None

    def _round(self, frame: _Frame, body: list[ast.stmt]) -> tuple[bool, bool, Any]:
        """Of a loop that is written out: was it the last, has it returned, and what."""
        try:
            return False, *self._block(frame, body)
        except _Leave as leave:
            return isinstance(leave.node, ast.Break), False, None

    def _for_range(self, frame: _Frame, node: ast.For, limits: list[Any]) -> tuple[bool, Any]:
        """for i in range(n) on a tensor n: a while loop with a counter."""
        if not isinstance(node.target, ast.Name):
            raise frame.source.fail(node.target, "only variables can be assigned to")
        start, stop, step = [0, limits[0], 1] if len(limits) == 1 else [*limits, 1][:3]
        if isinstance(step, Tensor) or step <= 0:
            raise frame.source.fail(node, "range() with this step")
        name = node.target.id
        frame.variables |= {name: self._tensor(start) * 1, ".stop": self._tensor(stop)}
        counter, limit = f".{name}", ".stop"
        frame.variables[counter] = frame.variables[name]
        loop = ast.While(
            test=ast.Compare(left=ast.Name(id=counter), ops=[ast.Lt()],
                             comparators=[ast.Name(id=limit)]),
            body=[ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=counter)),
                  ast.AugAssign(target=ast.Name(id=counter), op=ast.Add(),
                                value=ast.Constant(value=step)), *node.body], orelse=[])
        self._while(frame, _at(node, loop))
        return False, None

    # ---- expressions

    def _name(self, frame: _Frame, node: ast.Name) -> Any:
        for names in (frame.variables, frame.source.names, vars(builtins)):
            if node.id in names:
                value = names[node.id]
                if names is frame.source.names:
                    frame.source.note(node.id, self._reads)
                return self._noted(value)
        raise frame.source.fail(node, f"{node.id!r} is not defined on every way here")

    def _noted(self, value: Any) -> Any:
        """What an expression reads from Python: of a container all of it."""
        if isinstance(value, Tensor):
            return self.stand_in(value)
        self._reads.whole(value)
        return value

    def _apply(self, frame: _Frame, node: ast.AST, table: dict[Any, Any], op: ast.AST, *values: Any
               ) -> Any:
        if type(op) not in table:
            raise frame.source.fail(node, f"the operator `{type(op).__name__}` is not supported")
        return self._guarded(frame, node, table[type(op)], *values)

    def _guarded(self, frame: _Frame, node: ast.AST, function: Callable[..., Any], *args: Any,
                 **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ScriptError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise frame.source.fail(node, str(error)) from error

    def _value(self, frame: _Frame, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(frame, node)
            case ast.Attribute():
                owner = self._value(frame, node.value)
                self._reads.attribute(owner, node.attr)
                return self._noted(self._guarded(frame, node, getattr, owner, node.attr))
            case ast.BinOp():
                left, right = self._value(frame, node.left), self._value(frame, node.right)
                return self._apply(frame, node, _BINARY, node.op, left, right)
            case ast.UnaryOp(op=ast.Not()):
                value = self._value(frame, node.operand)
                return value.logical_not() if isinstance(value, Tensor) else not value
            case ast.UnaryOp():
                return self._apply(frame, node, _UNARY, node.op, self._value(frame, node.operand))
            case ast.Compare():
                return self._compare(frame, node)
            case ast.BoolOp():
                values = [self._value(frame, each) for each in node.values]
                both = isinstance(node.op, ast.And)
                if any(isinstance(v, Tensor) for v in values):
                    out = self._tensor(values[0])
                    for each in values[1:]:
                        other = self._tensor(each)
                        out = out.logical_and(other) if both else out.logical_or(other)
                    return out
                return all(values) if both else any(values)
            case ast.Tuple():
                return tuple(self._value(frame, each) for each in node.elts)
            case ast.List():
                return [self._value(frame, each) for each in node.elts]
            case ast.Dict() if all(key is not None for key in node.keys):
                return {self._value(frame, k): self._value(frame, v)  # type: ignore[arg-type]
                        for k, v in zip(node.keys, node.values, strict=True)}
            case ast.Subscript():
                owner, at = self._value(frame, node.value), self._value(frame, node.slice)
                if isinstance(owner, Tensor) and isinstance(at, Tensor) and at.ndim == 0 and (
                        at.dtype != _core.bool):  # a place that the data decides
                    at = self.stand_in(at).reshape(1)
                    return self._guarded(frame, node, operator.getitem, owner, at)[0]
                return self._noted(self._guarded(frame, node, operator.getitem, owner, at))
            case ast.Slice():
                return slice(*(None if each is None else self._value(frame, each)
                               for each in (node.lower, node.upper, node.step)))
            case ast.IfExp():
                test = self._test(frame, node.test)
                if isinstance(test, Tensor):
                    return self._either(frame, node, test)
                return self._value(frame, node.body if test else node.orelse)
            case ast.JoinedStr():
                raise frame.source.fail(node, "formatted text is not supported")
            case ast.Call():
                return self._call_node(frame, node)
        raise frame.source.fail(node, f"`{_word(node)}` is not supported")

    def _compare(self, frame: _Frame, node: ast.Compare) -> Any:
        left = self._value(frame, node.left)
        result: Any = True
        for op, each in zip(node.ops, node.comparators, strict=True):
            right = self._value(frame, each)
            if isinstance(op, (ast.Is, ast.IsNot)):
                one: Any = (left is right) == isinstance(op, ast.Is)
            elif isinstance(op, (ast.In, ast.NotIn)) and not isinstance(left, Tensor):
                one = (left in right) == isinstance(op, ast.In)
            else:
                one = self._apply(frame, node, _COMPARE, op, left, right)
            if isinstance(one, Tensor):
                result = one if result is True else one.logical_and(self._tensor(result))
            elif isinstance(result, Tensor):
                result = result.logical_and(self._tensor(one))
            else:
                result = result and one
            left = right
        return result

    def _call_node(self, frame: _Frame, node: ast.Call) -> Any:
        function = self._value(frame, node.func)
        args: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                args += list(self._value(frame, each.value))
            else:
                args.append(self._value(frame, each))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                kwargs |= self._value(frame, keyword.value)
            else:
                kwargs[keyword.arg] = self._value(frame, keyword.value)
        if function in (float, int, bool) and args and isinstance(args[0], Tensor):
            import teletensor as tt

            return args[0].to({float: tt.get_default_dtype(), int: tt.int64, bool: tt.bool}[function])
        if function is print:
            raise frame.source.fail(node, "print() is not supported")
        if function in (min, max) and any(isinstance(a, Tensor) for a in args):
            raise frame.source.fail(node, "min() and max() of tensors: use tt.minimum, tt.maximum")
        return self._guarded(frame, node, self._call, function, args, kwargs)


def _returns(body: list[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Return) for stmt in body for each in ast.walk(stmt))


def _at(place: ast.AST, tree: Any) -> Any:
    """The tree, whose new nodes stand at `place`."""
    for each in ast.walk(tree):
        if not hasattr(each, "lineno"):
            ast.copy_location(each, place)
    return tree


def _own_steps(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a loop's body, without those of loops inside."""
    found = []
    for stmt in body:
        found.append(stmt)
        if isinstance(stmt, ast.If):
            found += _own_steps(stmt.body) + _own_steps(stmt.orelse)
    return found


def _without_leaving(frame: _Frame, node: ast.While) -> ast.While:
    """The same loop without `break` and `continue`: what comes behind them goes into the other side of
    the `if` that they stand in, and a variable says whether to go on."""
    go = ".go"
    while go in frame.variables:
        go += "_"
    frame.variables[go] = True

    def rewrite(body: list[ast.stmt]) -> list[ast.stmt]:
        for i, stmt in enumerate(body):
            if isinstance(stmt, ast.Continue):
                return body[:i] or [_at(stmt, ast.Pass())]
            if isinstance(stmt, ast.Break):
                stop = ast.Assign(targets=[ast.Name(id=go)], value=ast.Constant(value=False))
                return [*body[:i], _at(stmt, stop)]
            if isinstance(stmt, ast.If) and any(
                    isinstance(each, (ast.Break, ast.Continue)) for each in _own_steps([stmt])):
                rest = body[i + 1:]
                both = ast.If(test=stmt.test, body=rewrite(stmt.body + rest),
                              orelse=rewrite(stmt.orelse + rest))
                return [*body[:i], _at(stmt, both)]
        return body

    test = ast.BoolOp(op=ast.And(), values=[ast.Name(id=go), node.test])
    loop: ast.While = _at(node, ast.While(test=test, body=rewrite(node.body), orelse=[]))
    return loop


def _assigned(body: list[ast.stmt]) -> list[str]:
    names = []
    for stmt in body:
        for each in ast.walk(stmt):
            if isinstance(each, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                names += [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return names


def _on_tensor(compiler: Compiler, frame: _Frame, test: ast.expr) -> bool:
    return isinstance(compiler._test(frame, test), Tensor)


def _rebuild(shape: Any, tensors: list[Any]) -> Any:
    if isinstance(shape, int):
        return tensors[shape]
    kind, inner = shape
    if kind == "constant":
        return inner
    if kind is dict:
        return {key: _rebuild(each, tensors) for key, each in inner.items()}
    return kind(_rebuild(each, tensors) for each in inner)


def _type(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]}{list(tensor._shape)}"


def _show(shape: Any) -> str:
    if isinstance(shape, int):
        return "a tensor"
    kind, inner = shape
    return repr(inner) if kind == "constant" else f"a {kind.__name__} of {len(inner)}"


def _word(node: ast.AST) -> str:
    words = {ast.With: "with", ast.Try: "try", ast.Raise: "raise", ast.Import: "import",
             ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Delete: "del", ast.Lambda: "lambda",
             ast.Break: "break", ast.Continue: "continue", ast.FunctionDef: "def",
             ast.ClassDef: "class", ast.Yield: "yield", ast.Await: "await",
             ast.ListComp: "comprehension"}
    return words.get(type(node), type(node).__name__)
