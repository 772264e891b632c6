"""Reads files of torch.save without PyTorch. A file is a zip archive with the pickle of the object,
`data.pkl`, and a record `data/KEY` for each storage; before PyTorch 1.6 it consists of pickles and then the
storages in one stream. Source: torch/serialization.py and torch/_utils.py of github.com/pytorch/pytorch.

No code of a file is executed (`_pickles`), and no name in an archive is used as a path. The object is
created twice: first with descriptions of tensors, each of which is checked against the storages in the
file; if all are valid, it is created with tensors.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import _api as tt
from .._tensors.arrays import DTYPES
from .._tensors.size import Size
from ..sparse import SparseTensor
from .pickles import PLAIN, Global, Machine, Source, Unreadable
from .stored import (
    AsStored,
    Damaged,
    Storage,
    Stored,
    StoredSparse,
    WithoutData,
    is_count,
    made_sparse,
    read_at,
)

__all__ = ["is_legacy", "is_zip", "read_legacy", "read_zip"]

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # before PyTorch 1.6
_LEGACY = b"\x80\x02\x8a\x0a" + _MAGIC.to_bytes(10, "little")
# the local header of a zip entry: signature, lengths of name and extra field
_LOCAL = struct.Struct("<4s22xHH")
_VERSIONS = range(1, 11)  # versions of the archive format
_ENCRYPTED = 1  # in the flags of a zip entry
_MAX_SMALL = 100  # the maximum bytes of records that contain one word

_STORAGES: dict[str, str] = {
    "BoolStorage": "bool", "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16",
    "IntStorage": "int32", "LongStorage": "int64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32", "DoubleStorage": "float64", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
# dtypes that have no storage type of their own, but use one of bytes
_UNSIGNED = ("uint16", "uint32", "uint64")
_SCHEMES = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric",
            "per_channel_affine_float_qparams")  # fmt: skip
_REFUSED = {
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a subclass",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of a device that PyTorch saves by NumPy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of a device of its own",
}
_NO_DTYPE = re.compile(r"torch\.((q?u?int|float|complex|bits)\d\w*|\w+Storage)")


def is_zip(start: bytes) -> bool:
    """Returns whether a file that begins with these bytes contains a zip archive. (A safetensors header
    would begin at byte 8.)"""
    return start[:4] == b"PK\x03\x04" and start[8:9] != b"{"


def is_legacy(start: bytes) -> bool:
    """Returns whether a file that begins with these bytes was written by PyTorch before 1.6."""
    return start.startswith(_LEGACY)


# ---------------------------------------------------------------- the names in a pickle

class _Names:
    """The globals and persistent ids of one pickle. `record(key, count, itemsize)` returns the function
    that reads a storage; it raises Damaged if the file does not contain that many elements."""

    def __init__(self, maker: AsStored, record: Callable[[str, int, int], Callable[[], bytearray]],
                 swapped: bool = False) -> None:
        self._maker, self._record, self._swapped = maker, record, swapped
        self._storages: dict[str, tuple[Any, Storage]] = {}
        place = ((Storage, Unreadable), int, tuple, tuple)
        flags = (bool, dict)  # requires_grad and hooks
        some = (Stored, WithoutData, tt.Tensor, *_SPARSE, Unreadable)
        dtype = (tt.dtype, Unreadable)
        self._globals = _TYPES | {each.name: each for each in [
            Global("torch._utils._rebuild_tensor", self._tensor, place),
            Global("torch._utils._rebuild_tensor_v2", self._tensor, (*place, *flags),
                   (*place, *flags, _MAYBE)),
            Global("torch._utils._rebuild_tensor_v3", self._tensor_of_dtype, (*place, *flags, dtype),
                   (*place, *flags, dtype, _MAYBE)),
            Global("torch._utils._rebuild_parameter", self._parameter, (some, *flags)),
            Global("torch._utils._rebuild_parameter_with_state", self._parameter, (some, *flags, _STATE)),
            Global("torch._tensor._rebuild_from_type_v2", self._of_type, (Global, Global, tuple, _STATE)),
            Global("torch._utils._rebuild_sparse_tensor", self._sparse, ((tt.layout, Unreadable), tuple)),
            Global("torch._utils._rebuild_meta_tensor_no_storage", self._without_data,
                   (dtype, (tuple, Size), tuple, bool)),
            *(Global(f"torch.nn.parameter.{name}", partial(maker.uninitialized, name), (bool,))
              for name in ("UninitializedParameter", "UninitializedBuffer")),
        ]}

    def find(self, name: str) -> Any:
        """The object for the name of a global: one that `weights_only=True` allows, or a NumPy number."""
        if name in self._globals:
            return self._globals[name]
        if name in _REFUSED:
            raise Damaged(f"it holds {_REFUSED[name]}, which is not supported")
        if _NO_DTYPE.fullmatch(name):
            return Unreadable(f"{name}, which is not supported")
        raise Damaged(f"its pickle names {name[:200]}, which is not among what weights need; nothing of it "
                      "was run. If you trust the file: tt.from_torch(torch.load(path, weights_only=False))")

    def storage(self, pid: Any) -> Storage | Unreadable:
        """The storage for a persistent id: ("storage", type, key, location, number of elements), followed
        by None before PyTorch 1.6."""
        parts = pid[:5] if type(pid) is tuple and len(pid) == 6 and pid[5] is None else pid
        if type(parts) is tuple and len(parts) == 5 and isinstance(parts[1], Unreadable):
            return Unreadable(f"a tensor of {parts[1].text}")
        if type(parts) is not tuple or not _fits_storage(parts):
            raise Damaged("its pickle has a persistent id that is not one of a storage")
        _, kind, key, location, count = parts
        if key not in self._storages:
            dtype = _STORAGES.get(kind.name.rpartition(".")[2], "uint8")
            size = DTYPES[dtype].itemsize
            made = Storage(count * size, location, self._record(key, count, size), dtype, self._swapped)
            self._storages[key] = parts, made
        known, storage = self._storages[key]
        if known != parts:
            raise Damaged(f"its pickle describes the storage {key[:40]!r} in two ways")
        return storage

    def _tensor(self, storage: Storage | Unreadable, offset: int, shape: Any, stride: Any,
                requires_grad: bool = False, hooks: Any = None, math_bits: Any = None,
                dtype: str | None = None) -> Any:
        if isinstance(storage, Unreadable):
            return storage
        bits = math_bits or {}
        if hooks or not bits.keys() <= {"conj", "neg"}:
            raise Damaged("its pickle has a tensor with hooks or unknown metadata")
        stored = Stored(storage, dtype or storage.dtype, tuple(shape), tuple(stride), offset,
                        bits.get("conj") is True, bits.get("neg") is True)
        return self._maker.tensor(stored, requires_grad)

    def _tensor_of_dtype(self, storage: Storage | Unreadable, offset: int, shape: Any, stride: Any,
                         requires_grad: bool, hooks: Any, dtype: tt.dtype | Unreadable,
                         math_bits: Any = None) -> Any:
        if isinstance(storage, Unreadable):
            return storage
        if isinstance(dtype, Unreadable):
            return Unreadable(f"a tensor of {dtype.text}")
        if dtype.name not in _UNSIGNED or storage.dtype != "uint8" or storage.nbytes % dtype.itemsize:
            raise Damaged(f"its pickle has a tensor of {dtype.name} on {storage.nbytes} bytes of "
                          f"{storage.dtype}")
        return self._tensor(storage, offset, shape, stride, requires_grad, hooks, math_bits, dtype.name)

    def _without_data(self, dtype: tt.dtype | Unreadable, shape: Any, stride: Any,
                      requires_grad: bool) -> Any:
        if isinstance(dtype, Unreadable):
            return Unreadable(f"a tensor of {dtype.text}")
        return self._maker.without_data(WithoutData(dtype.name, tuple(shape), tuple(stride)), requires_grad)

    def _sparse(self, layout: Any, data: tuple[Any, ...]) -> Any:
        """The sparse tensor with `data`: its index tensors, values and size, and whether it is coalesced
        in the layout COO."""
        for part in (layout, *data):
            if isinstance(part, Unreadable):
                return part
        coo = layout is tt.sparse_coo
        count = 3 if coo else 4  # the parts without the flag, which old files do not have
        if len(data) not in ((3, 4) if coo else (4,)) or not isinstance(data[count - 1], Size):
            raise Damaged("its pickle has a sparse tensor whose parts are damaged")
        coalesced = coo and len(data) == 4 and data[3] is not None and data[3]
        return made_sparse(self._maker, repr(layout).rpartition(".")[2], list(data[:count - 2]),
                           data[count - 2], list(data[count - 1]), coalesced)

    def _parameter(self, tensor: Any, requires_grad: bool, hooks: Any, state: Any = None) -> Any:
        if isinstance(tensor, _SPARSE):
            return Unreadable("a sparse parameter, which is not supported: save its detach()")
        if isinstance(tensor, Unreadable):
            return tensor
        if hooks:
            raise Damaged("its pickle has a parameter with hooks")
        return self._with_attributes(self._maker.parameter(tensor, requires_grad), _attributes(state))

    def _of_type(self, function: Global, kind: Global, args: tuple[Any, ...], state: Any) -> Any:
        known = kind.name in ("torch.Tensor", "torch.nn.parameter.Parameter")
        if not known or not function.name.startswith("torch._utils."):
            raise Damaged(f"it holds a tensor of the class {kind.name}, which is not supported")
        tensor, attributes = function(args), _attributes(state)
        if isinstance(tensor, Unreadable):
            return tensor
        if attributes.pop("_is_buffer", None) is True:
            if isinstance(tensor, _SPARSE):
                return Unreadable("a sparse nn.Buffer, which is not supported: save its detach()")
            tensor = self._maker.buffer(tensor, attributes.pop("persistent", None) is not False)
        return self._with_attributes(tensor, attributes)

    def _with_attributes(self, tensor: Any, attributes: dict[str, Any]) -> Any:
        """The tensor with these attributes, of which none may change what the tensor is."""
        for name, value in attributes.items():
            own = isinstance(tensor, _SPARSE) and name.startswith("_")
            if own or not name.isidentifier() or name.startswith("__") or hasattr(tt.Tensor, name):
                raise Damaged(f"it holds a tensor with the attribute {name[:80]!r}, which no file may set")
            parts = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(part, _VALUES) for part in parts):
                what = value.text if isinstance(value, Unreadable) else f"a {type(value).__name__}"
                raise Damaged(f"it holds a tensor whose attribute {name[:80]!r} is {what}; numbers, text, "
                              "tensors and tuples of them are read")
            self._maker.attribute(tensor, name, value)
        return tensor


# the types of a tensor's attributes, which cannot change later in the pickle
_VALUES = (bool, int, float, complex, str, bytes, type(None), tt.dtype, tt.device, Stored, WithoutData,
           StoredSparse, SparseTensor, tt.Tensor)


def _attributes(state: Any) -> dict[str, Any]:
    """The attributes in a state: a dict, or a pair of dicts of which the second has those of slots."""
    found: dict[str, Any] = {}
    for part in state if isinstance(state, tuple) else (state,):
        if part is not None and not (isinstance(part, dict) and all(isinstance(key, str) for key in part)):
            raise Damaged("it holds a tensor with attributes that are not named")
        found |= part or {}
    return found


def _layout(name: str) -> Any:
    return _LAYOUTS.get(name) or Unreadable(f"{name[:40]}, which is not supported")


def _quantized(*parts: Any) -> Unreadable:
    return Unreadable("a quantized tensor, which is not supported: save its dequantize(), or its "
                      "int_repr() with its scale and zero point")


def _fits_storage(parts: tuple[Any, ...]) -> bool:
    """Returns whether a tuple has the parts of a storage's persistent id."""
    return (list(map(type, parts)) == [str, Global, str, str, int]
            and parts[0] == "storage" and is_count(parts[4])
            and (parts[1].name.rpartition(".")[2] in _STORAGES or parts[1].name == _UNTYPED))


def _device(kind: str, index: int | None = None) -> tt.device:
    try:
        return tt.device(kind if index is None else f"{kind}:{index}")
    except RuntimeError as error:
        raise Damaged(f"it holds a device: {error}") from None


def _size(sizes: tuple[Any, ...]) -> Size:
    if not all(map(is_count, sizes)):
        raise Damaged("its pickle has a torch.Size that is damaged")
    return Size(sizes)


_UNTYPED = "torch.storage.UntypedStorage"
_LAYOUTS = {f"torch.{name}": getattr(tt, name) for name in (
    "strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")}
_SPARSE = (StoredSparse, SparseTensor)
_MAYBE = (dict, type(None))
_STATE = (dict, tuple, type(None))
_TYPES: dict[str, Any] = PLAIN | {each.name: each for each in [
    Global("torch.Size", _size, (tuple,)),
    Global("torch.device", _device, (str,), (str, int)),
    Global("torch.Tensor"),
    Global("torch.nn.parameter.Parameter"),
    Global(_UNTYPED),
    *(Global(f"{module}.{name}") for module in ("torch", "torch.cuda") for name in _STORAGES),
    Global("torch.serialization._get_layout", _layout, (str,)),
    Global("torch._utils._rebuild_qtensor", _quantized, (Unreadable, int, tuple, tuple, tuple, bool, dict)),
]} | {f"torch.{name}": getattr(tt, name) for name in DTYPES} | {
    f"torch.{name}": Unreadable(f"the quantization scheme torch.{name}, which is not supported")
    for name in _SCHEMES}


# ---------------------------------------------------------------- the two file layouts

def read_zip(file: Any, maker: AsStored) -> Any:
    """The object in an archive of torch.save. Raises Damaged."""
    archive = _Archive(file)

    def made_by(maker: AsStored) -> Any:
        names = _Names(maker, archive.storage, archive.swapped)
        source = Source(io.BytesIO(archive.pickle), 0, len(archive.pickle))
        return Machine(source, names.find, names.storage).run()

    found = made_by(AsStored())
    return found if type(maker) is AsStored else made_by(maker)


@dataclass(frozen=True)
class _Record:
    at: int
    size: int
    crc: int  # 0 if torch.save was told not to compute it
    plain: bool  # neither compressed nor encrypted


class _Archive:
    """The records of a zip archive: uncompressed, not overlapping, and together not larger than the
    file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._records = _records(file)
        roots = [name[:-len("data.pkl")] for name in self._records
                 if re.fullmatch("[^/]+/data[.]pkl", name)]
        if len(roots) != 1:
            raise Damaged("it is a zip archive, but not one of torch.save: it has no data.pkl in a folder")
        self._root = roots[0]
        if self._root + "constants.pkl" in self._records:
            raise Damaged("it is a program of torch.jit.save; only what torch.save writes is read")
        version = self._word("version", "1")
        if not version.isascii() or not version.isdigit() or int(version) not in _VERSIONS:
            raise Damaged(f"it has version {version[:20]!r} of the format; versions 1 to {_VERSIONS[-1]} "
                          "are supported")
        order = self._word("byteorder", "little")
        if order not in ("little", "big"):
            raise Damaged(f"it has the unknown byte order {order[:20]!r}; it must be little or big")
        self.swapped = order == "big"
        pickle = self._record("data.pkl")
        assert pickle is not None
        self.pickle = self._read("data.pkl", pickle)

    def _word(self, name: str, default: str) -> str:
        """The contents of a small record."""
        record = self._record(name)
        if record is None:
            return default
        if record.size > _MAX_SMALL:
            raise Damaged(f"its record {name} has {record.size} bytes")
        return self._read(name, record).decode("latin-1").strip()

    def _record(self, name: str) -> _Record | None:
        record = self._records.get(self._root + name)
        if record is not None and not record.plain:
            raise Damaged(f"its record {name[:80]!r} is compressed or encrypted; torch.save does neither")
        return record

    def _read(self, name: str, record: _Record) -> bytearray:
        raw = read_at(self._file, record.at, record.size, f"its record {name[:80]!r}")
        if record.crc and zlib.crc32(raw) != record.crc:
            raise Damaged(f"its record {name[:80]!r} does not have the checksum that the archive gives")
        return raw

    def storage(self, key: str, count: int, itemsize: int) -> Callable[[], bytearray]:
        """Returns the function that reads the storage with that many elements."""
        record = self._record(f"data/{key}")
        if record is None:
            raise Damaged(f"it has no storage {key[:40]!r}")
        if record.size < count * itemsize:
            raise Damaged(f"its storage {key[:40]!r} of {count} elements of {itemsize} bytes has "
                          f"{record.size} bytes")
        return lambda: self._read(f"data/{key}", record)


def _records(file: Any) -> dict[str, _Record]:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
            end = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, OSError,
            struct.error) as error:
        raise Damaged(f"it begins as a zip archive, but is damaged or cut short: {error}") from None
    records: dict[str, _Record] = {}
    for entry, limit in zip(entries, [*(e.header_offset for e in entries[1:]), end], strict=True):
        name = entry.filename
        if name in records:
            raise Damaged(f"it has two records {name[:80]!r}")
        header = read_at(file, entry.header_offset, _LOCAL.size, "a zip header") \
            if 0 <= entry.header_offset <= end else b""
        if header[:4] != b"PK\x03\x04":
            raise Damaged(f"its record {name[:80]!r} is not where the archive says")
        at = entry.header_offset + _LOCAL.size + sum(_LOCAL.unpack(header)[1:])
        if at + entry.compress_size > limit:
            raise Damaged(f"its record {name[:80]!r} reaches into the next one")
        plain = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        records[name] = _Record(at, entry.file_size, entry.CRC, plain and not entry.flag_bits & _ENCRYPTED)
    return records


def read_legacy(file: Any, size: int, maker: AsStored) -> Any:
    """The object in a file of torch.save before PyTorch 1.6, from the file's position on. Raises
    Damaged."""
    begin = file.tell()
    end = begin + size
    # for each storage: the number of elements, and the bytes of one
    counts: dict[str, tuple[int, int]] = {}
    places: dict[str, int] = {}

    def storage(key: str, count: int, itemsize: int) -> Callable[[], bytearray]:
        if count * itemsize > size:
            raise Damaged(f"its storage {key[:40]!r} of {count} elements of {itemsize} bytes is larger "
                          "than the file")
        counts[key] = count, itemsize
        return lambda: read_at(file, places[key], count * itemsize, f"its storage {key[:40]!r}")

    def made_by(maker: AsStored, source: Source) -> Any:
        names = _Names(maker, storage)

        def read() -> Any:
            return Machine(source, names.find, names.storage).run()

        magic, protocol, system = read(), read(), read()
        little = type(system) is dict and system.get("little_endian") is True
        known = type(magic) is type(protocol) is int and (magic, protocol) == (_MAGIC, _PROTOCOL)
        if not known or not little:
            raise Damaged(f"its protocol is not {_PROTOCOL}, or a big-endian machine wrote it")
        return read()

    source = Source(file, begin, end)
    found = made_by(AsStored(), source)
    length = source.at - begin  # the length of the pickles that describe the object
    keys = Machine(source, _Names(maker, storage).find, _refuse).run()
    if type(keys) is not list or not all(isinstance(key, str) for key in keys) or set(keys) != set(counts):
        raise Damaged("the storages behind its pickle are not those that the pickle describes")
    at = source.at
    for key in keys:
        count, itemsize = counts[key]
        written = int.from_bytes(read_at(file, at, 8, f"its storage {key[:40]!r}"), "little", signed=True)
        places[key], at = at + 8, at + 8 + count * itemsize
        if written != count or at > end:
            raise Damaged(f"its storage {key[:40]!r} is damaged or cut short")
    if type(maker) is AsStored:
        return found
    return made_by(maker, Source(io.BytesIO(read_at(file, begin, length, "its pickle")), 0, length))


def _refuse(pid: Any) -> Any:
    raise Damaged("its list of storages is damaged")
