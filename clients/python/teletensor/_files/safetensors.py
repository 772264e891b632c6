"""The safetensors file format: 8 bytes with the length of the header (little-endian), the header (JSON),
the data. Source: github.com/huggingface/safetensors."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._tensors.arrays import DTYPES
from .stored import MAX_RANK, Damaged, Storage, Stored, is_count, read_at, row_major

__all__ = ["MAX_HEADER", "Entry", "parse", "read", "write"]

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
MAX_HEADER = 100_000_000  # bytes; the limit that the format itself defines


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: `array` returns its values in NumPy's form of the dtype (`DTYPES`)."""

    dtype: str
    shape: tuple[int, ...]
    array: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write(file: Any, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    """Writes a file. ValueError for a header above the format's limit."""
    # Tensors with wide elements come first, so that all data is aligned; the header keeps the order of the
    # dict.
    order = sorted(entries.items(), key=lambda each: -DTYPES[each[1].dtype].itemsize)
    header: dict[str, Any] = {"__metadata__": metadata, **dict.fromkeys(entries)}
    end = 0
    for name, entry in order:
        header[name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape),
                        "data_offsets": [end, end + entry.nbytes]}
        end += entry.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"save: the header has {len(text)} bytes, the format allows {MAX_HEADER}")
    _put(file, struct.pack("<Q", len(text)) + text)
    for _, entry in order:
        array = entry.array().astype(DTYPES[entry.dtype], order="C", copy=False)
        _put(file, memoryview(array.reshape(-1)).cast("B"))


def _put(file: Any, data: bytes | memoryview) -> None:
    """Writes all of the data: an unbuffered file may write only a part at a time."""
    rest = memoryview(data)
    while len(rest):
        count = file.write(rest)
        if not isinstance(count, int):
            return
        rest = rest[count:]


def read(file: Any, size: int) -> tuple[dict[str, str], dict[str, Stored]]:
    """Reads the metadata and the tensors of a file that has `size` bytes from its position on. Raises
    Damaged."""
    begin = file.tell()
    header, data = _read_header(file, size)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise Damaged("the keys and values of __metadata__ must be text")
    entries = {name: _check_entry(name, entry) for name, entry in header.items()}
    end = 0
    for name, (_, _, offset, count) in sorted(entries.items(), key=lambda e: (e[1][2], e[1][3])):
        if offset != end:
            kind = "overlaps the data before it" if offset < end else "leaves a hole before it"
            raise Damaged(f"the data of {name!r} {kind}")
        end += count
    if end != size - data:
        raise Damaged(f"the file has {size - data} bytes of data, but its header describes {end}")

    def stored(name: str, dtype: str, shape: list[int], offset: int, count: int) -> Stored:
        at = begin + data + offset
        storage = Storage(count, "cpu", lambda: read_at(file, at, count, f"the data of {name!r}"), dtype)
        return Stored(storage, dtype, tuple(shape), row_major(shape))

    return metadata, {name: stored(name, *entry) for name, entry in entries.items()}


def _read_header(file: Any, size: int) -> tuple[dict[str, Any], int]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8:
        raise Damaged(f"the file has {size} bytes, too few for a safetensors file")
    if length > MAX_HEADER:
        raise Damaged(f"the file is neither a safetensors file (its header would have {length} bytes) nor "
                      "a "
                      "file of torch.save")
    if length > size - 8:
        raise Damaged(f"the file is cut short: it has {size} bytes, and its header needs {length}")
    header = parse(file.read(length))
    if not isinstance(header, dict):
        raise Damaged("the header is not a JSON object")
    return header, 8 + length


def parse(text: bytes | str) -> Any:
    """Parses JSON in which no object has the same name twice. Raises Damaged."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise Damaged("a name occurs twice in the JSON of the header or index")
        return result

    try:
        text = text.decode() if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=unique)
    except UnicodeDecodeError:
        raise Damaged("the JSON of the header or index is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the header or index is not JSON: {str(error)[:100]}") from None


def _check_entry(name: str, entry: Any) -> tuple[str, list[int], int, int]:
    """Returns (dtype, shape, offset, bytes) of an entry of the header."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"the entry of {name!r} does not hold dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise Damaged(f"{name!r} has the dtype {code!r}; supported are {', '.join(_NAMES)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(is_count, shape)):
        raise Damaged(f"{name!r} has the shape {str(shape)[:100]}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise Damaged(f"{name!r} has the data_offsets {str(offsets)[:100]}")
    dtype = _NAMES[code]
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != expected:
        raise Damaged(
            f"{name!r} of dtype {code} and shape {shape} needs {expected} bytes, its "
            f"data_offsets give {offsets[1] - offsets[0]}"
        )
    return dtype, shape, offsets[0], expected
