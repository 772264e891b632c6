"""Array: the array object of the standard, which wraps a tensor of the daemon.

Views share elements with their base, as in PyTorch and NumPy. An array keeps a host copy of its elements
after they have been read or sent once (up to MIRRORED bytes), and views use their part of it, so that
reading scalars and indexing small arrays need no round trip.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from types import EllipsisType, ModuleType
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, dtype as DType
from .._tensors import convert as _convert
from ._dtypes import BY_NAME, isdtype, kind_of, name_of, numpy_of, promote

__all__ = ["Array", "operands", "unwrap", "wrap"]

MIRRORED = 64 << 10  # bytes
Scalar = builtins.bool | int | float | complex


class _Storage:
    """The state that an array and its views share: a counter of the writes to any of them."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        self.writes = 0


class Array:
    """An n-dimensional array of one dtype on a device of the daemon. Created by the functions of this
    namespace."""

    __slots__ = ("_host", "_made", "_make", "_shape", "_storage", "_writes", "device", "dtype")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100

    dtype: DType  # the dtype of the elements
    device: _core.device  # the device of the daemon that stores the elements

    def __init__(
        self,
        tensor: Tensor,
        host: np.ndarray[Any, Any] | None = None,
        storage: _Storage | None = None,
    ) -> None:
        self._made: Tensor | None = tensor
        self._make: Callable[[], Tensor] | None = None
        self._host = host
        self._storage = storage or _Storage()
        self._writes = self._storage.writes
        self.dtype, self.device = tensor.dtype, tensor.device
        self._shape: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis; waits if it depends on data that the daemon has not computed yet."""
        if self._shape is None:
            self._shape = tuple(self._tensor._shape)
        return self._shape

    @property
    def _tensor(self) -> Tensor:
        """The tensor; for a view whose elements are known it is created when it is first needed."""
        if self._made is None:
            assert self._make is not None
            self._made, self._make = self._make(), None
        return self._made

    # ------------------------------------------------------------ attributes

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Array:
        """The transposed matrix; the array must have two axes."""
        if self.ndim != 2:
            raise ValueError(
                f"T: the array must have 2 axes, it has {self.ndim}; use mT or permute_dims"
            )
        return self.mT

    @property
    def mT(self) -> Array:
        """The array with its last two axes swapped."""
        if self.ndim < 2:
            raise ValueError(f"mT: the array must have at least 2 axes, it has {self.ndim}")
        return self._view(
            lambda: self._tensor.transpose(-1, -2), lambda host: np.swapaxes(host, -1, -2)
        )

    @property
    def tensor(self) -> Tensor:
        """The wrapped teletensor tensor (shared, not copied)."""
        return self._tensor

    # ------------------------------------------------------------ access from the host

    def _known(self) -> np.ndarray[Any, Any] | None:
        """The host copy, if there is one that is still valid."""
        return (
            self._host if self._host is not None and self._writes == self._storage.writes else None
        )

    def _numpy(self) -> np.ndarray[Any, Any]:
        """The elements, which must not be written to. Waits unless they are known."""
        host = self._known()
        if host is None:
            host = _convert.to_numpy(self._tensor.detach())
            if host.nbytes <= MIRRORED:
                self._host, self._writes = host, self._storage.writes
        return host

    def _view(
        self,
        make: Callable[[], Tensor],
        take: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    ) -> Array:
        """A view of this array: of its tensor and of its host copy."""
        host = self._known()
        if host is None:
            return Array(make(), None, self._storage)
        piece = take(host)
        view = Array.__new__(Array)
        view._made, view._make, view._host = None, make, piece
        view._storage, view._writes = self._storage, self._writes
        view.dtype, view.device, view._shape = self.dtype, self.device, piece.shape
        return view

    def _item(self) -> Any:
        if self.size != 1 or self.ndim != 0:
            raise TypeError(
                f"only arrays of shape () convert to Python scalars, this array has shape {self.shape}"
            )
        return self._numpy()[()]

    def __array__(
        self, dtype: Any = None, copy: builtins.bool | None = None
    ) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("__array__: the elements are on the daemon, so copy=False is not possible")
        return np.array(self._numpy(), dtype=dtype, copy=copy or None)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        from .. import array_api

        if api_version is not None and api_version not in array_api.VERSIONS:
            raise ValueError(
                f"version {api_version!r} of the array API is not supported; supported are "
                f"{array_api.VERSIONS}"
            )
        return array_api

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: builtins.bool | None = None,
    ) -> Any:
        """A DLPack capsule with a copy in host memory (the daemon's own memory cannot be exported)."""
        return _convert.capsule(self._numpy(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self, /) -> tuple[Any, int]:
        """The device of the capsule, the host: (kDLCPU, 0)."""
        return (1, 0)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The array on another device of the daemon."""
        if stream is not None:
            raise ValueError("to_device takes no stream: instructions of a session run in order")
        return Array(self._tensor.to(device), self._known())

    def __repr__(self) -> str:
        text = repr(self._tensor.detach())
        return text.replace("tensor(", "Array(", 1)

    def __bool__(self) -> builtins.bool:
        return builtins.bool(self._item())

    def __int__(self) -> int:
        self._refuse("int", ("complex floating",))
        return int(self._item())

    def __float__(self) -> float:
        self._refuse("float", ("complex floating",))
        return float(self._item())

    def __complex__(self) -> complex:
        return complex(self._item())

    def __index__(self) -> int:
        self._refuse("an index", ("bool", "real floating", "complex floating"))
        return int(self._item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over an array without axes")
        return (self[i] for i in range(self.shape[0]))

    def _refuse(self, what: str, kinds: tuple[str, ...]) -> None:
        if kind_of(self.dtype) in kinds:
            raise TypeError(f"an array of {name_of(self.dtype)} does not convert to {what}")

    # ------------------------------------------------------------ indexing

    def __getitem__(self, key: Any, /) -> Array:
        plain, basic = _key(key, self.ndim)
        if basic and not _has_negative_step(plain):
            return self._view(lambda: self._tensor[plain], lambda host: np.asarray(host[plain]))
        if basic:
            positive, flips = _positive(plain, self.shape)
            host = self._known()
            piece = None if host is None else np.array(host[plain])
            return Array(self._tensor[positive].flip(flips), piece)
        result = self._tensor[plain if isinstance(plain, tuple) else (plain,)]
        return Array(result)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if isinstance(value, Array):
            if not _stores(value.dtype, self.dtype):
                raise TypeError(
                    f"an array of {name_of(self.dtype)} cannot hold {name_of(value.dtype)}"
                )
            source: Any = value._tensor
            if source.dtype != self.dtype:
                source = source.to(self.dtype)
        else:
            source = _as_tensor(value, self)
        plain, basic = _key(key, self.ndim)
        if basic and _has_negative_step(plain):
            _set_flipped(self._tensor, plain, source)
        else:
            self._tensor[plain] = source
        self._storage.writes += 1

    # ------------------------------------------------------------ operators

    def __abs__(self) -> Array:
        return _function("abs")(self)

    def __neg__(self) -> Array:
        return _function("negative")(self)

    def __pos__(self) -> Array:
        return _function("positive")(self)

    def __invert__(self) -> Array:
        return _function("bitwise_invert")(self)


def _function(name: str) -> Callable[..., Array]:
    from . import _elementwise, _linear

    found: Callable[..., Array] = getattr(_elementwise, name, None) or getattr(_linear, name)
    return found


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
                "ge": "greater_equal"}  # fmt: skip


def _operator(name: str, function: str, reflected: builtins.bool = False) -> Any:
    def operator(self: Array, other: Any, /) -> Any:
        if not isinstance(other, Array | builtins.bool | int | float | complex):
            return NotImplemented
        if function == "matmul" and not isinstance(other, Array):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        return _function(function)(*pair)

    operator.__name__ = operator.__qualname__ = f"__{name}__"
    return operator


def _in_place(name: str, function: str) -> Any:
    def operator(self: Array, other: Any, /) -> Any:
        if not isinstance(other, Array | builtins.bool | int | float | complex):
            return NotImplemented
        result = _function(function)(self, other)
        if result.shape != self.shape:
            raise ValueError(
                f"an array of shape {self.shape} cannot hold a result of shape {result.shape}"
            )
        self[...] = result
        return self

    operator.__name__ = operator.__qualname__ = f"__i{name}__"
    return operator


for _name, _target in _BINARY.items():
    setattr(Array, f"__{_name}__", _operator(_name, _target))
    setattr(Array, f"__r{_name}__", _operator(f"r{_name}", _target, reflected=True))
    setattr(Array, f"__i{_name}__", _in_place(_name, _target))
for _name, _target in _COMPARISONS.items():
    setattr(Array, f"__{_name}__", _operator(_name, _target))


# ---------------------------------------------------------------- conversion between arrays and tensors


def wrap(tensor: Tensor) -> Array:
    """Wraps a tensor as an array."""
    return Array(tensor)


def unwrap(x: Any, where: str) -> Tensor:
    """The tensor of an array argument; TypeError for anything else."""
    if not isinstance(x, Array):
        raise TypeError(f"{where}: expected an array, got {type(x).__name__}")
    return x._tensor


def _as_tensor(value: Any, like: Array) -> Tensor:
    """A Python scalar as a tensor of `like`'s dtype; an error if the dtype cannot hold it."""
    dtype = like.dtype
    kind = kind_of(dtype)
    if isinstance(value, builtins.bool):
        good = kind == "bool"
    elif isinstance(value, int):
        good = kind != "bool"
    elif isinstance(value, float):
        good = kind in ("real floating", "complex floating")
    elif isinstance(value, complex):
        good = kind == "complex floating"
    else:
        raise TypeError(f"expected an array or a Python scalar, got {type(value).__name__}")
    if not good:
        raise TypeError(
            f"a Python {type(value).__name__} does not mix with an array of {name_of(dtype)}"
        )
    if kind.endswith("integer"):
        limits = np.iinfo(numpy_of(dtype))
        if not limits.min <= value <= limits.max:
            raise OverflowError(f"{value} does not fit {name_of(dtype)}")
    return _convert.tensor(np.asarray(value, dtype=numpy_of(dtype)), device=like.device)


def operands(
    x1: Any, x2: Any, where: str, kinds: str | tuple[str, ...] = ""
) -> tuple[Tensor, Tensor]:
    """Two arguments (arrays, or one array and a Python scalar) as tensors of their common dtype."""
    if isinstance(x1, Array) and isinstance(x2, Array):
        dtype = promote(x1.dtype, x2.dtype)
        pair = tuple(x._tensor if x.dtype == dtype else x._tensor.to(dtype) for x in (x1, x2))
    elif isinstance(x1, Array):
        x1, x2 = _widen(x1, x2)
        dtype = x1.dtype
        pair = (x1._tensor, _as_tensor(x2, x1))
    elif isinstance(x2, Array):
        x2, x1 = _widen(x2, x1)
        dtype = x2.dtype
        pair = (_as_tensor(x1, x2), x2._tensor)
    else:
        raise TypeError(f"{where}: at least one argument must be an array")
    require(dtype, where, kinds)
    return pair  # type: ignore[return-value]


def _widen(x: Array, scalar: Any) -> tuple[Array, Any]:
    """Converts a real floating-point array to complex if the other operand is a Python complex."""
    if isinstance(scalar, complex) and kind_of(x.dtype) == "real floating":
        wide = BY_NAME["complex64" if name_of(x.dtype) == "float32" else "complex128"]
        return Array(x._tensor.to(wide)), scalar
    return x, scalar


def require(dtype: DType, where: str, kinds: str | tuple[str, ...]) -> None:
    """TypeError unless the dtype is of one of these kinds."""
    if kinds and not isdtype(dtype, kinds):
        wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
        raise TypeError(f"{where}: defined for {wanted} dtypes, not for {name_of(dtype)}")


def _stores(source: DType, target: DType) -> builtins.bool:
    try:
        return promote(source, target) == target
    except TypeError:
        return False


# ---------------------------------------------------------------- index keys


def _key(key: Any, ndim: int) -> tuple[Any, builtins.bool]:
    """The key with tensors and plain integers, and whether it makes a view."""
    items = key if isinstance(key, tuple) else (key,)
    plain: list[Any] = []
    basic, consumed, ellipsis = True, 0, False
    for item in items:
        if isinstance(item, Array):
            if kind_of(item.dtype) == "bool":
                basic, consumed = False, consumed + item.ndim
                plain.append(item._tensor if item.ndim else builtins.bool(item))
            elif item.ndim == 0 and isdtype(item.dtype, "integral"):
                consumed += 1
                plain.append(int(item))
            elif isdtype(item.dtype, "integral"):
                basic, consumed = False, consumed + 1
                plain.append(item._tensor.to(_core.int64))
            else:
                raise IndexError(
                    f"arrays used as indices must be integers or bool, not {name_of(item.dtype)}"
                )
        elif item is None or isinstance(item, EllipsisType):
            if item is not None and ellipsis:
                raise IndexError("an index can only have a single ellipsis ('...')")
            ellipsis |= item is not None
            plain.append(item)
        elif isinstance(item, slice):
            consumed += 1
            plain.append(
                slice(
                    *(
                        None if p is None else p.__index__()
                        for p in (item.start, item.stop, item.step)
                    )
                )
            )
        elif isinstance(item, builtins.bool | np.bool_):
            basic = False
            plain.append(builtins.bool(item))
        else:
            try:
                plain.append(item.__index__())
            except AttributeError:
                raise IndexError(
                    "only integers, slices, ellipsis, None and arrays are valid indices, "
                    f"not {type(item).__name__}"
                ) from None
            consumed += 1
    if consumed > ndim:
        raise IndexError(f"too many indices for an array with {ndim} axes: {consumed}")
    return tuple(plain), basic


def _has_negative_step(key: tuple[Any, ...]) -> builtins.bool:
    return any(isinstance(item, slice) and item.step is not None and item.step < 0 for item in key)


def _axes_of(key: tuple[Any, ...], ndim: int) -> list[int]:
    """The axis at which each item of a basic key starts."""
    consumed = sum(item is not None and item is not Ellipsis for item in key)
    axes, axis = [], 0
    for item in key:
        axes.append(axis)
        if item is Ellipsis:
            axis += ndim - consumed
        elif item is not None:
            axis += 1
    return axes


def _positive(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """The key with slices of negative step replaced by slices of the same elements in ascending order, and
    the axes of the result to be flipped afterwards."""
    plain, flips, at = [], [], 0
    for item, axis in zip(key, _axes_of(key, len(shape)), strict=True):
        if isinstance(item, slice):
            if item.step is not None and item.step < 0:
                picked = range(*item.indices(shape[axis]))
                item = slice(picked[-1], picked[0] + 1, -item.step) if len(picked) else slice(0, 0)
                flips.append(at)
            at += 1
        elif item is None:
            at += 1
        elif item is Ellipsis:
            at += len(shape) - sum(i is not None and i is not Ellipsis for i in key)
        plain.append(item)
    return tuple(plain), flips


def _set_flipped(tensor: Tensor, key: tuple[Any, ...], source: Tensor) -> None:
    plain, flips = _positive(key, tuple(tensor._shape))
    region = tensor[plain]
    region[...] = source.expand(tuple(region._shape)).flip(flips)
