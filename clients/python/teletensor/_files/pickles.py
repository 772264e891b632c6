"""A reader of pickles that executes no code: it supports only the opcodes that weights need, and only the
globals for which the caller has registered a function. The opcodes are those of PyTorch's
`weights_only=True`.

A pickle is a program for a stack machine. The work of the programs that are accepted here is bounded by
their length: numbers, text and containers consist of the pickle's bytes, and all calls together create no
more elements than the pickle has bytes.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import _core
from .._tensors.arrays import DTYPES
from .stored import Damaged, Storage, is_count

__all__ = ["PLAIN", "Global", "Machine", "Source", "Unreadable"]

_MAX_LINE = 1000  # the maximum bytes in the name of a module or of a global
_MAX_KEY = 100  # the maximum number of elements of a tuple that is a key
_MAX_PATH = 20  # the maximum number of keys in the place of a value, the innermost
_STOP = b"."
_KEYS = (str, bytes, float, complex, bool, type(None), np.generic, _core.dtype, _core.device)
_SIZED = (str, bytes, tuple, list, dict)

# the types of arguments; a final Ellipsis means any number of arguments of the last type
Form = tuple[Any, ...]


class Global:
    """A name in a pickle: that of a function, with the implementation of its calls, or that of a type that
    is only referred to. `forms` gives the types of the arguments that the function accepts."""

    def __init__(self, name: str, call: Callable[..., Any] | None = None, *forms: Form) -> None:
        self.name, self._call, self._forms = name, call, forms

    def __call__(self, args: Any) -> Any:
        """Calls the function. Raises Damaged if it does not accept these arguments."""
        if type(args) is not tuple or not any(_fits(args, form) for form in self._forms):
            given = ", ".join(map(_kind, args[:20])) if type(args) is tuple else _kind(args)
            raise Damaged(f"its pickle calls {self.name} with ({given})")
        assert self._call is not None
        return self._call(*args)


class Unreadable:
    """Stands for an object of a known kind that is not supported. If it is part of the result, the error
    says where; `text` continues a sentence such as "its ['weight'] is ..."."""

    def __init__(self, text: str) -> None:
        self.text = text


class Source:
    """The bytes of a file from `at` to `end`, read in order."""

    def __init__(self, file: Any, at: int, end: int) -> None:
        self._file, self.at, self.end = file, at, end
        file.seek(at)

    def take(self, count: int) -> bytes:
        """The next `count` bytes. Raises Damaged, without allocating memory, if there are fewer."""
        data: bytes = self._file.read(count) if count <= self.end - self.at else b""
        if len(data) != count:
            raise Damaged("its pickle is cut short")
        self.at += count
        return data

    def line(self) -> str:
        """The text up to the end of the line."""
        data = self._file.readline(min(_MAX_LINE, self.end - self.at))
        self.at += len(data)
        if data[-1:] != b"\n":
            raise Damaged("its pickle is cut short, or has a name that is too long")
        return str(data[:-1], "utf-8")


class Machine:
    """Reads one pickle. `find` returns the object for the name of a global, or raises Damaged; `persistent`
    returns the object for the id of an object that is not in the pickle."""

    def __init__(self, source: Source, find: Callable[[str], Any],
                 persistent: Callable[[Any], Any]) -> None:
        self._source, self._find, self._persistent = source, find, persistent
        self._begin = source.at
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}
        self._made = 0

    def run(self) -> Any:
        """Returns the object; the position of the source is then the end of the pickle. Raises Damaged."""
        try:
            while (code := self._source.take(1)) != _STOP:
                action = _ACTIONS.get(code)
                if action is None:
                    raise Damaged(f"its pickle has the opcode {_opcode(code)}, which weights do not need")
                action(self)
            result = self._stack.pop()
        except IndexError:
            raise Damaged("its pickle takes more values from the stack than the stack has") from None
        except UnicodeError:
            raise Damaged("its pickle has text that cannot be decoded") from None
        _check_values(result)
        return result

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._source.take(struct.calcsize(form)))[0]

    def _protocol(self) -> None:
        protocol = self._number("B")
        if protocol != 2:
            raise Damaged(f"its pickle has protocol {protocol}; torch.save writes 2 unless told otherwise")

    def _long(self) -> None:
        self._push(int.from_bytes(self._source.take(self._number("B")), "little", signed=True))

    def _text(self, length: str, errors: str) -> None:
        self._push(str(self._source.take(self._number(length)), "utf-8", errors))

    def _get(self, form: str) -> None:
        key = self._number(form)
        if key not in self._memo:
            raise Damaged(f"its pickle refers to object {key}, which it has not put into its memo")
        self._push(self._memo[key])

    def _put(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def _mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise Damaged(f"its pickle appends to a {_kind(target)}")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict, Counter) or len(items) % 2:
            raise Damaged(f"its pickle sets items of a {_kind(target)}")
        _fill(target, zip(items[::2], items[1::2], strict=True))

    def _global(self) -> None:
        module, name = self._source.line(), self._source.line()
        module = "builtins" if module == "__builtin__" else module  # the name of the module in Python 2
        self._push(self._find(f"{module}.{name}"))

    def _reduce(self) -> None:
        function, args = self._last(2)
        if type(function) is not Global:
            raise Damaged(f"its pickle calls a {_kind(function)}")
        self._spend(args)
        self._push(function(args))

    def _new_object(self) -> None:
        kind = self._stack[-2:-1]
        if not kind or type(kind[0]) is not Global or kind[0].name != "argparse.Namespace":
            raise Damaged(f"its pickle makes an object of a {', '.join(map(_kind, kind))}")
        self._reduce()

    def _build(self) -> None:
        target, state = self._last(2)
        self._spend(state)
        for kind, build in _BUILDS:
            if isinstance(target, kind):
                build(target, state)
                self._push(target)
                return
        raise Damaged(f"its pickle sets the state of a {_kind(target)}")

    def _spend(self, parts: Any) -> None:
        """Accounts for the parts before a call that may copy them."""
        if isinstance(parts, tuple):
            self._made += sum(len(part) for part in parts if isinstance(part, _SIZED))
        if self._made > self._source.at - self._begin:
            raise Damaged("its pickle makes larger objects than its size allows")


# The action of each opcode, with the name of the opcode in pickletools.
_ACTIONS: dict[bytes, Callable[[Machine], None]] = {
    b"\x80": Machine._protocol,  # PROTO
    b"N": lambda m: m._push(None),  # NONE
    b"\x89": lambda m: m._push(False),  # NEWFALSE
    b"\x88": lambda m: m._push(True),  # NEWTRUE
    b")": lambda m: m._push(()),  # EMPTY_TUPLE
    b"]": lambda m: m._push([]),  # EMPTY_LIST
    b"}": lambda m: m._push({}),  # EMPTY_DICT
    b"\x8f": lambda m: m._push(set()),  # EMPTY_SET
    b"J": lambda m: m._push(m._number("<i")),  # BININT
    b"K": lambda m: m._push(m._number("B")),  # BININT1
    b"M": lambda m: m._push(m._number("<H")),  # BININT2
    b"\x8a": Machine._long,  # LONG1
    b"G": lambda m: m._push(m._number(">d")),  # BINFLOAT
    b"X": lambda m: m._text("<I", "surrogatepass"),  # BINUNICODE
    b"U": lambda m: m._text("B", "strict"),  # SHORT_BINSTRING
    b"h": lambda m: m._get("B"),  # BINGET
    b"j": lambda m: m._get("<I"),  # LONG_BINGET
    b"q": lambda m: m._put("B"),  # BINPUT
    b"r": lambda m: m._put("<I"),  # LONG_BINPUT
    b"(": Machine._mark,  # MARK
    b"t": lambda m: m._push(tuple(m._since_mark())),  # TUPLE
    b"\x85": lambda m: m._push(tuple(m._last(1))),  # TUPLE1
    b"\x86": lambda m: m._push(tuple(m._last(2))),  # TUPLE2
    b"\x87": lambda m: m._push(tuple(m._last(3))),  # TUPLE3
    b"a": lambda m: m._append(m._last(1)),  # APPEND
    b"e": lambda m: m._append(m._since_mark()),  # APPENDS
    b"s": lambda m: m._set(m._last(2)),  # SETITEM
    b"u": lambda m: m._set(m._since_mark()),  # SETITEMS
    b"c": Machine._global,  # GLOBAL
    b"R": Machine._reduce,  # REDUCE
    b"\x81": Machine._new_object,  # NEWOBJ
    b"b": Machine._build,  # BUILD
    b"Q": lambda m: m._push(m._persistent(m._stack.pop())),  # BINPERSID
}


def _fits(args: tuple[Any, ...], form: Form) -> bool:
    if form[-1:] == (...,):
        form = (form[0],) * len(args)
    return len(args) == len(form) and all(map(isinstance, args, form))


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Global) else type(value).__name__


def _opcode(code: bytes) -> str:
    import pickletools

    known = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    return known.get(code.decode("latin-1"), repr(code))


def _fill(target: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    for key, value in pairs:
        _check_key(key)
        target[key] = value
    return target


def _check_key(key: Any) -> None:
    """Checks a key: only objects that are hashed in little time are allowed, that is text, numbers, and
    tuples of a few of them."""
    parts = [key]
    for count in range(_MAX_KEY):
        if count == len(parts):
            return
        part = parts[count]
        if isinstance(part, tuple) and len(part) <= _MAX_KEY:
            parts.extend(part)
        elif not isinstance(part, _KEYS) and not (isinstance(part, int) and -(2**63) <= part < 2**63):
            raise Damaged(f"its pickle has a key of type {_kind(part)}")
    raise Damaged("its pickle has a key that is too large")


def _check_values(root: Any) -> None:
    """Checks that no name of a global, no storage and no unreadable object is used as a value."""
    seen: set[int] = set()
    todo: list[_Item] = [(root, None, "")]
    while todo:
        item = todo.pop()
        value = item[0]
        if isinstance(value, Unreadable):
            raise Damaged(f"its {_path(item)} is {value.text}")
        if isinstance(value, (Global, Storage)):
            raise Damaged(f"its pickle has {_kind(value)} where a value should be")
        if isinstance(value, (list, tuple, dict, set, argparse.Namespace)) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                todo.extend((each, item, key) for key, each in value.items())
            elif not isinstance(value, argparse.Namespace):
                todo.extend((each, item, place) for place, each in enumerate(value))
            todo.extend((each, item, key) for key, each in getattr(value, "__dict__", {}).items())


# A value of a pickle, the item that contains it, and its key there.
_Item = tuple[Any, "_Item | None", Any]


def _path(item: _Item) -> str:
    """The place of a value in the result, such as "['model']['weight']"."""
    keys: list[str] = []
    while item[1] is not None and len(keys) < _MAX_PATH:
        keys.append(f"[{repr(item[2])[:_MAX_KEY]}]")
        item = item[1]
    return "".join(reversed(keys)) or "object"


# ---------------------------------------------------------------- implementations of calls

def _ordered_dict(pairs: Any = ()) -> Any:
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise Damaged("its pickle makes an OrderedDict of values that are not pairs")
    return _fill(OrderedDict(), pairs)


def _set_of(items: Any = ()) -> set[Any]:
    for item in items:
        _check_key(item)
    return set(items)


def _encoded(text: str, codec: str) -> bytes:
    """The form in which protocol 2 stores bytes."""
    if codec not in ("latin1", "latin-1"):
        raise Damaged(f"its pickle encodes text as {codec[:40]!r}; bytes are encoded as 'latin1'")
    return text.encode("latin-1")


def _byte_array(data: Any = b"", codec: str = "latin-1") -> bytearray:
    return bytearray(_encoded(data, codec) if isinstance(data, str) else data)


def _numpy_dtype(name: str, *_: Any) -> np.dtype[Any]:
    if name.lstrip("<|=") not in _NUMPY_NAMES:
        raise Damaged(f"its pickle has the NumPy dtype {name[:40]!r}")
    return np.dtype(name)


def _numpy_scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise Damaged(f"its pickle has a NumPy {dtype} of {len(data)} bytes")
    return np.frombuffer(data, dtype)[0]


def _numpy_array(*_: Any) -> np.ndarray[Any, Any]:
    """Returns an empty array; its state follows in the pickle."""
    return np.empty(0, np.uint8)


def _build_array(array: np.ndarray[Any, Any], state: Any) -> None:
    try:
        version, shape, dtype, fortran, data = state
        good = (is_count(version), type(shape), isinstance(dtype, np.dtype), type(fortran), type(data)) == (
            True, tuple, True, bool, bytes) and all(map(is_count, shape))
        if good and math.prod(shape) * dtype.itemsize == len(data):
            array.__setstate__(state)
            return
    except (TypeError, ValueError):  # not five elements, or more dimensions or elements than NumPy supports
        pass
    raise Damaged("its pickle has a NumPy array that is damaged")


def _build_dtype(_: Any, state: Any) -> None:
    if type(state) is not tuple or len(state) < 2 or type(state[1]) is not str or state[1] not in "<|=":
        raise Damaged("its pickle has a NumPy dtype that is not little-endian")


def _build_namespace(space: argparse.Namespace, state: Any) -> None:
    if type(state) is not dict or not all(isinstance(key, str) for key in state):
        raise Damaged("its pickle has a Namespace that is damaged")
    vars(space).update(state)


def _build_ordered_dict(target: Any, state: Any) -> None:
    """The state_dicts of modules have their versions in an attribute."""
    if type(state) is not dict or not state.keys() <= {"_metadata"}:
        raise Damaged("its pickle has an OrderedDict with attributes")
    vars(target).update(state)


_BUILDS: list[tuple[type, Callable[[Any, Any], None]]] = [
    (OrderedDict, _build_ordered_dict),
    (argparse.Namespace, _build_namespace),
    (np.ndarray, _build_array),
    (np.dtype, _build_dtype),
]
_NUMPY_NAMES = {dtype.str[1:] for dtype in DTYPES.values()}  # such as "b1" or "f4"
_NUMPY = ["numpy.core.multiarray", "numpy._core.multiarray"]
# The globals of Python and NumPy, by their names in pickles.
PLAIN: dict[str, Any] = {each.name: each for each in [
    Global("collections.OrderedDict", _ordered_dict, (), (list,)),
    Global("collections.Counter", lambda counts=(): _fill(Counter(), dict(counts).items()), (), (dict,)),
    Global("builtins.set", _set_of, (), (list,)),
    Global("builtins.bytes", bytes, ()),
    Global("builtins.bytearray", _byte_array, (), (bytes,), (str, str)),
    Global("builtins.complex", complex, (float, float)),
    Global("_codecs.encode", _encoded, (str, str)),
    Global("argparse.Namespace", argparse.Namespace, ()),
    *(Global(f"{module}.PosixPath", pathlib.Path, (str, ...)) for module in ("pathlib", "pathlib._local")),
    Global("numpy.dtype", _numpy_dtype, (str, int, int)),
    Global("numpy.ndarray"),
    *(Global(f"{module}.scalar", _numpy_scalar, (np.dtype, bytes)) for module in _NUMPY),
    *(Global(f"{module}._reconstruct", _numpy_array, (Global, tuple, bytes)) for module in _NUMPY),
]}
