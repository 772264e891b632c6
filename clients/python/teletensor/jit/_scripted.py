"""script(): compiles functions from their syntax trees, with branches and loops on tensors."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .._calls.tree import flatten, unflatten
from .._core import Tensor
from .._script import Compiler, NoGradient, ScriptError, capturing as _capturing
from .._script._trees import rebuild
from .._sessions.session import current_session, owner_of
from ._capture import Entry, contents
from ._compiled import OfModule, Program, _hashable, constant_key, leaf_names, repeat
from ._lines import Lines
from ._source_steps import source_code, source_steps
from ._symbols import Symbol

__all__ = ["Scripted", "script"]

MAX_PROGRAMS = 16


class _Place:
    """Stands for a tensor in the structure of the result."""

    def __init__(self, index: int) -> None:
        self.index = index


def _entry(linked: dict[str, Any], shape: Any, inputs: list[tuple[int, Tensor | None]], names: list[str]
           ) -> Entry:
    """The compiled program in the form of captured ones, so that it is called, saved and repeated in the
    same way."""
    program = linked["program"]
    places = linked.pop("outputs")
    leaves, spec = flatten(rebuild(shape, [_Place(i) for i in range(places)]))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _Place)]
    program.bind([(place, -1, fixed) for place, fixed in inputs],
                 [(False, leaves[i].index) for i in tensors])
    for i in tensors:
        leaves[i] = None
    return Entry.restored(program, linked.get("backward"), linked, spec, leaves, tensors, names, loops=True)


class Scripted(OfModule):
    """A scripted function: `if` and `while` on tensors run on the daemon, without a round trip. The result
    of `script`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self._cache: OrderedDict[Any, list[tuple[_core.Guards, Entry | None]]] = OrderedDict()
        self._latest: Entry | None = None
        self._signature: inspect.Signature | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles wrap a copy of the function or module."""
        return type(self), (self._function,)

    def __repr__(self) -> str:
        return f"<teletensor.jit.Scripted {self.name!r}>"

    def __str__(self) -> str:
        return str(self.program)

    def _text(self) -> str:
        return self._shown(source_steps) if self._latest is None else super()._text()

    def _code(self) -> str:
        return self._shown(source_code) if self._latest is None else super()._code()

    def _shown(self, writer: Callable[[Callable[..., Any]], str]) -> str:
        try:
            return writer(self._function)
        except ScriptError as error:
            raise AttributeError(str(error)) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _core.depth():
            return self._function(*args, **kwargs)  # within a transform
        held = _capturing.active()
        if held is not None:
            # called within a capture: this function's program becomes a part of the captured one
            leaves, spec = flatten((list(args), kwargs))
            for leaf in leaves:
                if isinstance(leaf, Symbol):
                    held.fix(leaf)
            args, kwargs = unflatten([leaf.value if isinstance(leaf, Symbol) else leaf for leaf in leaves],
                                     spec)
            if hasattr(self._function, "training"):
                held.facts.item(vars(self._function), "training")
        args, kwargs = self._bound(args, kwargs)
        facts, entry = self._find(args, kwargs)
        if held is not None:
            held.guards.append(facts.check)
        if entry is None:
            return self._function(*args, **kwargs)
        lines = None if entry.backward is None else Lines(self._function, args, kwargs)
        return entry.run(tensors_of(args, kwargs), lines)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]
               ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with defaults filled in, each at its position."""
        if self._signature is None:
            function = getattr(self._function, "forward", self._function)
            self._signature = inspect.signature(function)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]
              ) -> tuple[_core.Guards, Entry | None]:
        """The program for these arguments, and what it has read from Python; None if its gradients cannot
        be compiled, or if an argument has no data."""
        leaves, spec = flatten((list(args), kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (_core.signature(tensors), _hashable(spec),
               tuple(Tensor if isinstance(leaf, Tensor) else constant_key(leaf) for leaf in leaves),
               getattr(self._function, "training", None))
        found = next((pair for pair in self._cache.get(key, ()) if pair[0].check()), None)
        if found is None:
            found = self._compile(args, kwargs, tensors)
            self._keep(key, found)
        if found[1] is not None:
            self._latest = found[1]
        return found

    def _keep(self, key: Any, pair: tuple[_core.Guards, Entry | None]) -> None:
        for each, pairs in list(self._cache.items()):
            self._cache[each] = [other for other in pairs if not other[0].dead()]
        self._cache.setdefault(key, []).append(pair)
        while sum(map(len, self._cache.values())) > MAX_PROGRAMS:
            oldest = next(iter(self._cache))
            self._cache[oldest] = self._cache[oldest][1:]
            if not self._cache[oldest]:
                del self._cache[oldest]

    @property
    def program(self) -> Program:
        """The program of the latest call. RuntimeError before the first call."""
        if self._latest is None:
            raise RuntimeError(f"{self.name} has not been compiled yet: call it")
        return Program(self._latest, self.name)

    def passes(self) -> list[tuple[str, str, str]]:
        """As Program.passes() of the latest call."""
        return self.program.passes()

    def repeat(self, n: int, *args: Any, data: Any = None) -> Iterator[Any]:
        """Runs the function n times on the daemon, as for the results of `compile`."""
        return repeat(self, n, data, args)

    def _ready(self, args: tuple[Any, ...]) -> tuple[Entry, list[Tensor]] | None:
        bound, kwargs = self._bound(args, {})
        _, entry = self._find(bound, kwargs)
        return None if entry is None else (entry, tensors_of(bound, kwargs))

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
                 ) -> tuple[_core.Guards, Entry | None]:
        if any(x.is_meta for x in tensors):
            return _core.Guards(), None  # no daemon could run a program of it
        session = owner_of(tensors[0]._session) if tensors else current_session()
        drawn = _core.rng_state()  # only the calls of the program draw random numbers
        facts = _core.Guards()
        reads = _core.Reads(facts)

        def attempt(gradients: bool) -> tuple[Compiler, Any]:
            reads.clear()
            for each in (self._function, *flatten((list(args), kwargs))[0]):
                if not isinstance(each, Tensor):
                    reads.know(each)
            _core.set_rng_state(*drawn)
            compiler = Compiler(session, gradients=gradients, reads=reads)
            compilers.append(compiler)
            return compiler, reads.run(compiler.compile, (self._function, args, kwargs), {})

        compilers: list[Compiler] = []
        try:
            try:
                compiler, (linked, shape) = attempt(_core.grad_mode())
            except NoGradient:
                if any(real.requires_grad for real, _, _ in compilers[0].inputs):
                    return facts, None
                compiler, (linked, shape) = attempt(False)  # nothing that it has read requires grad
        finally:
            reads.clear()
            _core.set_rng_state(*drawn)
        for each in ("program", "backward"):
            if each in linked:
                linked[each].optimize(None if _capturing.active() is not None else contents)
        inputs: list[tuple[int, Tensor | None]] = []
        for real, _, is_argument in compiler.inputs:
            place = next(i for i, t in enumerate(tensors) if t is real) if is_argument else -1
            inputs.append((place, None if is_argument else real))
        leaves = flatten((list(args), kwargs))[0]
        names = [name for name, leaf in zip(leaf_names(self._function, args, kwargs), leaves, strict=True)
                 if isinstance(leaf, Tensor)]
        return facts, _entry(linked, shape, inputs, names)


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments, also those in containers."""
    return [leaf for leaf in flatten((list(args), kwargs))[0] if isinstance(leaf, Tensor)]


def script(function: Any) -> Any:
    """Compiles a function (or a module's forward) from its source. Supported are assignments, arithmetic,
    calls of ops, methods, modules and other such functions, `if`, `for` and `while` on tensor values with
    `break` and `continue`, tuples, and early return. Arguments are passed by position or by name, also in
    containers. The program is the same for all values of the tensors.

    Variables that change in a loop on a tensor become tensors. If gradients are recorded, they are computed
    by a program of their own. ScriptError, with file, line and column, at the first call, for anything that
    is not supported.

    The source must be in a file (or in a notebook cell)::

        @tt.jit.script
        def collatz(n):
            steps = 0
            while n > 1:
                if n % 2 == 0:
                    n = n // 2
                else:
                    n = 3 * n + 1
                steps += 1
            return steps

        collatz(tt.tensor(27)).item()  # 111
    """
    if not callable(function):
        raise TypeError(f"script() takes a function or a module, not {type(function).__name__}")
    return Scripted(function)
