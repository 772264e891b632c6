"""save and load. `save` writes safetensors files (`_safetensors`); `load` reads these, index files that
refer to several of them, and files of torch.save (`_torch_files`).

A flat dict of tensors becomes a plain file that any reader of the format understands. Other structures are
described by JSON in the metadata of the header. Nothing in a file is ever executed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import pathlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NamedTuple

import numpy as np

from .. import _api as tt
from .._tensors.arrays import DTYPES, array_of, name_of
from .._tensors.placed import InDaemon
from .._tensors.size import Size
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from . import safetensors as _safetensors, torch_files as _torch_files
from .replace import written
from .safetensors import Entry
from .stored import AsStored, Damaged, Stored, StoredSparse, WithoutData, is_count, made_sparse

__all__ = ["load", "read_entries", "reading", "save"]

_TREE = "teletensor.tree"
_ORDERED = "teletensor.ordered"  # of a flat OrderedDict of tensors: the _metadata of a state_dict, or null
_MAX_DEPTH = 200

_File = str | bytes | os.PathLike[str] | os.PathLike[bytes] | IO[bytes]


# ---------------------------------------------------------------- writing


def save(obj: Any, f: _File, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors to a safetensors file; waits for their values.

    `obj` is a tensor, or a tree of dicts, lists, tuples and sets of tensors, NumPy arrays, numbers, text,
    bytes, booleans, None, paths, argparse namespaces, dtypes, devices and sizes (for example the state_dict
    of a module or optimizer). `f` is a path or a file open for writing bytes. `metadata` is text for the
    header; its "format", which some readers require, is "pt" by default. Views are stored with their own
    elements only; gradients and histories are not stored. For a tensor on the device meta, its
    dtype, shape and strides are stored, which only `load` reads.

    A path is opened as by `open(f, "wb")`: symbolic links are followed, pipes and devices are written into,
    and an existing file keeps its mode and owner. A regular file is replaced only when everything has been
    written. It is overwritten in place if it has several hard links or if its folder cannot be changed.

    TypeError for any other object in the tree; the message names its position.

    >>> import io
    >>> file = io.BytesIO()
    >>> tt.save({"step": 3, "weights": [tt.ones(2)]}, file)
    >>> loaded = tt.load(io.BytesIO(file.getvalue()))
    >>> loaded["step"], loaded["weights"][0].tolist()
    (3, [1.0, 1.0])
    """
    entries: dict[str, Entry] = {}
    header_text = {"format": "pt", **(metadata or {})}
    for key, value in header_text.items():
        if not isinstance(key, str) or not isinstance(value, str) or key in (_TREE, _ORDERED):
            raise TypeError("save: the keys and values of metadata must be text, and no key may be "
                            f"{_TREE!r} or {_ORDERED!r}")
    if _is_plain(obj):
        entries = {name: _entry(value, name) for name, value in obj.items()}
        if isinstance(obj, OrderedDict):
            header_text[_ORDERED] = json.dumps(_versions(obj), separators=(",", ":"))
    else:
        tree = _pack(obj, "", entries, {}, 0)
        header_text[_TREE] = json.dumps(tree, separators=(",", ":"))
    if hasattr(f, "write"):
        _safetensors.write(f, entries, header_text)
        return
    with written(os.fspath(f)) as file:
        _safetensors.write(file, entries, header_text)


def _is_plain(obj: Any) -> bool:
    return isinstance(obj, Mapping) and all(
        isinstance(key, str) and key != "__metadata__" and isinstance(value, (Tensor, Stored))
        and not (isinstance(value, Tensor) and value.is_meta)
        for key, value in obj.items()
    )


def _versions(ordered: Any) -> dict[str, dict[str, int]] | None:
    """The versions of modules that a state_dict has; None if the dict is no state_dict."""
    versions: Any = getattr(ordered, "_metadata", None)
    return dict(versions) if _are_versions(versions) else None


def _are_versions(versions: Any) -> bool:
    return isinstance(versions, Mapping) and all(
        isinstance(path, str) and isinstance(own, Mapping) and set(own) <= {"version"}
        and all(type(version) is int for version in own.values())
        for path, own in versions.items()
    )


def _ordered(items: Any, versions: Any) -> OrderedDict[Any, Any]:
    made: Any = OrderedDict(items)
    if versions is not None:
        if not _are_versions(versions):
            raise _damaged_tree()
        made._metadata = OrderedDict(versions)
    return made  # type: ignore[no-any-return]


def _entry(value: Any, path: str) -> Entry:
    """The entry to be written for a tensor, for one in another file, or for a NumPy array."""
    if isinstance(value, Tensor):
        shape = tuple(int(size) for size in value.shape)
        return Entry(value.dtype.name, shape, lambda: array_of(value)[1])
    if isinstance(value, np.ndarray):
        name = name_of(value.dtype)
        if name is None:
            raise TypeError(f"save: {path or 'the object'} is an array of {value.dtype}{_taken()}")
        return Entry(name, value.shape, lambda: value)
    if value.repeats:
        raise ValueError(f"save: {path or 'the tensor'} of shape {value.shape} has more elements than its "
                         "storage, in which they are repeated; load it, and save what is meant")
    return Entry(value.dtype, value.shape, value.array)


def _pack(
    obj: Any, path: str, entries: dict[str, Entry], seen: dict[int, str], depth: int
) -> Any:
    """Converts a tree to JSON: JSON's own types stay as they are, and anything else becomes an object with
    one key that begins with $ (see `_FORMS`; {"$": name} for a tensor)."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"save: nested more than {_MAX_DEPTH} deep at {path[:80]}...")
    if isinstance(obj, WithoutData):
        return {"$meta": [obj.dtype, list(obj.shape), list(obj.stride)]}
    if isinstance(obj, Tensor) and obj.is_meta:
        return {"$meta": [obj.dtype.name, list(obj.shape), list(obj.stride())]}
    if isinstance(obj, (Tensor, Stored, np.ndarray)):
        name = seen.get(id(obj))
        if name is None:
            name = path or "tensor"
            while name in entries or name == "__metadata__":
                name += "_"
            entries[name] = _entry(obj, path)
            seen[id(obj)] = name
        return {"$array" if isinstance(obj, np.ndarray) else "$": name}
    if isinstance(obj, np.generic) and obj.dtype.kind in "biufc":
        obj = obj.item()
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj

    def below(key: object, value: Any) -> Any:
        return _pack(value, f"{path}.{key}" if path else str(key), entries, seen, depth + 1)

    if isinstance(obj, Mapping):
        ordered = type(obj) is OrderedDict
        if not ordered and all(isinstance(key, str) and not key.startswith("$") for key in obj):
            return {key: below(key, value) for key, value in obj.items()}
        for key in obj:
            if key is not None and not isinstance(key, (bool, int, float, str)):
                raise TypeError(f"save: a key of {path or 'the dict'} is {type(key).__name__}; save takes "
                                "text, numbers, booleans and None as keys")
        pairs = [[key, below(key, value)] for key, value in obj.items()]
        return {"$ordered": [pairs, _versions(obj)]} if ordered else {"$dict": pairs}
    if isinstance(obj, list):
        return [below(i, value) for i, value in enumerate(obj)]
    if isinstance(obj, SparseTensor):
        obj = obj._stored()
    if isinstance(obj, StoredSparse):
        parts = below("indices", obj.indices), below("values", obj.values)
        return {"$sparse": [obj.layout, *parts, obj.shape, obj.coalesced]}
    for mark, form in _FORMS.items():
        if isinstance(obj, form.kind):
            return {mark: _pack(form.parts(obj), path, entries, seen, depth)}
    hint = "; save its state_dict()" if hasattr(obj, "state_dict") else _taken()
    raise TypeError(f"save: {path or 'the object'} is {type(obj).__name__}{hint}")


def _taken() -> str:
    return ("; save takes tensors, NumPy arrays of numbers, and trees of dicts, lists, tuples and sets of "
            "them, with numbers, text, bytes, booleans, None, paths, argparse namespaces, dtypes, devices "
            "and sizes")


# ---------------------------------------------------------------- types that JSON does not have


class _Form(NamedTuple):
    """How objects of a type are converted to parts that JSON has, and back."""

    kind: type
    parts: Callable[[Any], Any]
    made_of: type  # the type of the parts
    make: Callable[[Any], Any]


def _namespace(values: dict[str, Any]) -> argparse.Namespace:
    if not all(isinstance(name, str) for name in values):
        raise ValueError
    space = argparse.Namespace()
    vars(space).update(values)
    return space


def _complex(parts: list[Any]) -> complex:
    real, imag = parts
    return complex(float(real), float(imag))


def _dtype(name: str) -> tt.dtype:
    if name not in DTYPES:
        raise ValueError
    dtype: tt.dtype = getattr(tt, name)
    return dtype


def _size(sizes: list[Any]) -> Size:
    if not all(map(is_count, sizes)):
        raise ValueError
    return Size(sizes)


_FORMS = {
    "$size": _Form(Size, list, list, _size),
    "$tuple": _Form(tuple, list, list, tuple),
    "$set": _Form(set, list, list, set),
    "$bytes": _Form(bytes, lambda b: base64.b64encode(b).decode(), str, base64.b64decode),
    "$complex": _Form(complex, lambda z: [z.real, z.imag], list, _complex),
    "$path": _Form(pathlib.PurePath, str, str, pathlib.Path),
    "$namespace": _Form(argparse.Namespace, vars, dict, _namespace),
    "$dtype": _Form(tt.dtype, lambda dtype: dtype.name, str, _dtype),
    "$device": _Form(tt.device, str, str, tt.device),
}


# ---------------------------------------------------------------- reading


def load(f: _File, map_location: Any = None, *, weights_only: bool | None = None,
         mmap: bool | None = None) -> Any:
    """Reads a file that `save`, any writer of safetensors files, or `torch.save` has written, or an index
    of several safetensors files next to it (`model.safetensors.index.json`), whose tensors become one dict.

    `f` is a path or a seekable file open for reading bytes. `map_location` is the device for the tensors;
    without it they are created on the default device, wherever they were saved. It may be a dict from the
    locations at which they were saved ("cpu", "cuda:0") to devices, where a location that is not in the
    dict is used unchanged; or a function of a storage (which has `cpu()`, `cuda(index)` and `nbytes()`) and
    its location that returns a storage, a device, or None for the default device. safetensors files contain
    no locations: all their tensors have the location "cpu".

    Tensors that share a storage in a file of torch.save share memory here too, and require grad as they
    did; those of safetensors files do not require grad. The pickle in such a file is read by an interpreter
    that knows only the opcodes and names that weights need: tensors (dense or sparse), parameters, dicts,
    lists, tuples, sets, numbers, text, bytes, None, sizes, devices, dtypes, NumPy's numbers and arrays,
    paths and argparse namespaces. Nothing in a file is ever executed, so `weights_only` has no effect.
    `mmap` has no effect either, because the daemon has a copy.

    ValueError, with the reason, for a file that is truncated, damaged or of another format, or that
    contains anything else. The descriptions in a file are checked before its first tensor is created, and
    the indices of a sparse tensor when it is created.
    """
    with reading(f) as source:
        return source.tree(InDaemon(map_location))


def read_entries(f: _File) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file, without conversion."""
    with reading(f) as source:
        metadata, entries = _safetensors.read(source.file, source.size)
        maker = InDaemon()
        return metadata, {name: maker.tensor(stored, False) for name, stored in entries.items()}


@contextmanager
def reading(f: _File) -> Iterator[_Source]:
    """The contents of a file for the duration of the block. A fault of the file raises ValueError with its
    name."""
    own = hasattr(f, "read")
    path = None if own else os.fsdecode(f)  # type: ignore[arg-type]
    with _naming(path or getattr(f, "name", "file")), ExitStack() as opened:
        yield _Source(opened.enter_context(open(path, "rb")) if path is not None else f, path, opened)


@contextmanager
def _naming(where: object) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise ValueError(f"load: {where}: {error}") from None


class _Source:
    """An open file from its current position to its end. `opened` closes the files to which it refers."""

    def __init__(self, file: Any, path: str | None, opened: ExitStack) -> None:
        self.file, self._path, self._opened = file, path, opened
        begin = file.tell()
        file.seek(0, os.SEEK_END)
        self.size = file.tell() - begin
        file.seek(begin)
        self._start = file.read(16)
        file.seek(begin)

    def tree(self, maker: AsStored) -> Any:
        """The object in the file, or in the files to which it refers, with tensors created by `maker`."""
        # a safetensors file begins with the length of its header, which has zero bytes
        if self._start[:1] == b"{" and b"\0" not in self._start[:8]:
            return self._shards(maker)
        return self._object(maker)

    def _object(self, maker: AsStored) -> Any:
        if _torch_files.is_zip(self._start):
            return _torch_files.read_zip(self.file, maker)
        if _torch_files.is_legacy(self._start):
            return _torch_files.read_legacy(self.file, self.size, maker)
        metadata, entries = _safetensors.read(self.file, self.size)
        if _TREE not in metadata:
            made = {name: maker.tensor(stored, False) for name, stored in entries.items()}
            if _ORDERED not in metadata:
                return made
            return _ordered(made, _safetensors.parse(metadata[_ORDERED]))
        return _Tree(entries, maker).unpack(_safetensors.parse(metadata[_TREE]), 0)

    def _shards(self, maker: AsStored) -> dict[str, Any]:
        """The tensors of an index file in order: {"weight_map": {name of a tensor: name of its file}}."""
        if self.size > _safetensors.MAX_HEADER:
            raise Damaged(f"the file begins like an index, but has {self.size} bytes")
        index = _safetensors.parse(self.file.read(self.size))
        names = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise Damaged("the file is JSON but not an index: it has no weight_map from tensors to files")
        if self._path is None:
            raise Damaged("an index refers to files in its folder: give the path of the index, not an open "
                          "file")
        found: dict[str, Any] = {}
        for name in dict.fromkeys(names.values()):
            if name in ("", ".", "..") or set(name) & set("/\\\0"):
                raise Damaged(f"it names {name[:80]!r}, which cannot be a file beside it")
            path = os.path.join(os.path.dirname(self._path), name)
            with _naming(path):
                file = self._opened.enter_context(open(path, "rb"))
                found[name] = _Source(file, path, self._opened)._object(maker)
        for name, shard in names.items():
            if not isinstance(found[shard], Mapping) or name not in found[shard]:
                raise Damaged(f"{shard} does not hold {name[:80]!r}, as it says")
        return {name: found[shard][name] for name, shard in names.items()}


class _Tree:
    """Converts the tree in the metadata to objects with the tensors of the file."""

    def __init__(self, entries: Mapping[str, Stored], maker: AsStored) -> None:
        self._entries, self._maker = entries, maker
        self._made: dict[str, Any] = {}

    def unpack(self, tree: Any, depth: int) -> Any:
        """The object for its JSON form. Raises Damaged."""
        if depth > 2 * _MAX_DEPTH:
            raise Damaged("the tree is nested too deep")
        if isinstance(tree, list):
            return [self.unpack(value, depth + 1) for value in tree]
        if not isinstance(tree, dict):
            return tree
        marks = [key for key in tree if key.startswith("$")]
        if not marks:
            return {key: self.unpack(value, depth + 1) for key, value in tree.items()}
        if len(tree) == 1:
            return self._special(marks[0], tree[marks[0]], depth)
        raise _damaged_tree()

    def _special(self, mark: str, value: Any, depth: int) -> Any:
        if mark in ("$", "$array"):
            if not isinstance(value, str) or value not in self._entries:
                raise _damaged_tree()
            return self._tensor(value) if mark == "$" else self._entries[value].array()
        if mark == "$meta":
            return self._maker.without_data(_without_data(value), False)
        if mark == "$dict":
            return dict(self._pairs(value, depth))
        if mark == "$ordered" and isinstance(value, list) and len(value) == 2:
            return _ordered(self._pairs(value[0], depth), value[1])
        form = _FORMS.get(mark)
        parts = self.unpack(value, depth + 1)
        if mark == "$sparse" and isinstance(parts, list):
            return made_sparse(self._maker, *parts)
        try:
            if form is None or not isinstance(parts, form.made_of):
                raise _damaged_tree()
            return form.make(parts)
        except (KeyError, RuntimeError, TypeError, ValueError):
            raise _damaged_tree() from None

    def _pairs(self, pairs: Any, depth: int) -> list[tuple[Any, Any]]:
        if not isinstance(pairs, list) or not all(
                isinstance(pair, list) and len(pair) == 2 and not isinstance(pair[0], (list, dict))
                for pair in pairs):
            raise _damaged_tree()
        return [(key, self.unpack(each, depth + 1)) for key, each in pairs]

    def _tensor(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._maker.tensor(self._entries[name], False)
        return self._made[name]


def _without_data(parts: Any) -> WithoutData:
    good = isinstance(parts, list) and list(map(type, parts)) == [str, list, list] and parts[0] in DTYPES
    if not good:
        raise _damaged_tree()
    return WithoutData(parts[0], tuple(parts[1]), tuple(parts[2]))


def _damaged_tree() -> Damaged:
    return Damaged("the tree in the metadata is damaged")
