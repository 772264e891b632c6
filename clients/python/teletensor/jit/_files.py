"""Programs in files: a safetensors file with the weights, the program's bytes as one more tensor, and
metadata that describe how the program is called."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from .. import _core
from .._core import Tensor
from .._files.serialize import read_entries, save as _save
from .._sessions.session import current_session
from .._tensors.follow import from_numpy
from ._capture import Entry
from ._compiled import Compiled, Program, repeat
from ._graph import Shown
from ._scripted import Scripted

__all__ = ["Loaded", "load", "save"]

_KIND = "teletensor.program"
_CALL = "teletensor.call"
_VERSION = "1"
_PROGRAM, _BACKWARD = "program", "backward"
_File = str | bytes | os.PathLike[str] | os.PathLike[bytes] | IO[bytes]


def save(compiled: Compiled | Scripted | Loaded, f: _File) -> None:
    """Writes a captured or scripted function to one file: its latest program (with its backward, if it has
    one), the tensors other than arguments that it reads or writes, and its numbers. Waits for their values.

    RuntimeError if the function was not captured yet, or depends on Python code that a file cannot contain.
    """
    entry = compiled._latest
    if entry is None:
        raise RuntimeError(f"{compiled.name} has not been captured yet: call it")
    names = _weight_names(compiled)
    weights: dict[str, Tensor] = {}
    parameters: list[dict[str, Any]] = []
    flags: list[str] = []
    inputs = entry.program.fixed()
    for i, (argument, gradient_of) in enumerate(entry.program.sources):
        if argument >= 0:
            parameters.append({"argument": argument})
            continue
        if gradient_of >= 0:
            parameters.append({"gradient_of": gradient_of})
            continue
        tensor = inputs[i]
        if not entry.program.dense(i):
            raise RuntimeError(
                f"{compiled.name}: cannot be saved: it reads a strided part of a larger tensor, or "
                "two views of one tensor; give it as an argument")
        name = names.get(id(tensor), f"tensor{len(weights)}")
        weights[name] = tensor.detach()
        parameters.append({"weight": name})
        if tensor.requires_grad:
            flags.append(name)
    call: dict[str, Any] = {
        "name": compiled.name, "arguments": entry.argument_names, "parameters": parameters,
        "requires_grad": flags, "numbers": [_number(compiled, n) for n in entry.origins],
        "outputs": [list(each) for each in entry.program.outputs],
        "tree": _pack(entry.spec, entry.leaves, entry.tensors), "loops": entry.loops,
    }
    tensors = {f"weights.{name}": tensor for name, tensor in weights.items()}
    tensors[_PROGRAM] = _bytes(entry.program.serialize())
    if entry.backward is not None:
        tensors[_BACKWARD] = _bytes(entry.backward.serialize())
        call["backward"] = {"saved": [list(each) for each in entry.saved],
                            "differentiated": list(entry.differentiated),
                            "wanted": list(entry.wanted)}
    _save(tensors, f, {_KIND: _VERSION, _CALL: json.dumps(call, separators=(",", ":"))})


def _bytes(contents: bytes) -> Tensor:
    return from_numpy(np.frombuffer(bytearray(contents), np.uint8))


def _weight_names(compiled: Any) -> dict[int, str]:
    """The names of tensors in the function, by identity: those in modules, and those in its closure."""
    if isinstance(compiled, Loaded):
        return {id(t): name for name, t in compiled.weights.items()}
    function = compiled._function
    names: dict[int, str] = {}

    def take(prefix: str, value: Any) -> None:
        if isinstance(value, Tensor):
            names.setdefault(id(value), prefix or "tensor")
        elif hasattr(value, "named_parameters"):
            for listed in (value.named_parameters(), value.named_buffers()):
                for name, tensor in listed:
                    names.setdefault(id(tensor), f"{prefix}.{name}" if prefix else name)
        elif hasattr(value, "param_groups"):
            for i, state in enumerate(list(value.state.values())):
                for key, tensor in state.items():
                    if isinstance(tensor, Tensor):
                        names.setdefault(id(tensor), f"{prefix}.{i}.{key}")

    take("", function)
    bound = getattr(function, "__self__", None)
    if bound is not None:
        take("", bound)
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            take(name, cell.cell_contents)
        for name in code.co_names:
            if name in function.__globals__:
                take(name, function.__globals__[name])
        for name, value in (function.__kwdefaults__ or {}).items():
            take(name, value)
        given = code.co_varnames[:code.co_argcount]
        for name, value in zip(reversed(given), reversed(function.__defaults__ or ()), strict=False):
            take(name, value)
    return names


def _number(compiled: Any, origin: Any) -> dict[str, Any]:
    kind, name, get = origin
    if kind == "argument":
        return {"name": name, "argument": name}
    if kind == "value":
        return {"name": name, "value": get()}
    if kind == "counter":
        return {"name": name, "counter": int(get()) + 1}
    raise RuntimeError(
        f"{compiled.name}: cannot be saved: the number {name!r} follows from Python code at each "
        "call; make it an argument of the function")


def _pack(spec: Any, leaves: list[Any], tensors: list[int]) -> Any:
    """The structure of a result as JSON: null for the next tensor, {"value": v} for a constant."""
    count = 0

    def walk(spec: Any) -> Any:
        nonlocal count
        if spec is None:
            place, count = count, count + 1
            if place in tensors:
                return None
            if leaves[place] is not None and not isinstance(leaves[place], (bool, int, float, str)):
                raise RuntimeError("a saved function returns tensors, numbers, text and containers "
                                   f"of them, not {type(leaves[place]).__name__}")
            return {"value": leaves[place]}
        kind, keys, specs, _ = spec
        inner = [walk(each) for each in specs]
        if keys is not None:
            return {"dict": [[key, each] for key, each in zip(keys, inner, strict=True)]}
        return {"list" if kind is list else "tuple": inner}

    return walk(spec)


def _unpack(tree: Any) -> tuple[Any, list[Any], list[int]]:
    leaves: list[Any] = []
    tensors: list[int] = []

    def walk(tree: Any) -> Any:
        if tree is None or "value" in tree:
            if tree is None:
                tensors.append(len(leaves))
            leaves.append(None if tree is None else tree["value"])
            return None
        if "dict" in tree:
            keys = [key for key, _ in tree["dict"]]
            specs = [walk(each) for _, each in tree["dict"]]
            kind: type = dict
        else:
            keys, kind = None, list if "list" in tree else tuple
            specs = [walk(each) for each in tree["list" if kind is list else "tuple"]]
        counts = [_leaves(spec) for spec in specs]
        return kind, keys, specs, counts

    return walk(tree), leaves, tensors


def _leaves(spec: Any) -> int:
    return 1 if spec is None else sum(spec[3])


class Loaded(Shown):
    """A function from a file. It is called like the function that was saved, with tensors of the same
    shapes and dtypes; a training step changes `weights`, which are its tensors by name. `numbers` are the
    numbers that are not arguments (learning rates, step counts); they can be set."""

    def __init__(self, entry: Entry, name: str, weights: dict[str, Tensor], arguments: list[str],
                 numbers: list[dict[str, Any]]) -> None:
        self._latest = entry
        self.name = name
        self.weights = weights
        self.arguments = arguments
        self.numbers: dict[str, Any] = {}
        self._given: dict[str, Any] = {}
        entry.numbers = []
        entry.actions = []
        for each in numbers:
            label = each["name"]
            while label in self.numbers:
                label += "_"
            if "argument" in each:
                entry.numbers.append(lambda label=each["name"]: self._given[label])  # type: ignore[misc]
                continue
            self.numbers[label] = each.get("value", each.get("counter"))
            counts = "counter" in each
            entry.numbers.append(
                lambda label=label, counts=counts: self._next(label, counts))  # type: ignore[misc]

    def _next(self, label: str, counts: bool) -> Any:
        value = self.numbers[label]
        if counts:
            self.numbers[label] = value + 1
        return value

    @property
    def program(self) -> Program:
        """The function's program."""
        return Program(self._latest, self.name)

    def __str__(self) -> str:
        return str(self.program)

    def __repr__(self) -> str:
        return f"<teletensor.jit.Loaded {self.name!r}({', '.join(self.arguments)})>"

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, in order."""
        names = self.arguments
        if len(args) > len(names):
            raise TypeError(f"{self.name}() takes {len(names)} arguments, but {len(args)} were given")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                raise TypeError(f"{self.name}() got an unexpected argument {name!r}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(f"{self.name}() is missing {', '.join(map(repr, missing))}")
        return {name: given[name] for name in names}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        given = self._given = self._named(args, kwargs)
        return self._latest.run([v for v in given.values() if isinstance(v, Tensor)])

    def repeat(self, n: int, *args: Any, data: Any = None) -> Iterator[Any]:
        """Runs the function n times on the daemon: see `Compiled.repeat`."""
        return repeat(self, n, data, args)

    def _ready(self, args: tuple[Any, ...]) -> tuple[Entry, list[Tensor]]:
        given = self._given = self._named(args, {})
        return self._latest, [v for v in given.values() if isinstance(v, Tensor)]


def load(f: _File) -> Loaded:
    """Reads a file that `save` has written. Everything is checked first: the file, the checksum of the
    program, every op with its revision, every step. Nothing in a file is ever executed as Python code.

    ValueError for a damaged file; NotImplementedError, with the name of the op, for a file that needs an op
    that this version does not have (or has in another revision).
    """
    metadata, tensors = read_entries(f)
    if metadata.get(_KIND) is None or _PROGRAM not in tensors:
        raise ValueError("load: this file holds no program (tt.load reads files of tensors)")
    if metadata[_KIND] != _VERSION:
        raise NotImplementedError(f"load: the program file has version {metadata[_KIND]}; this client "
                                  f"reads version {_VERSION}")
    core = current_session()._core
    try:
        call = json.loads(metadata[_CALL])
        program = _core.load_program(core, tensors[_PROGRAM].numpy().tobytes())
        weights = {name.removeprefix("weights."): tensor for name, tensor in tensors.items()
                   if name.startswith("weights.")}
        sources: list[tuple[int, int, Any]] = []
        for i, each in enumerate(call["parameters"]):
            if "weight" in each:
                name = each["weight"]
                laid = program.laid(i, weights[name])
                weights[name] = laid.requires_grad_() if name in call["requires_grad"] else laid
                sources.append((-1, -1, weights[name]))
            elif "argument" in each:
                sources.append((int(each["argument"]), -1, None))
            else:
                sources.append((-1, int(each["gradient_of"]), None))
        for _, owner, _ in sources:
            if owner >= 0:
                weight = sources[owner][2]
                weight.grad = _core.ops["full"](0, weight._shape, weight.dtype, weight.device)
        program.bind(sources, [(bool(a), int(b)) for a, b in call["outputs"]])
        spec, leaves, places = _unpack(call["tree"])
        backward = None
        if _BACKWARD in tensors:
            backward = _core.load_program(core, tensors[_BACKWARD].numpy().tobytes())
        entry = Entry.restored(program, backward, call.get("backward"), spec, leaves, places,
                               list(call["arguments"]), bool(call.get("loops", False)))
        return Loaded(entry, str(call["name"]), weights, list(call["arguments"]), call["numbers"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"load: the description of the call is damaged: {error!r}") from None
