"""Python objects sent between ranks: encoded as text and arrays, without pickle, so that no rank can run
code on another one.

Supported are None, bool, int, float, str, bytes, NumPy arrays and numbers, tensors, and lists, tuples and
dicts of these. A received tensor is on the CPU of the receiver's session, without history.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .._tensors.convert import tensor
from ._checks import listed, member
from ._collectives import gathered, root_of
from ._group import ProcessGroup
from ._point_to_point import recv, send

__all__ = [
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list",
    "scatter_object_list", "send_object_list",
]  # fmt: skip


# ---------------------------------------------------------------- encoding of objects as text


def dtype_name(dtype: Any) -> str:
    """The name of a dtype: "float32" for tt.float32."""
    return str(dtype).rpartition(".")[2]


def _plain(obj: Any) -> Any:
    """The object as JSON: itself, or a list of its type and its parts."""
    kind = type(obj)
    if obj is None or kind in (bool, int, float, str):
        return obj
    if kind in (list, tuple):
        return [kind.__name__, *map(_plain, obj)]
    if kind is dict:
        return ["dict", *([_plain(key), _plain(value)] for key, value in obj.items())]
    if kind in (bytes, bytearray):
        return ["bytes", base64.b64encode(obj).decode()]
    if isinstance(obj, Tensor):
        dtype = dtype_name(obj.dtype)
        data = obj.detach().cpu()
        wide = data.float() if dtype == "bfloat16" else data  # NumPy does not have bfloat16
        return ["tensor", dtype, *_plain(wide.numpy())[1:]]
    if isinstance(obj, (np.ndarray, np.generic)) and not obj.dtype.hasobject:
        array = np.asarray(obj)
        name = "array" if isinstance(obj, np.ndarray) else "number"
        return [name, array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]
    raise TypeError(
        f"objects travel without pickle: None, bool, int, float, str, bytes, arrays, tensors, and lists, "
        f"tuples and dicts of these; not {kind.__module__}.{kind.__qualname__}"
    )


def _object(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    if kind == "list":
        return [_object(part) for part in parts]
    if kind == "tuple":
        return tuple(_object(part) for part in parts)
    if kind == "dict":
        return {_object(key): _object(value) for key, value in parts}
    if kind == "bytes":
        return base64.b64decode(parts[0])
    if kind == "tensor":
        return tensor(_array(*parts[1:])).to(getattr(_core, parts[0]))
    array = _array(*parts)
    return array[()] if kind == "number" else array


def _array(dtype: str, shape: list[int], data: str) -> Any:
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()


def packed(obj: Any) -> Tensor:
    """The encoded object as a uint8 vector."""
    return tensor(np.frombuffer(json.dumps(_plain(obj)).encode(), np.uint8))


def unpacked(data: Tensor) -> Any:
    return _object(json.loads(data.numpy().tobytes()))


# ---------------------------------------------------------------- between ranks


def _all_objects(obj: Any, group: ProcessGroup) -> list[Any]:
    data = packed(obj)
    sizes = gathered(tensor(np.array([len(data)])), group).flatten().tolist()
    padded = ops["cat"]([data, data.new_zeros(max(sizes) - len(data))], 0)
    rows = gathered(padded, group)
    return [unpacked(rows[rank][:size]) for rank, size in enumerate(sizes)]


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Writes a copy of each rank's object into object_list. TypeError for an object that cannot be sent."""
    if (own := member(group)) is None:
        return
    listed(object_list, "object_list", own)
    object_list[:] = _all_objects(obj, own)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Writes a copy of each rank's object into object_gather_list on rank dst."""
    if (own := member(group)) is None:
        return
    here = own.rank() == root_of("dst", dst, group_dst, own)
    if here:
        listed(object_gather_list, "object_gather_list", own)
    objects = _all_objects(obj, own)
    if here:
        assert object_gather_list is not None
        object_gather_list[:] = objects


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Writes copies of the objects of rank src into the lists of all ranks, which must have the same
    length."""
    if (own := member(group)) is None:
        return
    root = root_of("src", src, group_src, own)
    sent = _all_objects(list(object_list) if own.rank() == root else len(object_list), own)
    if own.rank() == root:
        return
    if len(sent[root]) != len(object_list):
        raise ValueError(
            f"object_list has {len(object_list)} objects, that of rank {root} has {len(sent[root])}"
        )
    object_list[:] = sent[root]


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Writes the object of rank src's input list for this rank into the first element of the output
    list."""
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    if (own := member(group)) is None:
        return
    root = root_of("src", src, group_src, own)
    here = own.rank() == root
    given = listed(scatter_object_input_list, "scatter_object_input_list", own) if here else None
    scatter_object_output_list[0] = _all_objects(given, own)[root][own.rank()]


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Sends the objects to rank dst, which calls recv_object_list with a list of the same length."""
    if member(group) is None:
        return
    data = packed(list(object_list))
    send(tensor(np.array([len(data), len(object_list)])), dst, group, group_dst=group_dst)
    send(data, dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receives the objects that rank src (or any rank, if it is not given) sends, and writes them into
    object_list. Returns the rank in the world that sent them. ValueError if the lists have different
    lengths."""
    if member(group) is None:
        return -1
    sizes = tensor(np.zeros(2, np.int64))
    source = recv(sizes, src, group, group_src=group_src)
    size, count = sizes.tolist()
    data = tensor(np.zeros(size, np.uint8))
    recv(data, source, group)
    if count != len(object_list):
        raise ValueError(f"object_list has {len(object_list)} objects, that of rank {source} has {count}")
    object_list[:] = unpacked(data)
    return source
