"""script(): functions compiled from their syntax tree, with branches and loops on tensors."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .. import _capturing, _core
from .._core import Tensor
from .._script import Compiler
from .._script._compiler import _rebuild
from .._session import current_session, owner_of
from .._tree import flatten

__all__ = ["Scripted", "script"]

MOST_PROGRAMS = 16


class _Script:
    """One compiled program, with the tensors from outside that it takes."""

    def __init__(self, program: Any, shape: Any, inputs: list[Tensor | int]) -> None:
        self.program, self.shape, self.inputs = program, shape, inputs

    def run(self, tensors: list[Tensor]) -> Any:
        given = [tensors[i] if isinstance(i, int) else i for i in self.inputs]
        return _rebuild(self.shape, list(self.program.call(given, [])))


class Scripted:
    """A scripted function: `if` and `while` on tensors run on the daemon, without a round trip. What
    `script` returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self._cache: OrderedDict[Any, _Script] = OrderedDict()
        self._latest: _Script | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_function" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return f"<teletensor.jit.Scripted {self.name!r}>"

    def __str__(self) -> str:
        if self._latest is None:
            raise RuntimeError(f"{self.name} has not been compiled yet: call it")
        text: str = self._latest.program.text()
        return text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _capturing.active() is not None or _core.depth():
            return self._function(*args, **kwargs)
        leaves, _ = flatten((list(args), kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if _core.grad_mode() and any(t.requires_grad for t in tensors + self._outside()):
            # Gradients: the function itself runs; what it branches on is read.
            return self._function(*args, **kwargs)
        if kwargs or any(isinstance(a, (list, dict, tuple)) for a in args):
            raise TypeError(f"{self.name}: a scripted function takes tensors and constants by position")
        key = (_core.signature(tensors),
               tuple(Tensor if isinstance(a, Tensor) else (type(a), a) for a in args))
        found = self._cache.get(key)
        if found is None:
            found = self._compile(args, tensors)
            if found is None:
                return self._function(*args)
            self._cache[key] = found
            if len(self._cache) > MOST_PROGRAMS:
                self._cache.popitem(last=False)
        self._latest = found
        return found.run(tensors)

    def _outside(self) -> list[Tensor]:
        function = self._function
        if hasattr(function, "parameters"):
            return list(function.parameters())
        return []

    def _compile(self, args: tuple[Any, ...], tensors: list[Tensor]) -> _Script | None:
        session = owner_of(tensors[0]._session) if tensors else current_session()
        compiler = Compiler(session)
        program, shape = compiler.compile(self._function, args)
        reals = [real for real, _ in compiler.inputs]
        inputs: list[Tensor | int] = [
            next((i for i, t in enumerate(tensors) if t is real), real) for real in reals]
        if _core.grad_mode() and any(isinstance(i, Tensor) and i.requires_grad for i in inputs):
            return None
        return _Script(program, shape, inputs)


def script(function: Any) -> Any:
    """Compiles a function (or a module's forward) from its source: assignments, arithmetic, calls of
    ops, methods, modules and other such functions, `if`, `for` and `while` on tensor values, tuples,
    early return. The same program for every value that the tensors may have.

    Variables that change in a loop on a tensor become tensors. Where gradients are recorded, the
    function itself runs, and what it branches on is read. Raises ScriptError, with file, line and
    column, at the first call, for what is not supported.

    Its source must be in a file (or a notebook's cell)::

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
