"""The encoding of Python objects without pickle, so that what a rank or a file contains cannot run code.

An encoded object is what JSON can hold. Its binary parts (bytes, the elements of arrays and tensors) are
base64 text inside of it, or, in a message, pieces of bytes beside it.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, device, dtype
from .._tensors.convert import tensor
from .._tensors.size import Size

_SCALARS = (bool, int, float, str, type(None))
_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_MAPPINGS = {kind.__name__: kind for kind in (dict, OrderedDict)}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype: "float32" for tt.float32."""
    return str(dtype).rpartition(".")[2]


def encoded(obj: Any, pieces: list[bytes] | None = None) -> Any:
    """The object as JSON: itself, or a list of the name of its type and its parts. Binary parts are
    appended to `pieces`, if given. TypeError for an object of another type."""
    kind = type(obj)
    name = kind.__name__
    if kind in _SCALARS:
        return obj
    if pieces is not None and kind is list and all(type(part) in _SCALARS for part in obj):
        return ["scalars", obj]
    if _SEQUENCES.get(name) is kind:
        return [name, *(encoded(part, pieces) for part in obj)]
    if _MAPPINGS.get(name) is kind:
        pairs = ([encoded(key, pieces), encoded(value, pieces)] for key, value in obj.items())
        return [name, *pairs]
    if kind is complex:
        return ["complex", obj.real, obj.imag]
    if kind in (bytes, bytearray):
        return [name, _piece(bytes(obj), pieces)]
    if isinstance(obj, Tensor):
        wide = obj.detach().cpu()
        elements = dtype_name(obj.dtype)
        if elements == "bfloat16":  # NumPy does not have it
            wide = wide.float()
        return ["tensor", elements, *_array_parts(wide.numpy(), pieces), obj.requires_grad]
    if isinstance(obj, (np.ndarray, np.generic)) and not obj.dtype.hasobject:
        form = "array" if isinstance(obj, np.ndarray) else "number"
        return [form, *_array_parts(np.asarray(obj), pieces)]
    if kind is Size:
        return ["Size", *obj]
    if kind is dtype:
        return ["dtype", dtype_name(obj)]
    if kind is device:
        return ["device", str(obj)]
    raise TypeError(
        f"objects travel without pickle: None, bool, numbers, str, bytes, arrays, tensors, dtypes, "
        f"devices, sizes, and lists, tuples, sets and dicts of these; not "
        f"{kind.__module__}.{kind.__qualname__}"
    )


def decoded(plain: Any, pieces: list[bytes] | None = None) -> Any:
    """The object that encoded() has encoded."""
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    if kind == "scalars":
        return parts[0]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decoded(part, pieces) for part in parts)
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((decoded(key, pieces), decoded(value, pieces)) for key, value in parts)
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return _bytes(parts[0], pieces)
    if kind == "bytearray":
        return bytearray(_bytes(parts[0], pieces))
    if kind == "tensor":
        made = tensor(_array(parts[1:4], pieces)).to(_dtype(parts[0]))
        return made.requires_grad_(any(parts[4:]))  # files of earlier versions do not say it
    if kind == "Size":
        return Size(parts)
    if kind == "dtype":
        return _dtype(parts[0])
    if kind == "device":
        return device(parts[0])
    array = _array(parts, pieces)
    return array[()] if kind == "number" else array


def message(obj: Any) -> bytes:
    """The object as bytes, with its binary parts as they are. TypeError as encoded()."""
    pieces: list[bytes] = []
    text = json.dumps([encoded(obj, pieces), [len(piece) for piece in pieces]]).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def from_message(data: bytes) -> Any:
    """The object that message() has encoded."""
    end = 8 + int.from_bytes(data[:8], "little")
    plain, sizes = json.loads(data[8:end])
    pieces = []
    for size in sizes:
        pieces.append(data[end:end + size])
        end += size
    return decoded(plain, pieces)


def _dtype(name: str) -> dtype:
    found = getattr(_core, name, None)
    if not isinstance(found, dtype):
        raise ValueError(f"an object of another rank or of a file has the unknown dtype {name!r}")
    return found


def _piece(data: bytes, pieces: list[bytes] | None) -> Any:
    if pieces is None:
        return base64.b64encode(data).decode()
    pieces.append(data)
    return len(pieces) - 1


def _bytes(part: Any, pieces: list[bytes] | None) -> bytes:
    return base64.b64decode(part) if pieces is None else pieces[part]


def _array_parts(array: Any, pieces: list[bytes] | None) -> list[Any]:
    return [array.dtype.str, list(array.shape), _piece(array.tobytes(), pieces)]


def _array(parts: list[Any], pieces: list[bytes] | None) -> Any:
    dtype, shape, data = parts
    return np.frombuffer(_bytes(data, pieces), np.dtype(dtype)).reshape(shape).copy()
