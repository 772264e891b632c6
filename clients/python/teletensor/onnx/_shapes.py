"""ONNX operators that create, move, select and convert elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _api as tt, nn
from .._core import Tensor
from ._file import TYPES, OnnxError
from ._narrow import FLOATS, INTEGERS, rounded, wrapped
from ._table import Host, Ints, Node, op
from ._values import Narrow, bounded, dtype, dtype_name, host, on_daemon, shape_of, type_name

F = nn.functional


# ---- constants and dtypes


@op("Constant")
def constant(
    *,
    value: Any = None,
    value_float: Any = None,
    value_floats: Any = None,
    value_int: Any = None,
    value_ints: Any = None,
    value_string: Any = None,
    value_strings: Any = None,
    sparse_value: Any = None,
) -> Any:
    if value is not None or sparse_value is not None:
        return value if value is not None else sparse_value
    if value_float is not None or value_floats is not None:
        return np.array(value_float if value_floats is None else value_floats, np.float32)
    if value_int is not None or value_ints is not None:
        return np.array(value_int if value_ints is None else value_ints, np.int64)
    texts = value_string if value_strings is None else value_strings
    if texts is None:
        raise OnnxError("Constant: the node has no value")
    one = isinstance(texts, bytes)
    return np.array(texts.decode() if one else [t.decode() for t in texts], object)


@op("ConstantOfShape")
def constant_of_shape(input: Ints, *, value: Any = None) -> Tensor:
    filled = on_daemon(np.zeros(1, np.float32) if value is None else value)
    return filled.reshape([1] * len(input)).expand(input).clone()


@op("Identity")
def identity(input: Any = None) -> Any:
    return input


def cast(x: Any, to: int, saturate: bool = True, round_mode: str = "up") -> Any:
    """Converts a tensor, or strings, to another element type."""
    name = type_name(to)
    if name == "string":
        values = host(x)
        texts = [_text(v) for v in values.reshape(-1).tolist()]
        return np.array(texts, object).reshape(values.shape)
    if isinstance(x, np.ndarray) and x.dtype == object:
        numbers = np.array([float(t) for t in x.reshape(-1)], np.float64).reshape(x.shape)
        return cast(on_daemon(numbers), to)
    x = x.tensor if isinstance(x, Narrow) else on_daemon(x)
    if name in FLOATS:
        mode = round_mode if name == "float8_e8m0fnu" else "nearest"
        return Narrow(name, rounded(x, name, saturate, mode))
    if name in INTEGERS:
        return Narrow(name, wrapped(x, name))
    return x.to(dtype(name))


def _text(value: float) -> str:
    return str(value if isinstance(value, float) else int(value))


@op("Cast")
def cast_to(input: Any, *, to: Any, saturate: Any = 1, round_mode: str = "up") -> Any:
    return cast(input, to, bool(saturate), round_mode)


@op("CastLike")
def cast_like(input: Any, target_type: Any, *, saturate: Any = 1, round_mode: str = "up") -> Any:
    numbers = {name: number for number, name in TYPES.items()}
    return cast(input, numbers[dtype_name(target_type)], bool(saturate), round_mode)


@op("BitCast")
def bit_cast(input: Any, *, to: Any) -> Any:
    wanted, x = dtype(type_name(to)), on_daemon(input)
    if x.dtype.itemsize != wanted.itemsize:
        raise OnnxError(f"elements of {x.dtype.name} and {wanted.name} differ in size")
    return x.view(wanted)


@op("Shape")
def shape(data: Any, *, start: Any = 0, end: Any = None) -> Any:
    return np.array(shape_of(data)[slice(start, end)], np.int64)


@op("Size")
def size(data: Any) -> Any:
    return np.array(math.prod(shape_of(data)), np.int64)


@op("Range")
def range_(start: Any, limit: Any, delta: Any) -> Any:
    first, last, step = (host(v).reshape(-1)[0].item() for v in (start, limit, delta))
    if step == 0:
        raise OnnxError("Range: the step must not be 0")
    return tt.arange(max(math.ceil((last - first) / step), 0)).to(dtype(dtype_name(start))) * step + first


@op("EyeLike")
def eye_like(input: Tensor, *, dtype: Any = None, k: Any = 0) -> Any:
    rows, columns = input.shape
    kind = input.dtype if dtype is None else _dtype(dtype)
    return (tt.arange(columns) - tt.arange(rows).unsqueeze(1) == k).to(kind)


def _dtype(number: int) -> tt.dtype:
    return dtype(type_name(number))


@op("OneHot")
def one_hot(indices: Tensor, depth: Ints, values: Tensor, *, axis: Any = -1) -> Any:
    count = depth[0]
    places = indices.to(tt.int64)
    known = (places >= -count) & (places < count)
    hot = (
        tt.where(places < 0, places + count, places).unsqueeze(-1) == tt.arange(count)
    ) & known.unsqueeze(-1)
    axis = axis + indices.dim() + 1 if axis < 0 else axis
    return tt.where(hot, values[1], values[0]).movedim(-1, axis)


# ---- shapes


@op("Reshape")
def reshape(data: Any, shape: Ints, *, allowzero: Any = 0) -> Any:
    known = shape_of(data)
    if any(s == 0 and i >= len(known) for i, s in enumerate(shape)) and not allowzero:
        raise OnnxError(f"shape {shape} keeps a size that {list(known)} does not have")
    sizes = [known[i] if s == 0 and not allowzero else s for i, s in enumerate(shape)]
    if isinstance(data, np.ndarray) and data.dtype == object:
        return data.reshape(sizes)
    return on_daemon(data).reshape(sizes)


@op("Flatten")
def flatten(input: Tensor, *, axis: Any = 1) -> Tensor:
    axis = axis + input.dim() if axis < 0 else axis
    return input.reshape(math.prod(input.shape[:axis]), math.prod(input.shape[axis:]))


@op("Squeeze")
def squeeze(data: Tensor, axes: Ints | None = None) -> Tensor:
    if axes is None:
        return data.squeeze()
    for axis in axes:
        if data.shape[axis] != 1:
            raise OnnxError(f"axis {axis} of {list(data.shape)} does not have size 1")
    return data.squeeze(tuple(axes))


@op("Unsqueeze")
def unsqueeze(data: Tensor, axes: Ints) -> Tensor:
    rank = data.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        data = data.unsqueeze(axis)
    return data


@op("Transpose")
def transpose(data: Tensor, *, perm: Ints | None = None) -> Tensor:
    return data.permute(perm if perm is not None else list(range(data.dim()))[::-1])


@op("Expand")
def expand(input: Tensor, shape: Ints) -> Tensor:
    return input.expand(np.broadcast_shapes(tuple(input.shape), tuple(shape)))


@op("Tile")
def tile(input: Tensor, repeats: Ints) -> Tensor:
    return input.repeat(repeats) if repeats else input


@op("Concat")
def concat(*inputs: Any, axis: Any = 1) -> Any:
    if all(isinstance(v, np.ndarray) and v.dtype == object for v in inputs):
        return np.concatenate(inputs, axis)
    return tt.cat([on_daemon(v) for v in inputs], axis)


@op("Split")
def split(
    input: Tensor, split: Ints | None = None, *, axis: Any = 0, num_outputs: Any = None, node: Node
) -> tuple[Tensor, ...]:
    if split is not None:
        return tuple(tt.split(input, split, axis))
    parts, whole = len(node.outputs), input.shape[axis]
    if num_outputs not in (None, parts):
        raise OnnxError(f"num_outputs is {num_outputs}, the node has {parts} outputs")
    step = -(-whole // parts)
    sizes = [max(min(step, whole - step * i), 0) for i in range(parts)]
    return tuple(tt.split(input, sizes, axis))


@op("Slice")
def slice_(
    data: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Tensor:
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        data = _sliced(data, axis, starts[i], ends[i], 1 if steps is None else steps[i])
    return data


def _sliced(x: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    whole = x.shape[axis]
    if step < 0 and end < -whole:
        end = -whole - 1
    places = range(*slice(start, end if step > 0 or end >= -whole else None, step).indices(whole))
    if step > 0:
        return x[
            (*[slice(None)] * (axis % x.dim()), slice(places.start, max(places.stop, places.start), step))
        ]
    first = min(places, default=0)
    part = x.narrow(axis, first, (max(places) - first + 1) if places else 0).flip(axis)
    return part[(*[slice(None)] * (axis % x.dim()), slice(None, None, -step))]


@op("Pad")
def pad(
    data: Tensor,
    pads: Ints,
    constant_value: Any = None,
    axes: Ints | None = None,
    *,
    mode: str = "constant",
    value: Any = 0.0,
) -> Tensor:
    rank = data.dim()
    chosen = list(range(rank)) if axes is None else [a % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(chosen):
        before[axis], after[axis] = pads[i], pads[i + len(chosen)]
    if mode == "constant":
        filler = value if constant_value is None else host(constant_value).reshape(-1)[0].item()
        return _padded(data, before, after, filler)
    if mode not in ("edge", "reflect", "wrap"):
        raise OnnxError(f"pads of mode {mode!r} are not supported")
    for axis in range(rank):
        if before[axis] or after[axis]:
            sides: Any = (max(before[axis], 0), max(after[axis], 0))
            kind: Any = mode
            bounded(data.shape[axis] + sum(sides))
            places = np.pad(np.arange(data.shape[axis]), sides, mode=kind)
            places = places[max(-before[axis], 0) : len(places) - max(-after[axis], 0)]
            data = data.index_select(axis, tt.tensor(places.astype(np.int64)))
    return data


def _padded(data: Tensor, before: Ints, after: Ints, value: Any) -> Tensor:
    sides = [n for pair in zip(reversed(before), reversed(after)) for n in pair]
    if data.dtype == tt.bool:
        return F.pad(data.to(tt.uint8), sides, value=int(value)).to(tt.bool)
    return F.pad(data, sides, value=value)


@op("CenterCropPad")
def center_crop_pad(input_data: Tensor, shape: Ints, *, axes: Ints | None = None) -> Tensor:
    for axis, wanted in zip(range(input_data.dim()) if axes is None else axes, shape):
        have = input_data.shape[axis]
        if wanted < have:
            input_data = input_data.narrow(axis, (have - wanted) // 2, wanted)
        elif wanted > have:
            before, after = [0] * input_data.dim(), [0] * input_data.dim()
            before[axis] = (wanted - have) // 2
            after[axis] = wanted - have - before[axis]
            input_data = _padded(input_data, before, after, 0)
    return input_data


@op("DepthToSpace")
def depth_to_space(input: Tensor, *, blocksize: Any, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    b = blocksize
    if mode == "DCR":
        parts = input.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(input: Tensor, *, blocksize: Any, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    b = blocksize
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return input.reshape(n, c, h // b, b, w // b, b).permute(order).reshape(n, c * b * b, h // b, w // b)


@op("Trilu")
def trilu(input: Tensor, k: Ints | None = None, *, upper: Any = 1) -> Tensor:
    return (tt.triu if upper else tt.tril)(input, k[0] if k else 0)


@op("ReverseSequence")
def reverse_sequence(
    input: Tensor, sequence_lens: Tensor, *, batch_axis: Any = 1, time_axis: Any = 0
) -> Tensor:
    x = input.movedim((time_axis, batch_axis), (0, 1))
    places, lengths = tt.arange(x.shape[0]).unsqueeze(1), sequence_lens.to(tt.int64).unsqueeze(0)
    source = tt.where(places < lengths, lengths - 1 - places, places)
    columns = tt.arange(x.shape[1]).unsqueeze(0)
    return x[source, columns].movedim((0, 1), (time_axis, batch_axis))


# ---- indices


def _places(indices: Tensor, whole: int) -> Any:
    wide = indices.to(tt.int64)
    return tt.where(wide < 0, wide + whole, wide)


@op("Gather")
def gather(data: Any, indices: Any, *, axis: Any = 0) -> Any:
    if isinstance(data, np.ndarray) and data.dtype == object:
        return np.take(data, host(indices), axis)
    data = on_daemon(data)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return data.select(axis, int(indices))
    indices = on_daemon(indices)
    picked = data.index_select(axis, _places(indices, data.shape[axis]).reshape(-1))
    axis %= data.dim()
    return picked.reshape([*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]])


@op("GatherElements")
def gather_elements(data: Tensor, indices: Tensor, *, axis: Any = 0) -> Tensor:
    return tt.gather(data, axis, _places(indices, data.shape[axis]))


@op("GatherND")
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: Any = 0) -> Tensor:
    last = indices.shape[-1]
    index = [_places(indices[..., i], data.shape[batch_dims + i]) for i in range(last)]
    rank = indices.dim() - 1
    batches = [
        tt.arange(data.shape[i]).reshape([-1 if j == i else 1 for j in range(rank)])
        for i in range(batch_dims)
    ]
    return data[(*batches, *index)]


_REDUCE = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


@op("ScatterElements", "Scatter")
def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: Any = 0, reduction: str = "none"
) -> Tensor:
    places = _places(indices, data.shape[axis])
    if reduction == "none":
        return tt.scatter(data, axis, places, updates)
    return tt.scatter_reduce(data, axis, places, updates, _REDUCE[reduction])


@op("ScatterND")
def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    last = indices.shape[-1]
    flat, rows = indices.to(tt.int64).reshape(-1, last), tt.zeros(1, dtype=tt.int64)
    for i in range(last):
        rows = rows * data.shape[i] + _places(flat[:, i], data.shape[i])
    inner = list(data.shape[last:])
    table = data.reshape(math.prod(data.shape[:last]), -1 if 0 not in inner else 0)
    new = updates.reshape(flat.shape[0], table.shape[1])
    places = rows.unsqueeze(1).expand(new.shape)
    if reduction == "none":
        return tt.scatter(table, 0, places, new).reshape(data.shape)
    return tt.scatter_reduce(table, 0, places, new, _REDUCE[reduction]).reshape(data.shape)


@op("TensorScatter")
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    mode: str = "linear",
    axis: Any = -2,
) -> Tensor:
    axis %= past_cache.dim()
    batch, whole, count = past_cache.shape[0], past_cache.shape[axis], update.shape[axis]
    first = tt.zeros(batch, dtype=tt.int64) if write_indices is None else write_indices.to(tt.int64)
    places = first.unsqueeze(1) + tt.arange(count)
    if mode == "circular":
        places = places % whole
    places = places.reshape([batch, *(count if i == axis else 1 for i in range(1, past_cache.dim()))])
    return tt.scatter(past_cache, axis, places.expand(update.shape), update)


@op("Compress")
def compress(input: Tensor, condition: Host, *, axis: Any = None) -> Tensor:
    places = tt.tensor(np.flatnonzero(condition).astype(np.int64))
    return input.reshape(-1)[places] if axis is None else input.index_select(axis, places)


@op("NonZero")
def non_zero(X: Host) -> Any:
    return np.array(np.nonzero(np.atleast_1d(X)), np.int64)


@op("Unique")
def unique(X: Any, *, axis: Any = None, sorted: Any = 1) -> Any:
    values, first, inverse, counts = np.unique(host(X), True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis or 0)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return on_daemon(values).to(dtype(dtype_name(X))), first, inverse, counts


@op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(X: Tensor, Y: Tensor) -> Tensor:
    return X.index_select(-1, Y.to(tt.int64).reshape(-1))


@op("Binarizer", domain="ai.onnx.ml")
def binarizer(X: Tensor, *, threshold: Any = 0.0) -> Any:
    return (X > threshold).to(X.dtype)
