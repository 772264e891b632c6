"""Runs the syntax tree of a function on stand-in tensors. Straight-line code is captured; `if` and `while`
on a tensor become branches and loops of the program, and each side is compiled once."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from .. import _core
from .._calls.tree import flatten, unflatten
from .._core import Tensor
from .._sessions.session import Session, _sessions
from . import _trees as trees
from ._frames import Frame, Leave, NoGradient, StandIn, refuse_marked
from ._source import ScriptError, Source
from ._values import CHANGES, Values, tensors_of

__all__ = ["Compiler", "NoGradient", "ScriptError"]

_SHARED = ("writes in place to a tensor that a branch or a loop on a tensor has assigned, and that may be "
           "another variable's tensor as well; make a new one")
MAX_ROUNDS = 256  # iterations of a `for` over Python values, which are unrolled
MAX_DEPTH = 32  # the depth of calls
_MISSING = object()
_BOOL: Any = ast.Constant(value=cast(Any, bool))


class Compiler:
    """One compilation of a function, for arguments of these layouts."""

    def __init__(self, real: Session, gradients: bool, reads: _core.Reads) -> None:
        self._gradients = gradients
        self._reads = reads
        core = _core.Session(
            credit_upto=1 << 62, credit_bytes=1 << 62, frame_bytes=1 << 20, frame_commands=4096,
            frame_items=1 << 16, inline_bytes=1 << 20, quota=0, keeps=False,
            retained_bytes=0)
        self._session = StandIn(core, real.devices)
        core.owner = lambda: self._session
        self._core = core
        self._real = real._core
        self._stand_ins: dict[int, Tensor] = {}  # the stand-in of each real tensor, by its id
        self._arguments = True
        self.inputs: list[tuple[Tensor, Tensor, bool]] = []  # (real tensor, stand-in, is argument)
        self._nodes: list[Any] = []  # the nodes of the block that is being compiled
        self._ordinal = 0
        self._loops = 0
        self._blocks = 0
        self._depth = 0
        self._line = ""
        self._frames: list[Frame] = []
        self._kept: list[Any] = []
        self._values = Values()

    # ---- segments

    def compile(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
                ) -> tuple[dict[str, Any], Any]:
        """Returns the program (with its backward if that was requested), and the structure of the result
        with the indices of its tensors."""
        with _core.Pushed(_sessions(), self._session), _core.GradScope(self._gradients):
            try:
                return self._linked(function, args, kwargs)
            finally:
                _core.abandon_trace(self._core)
                self._core.close()  # so that reading a stand-in later raises an error

    def _linked(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
                ) -> tuple[dict[str, Any], Any]:
        leaves, spec = flatten((list(args), kwargs))
        given, named = unflatten(
            [self.stand_in(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        self._stand_ins.clear()  # a tensor that is also read from outside is a separate input
        self._arguments = False
        self._values.outside([given, named])
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

    def stand_in(self, tensor: Tensor) -> Tensor:
        """The stand-in of a tensor of the real session."""
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
        """Makes a node of the commands issued so far; live tensors remain available to later nodes."""
        alive = _core.alive_in_trace(self._core)
        traced = _core.end_trace(self._core, alive, self._ordinal, self._line, keep=self._gradients)
        program = traced["program"]
        if program.rebinds:
            fixed = program.fixed()
            if any(self._values.may_be_shared(fixed[i]) for i in program.rebound):
                raise ScriptError(f"{self._line}: script: {_SHARED}")
            if self._gradients:
                raise NoGradient
        if program.random_steps and self._loops:
            raise ScriptError(f"{self._line}: script: a loop on a tensor cannot draw random numbers")
        if program.random_steps and self._blocks and self._gradients:
            raise NoGradient
        if program.steps or program.results:
            self._nodes.append(("segment", program, program.fixed(), program.outputs, alive,
                                self._line, traced.get("trace")))
        self._kept.append(alive)

    def _own(self, tensor: Tensor) -> Tensor:
        """Returns the tensor in row-major order and in its own memory, as results of blocks must be."""
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
        """Converts a value to a tensor: a number that changes with the data becomes a 0-d tensor."""
        if isinstance(value, Tensor):
            return self.stand_in(value)
        from .. import _api as tt

        return self._values.number(tt.tensor(value))

    # ---- calls

    def _call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, type) or not inspect.isroutine(function):
            if hasattr(function, "named_parameters") and not isinstance(function, type):
                return self._module(function, args, kwargs)
            inner = getattr(function, "_function", None)  # a scripted or compiled function
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
        refuse_marked(plain, self._line)
        if bound is not None and not inspect.ismodule(bound):
            args = [bound, *args]
        if self._depth == MAX_DEPTH:
            raise ScriptError(f"{self._line}: script: more than {MAX_DEPTH} nested calls")
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
        self._frames.append(Frame(source, variables))
        try:
            found, value = self._block(self._frames[-1], source.tree.body)
        finally:
            self._frames.pop()
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

        named = {f"{prefix}.{name}" if prefix else name: self.stand_in(value)
                 for prefix, part in module.named_modules()
                 for name, value in vars(part).items() if isinstance(value, Tensor)}
        return functional_call(module, named, tuple(args), kwargs)

    # ---- statements: return (True, value) if the block has returned

    def _block(self, frame: Frame, body: list[ast.stmt]) -> tuple[bool, Any]:
        for i, node in enumerate(body):
            self._line = frame.source.place(node).rpartition(":")[0]
            if isinstance(node, ast.If):
                test = self._test(frame, node.test)
                if not isinstance(test, Tensor):
                    found, value = self._block(frame, node.body if test else node.orelse)
                elif trees.returns(node.body) or trees.returns(node.orelse):
                    # The rest of the function becomes part of the side that does not return.
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

    def _statement(self, frame: Frame, node: ast.stmt) -> tuple[bool, Any]:
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
            self._augment(frame, node)
        elif isinstance(node, ast.While):
            self._while(frame, node)
        elif isinstance(node, ast.For):
            return self._for(frame, node)
        elif isinstance(node, (ast.Break, ast.Continue)):
            raise Leave(frame, node)
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
            raise frame.source.fail(node, f"`{trees.word(node)}` is not supported")
        return False, None

    def _assign(self, frame: Frame, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            frame.variables[target.id] = value
            return
        if isinstance(target, ast.Subscript):
            owner, at, _ = self._element(frame, target)
            if not isinstance(owner, Tensor):
                raise frame.source.fail(target, "only variables and elements of tensors can be assigned to")
            self._guarded(frame, target, operator.setitem, owner, at, value)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise frame.source.fail(target, "only variables and elements of tensors can be assigned to")
        if isinstance(value, Tensor):
            value = value.unbind(0)
        values = self._guarded(frame, target, list, value)
        names = target.elts
        starred = [i for i, each in enumerate(names) if isinstance(each, ast.Starred)]
        if starred and len(values) >= len(names) - 1:
            at, end = starred[0], starred[0] + len(values) - len(names) + 1
            values[at:end] = [values[at:end]]
        if len(values) != len(names):
            raise frame.source.fail(target, f"{len(values)} values for {len(names)} names")
        for each, one in zip(names, values, strict=True):
            self._assign(frame, each.value if isinstance(each, ast.Starred) else each, one)

    def _element(self, frame: Frame, node: ast.Subscript) -> tuple[Any, Any, bool]:
        """The indexed value, the index (one that depends on data is a vector), and whether it does."""
        owner, at = self._value(frame, node.value), self._value(frame, node.slice)
        place = isinstance(owner, Tensor) and isinstance(at, Tensor) and at.ndim == 0 and (
            at.dtype != _core.bool)
        return owner, self.stand_in(at).reshape(1) if place else at, place

    def _augment(self, frame: Frame, node: ast.AugAssign) -> None:
        """`target op= value`: writes to tensors and lists in place; other variables get a new value."""
        target = node.target
        at: Any = None
        owner: Any = None
        if isinstance(target, ast.Name):
            now = self._name(frame, target)
        elif isinstance(target, ast.Attribute):
            now = self._value(frame, target)
        else:
            owner, at, _ = self._element(frame, target)
            now = self._guarded(frame, target, operator.getitem, owner, at)
        value = self._value(frame, node.value)
        if isinstance(now, Tensor) and not self._values.is_number(now):
            if self._values.may_be_shared(now):
                raise frame.source.fail(node, _SHARED)
            if isinstance(target, ast.Name) and self._is_alone(frame, target.id):
                now = now.clone()  # a copy, which no other variable can observe
            new = self._apply(frame, node, trees.INPLACE, node.op, now, value)
        elif isinstance(now, (list, dict, set)):
            self._may_change(frame, node, now)
            new = self._apply(frame, node, trees.INPLACE, node.op, now, value)
        else:
            new = self._apply(frame, node, trees.BINARY, node.op, now, value)
        if isinstance(target, ast.Name):
            frame.variables[target.id] = new
        elif isinstance(owner, Tensor):
            self._guarded(frame, node, operator.setitem, owner, at, new)
        elif new is not now:
            raise frame.source.fail(node, "only variables and elements of tensors can be assigned to")

    def _is_alone(self, frame: Frame, name: str) -> bool:
        """Returns whether this variable is the only reference to its tensor's memory."""
        tensor = frame.variables.get(name)
        others = [value for each in self._frames for key, value in each.variables.items()
                  if each is not frame or key != name]
        return isinstance(tensor, Tensor) and not any(
            _core.one_storage(tensor, each) for each in self._known(others))

    def _known(self, values: Iterable[Any]) -> list[Tensor]:
        """The tensors among these values, and the input tensors of the program."""
        return [*tensors_of(values), *(stand_in for _, stand_in, _ in self.inputs)]

    def _may_change(self, frame: Frame, node: ast.AST, container: Any) -> None:
        if self._values.is_outside(container):
            raise frame.source.fail(
                node, f"changes a {type(container).__name__} from before the call or from before a branch "
                      "or a loop on a tensor; make a new one")

    def _test(self, frame: Frame, node: ast.expr) -> Any:
        test = self._condition(frame, node)
        return self._own(self._truth(frame, node, test)) if isinstance(test, Tensor) else test

    # ---- branches and loops on tensors

    def _inside(self, before: dict[str, Any], run: Callable[[], Any]) -> tuple[list[Any], Any]:
        """Compiles a block that starts with these variables; returns its nodes and the result of `run`."""
        outer, self._nodes = self._nodes, []
        self._blocks += 1
        self._open()
        try:
            with self._values.block(before):
                value = run()
            self._close()
            return self._nodes, value
        finally:
            _core.abandon_trace(self._core)
            self._blocks -= 1
            self._nodes = outer

    def _branch(self, frame: Frame, node: ast.If, test: Tensor, yes: list[ast.stmt],
                no: list[ast.stmt], returning: bool) -> Any:
        self._close()
        before = dict(frame.variables)
        sides = []
        for body in (yes, no):
            def run(body: list[ast.stmt] = body) -> Any:
                frame.variables = dict(before)
                try:
                    found, value = self._block(frame, body)
                except Leave as leave:
                    raise leave.frame.source.fail(
                        leave.node, f"`{trees.word(leave.node)}` under a condition on a tensor, in a loop "
                                    "on Python values") from None
                outputs: list[Tensor] = []
                if returning:
                    if not found and trees.returns(yes + no):
                        value = None
                    shape = self._shape_of(value, outputs)
                    return shape, [self._own(t) for t in outputs], self._shared(outputs, before)
                return frame.variables, None, None

            sides.append(self._inside(before, run))
        frame.variables = dict(before)
        numbers: set[int] = set()
        if not returning:
            sides, numbers = self._joined(frame, node, before, sides)
        (nodes_yes, (shape, outs_yes, shared_yes)), (nodes_no, (other, outs_no, shared_no)) = sides
        if shape != other:
            raise frame.source.fail(node, f"the two ways of this `if` give {trees.show(shape)} and "
                                          f"{trees.show(other)}")
        self._same(frame, node, outs_yes, outs_no, "the two ways of this `if`")
        results = [self._like(a, a.requires_grad or b.requires_grad)
                   for a, b in zip(outs_yes, outs_no, strict=True)]
        for i, result in enumerate(results):
            if i in numbers:
                self._values.number(result)
            elif shared_yes[i] or shared_no[i]:
                self._values.share(result)
        self._nodes.append(("if", test, nodes_yes, outs_yes, nodes_no, outs_no, results))
        self._open()
        if returning:
            return trees.rebuild(shape, results)
        frame.variables = {**before, **trees.rebuild(shape, results)}
        return None

    def _either(self, frame: Frame, node: ast.expr, test: Tensor, yes: ast.expr, no: ast.expr) -> Any:
        """`yes if test else no` on a tensor, compiled as an `if` with assignments."""
        def side(value: ast.expr) -> list[ast.stmt]:
            return [trees.placed(node, ast.Assign(targets=[ast.Name(id=".either")], value=value))]

        frame.variables.pop(".either", None)
        branch = trees.placed(node, ast.If(test=node, body=side(yes), orelse=side(no)))
        self._branch(frame, branch, test, branch.body, branch.orelse, returning=False)
        return frame.variables.pop(".either")

    def _shared(self, tensors: list[Tensor], before: dict[str, Any]) -> list[bool]:
        """Whether each result of a block shares memory with an earlier tensor or another result."""
        known = self._known(before.values())
        return [any(_core.one_storage(t, each) for each in known)
                or any(_core.one_storage(t, each) for j, each in enumerate(tensors) if j != i)
                for i, t in enumerate(tensors)]

    def _joined(self, frame: Frame, node: ast.If, before: dict[str, Any], sides: list[Any]
                ) -> tuple[list[Any], set[int]]:
        """The variables that the sides assign, converted to results in the last segment of each block; and
        the indices of the tensors that stand for Python numbers."""
        names = [name for name in dict.fromkeys([*sides[0][1][0], *sides[1][1][0]])
                 if any(side[1][0].get(name, _MISSING) is not before.get(name, _MISSING)
                        for side in sides)]
        names = [n for n in names if all(n in side[1][0] for side in sides)]
        # A variable becomes a tensor if it is one on either side, or if its numbers differ.
        joined = []
        numbers: set[int] = set()
        for nodes, (variables, _, _) in sides:
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
                shared = self._shared(outputs, before)
                outputs = [self._own(t) for t in outputs]
                self._close()
                joined.append((self._nodes, (shape, outputs, shared)))
                numbers = {shape[1][name] for name in names if isinstance(shape[1][name], int) and all(
                    self._values.is_number(side[1][0][name]) for side in sides)}
            finally:
                _core.abandon_trace(self._core)
                self._nodes = outer
        return joined, numbers

    def _same(self, frame: Frame, node: ast.AST, a: list[Tensor], b: list[Tensor], what: str) -> None:
        for x, y in zip(a, b, strict=True):
            if x.dtype != y.dtype or x._shape != y._shape or x.device != y.device:
                raise frame.source.fail(
                    node, f"{what} give tensors of two types: {trees.type_text(x)} and "
                          f"{trees.type_text(y)}")

    def _while(self, frame: Frame, node: ast.While) -> None:
        if node.orelse:
            raise frame.source.fail(node, "`else` of a loop is not supported")
        if trees.returns(node.body):
            raise frame.source.fail(node, "`return` inside a loop is not supported")
        names = [n for n in trees.assigned(node.body) if n in frame.variables]
        if not isinstance(self._test(frame, node.test), Tensor):
            rounds = 0
            while self._test(frame, node.test):
                if self._round(frame, node.body)[0]:
                    break
                rounds += 1
                if rounds > MAX_ROUNDS:
                    raise frame.source.fail(node, f"more than {MAX_ROUNDS} rounds of a loop on Python "
                                                  "numbers, which are written out")
            return
        if any(isinstance(each, (ast.Break, ast.Continue)) for each in trees.own_steps(node.body)):
            self._while(frame, trees.without_leaving(frame.variables, node))
            return
        # Tensors that are only written to in place are not loop variables.
        anew = trees.assigned(node.body, augmented=False)
        names = [n for n in names if n in anew or not isinstance(frame.variables[n], Tensor)
                 or self._values.is_number(frame.variables[n]) or self._is_alone(frame, n)]
        for name in names:
            value = frame.variables[name]
            if not isinstance(value, (Tensor, bool, int, float)):
                raise frame.source.fail(node, f"{name!r} changes in this loop and is no tensor or number")
        before = dict(frame.variables)
        number = [self._values.is_number(before[n]) for n in names]
        own = [self._is_alone(frame, n) for n in names]
        operands = [self._own(self._tensor(before[n])) for n in names]
        self._close()
        heads = [self._like(t, False) for t in operands]
        flags = [t.requires_grad for t in operands]
        self._loops += 1

        def marked(made: list[Tensor], shared: list[bool]) -> list[Tensor]:
            for tensor, is_number, is_own, is_shared in zip(made, number, own, shared, strict=True):
                if is_number:
                    self._values.number(tensor)
                elif not is_own or is_shared:
                    self._values.share(tensor)
            return made

        nothing = [False] * len(names)
        marked(heads, nothing)

        def condition() -> Any:
            frame.variables = {**before, **dict(zip(names, heads, strict=True))}
            return self._test(frame, node.test)

        def rest() -> Any:
            variables = {**before, **dict(zip(names, bodies, strict=True))}
            frame.variables = dict(variables)
            self._block(frame, node.body)
            found = [self._tensor(frame.variables[n]) for n in names]
            shared = [self._shared([t], {m: v for m, v in variables.items() if m != n})[0]
                      for n, t in zip(names, found, strict=True)]
            return [self._own(t) for t in found], shared

        head_nodes, test = self._inside(before, condition)
        if trees.written(head_nodes):
            raise frame.source.fail(node.test, "the condition of this loop writes to a tensor in place")
        while True:
            bodies = marked([self._like(t, flag) for t, flag in zip(operands, flags, strict=True)],
                            nothing)
            body_nodes, (outs, shared) = self._inside(before, rest)
            self._same(frame, node, operands, outs, "a round of this loop and what it begins with")
            found = [flag or t.requires_grad for flag, t in zip(flags, outs, strict=True)]
            if found == flags:
                break
            flags = found  # a value that depends on parameters requires grad in the next iteration
        self._loops -= 1
        copied = tensors_of(before[n] for n in names)
        if any(_core.one_storage(t, each) for t in trees.written(body_nodes) for each in copied):
            raise frame.source.fail(
                node, "this loop writes in place to a tensor that lies in the memory of another one, which "
                      "it assigns anew; make a new one")
        results = marked([self._like(t, flag) for t, flag in zip(operands, flags, strict=True)], shared)
        self._nodes.append(("while", operands, heads, head_nodes, test, bodies, body_nodes, outs,
                            results))
        frame.variables = {**before, **dict(zip(names, results, strict=True))}
        self._open()

    def _for(self, frame: Frame, node: ast.For) -> tuple[bool, Any]:
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
        if not hasattr(values, "__len__"):  # enumerate, zip, reversed, ...
            values = self._guarded(frame, call, lambda: list(itertools.islice(values, MAX_ROUNDS + 1)))
        if len(values) > MAX_ROUNDS:
            raise frame.source.fail(node, f"{len(values)} rounds of a loop on Python values: at most "
                                          f"{MAX_ROUNDS} are written out; loop on a tensor instead")
        for value in values:
            self._assign(frame, node.target, value)
            over, found, result = self._round(frame, node.body)
            if found:
                return True, result
            if over:
                break
        return False, None

    def _round(self, frame: Frame, body: list[ast.stmt]) -> tuple[bool, bool, Any]:
        """One iteration of an unrolled loop: returns (was it the last, has it returned, returned value)."""
        try:
            return False, *self._block(frame, body)
        except Leave as leave:
            return isinstance(leave.node, ast.Break), False, None

    def _for_range(self, frame: Frame, node: ast.For, limits: list[Any]) -> tuple[bool, Any]:
        """for i in range(n) on a tensor n, compiled as a while loop with a counter."""
        if not isinstance(node.target, ast.Name):
            raise frame.source.fail(node.target, "only variables can be assigned to")
        start, stop, step = [0, limits[0], 1] if len(limits) == 1 else [*limits, 1][:3]
        if isinstance(step, Tensor) or step <= 0:
            raise frame.source.fail(node, "range() with this step")
        name = node.target.id
        frame.variables |= {name: self._values.number(self._tensor(start) * 1),
                            ".stop": self._tensor(stop)}
        counter, limit = f".{name}", ".stop"
        frame.variables[counter] = frame.variables[name]
        loop = ast.While(
            test=ast.Compare(left=ast.Name(id=counter), ops=[ast.Lt()],
                             comparators=[ast.Name(id=limit)]),
            body=[ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=counter)),
                  ast.Assign(targets=[ast.Name(id=counter)],
                             value=ast.BinOp(left=ast.Name(id=counter), op=ast.Add(),
                                             right=ast.Constant(value=step))), *node.body], orelse=[])
        self._while(frame, trees.placed(node, loop))
        return False, None

    # ---- expressions

    def _name(self, frame: Frame, node: ast.Name) -> Any:
        for names in (frame.variables, frame.source.names, vars(builtins)):
            if node.id in names:
                value = names[node.id]
                if names is not frame.variables:
                    self._values.outside(value)
                if names is frame.source.names:
                    frame.source.note(node.id, self._reads)
                return self._noted(value)
        raise frame.source.fail(node, f"{node.id!r} is not defined on every way here")

    def _noted(self, value: Any) -> Any:
        """Records what an expression reads from Python; of a container, all its contents."""
        if isinstance(value, Tensor):
            return self.stand_in(value)
        self._reads.whole(value)
        return value

    def _apply(self, frame: Frame, node: ast.AST, table: dict[Any, Any], op: ast.AST, *values: Any
               ) -> Any:
        if type(op) not in table:
            raise frame.source.fail(node, f"the operator `{type(op).__name__}` is not supported")
        return self._values.computed(self._guarded(frame, node, table[type(op)], *values), values)

    def _guarded(self, frame: Frame, node: ast.AST, function: Callable[..., Any], *args: Any,
                 **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ScriptError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise frame.source.fail(node, str(error)) from error

    def _value(self, frame: Frame, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(frame, node)
            case ast.Attribute():
                owner = self._value(frame, node.value)
                self._reads.attribute(owner, node.attr)
                value = self._guarded(frame, node, getattr, owner, node.attr)
                self._values.outside(value)
                return self._noted(value)
            case ast.BinOp():
                left, right = self._value(frame, node.left), self._value(frame, node.right)
                return self._apply(frame, node, trees.BINARY, node.op, left, right)
            case ast.UnaryOp(op=ast.Not()):
                value = self._condition(frame, node.operand)
                if not isinstance(value, Tensor):
                    return not value
                return self._values.computed(value.logical_not(), [value])
            case ast.UnaryOp():
                return self._apply(frame, node, trees.UNARY, node.op, self._value(frame, node.operand))
            case ast.Compare():
                return self._compare(frame, node)
            case ast.BoolOp():
                return self._bool(frame, node.op, node.values, False)
            case ast.Tuple():
                return tuple(self._value(frame, each) for each in node.elts)
            case ast.List():
                return [self._value(frame, each) for each in node.elts]
            case ast.Dict() if all(key is not None for key in node.keys):
                return {self._value(frame, k): self._value(frame, v)  # type: ignore[arg-type]
                        for k, v in zip(node.keys, node.values, strict=True)}
            case ast.Subscript():
                owner, at, place = self._element(frame, node)
                found = self._guarded(frame, node, operator.getitem, owner, at)
                return found[0] if place else self._noted(found)
            case ast.Slice():
                return slice(*(None if each is None else self._value(frame, each)
                               for each in (node.lower, node.upper, node.step)))
            case ast.IfExp():
                test = self._test(frame, node.test)
                if isinstance(test, Tensor):
                    return self._either(frame, node, test, node.body, node.orelse)
                return self._value(frame, node.body if test else node.orelse)
            case ast.JoinedStr():
                raise frame.source.fail(node, "formatted text is not supported")
            case ast.Call():
                return self._call_node(frame, node)
        raise frame.source.fail(node, f"`{trees.word(node)}` is not supported")

    def _condition(self, frame: Frame, node: ast.expr) -> Any:
        """The value of an expression of which only the truth value is needed."""
        if isinstance(node, ast.BoolOp):
            return self._bool(frame, node.op, node.values, True)
        return self._value(frame, node)

    def _bool(self, frame: Frame, op: ast.boolop, nodes: list[ast.expr], truth: bool) -> Any:
        """`a and b` or `a or b`: one of the operands, or, if `truth`, any value with the same truth value.
        b is evaluated only if a does not decide the result."""
        left = (self._condition if truth else self._value)(frame, nodes[0])
        if len(nodes) == 1:
            return left
        both = isinstance(op, ast.And)
        if not isinstance(left, Tensor):
            decided = self._guarded(frame, nodes[0], bool, left) != both
            return left if decided else self._bool(frame, op, nodes[1:], truth)
        rest: ast.expr = nodes[1] if len(nodes) == 2 else trees.placed(
            nodes[1], ast.BoolOp(op=op, values=nodes[1:]))
        if trees.is_total(rest) and (truth or left.dtype == _core.bool):
            right = self._bool(frame, op, nodes[1:], truth)
            if truth or isinstance(right, bool) or (
                    isinstance(right, Tensor) and right.dtype == _core.bool):
                one, other = self._tensor(left), self._tensor(right)
                combined = one.logical_and(other) if both else one.logical_or(other)
                return self._values.computed(combined, [left, right])
        test = self._own(self._truth(frame, nodes[0], left))
        if truth:  # converts the left side too, so that both are bools
            left = self._truth(frame, nodes[0], left)
            rest = trees.placed(rest, ast.Call(func=_BOOL, args=[rest], keywords=[]))
        name = f".left{len(frame.variables)}"
        frame.variables[name] = left
        kept = trees.placed(nodes[0], ast.Name(id=name))
        value = self._either(frame, rest, test, rest if both else kept, kept if both else rest)
        del frame.variables[name]
        return value

    def _truth(self, frame: Frame, node: ast.expr, value: Tensor) -> Tensor:
        """A 0-d bool: whether the tensor's only element is not zero."""
        value = self.stand_in(value)
        if value.numel() != 1:
            raise frame.source.fail(node, f"a condition of shape {tuple(value._shape)} is ambiguous")
        return (value != 0 if value.dtype != _core.bool else value).reshape(())

    def _compare(self, frame: Frame, node: ast.Compare) -> Any:
        left = self._value(frame, node.left)
        result: Any = True
        for op, each in zip(node.ops, node.comparators, strict=True):
            right = self._value(frame, each)
            if isinstance(op, (ast.Is, ast.IsNot)):
                one: Any = (left is right) == isinstance(op, ast.Is)
            elif isinstance(op, (ast.In, ast.NotIn)) and not isinstance(left, Tensor):
                one = (left in right) == isinstance(op, ast.In)
            else:
                one = self._apply(frame, node, trees.COMPARE, op, left, right)
            if isinstance(one, Tensor):
                result = one if result is True else one.logical_and(self._tensor(result))
            elif isinstance(result, Tensor):
                result = result.logical_and(self._tensor(one))
            else:
                result = result and one
            if result is False:
                break
            left = right
        return result

    def _call_node(self, frame: Frame, node: ast.Call) -> Any:
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
            kinds = {float: _core.default_dtype(), int: _core.int64, bool: _core.bool}
            return self._values.number(args[0].to(kinds[function]).clone())
        changed = getattr(function, "__self__", None)
        if isinstance(changed, (list, dict, set)) and getattr(function, "__name__", "") in CHANGES:
            self._may_change(frame, node, changed)
        if function is print:
            raise frame.source.fail(node, "print() is not supported")
        if function in (min, max) and any(isinstance(a, Tensor) for a in args):
            raise frame.source.fail(node, "min() and max() of tensors: use tt.minimum, tt.maximum")
        return self._guarded(frame, node, self._call, function, args, kwargs)
