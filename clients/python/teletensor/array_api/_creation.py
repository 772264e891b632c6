"""The creation functions of the standard."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from .. import _api as tt, _core
from .._core import Tensor, dtype as DType
from .._tensors import convert as _convert
from ._array import Array, unwrap, wrap
from ._dtypes import BY_NAME, kind_of, name_of, numpy_of

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "meshgrid", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def default_float() -> DType:
    """The default real floating dtype."""
    return _core.default_dtype()


def default_complex() -> DType:
    """The default complex dtype: as wide as the default real floating dtype."""
    return BY_NAME["complex128" if name_of(default_float()) == "float64" else "complex64"]


def _default_for(value: Any) -> DType:
    if isinstance(value, builtins.bool):
        return BY_NAME["bool"]
    if isinstance(value, int):
        return BY_NAME["int64"]
    return default_complex() if isinstance(value, complex) else default_float()


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in shape) if isinstance(shape, tuple | list) else (int(shape),)


def _fits(value: Any, dtype: DType, where: str) -> Any:
    """Returns the scalar, after checking that an array of this dtype can hold it."""
    kind = kind_of(dtype)
    order = ["bool", "integer", "real floating", "complex floating"]
    rank = (
        0
        if isinstance(value, builtins.bool)
        else 1
        if isinstance(value, int)
        else (3 if isinstance(value, complex) else 2)
    )
    if rank > order.index(kind.split(" ", 1)[1] if kind.endswith("integer") else kind):
        raise TypeError(f"{where}: {value!r} does not fit {name_of(dtype)}")
    return value


def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: Any = None,
    copy: builtins.bool | None = None,
) -> Array:
    """Converts an object (array, scalar, nested sequences, buffer, NumPy array) to an array of the current
    session.

    copy=None copies only if necessary; copy=False raises ValueError if a copy is necessary.
    """
    if isinstance(obj, Array | Tensor):
        tensor = obj._tensor if isinstance(obj, Array) else obj
        place = (
            _convert.resolve_device(device)
            if device is not None
            else tensor.device
        )
        same = (dtype is None or dtype == tensor.dtype) and place == tensor.device
        if not same and copy is False:
            raise ValueError("asarray: another dtype or device needs a copy, and copy is False")
        if same and copy is not True:
            return obj if isinstance(obj, Array) else Array(obj)
        moved = tensor.detach().to(device=place, dtype=dtype or tensor.dtype)
        return Array(moved.clone() if moved is tensor or same else moved)
    if copy is False:
        raise ValueError(
            "asarray: elements in host memory must be copied to the daemon, and copy is False"
        )
    if not isinstance(obj, np.ndarray | np.generic):
        obj = _nested(obj)
    if isinstance(obj, np.ndarray | np.generic):
        host = np.asarray(obj)
    elif isinstance(obj, builtins.bool | int | float | complex):
        wanted = dtype or _default_for(obj)
        host = np.asarray(_fits(obj, wanted, "asarray") if dtype else obj, dtype=numpy_of(wanted))
    else:
        host = np.asarray(obj) if not isinstance(obj, list | tuple) else _sequence(obj, dtype)
    if dtype is not None and host.dtype != numpy_of(dtype):
        host = host.astype(numpy_of(dtype))
    if host.dtype.name not in BY_NAME:
        raise TypeError(f"asarray: the array API standard has no dtype {host.dtype}")
    host = np.array(host)
    return Array(_convert.tensor(host, device=device), host if host.nbytes <= 65536 else None)


def _nested(obj: Any) -> Any:
    """Replaces the arrays in nested sequences by scalars and NumPy arrays."""
    if isinstance(obj, Array):
        return obj._numpy()[()] if obj.ndim == 0 else obj._numpy()
    if isinstance(obj, list | tuple):
        return [_nested(each) for each in obj]
    return obj


def _sequence(obj: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    leaves: set[type] = set()
    typed = False

    def walk(each: Any) -> None:
        nonlocal typed
        if isinstance(each, list | tuple):
            for inner in each:
                walk(inner)
        elif isinstance(each, np.ndarray | np.generic):
            typed = True
        else:
            leaves.add(type(each))

    walk(obj)
    if dtype is not None:
        return np.array(obj, dtype=numpy_of(dtype))
    if typed:
        return np.array(obj)
    if complex in leaves:
        wanted = default_complex()
    elif float in leaves or not leaves:
        wanted = default_float()
    else:
        wanted = BY_NAME["int64" if int in leaves else "bool"]
    return np.array(obj, dtype=numpy_of(wanted))


def from_dlpack(x: Any, /, *, device: Any = None, copy: builtins.bool | None = None) -> Array:
    """An array with a copy of the host memory that `x.__dlpack__()` exports."""
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if copy is False:
        raise BufferError("from_dlpack: elements in host memory must be copied to the daemon, and copy is "
                          "False")
    return asarray(np.from_dlpack(x), device=device, copy=True)


def full(
    shape: int | tuple[int, ...], fill_value: Any, *, dtype: DType | None = None, device: Any = None
) -> Array:
    """An array filled with one value."""
    if dtype is not None:
        _fits(fill_value, dtype, "full")
    dtype = dtype or _default_for(fill_value)
    if kind_of(dtype).endswith("integer") and isinstance(fill_value, int):
        limits = np.iinfo(numpy_of(dtype))
        if not limits.min <= fill_value <= limits.max:
            raise OverflowError(f"full: {fill_value} does not fit {name_of(dtype)}")
        if fill_value >= 2**63:
            host = np.asarray(fill_value, dtype=np.uint64)
            return Array(_convert.tensor(host, device=device).expand(_shape(shape)).clone())
    return wrap(tt.full(_shape(shape), fill_value, dtype=dtype, device=device))


def zeros(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Any = None) -> Array:
    """An array of zeros."""
    return wrap(tt.zeros(_shape(shape), dtype=dtype or default_float(), device=device))


def ones(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Any = None) -> Array:
    """An array of ones."""
    return wrap(tt.ones(_shape(shape), dtype=dtype or default_float(), device=device))


def empty(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Any = None) -> Array:
    """An uninitialised array."""
    return wrap(tt.empty(_shape(shape), dtype=dtype or default_float(), device=device))


def full_like(
    x: Array, /, fill_value: Any, *, dtype: DType | None = None, device: Any = None
) -> Array:
    """An array with x's shape, filled with one value."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """An array of zeros with x's shape."""
    return zeros(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def ones_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """An array of ones with x's shape."""
    return ones(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def empty_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """An uninitialised array with x's shape."""
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> Array:
    """start, start + step, ... up to but not including stop; arange(stop) starts at 0."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: step must not be 0")
    if dtype is None:
        dtype = (
            default_float()
            if any(isinstance(v, float) for v in (start, stop, step))
            else BY_NAME["int64"]
        )
    if (stop - start) / step <= 0:
        return empty(0, dtype=dtype, device=device)
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        numbers = range(start, stop, step)
        if builtins.max(builtins.abs(start), builtins.abs(stop)) >= 2**63:
            return asarray(np.array(numbers, dtype=numpy_of(dtype)), device=device)
        index = tt.arange(len(numbers), dtype=_core.int64, device=device)
    else:
        index = tt.arange(int(np.ceil((stop - start) / step)), dtype=_core.float64, device=device)
    return wrap((index * step + start).to(dtype))


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: builtins.bool = True,
) -> Array:
    """`num` numbers evenly spaced from start to stop (included if `endpoint`)."""
    if dtype is None:
        dtype = (
            default_complex()
            if any(isinstance(v, complex) for v in (start, stop))
            else default_float()
        )
    # Computed in float64 on the host, so that the ends are exact.
    host = np.linspace(start, stop, num, endpoint=endpoint)
    return asarray(host.astype(numpy_of(dtype)), device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Any = None,
) -> Array:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    n_cols = n_rows if n_cols is None else n_cols
    dtype = dtype or default_float()
    rows = tt.arange(n_rows, device=device).reshape(n_rows, 1)
    columns = tt.arange(n_cols, device=device)
    return wrap((columns - rows == k).to(dtype))


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The lower triangle of each matrix, with zeros above the k-th diagonal."""
    tensor = unwrap(x, "tril")
    if x.ndim < 2:
        raise ValueError(f"tril: needs at least 2 axes, got {x.ndim}")
    return wrap(tt.tril(tensor, k))


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The upper triangle of each matrix, with zeros below the k-th diagonal."""
    tensor = unwrap(x, "triu")
    if x.ndim < 2:
        raise ValueError(f"triu: needs at least 2 axes, got {x.ndim}")
    return wrap(tt.triu(tensor, k))


def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinate arrays from one-dimensional coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}")
    if len({x.dtype for x in arrays}) > 1:
        raise ValueError("meshgrid: arrays must have one dtype")
    if not arrays:
        return ()
    axes = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        axes[0], axes[1] = 1, 0
    shape = [0] * len(arrays)
    for x, axis in zip(arrays, axes, strict=True):
        shape[axis] = x.size
    out = []
    for x, axis in zip(arrays, axes, strict=True):
        tensor = unwrap(x, "meshgrid").reshape(
            [x.size if i == axis else 1 for i in range(len(arrays))]
        )
        out.append(wrap(tensor.expand(shape).clone()))
    return tuple(out)
