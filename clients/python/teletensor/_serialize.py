"""save and load: safetensors files, whose format is
8 bytes header length (little-endian), header (JSON), data. Source: github.com/huggingface/safetensors.

A flat dict of tensors becomes a plain file that any reader of the format understands. Other trees
are described by JSON in the header's metadata. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from ._arrays import DTYPES, array_of, tensor_of
from ._replace import written
from ._tensor import Tensor

__all__ = ["load", "save"]

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_NAMES = {code: name for name, code in _CODES.items()}
_TREE = "teletensor.tree"
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAX_RANK = 12
_MAX_DEPTH = 200

_File = str | bytes | os.PathLike[str] | os.PathLike[bytes] | IO[bytes]


# ---------------------------------------------------------------- writing


def save(obj: Any, f: _File, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors to a safetensors file; waits for their values.

    `obj` is a tensor, or dicts, lists and tuples of tensors, numbers, text, booleans and None (for
    example a state_dict of a module or optimizer). `f` is a path or a file open for writing bytes.
    `metadata` is text for the header. Views are stored with their own elements only; gradients and
    histories are not stored.

    A path is written to as by `open(f, "wb")`: through symbolic links and into pipes and devices; a
    file keeps its mode and owner. A regular file is replaced only when all has been written. It is
    overwritten in place where it has several hard links or where its folder cannot be changed.

    Raises TypeError for anything else in the tree, naming its place.

    >>> import io
    >>> file = io.BytesIO()
    >>> tt.save({"step": 3, "weights": [tt.ones(2)]}, file)
    >>> loaded = tt.load(io.BytesIO(file.getvalue()))
    >>> loaded["step"], loaded["weights"][0].tolist()
    (3, [1.0, 1.0])
    """
    entries: dict[str, Tensor] = {}
    header_text = dict(metadata or {})
    for key, value in header_text.items():
        if not isinstance(key, str) or not isinstance(value, str) or key == _TREE:
            raise TypeError("save: metadata maps text to text, and not the key " + repr(_TREE))
    if _is_plain(obj):
        entries.update(obj)
    else:
        tree = _pack(obj, "", entries, {}, 0)
        header_text[_TREE] = json.dumps(tree, separators=(",", ":"))
    if hasattr(f, "write"):
        _write(f, entries, header_text)
        return
    with written(os.fspath(f)) as file:
        _write(file, entries, header_text)


def _is_plain(obj: Any) -> bool:
    return isinstance(obj, Mapping) and all(
        isinstance(key, str) and key != "__metadata__" and isinstance(value, Tensor)
        for key, value in obj.items()
    )


def _pack(
    obj: Any, path: str, entries: dict[str, Tensor], seen: dict[int, str], depth: int
) -> Any:
    """The JSON form of a tree: {"$": name} for a tensor, {"$tuple": [...]}, {"$dict": [[k, v]]} for
    a dict whose keys JSON cannot have, everything else as itself."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"save: nested more than {_MAX_DEPTH} deep at {path[:80]}...")
    if isinstance(obj, Tensor):
        name = seen.get(id(obj))
        if name is None:
            name = path or "tensor"
            while name in entries or name == "__metadata__":
                name += "_"
            entries[name] = obj
            seen[id(obj)] = name
        return {"$": name}
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj
    if isinstance(obj, np.generic) and obj.dtype.kind in "biuf":
        return obj.item()

    def below(key: object, value: Any) -> Any:
        return _pack(value, f"{path}.{key}" if path else str(key), entries, seen, depth + 1)

    if isinstance(obj, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in obj):
            return {key: below(key, value) for key, value in obj.items()}
        for key in obj:
            if key is not None and not isinstance(key, (bool, int, float, str)):
                raise TypeError(f"save: a key of {path or 'the dict'} is {type(key).__name__}")
        return {"$dict": [[key, below(key, value)] for key, value in obj.items()]}
    if isinstance(obj, (list, tuple)):
        packed = [below(i, value) for i, value in enumerate(obj)]
        return packed if isinstance(obj, list) else {"$tuple": packed}
    hint = "; save its state_dict()" if hasattr(obj, "state_dict") else ""
    raise TypeError(f"save: {path or 'the object'} is {type(obj).__name__}{hint}")


def _write(file: Any, entries: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    # Wide elements first, so that all data is aligned; the header keeps the order of the dict.
    order = []
    for name, tensor in entries.items():
        dtype = str(tensor.dtype).rpartition(".")[2]
        shape = [int(size) for size in tensor.shape]
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [0, 0]}
        order.append((-DTYPES[dtype].itemsize, math.prod(shape) * DTYPES[dtype].itemsize, name))
    end = 0
    for _, size, name in sorted(order, key=lambda entry: entry[0]):
        header[name]["data_offsets"] = [end, end + size]
        end += size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"save: the header has {len(text)} bytes, the format allows {_MAX_HEADER}")
    _put(file, struct.pack("<Q", len(text)) + text)
    for _, _, name in sorted(order, key=lambda entry: entry[0]):
        dtype, array = array_of(entries[name])
        _put(file, memoryview(array.astype(DTYPES[dtype], copy=False).reshape(-1)).cast("B"))


def _put(file: Any, data: bytes | memoryview) -> None:
    """Writes all of it: an unbuffered file may take a part at a time."""
    rest = memoryview(data)
    while len(rest):
        count = file.write(rest)
        if not isinstance(count, int):
            return
        rest = rest[count:]


# ---------------------------------------------------------------- reading


def load(f: _File, map_location: Any = None, *, weights_only: bool | None = None) -> Any:
    """Reads what `save`, or any writer of safetensors files, has written.

    `f` is a path or a file open for reading bytes that can seek; `map_location` the device of the
    tensors (default: the default device). The tensors require no gradient. `weights_only` changes
    nothing: a file holds nothing else, and nothing in it is ever executed.

    Raises ValueError, naming what is wrong, for a file that is cut short, damaged or of another
    kind; pickles, such as torch.save writes, are refused.
    """
    metadata, tensors = read_entries(f, map_location)
    if _TREE not in metadata:
        return tensors
    try:
        return _unpack(_parse(metadata[_TREE]), tensors, 0)
    except _Damaged as error:
        raise ValueError(f"load: {_where(f)}: {error}") from None


def read_entries(f: _File, map_location: Any = None) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file, as they stand there."""
    if hasattr(f, "read"):
        return _read(f, map_location, _where(f))
    with open(os.fspath(f), "rb") as file:
        return _read(file, map_location, _where(f))


def _where(f: _File) -> object:
    """What errors call a file."""
    return getattr(f, "name", "file") if hasattr(f, "read") else os.fsdecode(f)


def _read(file: Any, device: Any, where: object) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        begin = file.tell()
        file.seek(0, os.SEEK_END)
        size = file.tell() - begin
        file.seek(begin)
        header, data_begin = _read_header(file, size)
        metadata, entries = _check_header(header, size - data_begin)
        tensors = {}
        for name, (dtype, shape, offset, count) in entries.items():
            file.seek(begin + data_begin + offset)
            raw = bytearray(count)
            view = memoryview(raw)
            got = 0
            while got < count:
                part = file.readinto(view[got:])
                if not part:
                    raise _Damaged(f"the data of {name!r} is cut short")
                got += part
            array = np.frombuffer(raw, DTYPES[dtype])
            if dtype == "bool":
                array = array.view("u1") != 0
            tensors[name] = tensor_of(dtype, array.reshape(shape), device)
        return metadata, tensors
    except _Damaged as error:
        raise ValueError(f"load: {where}: {error}") from None


class _Damaged(Exception):
    pass


def _read_header(file: Any, size: int) -> tuple[dict[str, Any], int]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if (len(start) < 8 or length > size - 8) and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise _Damaged(
            "this is a pickle or zip archive, as torch.save writes; only safetensors files are "
            "read (safetensors.torch.save_file writes them)"
        )
    if len(start) < 8:
        raise _Damaged(f"{size} bytes are too few for a safetensors file")
    if length > _MAX_HEADER:
        raise _Damaged(f"not a safetensors file (header of {length} bytes)")
    if length > size - 8:
        raise _Damaged(f"cut short: header of {length} bytes, file of {size}")
    try:
        text = file.read(length).decode()
    except UnicodeDecodeError:
        raise _Damaged("the header is not UTF-8") from None
    header = _parse(text)
    if not isinstance(header, dict):
        raise _Damaged("the header is not a JSON object")
    return header, 8 + length


def _parse(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise _Damaged("a name occurs twice in the header")
        return result

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"the header is not JSON: {str(error)[:100]}") from None


_Entry = tuple[str, list[int], int, int]  # dtype, shape, offset, bytes


def _check_header(
    header: dict[str, Any], data_size: int
) -> tuple[dict[str, str], dict[str, _Entry]]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise _Damaged("__metadata__ does not map text to text")
    entries = {name: _check_entry(name, entry) for name, entry in header.items()}
    end = 0
    for name, (_, _, offset, count) in sorted(entries.items(), key=lambda e: (e[1][2], e[1][3])):
        if offset != end:
            kind = "overlaps the data before it" if offset < end else "leaves a hole before it"
            raise _Damaged(f"the data of {name!r} {kind}")
        end += count
    if end != data_size:
        raise _Damaged(f"{data_size} bytes of data, but the header describes {end}")
    return metadata, entries


def _check_entry(name: str, entry: Any) -> _Entry:
    def is_size(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _Damaged(f"the entry of {name!r} does not hold dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise _Damaged(f"{name!r} has dtype {code!r}; known are {', '.join(_NAMES)}")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(map(is_size, shape)):
        raise _Damaged(f"{name!r} has the shape {str(shape)[:100]}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_size, offsets)):
        raise _Damaged(f"{name!r} has the data_offsets {str(offsets)[:100]}")
    dtype = _NAMES[code]
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != expected:
        raise _Damaged(
            f"{name!r} of dtype {code} and shape {shape} needs {expected} bytes, its "
            f"data_offsets give {offsets[1] - offsets[0]}"
        )
    return dtype, shape, offsets[0], expected


def _unpack(tree: Any, tensors: Mapping[str, Tensor], depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise _Damaged("the tree is nested too deep")
    if isinstance(tree, list):
        return [_unpack(value, tensors, depth + 1) for value in tree]
    if not isinstance(tree, dict):
        return tree
    special = [key for key in tree if key.startswith("$")]
    if not special:
        return {key: _unpack(value, tensors, depth + 1) for key, value in tree.items()}
    value = tree[special[0]]
    if len(tree) == 1:
        if special == ["$"] and isinstance(value, str) and value in tensors:
            return tensors[value]
        if special == ["$tuple"] and isinstance(value, list):
            return tuple(_unpack(each, tensors, depth + 1) for each in value)
        if special == ["$dict"] and isinstance(value, list):
            if all(
                isinstance(pair, list) and len(pair) == 2 and not isinstance(pair[0], (list, dict))
                for pair in value
            ):
                return {key: _unpack(each, tensors, depth + 1) for key, each in value}
    raise _Damaged("the tree in the metadata is damaged")
