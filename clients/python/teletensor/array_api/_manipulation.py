"""The manipulation, indexing and data type functions of the standard."""

from __future__ import annotations

import builtins
import math
from typing import Any

from .. import _api as tt
from .._core import Tensor, dtype as DType
from ._array import Array, unwrap, wrap
from ._dtypes import isdtype, name_of, promote

__all__ = [
    "astype", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims",
    "flip", "moveaxis", "permute_dims", "repeat", "reshape", "result_type", "roll", "squeeze",
    "stack", "take", "take_along_axis", "tile", "unstack",
]  # fmt: skip


def axis_of(axis: int, ndim: int, where: str) -> int:
    """The axis counted from the front, 0 <= result < ndim; IndexError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise IndexError(f"{where}: axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def axes_of(axis: Any, ndim: int, where: str) -> tuple[int, ...]:
    """The axes for one axis, several axes, or None for all."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(axis_of(each, ndim, where) for each in given)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{where}: axes {given} name one axis twice")
    return axes


def astype(x: Array, dtype: DType, /, *, copy: builtins.bool = True, device: Any = None) -> Array:
    """Casts the elements to another dtype; complex does not convert to real."""
    tensor = unwrap(x, "astype")
    name_of(dtype)
    if isdtype(x.dtype, "complex floating") and not isdtype(dtype, ("complex floating", "bool")):
        raise TypeError(
            f"astype: {name_of(x.dtype)} does not convert to {name_of(dtype)}; take real or imag"
        )
    if device is not None:
        tensor = tensor.to(device)
    if dtype == x.dtype:
        return x if not copy and tensor is x._tensor else wrap(tensor.clone())
    return wrap(tensor.to(dtype))


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype to which these arrays, dtypes and Python scalars promote."""
    from ._creation import default_complex, default_float

    dtypes = [
        each if isinstance(each, DType) else each.dtype
        for each in arrays_and_dtypes
        if isinstance(each, DType | Array)
    ]
    scalars = [each for each in arrays_and_dtypes if not isinstance(each, DType | Array)]
    if not dtypes:
        raise ValueError("result_type: needs at least one array or dtype")
    result = promote(*dtypes)
    for scalar in scalars:
        if isinstance(scalar, complex) and isdtype(result, "real floating"):
            result = promote(
                result, default_complex() if result == default_float() else tt.complex128
            )
        elif not isinstance(scalar, builtins.bool | int | float | complex):
            raise TypeError(
                f"result_type: expected arrays, dtypes and Python scalars, got {type(scalar).__name__}"
            )
        elif (
            isinstance(scalar, float) and not isdtype(result, ("real floating", "complex floating"))
        ) or (
            isinstance(scalar, int)
            and not isinstance(scalar, builtins.bool)
            and isdtype(result, "bool")
        ):
            raise TypeError(f"result_type: {scalar!r} does not mix with {name_of(result)}")
    return result


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which arrays of these shapes broadcast."""
    ndim = builtins.max((len(s) for s in shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and out[i] not in (1, size):
                raise ValueError(f"broadcast_shapes: shapes {shapes} do not broadcast")
            out[i] = size if size != 1 else out[i]
    return tuple(out)


def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    """The array repeated along axes of size 1 (and new leading axes) to `shape`."""
    tensor = unwrap(x, "broadcast_to")
    if broadcast_shapes(x.shape, tuple(shape)) != tuple(shape):
        raise ValueError(f"broadcast_to: shape {x.shape} does not broadcast to {tuple(shape)}")
    return wrap(tensor.expand(tuple(shape)))


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, each broadcast to the common shape."""
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


def _common(arrays: Any, where: str) -> list[Tensor]:
    dtype = promote(*(x.dtype for x in arrays))
    return [t if t.dtype == dtype else t.to(dtype) for t in (unwrap(x, where) for x in arrays)]


def concat(arrays: tuple[Array, ...] | list[Array], /, *, axis: int | None = 0) -> Array:
    """Joins arrays along an axis; with None they are flattened first."""
    tensors = _common(arrays, "concat")
    if axis is None:
        return wrap(tt.cat([t.reshape(-1) for t in tensors], 0))
    return wrap(tt.cat(tensors, axis_of(axis, arrays[0].ndim, "concat")))


def stack(arrays: tuple[Array, ...] | list[Array], /, *, axis: int = 0) -> Array:
    """Joins arrays along a new axis."""
    return wrap(tt.stack(_common(arrays, "stack"), axis_of(axis, arrays[0].ndim + 1, "stack")))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The subarrays at each index along an axis."""
    axis = axis_of(axis, x.ndim, "unstack")
    index: list[Any] = [slice(None)] * x.ndim
    out = []
    for i in range(x.shape[axis]):
        index[axis] = i
        out.append(x[tuple(index)])
    return tuple(out)


def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Inserts new axes of size 1 at these positions of the result."""
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = axes_of(given, x.ndim + len(given), "expand_dims")
    tensor = unwrap(x, "expand_dims")
    for each in sorted(axes):
        tensor = tensor.unsqueeze(each)
    return x._view(lambda: tensor, lambda host: host.reshape(tuple(tensor._shape)))


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Removes these axes of size 1; ValueError for axes of another size."""
    axes = axes_of(axis, x.ndim, "squeeze")
    for each in axes:
        if x.shape[each] != 1:
            raise ValueError(f"squeeze: axis {each} must have size 1, it has size {x.shape[each]}")
    tensor = unwrap(x, "squeeze")
    for each in sorted(axes, reverse=True):
        tensor = tensor.squeeze(each)
    return x._view(lambda: tensor, lambda host: host.reshape(tuple(tensor._shape)))


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """The array with its axes in another order."""
    order = axes_of(tuple(axes), x.ndim, "permute_dims")
    if len(order) != x.ndim:
        raise ValueError(f"permute_dims: {len(order)} axes are given for an array with {x.ndim} axes")
    tensor = unwrap(x, "permute_dims").permute(order)
    return x._view(lambda: tensor, lambda host: host.transpose(order))


def moveaxis(
    x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Array:
    """Moves axes to other positions; the remaining axes keep their order."""
    origin, target = axes_of(source, x.ndim, "moveaxis"), axes_of(destination, x.ndim, "moveaxis")
    if len(origin) != len(target):
        raise ValueError("moveaxis: source and destination have different lengths")
    order = [i for i in range(x.ndim) if i not in origin]
    for place, axis in sorted(zip(target, origin, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, tuple(order))


def flip(x: Array, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Reverses the order of the elements along the axes (None for all)."""
    axes = axes_of(axis, x.ndim, "flip")
    return wrap(tt.flip(unwrap(x, "flip"), axes) if axes else x._tensor.clone())


def roll(
    x: Array, /, shift: int | tuple[int, ...], *, axis: int | tuple[int, ...] | None = None
) -> Array:
    """Shifts elements along axes; elements shifted out at the end come in at the start. With None the array
    is flattened first."""
    tensor = unwrap(x, "roll")
    if axis is None:
        if isinstance(shift, tuple):
            raise ValueError("roll: a tuple of shifts needs a tuple of axes")
        rolled = tt.roll(tensor, shift)
    else:
        axes = axis if isinstance(axis, tuple) else (axis,)
        shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
        places = tuple(axis_of(each, x.ndim, "roll") for each in axes)
        rolled = tt.roll(tensor, shifts, places) if places else tensor
    return wrap(rolled.clone() if rolled._shares_storage(tensor) else rolled)


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """Repeats the array along each axis."""
    tensor = unwrap(x, "tile")
    reps = (1,) * (x.ndim - len(repetitions)) + tuple(repetitions)
    return wrap(
        tensor.reshape((1,) * (len(reps) - x.ndim) + x.shape).repeat(*reps)
        if reps
        else tensor.clone()
    )


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Repeats each element; `repeats` is one number, or one for each element along the axis."""
    tensor = unwrap(x, "repeat")
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    axis = axis_of(axis, tensor.dim(), "repeat")
    counts = repeats._tensor.to(tt.int64) if isinstance(repeats, Array) else int(repeats)
    if isinstance(counts, Tensor) and counts.numel() == 1 and tensor._shape[axis] != 1:
        counts = int(counts.reshape(-1)[0].item())
    return wrap(tt.repeat_interleave(tensor, counts, axis))


def reshape(x: Array, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> Array:
    """The elements in row-major order with another shape; one size may be -1."""
    tensor = unwrap(x, "reshape")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if shape.count(-1) == 1:
        known = math.prod(s for s in shape if s != -1)
        if known == 0 or x.size % known:
            raise ValueError(f"reshape: {x.size} elements do not fit shape {shape}")
        shape = tuple(x.size // known if s == -1 else s for s in shape)
    if math.prod(shape) != x.size or any(s < 0 for s in shape):
        raise ValueError(f"reshape: {x.size} elements do not fit shape {shape}")
    if copy:
        return wrap(tensor.clone().reshape(shape))
    if copy is False:
        viewed = tensor.view(shape)
        return x._view(lambda: viewed, lambda host: host.reshape(shape))
    out = tensor.reshape(shape)
    if not out._shares_storage(tensor):
        return wrap(out)
    return x._view(lambda: out, lambda host: host.reshape(shape))


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """The elements at these indices along an axis; `indices` has one axis."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: axis is needed for an array with {x.ndim} axes")
        axis = 0
    axis = axis_of(axis, x.ndim, "take")
    if not isdtype(indices.dtype, "integral"):
        raise TypeError(f"take: indices must be integers, not {name_of(indices.dtype)}")
    index = indices._tensor.to(tt.int64)
    if indices.ndim == 1:
        size = x.shape[axis]
        return wrap(
            tt.index_select(unwrap(x, "take"), axis, tt.where(index < 0, index + size, index))
        )
    return x[(slice(None),) * axis + (indices,)]


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """The elements at separate indices for each line along the axis; the remaining axes are broadcast."""
    axis = axis_of(axis, x.ndim, "take_along_axis")
    if x.ndim != indices.ndim:
        raise ValueError("take_along_axis: indices need as many axes as the array")
    if not isdtype(indices.dtype, "integral"):
        raise TypeError(f"take_along_axis: indices must be integers, not {name_of(indices.dtype)}")
    shape = list(
        broadcast_shapes(
            x.shape[:axis] + (1,) + x.shape[axis + 1 :],
            indices.shape[:axis] + (1,) + indices.shape[axis + 1 :],
        )
    )
    sizes = [*shape[:axis], x.shape[axis], *shape[axis + 1 :]]
    places = [*shape[:axis], indices.shape[axis], *shape[axis + 1 :]]
    index = indices._tensor.to(tt.int64)
    index = tt.where(index < 0, index + x.shape[axis], index)
    return wrap(tt.gather(unwrap(x, "take_along_axis").expand(sizes), axis, index.expand(places)))
