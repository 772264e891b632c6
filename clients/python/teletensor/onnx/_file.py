"""Reads an .onnx file: converts protobuf messages to the dataclasses below, and checks every size first.

Raises OnnxError for every fault of the file; nothing is evaluated here.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from .._connection.protowire import Message, decode, signed

__all__ = [
    "FLOAT_TYPES",
    "NUMPY",
    "TYPES",
    "Function",
    "Graph",
    "Model",
    "Node",
    "OnnxError",
    "Stored",
    "Value",
    "all_nodes",
    "read",
    "subgraphs",
]

MAX_BYTES = 2**31  # the size of the model file itself: protobuf's own limit
MAX_DEPTH = 32  # the nesting depth of graphs
MAX_NODES = 2**20
MAX_DIMS = 32
MAX_SPARSE = 2**28  # the elements of a sparse initializer, which is stored as a dense one

# The number of an element type in the file to its name here. The types in the last rows are stored in wider
# ones.
TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2",
    20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu",
    25: "uint2", 26: "int2",
}  # fmt: skip
NUMPY = {
    name: np.dtype(name).newbyteorder("<")
    for name in TYPES.values()
    if hasattr(np, name) and name not in ("string", "bool")
} | {"bool": np.dtype("?")}
FLOAT_TYPES = ("float32", "float64", "float16", "bfloat16")
_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}


class OnnxError(ValueError):
    """An ONNX model cannot be read or run: the file is damaged, this version lacks an operator, inputs do
    not fit, or a node fails. The message names the file, the node and its operator."""


@dataclass
class Stored:
    """A constant of the file: the name of its type, and an array. Elements of bfloat16 and of types of at
    most 8 bits are stored as their codes, in uint16 and uint8."""

    type: str
    array: np.ndarray[Any, Any]


@dataclass
class Value:
    """An input or output: the name of its type ("" if the file has none), the kind of container, and its
    sizes, each of which is a number, the name of a dynamic axis, or None. `shape` is None if the rank is
    not fixed."""

    name: str
    type: str
    kind: str = "tensor"
    shape: list[int | str | None] | None = None


@dataclass
class Node:
    """One operation. `attributes` contains Python numbers, bytes, lists, Stored and Graph; `references`
    gives the names of the attributes that a node of a function takes from the function's caller."""

    op: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    references: dict[str, str]
    overload: str = ""
    version: int = 0  # the version of the operator set
    row: Any = None  # the row of the table of operators; the interpreter sets it

    def __str__(self) -> str:
        name = self.name or (self.outputs[0] if self.outputs else "")
        return f"node {name!r} ({self.domain + '.' if self.domain else ''}{self.op})"


@dataclass
class Graph:
    """Nodes in an order in which they can run, and the values that are known by name from the start."""

    name: str
    nodes: list[Node]
    constants: dict[str, Stored]
    inputs: list[Value]
    outputs: list[Value]
    last: list[list[str]] = field(default_factory=list)  # for each node, the names that no later node reads


@dataclass
class Function:
    """A function that the model defines: nodes with formal inputs, outputs and attributes."""

    graph: Graph
    attributes: dict[str, Any]


@dataclass
class Model:
    """The contents of a file. `opsets` gives the version of the operator set of each domain."""

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str, str], Function] = field(default_factory=dict)


def _domain(text: str) -> str:
    return "" if text == "ai.onnx" else text


def _numbers(message: Message, number: int, dtype: str) -> np.ndarray[Any, Any]:
    """A repeated field of floats or doubles, packed or not."""
    data = b"".join(bytes(v) for v in message.values(number) if not isinstance(v, int))
    if len(data) % np.dtype(dtype).itemsize:
        raise OnnxError("a list of numbers ends in the middle of a number")
    return np.frombuffer(data, dtype)


def _varints(message: Message, number: int) -> np.ndarray[Any, Any]:
    """A repeated field of integers, packed or not, as uint64."""
    values = message.values(number)
    if all(isinstance(v, int) for v in values):
        return np.array(values, np.uint64)
    parts = [_packed(v) if not isinstance(v, int) else np.array([v], np.uint64) for v in values]
    return np.concatenate(parts)


def _packed(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if raw.size and (not ends.size or ends[-1] != raw.size - 1):
        raise OnnxError("a list of numbers ends in the middle of a number")
    starts = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
    sizes = ends - starts + 1
    if sizes.size and sizes.max() > 10:
        raise OnnxError("a number has more than 64 bits")
    found = np.zeros(len(ends), np.uint64)
    for place in range(int(sizes.max()) if sizes.size else 0):
        has = sizes > place
        part = (raw[starts[has] + place] & 127).astype(np.uint64)
        found[has] |= part << np.uint64(7 * place)
    return found


def _ints(message: Message, number: int) -> list[int]:
    values: list[int] = _varints(message, number).view(np.int64).tolist()
    return values


class _Reader:
    """Converts the messages of one file to a Model. `folder` is the folder to which external data is
    restricted."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder)
        self._nodes = 0

    # ---- tensors

    def tensor(self, message: Message) -> Stored:
        name = message.text(8)
        dims = _ints(message, 1)
        kind = TYPES.get(message.integer(2))
        if kind is None:
            raise OnnxError(f"tensor {name!r}: elements of unknown type {message.integer(2)}")
        if len(dims) > MAX_DIMS or any(d < 0 for d in dims):
            raise OnnxError(f"tensor {name!r}: {dims[:8]} is not a shape of at most {MAX_DIMS} sizes")
        count = math.prod(dims)
        if message.values(3):
            raise OnnxError(f"tensor {name!r}: tensors in segments are not supported")
        if kind == "string":
            texts = message.parts(6)
            self._check_count(name, len(texts), count)
            array = np.array([t.decode(errors="replace") for t in texts], object)
            return Stored(kind, array.reshape(dims))
        numpy = NUMPY.get(kind, np.dtype("<u2" if kind == "bfloat16" else "u1"))
        bits = _BITS.get(kind, numpy.itemsize * 8)
        size = (count * bits + 7) // 8
        if message.integer(14) == 1:
            raw: bytes | memoryview = self._external(name, message.messages(13), size)
        elif message.values(9):
            raw = message.view(9)
        else:
            return Stored(kind, self._listed(message, name, kind, numpy, bits, count).reshape(dims))
        self._check_count(name, len(raw), size, "bytes")
        array = np.frombuffer(raw, numpy)
        return Stored(kind, (_spread(array, bits, count) if bits < 8 else array).reshape(dims))

    @staticmethod
    def _check_count(name: str, found: int, wanted: int, what: str = "elements") -> None:
        if found != wanted:
            raise OnnxError(f"tensor {name!r}: {found} {what}, its shape needs {wanted}")

    def _listed(
        self, message: Message, name: str, kind: str, numpy: np.dtype[Any], bits: int, count: int
    ) -> np.ndarray[Any, Any]:
        """The elements of a tensor that are in the field for their type."""
        if kind in ("float32", "complex64"):
            array = _numbers(message, 4, "<f4").view(numpy)
        elif kind in ("float64", "complex128"):
            array = _numbers(message, 10, "<f8").view(numpy)
        elif kind == "int64":
            array = _varints(message, 7).view(np.int64)
        elif kind in ("uint32", "uint64"):
            array = _varints(message, 11).astype(numpy)
        else:
            array = _varints(message, 5)
            if bits < 8:
                array = _spread(array.astype(np.uint8), bits, count)
            elif kind == "float16":
                array = array.astype(np.uint16).view(np.float16)
            else:
                array = array.astype(numpy)
        self._check_count(name, array.size, count)
        return array

    def _external(self, name: str, entries: list[Message], size: int) -> bytes:
        """The bytes of a tensor that are in a separate file next to the model file."""
        facts = {entry.text(1): entry.text(2) for entry in entries}
        where = facts.get("location", "")
        path = os.path.realpath(os.path.join(self._folder, where))
        if not where or os.path.isabs(where) or not path.startswith(self._folder.rstrip(os.sep) + os.sep):
            raise OnnxError(f"tensor {name!r}: its data lies in {where!r}, outside of the model's folder")
        try:
            offset, length = int(facts.get("offset", "0")), int(facts.get("length", size))
        except ValueError:
            raise OnnxError(f"tensor {name!r}: offset or length of its data is not a number") from None
        self._check_count(name, length, size, "bytes")
        try:
            with _regular(path) as (file, whole):
                if not 0 <= offset <= offset + size <= whole:
                    raise OnnxError(f"bytes {offset} to {offset + size} of it, which has {whole}")
                file.seek(offset)
                return file.read(size)
        except (OSError, ValueError) as error:
            raise OnnxError(f"tensor {name!r}: {where!r} cannot be read: {error}") from None

    def _sparse(self, message: Message) -> tuple[str, Stored]:
        values, indices = message.message(1), self.tensor(message.message(2)).array
        name, dims = values.text(8), _ints(message, 3)
        stored = self.tensor(values)
        count = math.prod(dims)
        if any(d < 0 for d in dims) or len(dims) > MAX_DIMS or count > MAX_SPARSE:
            raise OnnxError(f"tensor {name!r}: {dims[:8]} is not a shape of at most {MAX_SPARSE} elements")
        if stored.array.ndim != 1 or stored.type not in NUMPY:
            raise OnnxError(f"tensor {name!r}: values of a sparse tensor are a list of numbers")
        if indices.ndim == 2 and indices.shape[1] == len(dims):
            if (indices < 0).any() or (indices >= np.array(dims)).any():
                raise OnnxError(f"tensor {name!r}: an index lies outside of shape {dims}")
            indices = np.ravel_multi_index(tuple(indices.T), tuple(dims))
        if indices.shape != stored.array.shape or (indices < 0).any() or (indices >= count).any():
            raise OnnxError(f"tensor {name!r}: its indices do not fit shape {dims}")
        dense = np.zeros(count, stored.array.dtype)
        dense[indices] = stored.array
        return name, Stored(stored.type, dense.reshape(dims))

    # ---- values, nodes, graphs

    def value(self, message: Message) -> Value:
        name, kind, type_ = message.text(1), "tensor", message.message(2)
        for number, inner in ((9, "optional"), (4, "sequence")):
            if type_.values(number):
                kind = inner if kind == "tensor" else f"{kind} {inner}"
                type_ = type_.message(number).message(1)
        if not type_.values(1):
            return Value(name, "", kind)
        tensor = type_.message(1)
        shape: list[int | str | None] | None = None
        if tensor.values(2):
            shape = []
            for dim in tensor.message(2).messages(1):
                if dim.values(1):
                    size = signed(dim.integer(1))
                    shape.append(None if size < 0 else size)
                else:
                    named = dim.text(2)
                    shape.append(None if named in ("", "?") else named)
        return Value(name, TYPES.get(tensor.integer(1), ""), kind, shape)

    def _attribute(self, message: Message, depth: int) -> Any:
        getters: dict[int, Callable[[], Any]] = {
            1: lambda: float(_numbers(message, 2, "<f4")[-1]) if message.values(2) else 0.0,
            2: lambda: signed(message.integer(3)),
            3: lambda: message.data(4),
            4: lambda: self.tensor(message.message(5)),
            5: lambda: self.graph(message.message(6), depth + 1),
            6: lambda: _numbers(message, 7, "<f4").tolist(),
            7: lambda: _ints(message, 8),
            8: lambda: message.parts(9),
            9: lambda: [self.tensor(each) for each in message.messages(10)],
            11: lambda: self._sparse(message.message(22))[1],
            13: lambda: self.value(Message(b"\x12" + _size(message.view(14)) + bytes(message.view(14)))),
        }
        kind = message.integer(20)
        if kind not in getters:
            raise OnnxError(f"attribute {message.text(1)!r} has type {kind}, which is not supported")
        return getters[kind]()

    def node(self, message: Message, depth: int) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise OnnxError(f"more than {MAX_NODES} nodes")
        attributes, references = {}, {}
        for each in message.messages(5):
            name = each.text(1)
            if each.values(21):
                references[name] = each.text(21)
            else:
                attributes[name] = self._attribute(each, depth)
        return Node(
            message.text(4),
            _domain(message.text(7)),
            message.text(3),
            message.texts(1),
            message.texts(2),
            attributes,
            references,
            message.text(8),
        )

    def graph(self, message: Message, depth: int = 0) -> Graph:
        if depth > MAX_DEPTH:
            raise OnnxError(f"graphs are nested more than {MAX_DEPTH} deep")
        constants = {each.text(8): self.tensor(each) for each in message.messages(5)}
        constants.update(self._sparse(each) for each in message.messages(15))
        return Graph(
            message.text(2),
            [self.node(each, depth) for each in message.messages(1)],
            constants,
            [self.value(each) for each in message.messages(11)],
            [self.value(each) for each in message.messages(12)],
        )

    def function(self, message: Message) -> tuple[tuple[str, str, str], Function, dict[str, int]]:
        given = [self.node(each, 0) for each in message.messages(7)]
        graph = Graph(
            message.text(1),
            given,
            {},
            [Value(name, "") for name in message.texts(4)],
            [Value(name, "") for name in message.texts(5)],
        )
        defaults = {each.text(1): self._attribute(each, 0) for each in message.messages(11)}
        key = (_domain(message.text(10)), message.text(1), message.text(13))
        return key, Function(graph, defaults), _opsets(message.messages(9))

    def model(self, message: Message) -> Model:
        if not message.values(7):
            raise OnnxError("the model has no graph")
        opsets = _opsets(message.messages(8)) or {"": 1}
        model = Model(self.graph(message.message(7)), opsets)
        _set_versions(model.graph, opsets)
        for each in message.messages(25):
            key, function, own = self.function(each)
            _set_versions(function.graph, own or opsets)
            model.functions[key] = function
        _check_order(model.graph, set(), model.graph.name)
        for function in model.functions.values():
            _check_order(function.graph, set(), f"function {function.graph.name}")
        _check_recursion(model.functions)
        _check_size(model)
        return model


def _size(data: bytes | memoryview) -> bytes:
    count, out = len(data), bytearray()
    while count > 127:
        out.append(count & 127 | 128)
        count >>= 7
    return bytes([*out, count])


def _spread(codes: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, Any]:
    """Unpacks elements of 2 or 4 bits, several of which share a byte, the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((codes[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1)[:count]


def _opsets(messages: Sequence[Message]) -> dict[str, int]:
    return {_domain(each.text(1)): signed(each.integer(2)) for each in messages}


def subgraphs(node: Node) -> Iterator[Graph]:
    """The graphs among a node's attributes."""
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield value


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the graphs nested in it."""
    for node in graph.nodes:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def _set_versions(graph: Graph, opsets: dict[str, int]) -> None:
    for node in all_nodes(graph):
        node.version = opsets.get(node.domain, 0)


def _check_order(graph: Graph, outer: set[str], where: str) -> None:
    """Checks that each name is defined once, and before any node that reads it; hence there is no cycle
    either."""
    known = outer | set(graph.constants) | {value.name for value in graph.inputs}
    made = set(graph.constants) | {value.name for value in graph.inputs}
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in known:
                raise OnnxError(
                    f"{where}: {node} reads {name!r}, which no input, constant or earlier node "
                    "gives: the graph has a cycle, a wrong order or a missing part"
                )
        for inner in subgraphs(node):
            _check_order(inner, known, f"{where}, {node}")
        for name in node.outputs:
            if name and name in made:
                raise OnnxError(f"{where}: {node} computes {name!r}, which another node has already "
                                "computed")
            made.add(name)
            known.add(name)
    for value in graph.outputs:
        if value.name and value.name not in known:
            raise OnnxError(f"{where}: no node computes the output {value.name!r}")


def _check_recursion(functions: dict[tuple[str, str, str], Function]) -> None:
    """Checks that no function calls itself, directly or through other functions."""
    done: set[tuple[str, str, str]] = set()
    for first in functions:
        path, stack = {first}, [(first, iter(_calls(functions, first)))]
        while stack:
            key, calls = stack[-1]
            for callee in calls:
                if callee in path:
                    raise OnnxError(f"the function {callee[1]!r} calls itself")
                if callee not in done:
                    if len(path) == MAX_DEPTH:
                        raise OnnxError(f"functions are nested more than {MAX_DEPTH} deep")
                    path.add(callee)
                    stack.append((callee, iter(_calls(functions, callee))))
                    break
            else:
                path.discard(key)
                done.add(key)
                stack.pop()


def _check_size(model: Model) -> None:
    """Checks that with all function calls expanded, the number of nodes stays within the limit for a
    file."""
    sizes: dict[tuple[str, str, str], int] = {}

    def size(graph: Graph) -> int:
        total = 0
        for node in all_nodes(graph):
            key = (node.domain, node.op, node.overload)
            if key in model.functions and key not in sizes:
                sizes[key] = size(model.functions[key].graph)
            total += sizes.get(key, 1)
        if total > MAX_NODES:
            raise OnnxError(f"more than {MAX_NODES} nodes, including the nodes of called functions")
        return total

    size(model.graph)


def _calls(
    functions: dict[tuple[str, str, str], Function], key: tuple[str, str, str]
) -> list[tuple[str, str, str]]:
    keys = [(n.domain, n.op, n.overload) for n in all_nodes(functions[key].graph)]
    return [each for each in keys if each in functions]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextlib.contextmanager
def _regular(path: str) -> Iterator[tuple[IO[bytes], int]]:
    """Opens a regular file; returns it and its size. Refuses pipes and devices instead of waiting for
    them."""
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OnnxError("the path is not a regular file")
        yield file, status.st_size


def read(path: str) -> Model:
    """Reads the model in a file. OnnxError if it is not a model, OSError if the file cannot be read."""
    try:
        with _regular(path) as (file, size):
            if size > MAX_BYTES:
                raise OnnxError(
                    f"the file has {size} bytes, and a model file at most {MAX_BYTES}: save large weights "
                    "as "
                    "external data"
                )
            data = file.read(MAX_BYTES + 1)
        return _Reader(os.path.dirname(os.path.abspath(path))).model(decode(memoryview(data)))
    except OnnxError as error:
        raise OnnxError(f"{path}: {error}") from None
    except (ValueError, IndexError, OverflowError) as error:
        raise OnnxError(f"{path}: the file is not an ONNX model, or it is damaged: {error}") from None
