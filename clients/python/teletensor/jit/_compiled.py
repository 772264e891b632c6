"""compile() and trace(): functions that are captured once, and then called by one small message."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from .. import _core
from .._calls.tree import flatten
from .._core import Tensor
from .._script import capturing as _capturing, compiling
from ._capture import _STEP, Entry, capture, contents
from ._graph import Shown

__all__ = ["Compiled", "Program", "Uncaptured", "compile", "leaf_names", "repeat", "rounds",
           "trace", "trace_module", "traced"]

MAX_PROGRAMS = 16  # the maximum number of programs that one function keeps
MAX_ATTEMPTS = 4  # the maximum number of consecutive captures that the next call could not use
_TRACE_OPTIONS = {"check_trace", "check_inputs", "check_tolerance", "optimize", "strict"}
_ONLY_TENSORS = {Tensor}
ROUNDS = 64  # the maximum number of iterations that one message requests


def _session_of(tensors: Sequence[Tensor]) -> Any:
    if tensors:
        return tensors[0]._session
    from .._sessions.session import current_session

    return current_session()._core


def _hashable(spec: Any) -> Any:
    if spec is None:
        return None
    kind, keys, specs, counts = spec
    return (kind, None if keys is None else tuple(keys), tuple(map(_hashable, specs)), tuple(counts))


class _Object:
    """An argument that is compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def constant_key(leaf: Any) -> Any:
    """The key of an argument that is neither a tensor nor a variable of the program. Equal numbers of
    different types have different keys."""
    if type(leaf) is float:
        return float, leaf.hex()  # distinguishes -0.0 from 0.0 but not one nan from another
    if type(leaf) is slice:
        return slice, *map(constant_key, (leaf.start, leaf.stop, leaf.step))
    try:
        hash(leaf)
    except TypeError:
        return _Object(leaf)
    return type(leaf), leaf


class Program:
    """A captured program. print() shows its steps as they were captured, with their source lines; len() is
    the number of steps that remain for the daemon after all passes."""

    def __init__(self, entry: Entry, name: str) -> None:
        self._entry = entry
        self.name = name

    def __str__(self) -> str:
        text: str = self._entry.program.text()
        return text

    def __repr__(self) -> str:
        return f"<teletensor.jit.Program {self.name!r}, {len(self)} steps>"

    def __len__(self) -> int:
        steps: int = self._entry.program.steps
        return steps

    def passes(self) -> list[tuple[str, str, str]]:
        """The effect of each pass: (name, the program before it, the program after it). "inline" resolves
        branches with known conditions; "peephole" removes copies, casts and negations that cancel each
        other; "cse" merges common subexpressions; "fold" computes constants; "dce" removes unused results;
        "early" starts collectives earlier; "rematerialise" computes results twice so that less memory is
        needed; "fuse" combines steps to loops."""
        found: list[tuple[str, str, str]] = self._entry.program.passes(contents)
        return found


# The methods of a module that return the module: called through a wrapper they return the wrapper.
_CHAINED = frozenset("""apply bfloat16 cpu cuda double eval float half requires_grad_ share_memory to
                     to_empty train type xpu""".split())


class OfModule(Shown):
    """A function that wraps another function or a module: attributes of the module are read, set and
    deleted through it. `eval()`, `to()` and their like change the module and return the wrapper."""

    _function: Callable[..., Any]
    _OWN = frozenset(("_function", "name", "_cache", "_attempts", "_entries", "_warned", "_ints", "_latest",
                      "_signature", "_traced", "_examples"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_function" not in self.__dict__:
            raise AttributeError(name)
        if name in ("graph", "code") and self._own(name) is None:
            raise AttributeError(f"{self.name} has not run yet: call it", name=name, obj=self)
        found = getattr(self._function, name)
        if name in _CHAINED and getattr(found, "__self__", None) is self._function:
            return functools.partial(self._chained, found)
        return found

    def _chained(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return self if result is self._function else result

    def _is_own(self, name: str) -> bool:
        return name in self._OWN or name.startswith("__") or not hasattr(self._function, "named_parameters")

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._function, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            object.__delattr__(self, name)
        else:
            delattr(self._function, name)


class Compiled(OfModule):
    """A function whose calls run as captured programs, one for each set of shapes, strides, dtypes and
    Python arguments of its calls. The result of `compile` and `trace`.

    Its first call runs the function normally and captures it, including backward and optimizer steps. Each
    later call sends one small message, and nothing waits.
    """

    alive: ClassVar[weakref.WeakSet[Compiled]] = weakref.WeakSet()

    def __init__(self, function: Callable[..., Any], name: str | None = None, traced: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.alive.add(self)
        self._function = function
        self._traced = traced
        self._examples: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.reset()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles wrap a copy of the function or module, and capture at their next call."""
        return type(self), (self._function, self.name, self._traced)

    def reset(self) -> None:
        """Discards the captured programs: the next call captures again."""
        self._cache: OrderedDict[Any, list[Entry]] = OrderedDict()
        self._attempts = 0
        self._entries = 0
        self._warned = False
        self._ints: dict[int, set[int]] = {}  # for each leaf, the values that were seen
        self._latest: Entry | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<teletensor.jit.Compiled {self.name!r}, {self._entries} programs>"

    def __str__(self) -> str:
        return str(self.program)

    @property
    def program(self) -> Program:
        """The program of the latest call. RuntimeError before the first call."""
        if self._latest is None:
            raise RuntimeError(f"{self.name} has not been captured yet: call it")
        return Program(self._latest, self.name)

    def passes(self) -> list[tuple[str, str, str]]:
        """As Program.passes() of the latest call."""
        return self.program.passes()

    # ---- calls

    def _sort(self, args: tuple[Any, ...], kwargs: dict[str, Any]
              ) -> tuple[Any, list[Tensor], list[Any], list[int]]:
        """Returns the key that decides which program a call runs, the call's tensors, its numbers, and the
        positions of the numbers."""
        if not kwargs and _ONLY_TENSORS.issuperset(map(type, args)):
            return (_core.signature(args), len(args)), list(args), [], []
        leaves, spec = flatten((list(args), kwargs))
        tensors: list[Tensor] = []
        numbers: list[Any] = []
        places: list[int] = []
        fixed: list[Any] = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                fixed.append(Tensor)
            elif type(leaf) is float or (type(leaf) is int and self._varies(place, leaf)):
                numbers.append(leaf)
                places.append(place)
                fixed.append(type(leaf))
            else:
                fixed.append(constant_key(leaf))
        return (_core.signature(tensors), _hashable(spec), tuple(fixed)), tensors, numbers, places

    def _varies(self, place: int, value: int) -> bool:
        """An int is a constant until a second value of it is seen: so sizes and dims stay constants."""
        seen = self._ints.setdefault(place, set())
        if len(seen) < 2:
            seen.add(value)
        return len(seen) > 1

    def _find(self, key: Any, tensors: list[Tensor], numbers: list[Any]) -> Entry | None:
        for entry in self._cache.get(key, ()):
            if entry.ready(tensors, numbers):
                if self._latest is not entry:
                    self._latest = entry
                return entry
        return None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _capturing.active() is not None or _core.depth():
            return self._function(*args, **kwargs)  # within another capture, or within a transform
        key, tensors, numbers, places = self._sort(args, kwargs)
        entry = self._find(key, tensors, numbers)
        if entry is not None:
            return entry.run(tensors)
        if not _can_capture():
            _warn_that_nothing_is_captured()
            return self._function(*args, **kwargs)
        return self._capture(key, tensors, places, args, kwargs)

    def _capture(self, key: Any, tensors: list[Tensor], places: list[int], args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> Any:
        if any(x.is_meta for x in tensors):
            return self._function(*args, **kwargs)  # no daemon could run a program of it
        result, entry = capture(self._function, _session_of(tensors), args, kwargs, tensors, places,
                                self.name, leaf_names(self._function, args, kwargs), self._traced)
        if entry is None:
            self._attempts += 1
            if self._attempts >= MAX_ATTEMPTS:
                raise RuntimeError(
                    f"{self.name}: every call makes tensors that stay alive afterwards (an attribute "
                    "or a list that keeps them), so that no captured program can stand for the next "
                    "call: return them instead")
            return result
        self._attempts = 0
        self._latest = entry
        self._drop_stale_entries()
        why = "" if self._warned else next(
            (why for each in reversed(self._cache.get(key, ())) if (why := each.facts.why())), "")
        self._cache.setdefault(key, []).append(entry)
        self._cache.move_to_end(key)
        self._entries += 1
        if self._entries > MAX_PROGRAMS:
            oldest = next(iter(self._cache))
            self._cache[oldest].pop(0)
            if not self._cache[oldest]:
                del self._cache[oldest]
            self._entries -= 1
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self.name} was captured more than {MAX_PROGRAMS} times: "
                    + (f"what it reads from outside changes from call to call (lately {why}); hand it "
                       "over as an argument" if why else
                       "its shapes or Python arguments change from call to call, and each change captures "
                       "it anew"),
                    stacklevel=3)
        return result

    def _drop_stale_entries(self) -> None:
        """Deletes programs that read an object which does not exist any more: they can no longer run."""
        for key, entries in list(self._cache.items()):
            alive = [entry for entry in entries if not entry.facts.dead()]
            self._entries -= len(entries) - len(alive)
            if alive:
                self._cache[key] = alive
            else:
                del self._cache[key]

    # ---- loops

    def repeat(self, n: int, *args: Any, data: Any = None) -> Iterator[Any]:
        """Runs the function n times on the daemon and yields the outputs of each iteration as they arrive:
        0-d tensors as numbers, all others as tensors.

        `data` is a tensor, or a tuple of tensors, whose slices along dimension 0 are the first arguments of
        the iterations; after the last slice it starts again. Or it is an iterable of batches, which are
        sent one by one. `args` are the arguments after these. The daemon gets many iterations at a time;
        losses are returned while later iterations run.
        """
        return repeat(self, n, data, args)

    def _ready(self, args: tuple[Any, ...]) -> tuple[Entry, list[Tensor]] | None:
        key, tensors, numbers, _ = self._sort(args, {})
        entry = self._find(key, tensors, numbers)
        return None if entry is None else (entry, tensors)


class Uncaptured:
    """A function that cannot be captured: the result of `compiler.disable`."""

    def __init__(self, function: Callable[..., Any], reason: str | None) -> None:
        functools.update_wrapper(self, function)
        self._called, self._reason = function, reason

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _capturing.active() is not None or compiling():
            name = getattr(self._called, "__qualname__", type(self._called).__name__)
            why = "compiler.disable" + (f": {self._reason}" if self._reason else "")
            raise RuntimeError(f"{name} is called in a captured function, and is not to be captured ({why})"
                               ": call it outside, and hand its result over as an argument")
        return self._called(*args, **kwargs)


@functools.cache
def _can_capture() -> bool:
    """Returns whether this version of Python allows recording what a function reads."""
    if not _core.can_capture():
        return False
    items, owner, free = {"k": 1}, types.SimpleNamespace(k=1), 1

    def probe() -> int:
        total: int = items["k"] + owner.k + free
        return total

    facts = _core.Guards()
    reads = _core.Reads(facts)
    # The probe must look like a function of the program: reads in functions of this package are not
    # recorded.
    program = types.FunctionType(probe.__code__, {"__name__": "probe"}, "probe", None, probe.__closure__)
    reads.know(program)
    reads.run(program, (), {})
    reads.clear()
    seen = [facts.check()]
    items["k"] = 2
    seen.append(not facts.check())
    items["k"], owner.k = 1, 2
    seen.append(not facts.check())
    owner.k, free = 1, 2
    seen.append(not facts.check())
    return all(seen)


@functools.cache
def _warn_that_nothing_is_captured() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    warnings.warn(f"tt.compile has no effect under Python {version}: what a function reads can be seen "
                  "under 3.11 to 3.13; functions run line by line", stacklevel=3)


def leaf_names(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The names of the leaves of a function's arguments, for messages and files."""
    function = getattr(function, "forward", function)
    try:
        given = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        given = []
    names = []
    for i, value in enumerate(args):
        name = given[i] if i < len(given) else f"arg{i}"
        count = len(flatten(value)[0])
        names += [name if count == 1 else f"{name}.{k}" for k in range(count)]
    for name, value in kwargs.items():
        count = len(flatten(value)[0])
        names += [name if count == 1 else f"{name}.{k}" for k in range(count)]
    return names


def repeat(owner: Any, n: int, data: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """Runs n iterations of a captured, scripted or loaded function (`Compiled.repeat`)."""
    before: Iterator[Any] = iter(())
    for issued in rounds(owner, n, data, args):
        yield from before
        before = issued
    yield from before


def rounds(owner: Any, n: int, data: Any, args: tuple[Any, ...]) -> Iterator[Iterator[Any]]:
    """Issues n iterations, several at a time; yields iterators over their outputs, which wait only when
    they are advanced."""
    if data is not None and not isinstance(data, (Tensor, tuple)):
        return _over(owner, n, data, args)
    stacked = () if data is None else data if isinstance(data, tuple) else (data,)
    if not all(isinstance(each, Tensor) and each.ndim > 0 for each in stacked):
        raise TypeError("repeat: data must be a tensor or a tuple of tensors, or an iterable of them")
    return _rounds(owner, n, stacked, args)


def _over(owner: Any, n: int, batches: Iterable[Any], args: tuple[Any, ...]) -> Iterator[Iterator[Any]]:
    for i, batch in enumerate(batches):
        if i == n:
            break
        given = batch if isinstance(batch, (tuple, list)) else (batch,)
        yield map(_read, [owner(*given, *args)])


def _rounds(owner: Any, n: int, stacked: tuple[Tensor, ...], args: tuple[Any, ...]
            ) -> Iterator[Iterator[Any]]:
    done = 0
    chunk = 1
    while done < n:
        first = tuple(each[done % each._shape[0]] for each in stacked)
        ready = owner._ready(first + args)
        entry, tensors = (None, []) if ready is None else ready
        if entry is None or not entry.loops or entry.backward is not None:
            yield map(_read, [owner(*first, *args)])
            done += 1
            continue
        # Slices are counted from the first one: a chunk ends where the data ends.
        left = min([n - done, chunk] + [each._shape[0] - done % each._shape[0]
                                        for each in stacked])
        parts = [each[done % each._shape[0]:] for each in stacked] + tensors[len(stacked):]
        with _STEP:
            given = []
            for _ in range(left):
                given += entry.next_numbers()
            results = entry.program.call(parts, given, times=left, sliced=list(range(len(stacked))))
        yield _rounds_of(entry, results, left)
        done += left
        chunk = min(ROUNDS, chunk * 4)


def _read(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.item() if result.ndim == 0 else result
    if isinstance(result, tuple):
        return tuple(_read(each) for each in result)
    return result


class _Column:
    """One output of all iterations in a chunk; all its values are read when the first one is needed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.values: list[Any] | None = None

    def __getitem__(self, i: int) -> Any:
        if self.tensor.ndim > 1:
            return self.tensor[i]
        if self.values is None:
            self.values = self.tensor.tolist()
        return self.values[i]


def _rounds_of(entry: Entry, results: Sequence[Tensor], rounds: int) -> Iterator[Any]:
    columns = [_Column(each) for each in results]
    return (entry.tree([column[i] for column in columns]) for i in range(rounds))


def compile(function: Callable[..., Any] | None = None, *, name: str | None = None,
            **options: Any) -> Any:
    """Returns a function (or module) that is captured at its first call, and from then on runs as one
    instruction on the daemon: a forward, or a whole training step with its backward and optimizer.

    It is captured again if shapes, strides, dtypes, requires_grad, Python arguments or the training flag of
    a module differ. Float arguments and optimizer options may differ: they are sent with each call. Also a
    decorator. PyTorch's options (fullgraph, dynamic, backend, mode, options, disable) are accepted; only
    `disable=True` has an effect.

    RuntimeError, with the source line, if the function reads a value.

    >>> @tt.compile
    ... def square(x):
    ...     return x * x
    >>> square(tt.tensor([2.0])).item(), square(tt.tensor([3.0])).item()
    (4.0, 9.0)
    """
    unknown = set(options) - {"fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    if unknown:
        raise TypeError(f"compile() got unexpected keyword arguments {sorted(unknown)}")
    if function is None:
        return lambda f: compile(f, name=name, **options)
    if options.get("disable"):
        return function
    return Compiled(function, name)


def trace(function: Callable[..., Any], *examples: Any, name: str | None = None,
          example_kwarg_inputs: Mapping[str, Any] | None = None, **options: Any) -> Compiled:
    """As `compile`, but captures the function at once by calling it with these examples (more than once if
    the first call creates state, such as an optimizer's). They may be given as one tuple, like PyTorch's
    `example_inputs`; PyTorch's other options (check_trace, strict, ...) are accepted without effect."""
    unknown = set(options) - _TRACE_OPTIONS
    if unknown:
        raise TypeError(f"trace() got unexpected keyword arguments {sorted(unknown)}")
    if len(examples) == 1 and isinstance(examples[0], tuple):
        examples = examples[0]
    return traced(function, examples, dict(example_kwarg_inputs or {}), name)


def traced(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
           name: str | None = None) -> Compiled:
    """The function, captured by calls with these examples. It keeps them, as PyTorch's does, so that a
    frozen copy can be captured too."""
    compiled = Compiled(function, name, traced=True)
    compiled._examples = args, kwargs
    for _ in range(MAX_ATTEMPTS):
        compiled(*args, **kwargs)
        if compiled._latest is not None:
            break
    return compiled


def trace_module(mod: Any, inputs: Mapping[str, Any], *, example_inputs_is_kwarg: bool = False,
                 **options: Any) -> Compiled:
    """Captures methods of a module: `inputs` has the examples of each method by its name, as a tensor or a
    tuple, or with example_inputs_is_kwarg as a dict. The result is called like the module, and has the
    other methods as attributes; PyTorch's other options are accepted without effect.

    AttributeError, as in PyTorch, if mod is not a module, inputs is not a dict, or a method does not exist.
    """
    unknown = set(options) - _TRACE_OPTIONS
    if unknown:
        raise TypeError(f"trace_module() got unexpected keyword arguments {sorted(unknown)}")
    if not hasattr(mod, "named_parameters"):
        raise AttributeError("expected torch.nn.Module as the first argument")
    if not isinstance(inputs, dict):
        raise AttributeError("expected a dictionary of (method_name, input) pairs")

    def of(method: Callable[..., Any], examples: Any) -> Compiled:
        if example_inputs_is_kwarg:
            return traced(method, (), dict(examples))
        return traced(method, examples if isinstance(examples, tuple) else (examples,), {})

    module = of(mod, inputs["forward"]) if "forward" in inputs else Compiled(mod, traced=True)
    for name, examples in inputs.items():
        if name != "forward":
            object.__setattr__(module, name, of(getattr(mod, name), examples))
    return module
