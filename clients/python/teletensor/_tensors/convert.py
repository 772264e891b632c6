"""Conversion between Python or NumPy data and tensors: creating tensors from data and reading their
values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import _core
from .._connection.progress_bar import watched
from .._core import Tensor, ops
from .._sessions.errors import InterruptedOpError, OutOfMemoryError, SessionLostError
from .._sessions.session import Session, current_session, open_session, owner_of

__all__ = ["as_tensor", "capsule", "fetched", "tensor", "to_numpy", "tolist",
           "values_of"]

_T = TypeVar("_T")

_FROM_NUMPY = {
    np.dtype(np.bool_): _core.bool,
    np.dtype(np.uint8): _core.uint8,
    np.dtype(np.int8): _core.int8,
    np.dtype(np.int16): _core.int16,
    np.dtype(np.int32): _core.int32,
    np.dtype(np.int64): _core.int64,
    np.dtype(np.float16): _core.float16,
    np.dtype(np.float32): _core.float32,
    np.dtype(np.float64): _core.float64,
    np.dtype(np.complex64): _core.complex64,
    np.dtype(np.complex128): _core.complex128,
    np.dtype(np.uint16): _core.uint16,
    np.dtype(np.uint32): _core.uint32,
    np.dtype(np.uint64): _core.uint64,
}
_TO_NUMPY = {dtype: numpy for numpy, dtype in _FROM_NUMPY.items()}


def _plain(data: Any) -> Any:
    """Replaces tensors of one element in nested lists by their numbers."""
    if isinstance(data, Tensor):
        return data.item() if data.numel() == 1 else to_numpy(data.detach())
    if isinstance(data, (list, tuple)):
        return [_plain(each) for each in data]
    return data


def _leaf_types(data: Any, seen: set[type]) -> set[type]:
    """Returns the set of types of the elements of nested lists."""
    here = set(map(type, data))
    seen |= here
    if any(issubclass(each, (list, tuple)) for each in here):
        for each in data:
            if isinstance(each, (list, tuple)):
                _leaf_types(each, seen)
    return seen


def _common_dtype(data: Any) -> _core.dtype | None:
    """Returns the dtype to which the numbers, arrays and tensors in nested lists promote, or None if one of
    them has no dtype in teletensor."""
    if isinstance(data, (list, tuple)):
        found: _core.dtype | None = None
        for each in data:
            own = _common_dtype(each)
            if own is None:
                return None
            found = own if found is None else _core.promote(found, own)
        return found or _core.default_dtype()
    if isinstance(data, Tensor):
        return data.dtype
    if isinstance(data, (np.ndarray, np.generic)):
        return _FROM_NUMPY.get(data.dtype)
    if isinstance(data, bool):
        return _core.bool
    if isinstance(data, int):
        return _core.int64
    if isinstance(data, float):
        return _core.default_dtype()
    return _core.default_dtype().to_complex() if isinstance(data, complex) else None


def _array_of_lists(data: Any, dtype: _core.dtype | None
                    ) -> tuple[np.ndarray[Any, Any], _core.dtype | None]:
    """Returns the array, and the common dtype of its elements, or None if all elements are Python
    numbers."""
    types = _leaf_types(data, set())
    if any(issubclass(each, (Tensor, np.ndarray, np.generic)) for each in types):
        common = _common_dtype(data)
        data = _plain(data)
    else:
        common = None
    try:
        array = np.array(data)
    except ValueError as error:
        raise ValueError(f"tensor: the nested lists have different lengths: {error}") from None
    if array.dtype == object and all(issubclass(t, (bool, int, float, list, tuple)) for t in types):
        array = _wide(data, dtype, any(issubclass(t, float) for t in types))
    elif array.dtype.kind == "f" and array.size and all(
            issubclass(t, (bool, int, list, tuple)) for t in types):
        array = _across_the_sign(data, array, dtype)
    return array, common


def _across_the_sign(data: Any, array: np.ndarray[Any, Any], dtype: _core.dtype | None
                     ) -> np.ndarray[Any, Any]:
    """Converts lists that mix negative integers and integers of at least 2**63, which NumPy would convert
    to float64."""
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex or dtype == _core.bool):
        return array
    if dtype != _core.uint64:
        raise ValueError("tensor: an integer above 2**63 - 1 needs dtype=uint64")
    return (np.array(data, object) % 2**64).astype(np.uint64)


def _wide(data: Any, dtype: _core.dtype | None, floats: bool) -> np.ndarray[Any, Any]:
    """Converts integers that do not fit in 64 bits, which only a floating-point dtype can hold."""
    if not (floats if dtype is None else dtype.is_floating_point):
        raise ValueError("tensor: an integer has more than 64 bits; use a floating-point number")
    return np.array(data, np.float64)


def _array(data: Any, dtype: _core.dtype | None
           ) -> tuple[np.ndarray[Any, Any], bool, _core.dtype | None]:
    """Returns the array, whether its elements are Python numbers (Python floats get the default dtype), and
    the dtype to which its other elements promote."""
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        _check_strides(array)
        return array, False, None
    if isinstance(data, (list, tuple)):
        array, common = _array_of_lists(data, dtype)
        return array, True, common
    if hasattr(data, "__array__") and not isinstance(data, (bool, int, float, complex)):
        return np.asarray(data), False, None
    if isinstance(data, int) and not isinstance(data, bool) and not -(2**63) <= data < 2**64:
        return _wide(data, dtype, False), True, None
    return np.array(data), True, None


def _check_strides(array: np.ndarray[Any, Any]) -> None:
    """Refuses the arrays whose strides no tensor of PyTorch can have, so that programs stay portable."""
    if not array.size:
        return
    if any(stride < 0 for stride in array.strides):
        raise ValueError("At least one stride in the given numpy array is negative, and tensors with "
                         "negative strides are not currently supported. (You can probably work around "
                         "this by making a copy of your array with array.copy().)")
    if any(stride % array.itemsize for stride in array.strides):
        raise ValueError("given numpy array strides not a multiple of the element byte size. Copy the "
                         "numpy array to reallocate the memory.")


def _python_numbers(array: np.ndarray[Any, Any], dtype: _core.dtype | None
                    ) -> np.ndarray[Any, Any]:
    """Converts an array that NumPy made of Python numbers to the dtype that teletensor gives them."""
    kind, default = array.dtype.kind, _core.default_dtype()
    _check_fits(array, dtype)
    if kind == "c":
        if dtype is not None and not dtype.is_complex:
            raise TypeError(f"tensor: a complex number cannot be converted to {dtype.name}")
        return array.astype(_TO_NUMPY[dtype or default.to_complex()])
    if kind == "f":
        wanted = dtype if dtype is not None else default
        numpy = _TO_NUMPY.get(wanted, np.dtype(np.float32))
        return array.astype(numpy) if wanted.is_floating_point else array
    if kind == "u" and dtype is None and array.dtype.itemsize == 8:
        raise ValueError("tensor: an integer above 2**63 - 1 needs dtype=uint64")
    return array.astype(np.int64) if kind == "i" or (kind == "u" and dtype is None) else array


def _check_fits(array: np.ndarray[Any, Any], dtype: _core.dtype | None) -> None:
    """Raises an error if an integer does not fit `dtype`; negative integers wrap in unsigned dtypes."""
    numpy = None if dtype is None else _TO_NUMPY.get(dtype)
    if dtype is None or numpy is None or numpy.kind not in "iu":
        return
    if array.dtype.kind not in "iuf" or not array.size:
        return
    limits = np.iinfo(numpy.name)
    real = array.dtype.kind == "f"
    low = limits.min if limits.min else 0 if real else -limits.max
    least, most = array.min(), array.max()  # NaN if one is in the array
    end = np.trunc(most) if real else most
    for value, fits in ((least, least >= low), (most, end <= limits.max)):
        if not fits:
            raise RuntimeError(f"tensor: value {value} cannot be converted to type {dtype.name} "
                               "without overflow")


def _send(session: Session | None, array: np.ndarray[Any, Any], device: _core.device,
          dtype: _core.dtype | None = None) -> Tensor:
    """Creates a tensor of the session (None: the current one) with the elements of the array; returns once
    the daemon has a copy or is certain to get one. On the device meta only the shape is used. `dtype` says
    what the bits mean if NumPy does not have the dtype."""
    dtype = dtype or _FROM_NUMPY.get(array.dtype)
    if dtype is None:
        raise TypeError(f"tensor: NumPy dtype {array.dtype} is not supported; convert it with "
                        "array.astype()")
    shape = list(array.shape)
    if device.type == "meta":
        return ops["empty"](shape, dtype, device)
    session = session or current_session()
    flat = np.ascontiguousarray(array)
    if flat.nbytes <= session._inline:
        return session._core.constant(dtype, device, shape, flat.tobytes())
    shared = session._shared.upload(session._core, flat, dtype, device, shape)
    if shared is not None:
        return shared
    try:
        with watched("upload", flat.nbytes) as moved:
            return session._transport.upload(
                session._core, memoryview(flat.reshape(-1)).cast("B"), dtype, device, shape, moved)
    except OutOfMemoryError as error:
        session._core.wait_completed()
        text = session._core.explained(str(error), 0) + session._core.join_pending(_OUT_OF_MEMORY)
        raise OutOfMemoryError(text) from None


_OUT_OF_MEMORY = 8  # the status code RESOURCE_EXHAUSTED
_PYTHON_TYPES = {bool: _core.bool, int: _core.int64, float: _core.float64, complex: _core.complex128}


def dtype_of(dtype: Any) -> Any:
    """Returns the dtype that a Python type such as `float` stands for; returns a dtype or None
    unchanged."""
    return _PYTHON_TYPES.get(dtype, dtype)


def default_device() -> _core.device:
    """Returns the device of new tensors."""
    return _default_device[0]


_default_device = [_core.device("cpu")]
_outer_devices: list[_core.device] = []


def _refuse_device(name: Any) -> None:
    """Raises the error for a value that does not name a device."""
    session = open_session()
    if session is not None:
        session.check_device(name)
    raise RuntimeError(
        f"device {name!r} is on no daemon: a daemon has 'cpu', and its GPUs are 'cuda:0', 'cuda:1', ...")


# Inside `with device:` new tensors are created on that device.
_core.set_default_device_lists(_default_device, _outer_devices,
                               lambda device: resolve_device(device), _refuse_device)


def resolve_device(device: Any, session: Session | None = None) -> _core.device:
    """Returns the device that `device` (None, a name or a device) names: one of the session, which is the
    current one unless it is given, or meta."""
    if device is None:
        return default_device()
    place: _core.device = device if isinstance(device, _core.device) else _core.device(device)
    if place.type == "meta":
        return place
    return (session or current_session()).check_device(place)


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
           pin_memory: bool = False) -> Tensor:
    """Returns a new tensor with a copy of `data` (numbers, nested lists, NumPy arrays, tensors).

    Python floats get the default dtype and Python ints int64; the dtype of a NumPy array is kept.
    `pin_memory` has no effect.
    """
    dtype = dtype_of(dtype)
    place = resolve_device(device)
    if isinstance(data, Tensor):
        out = data.detach().clone()
        if device is not None:
            out = out.to(place)
    else:
        try:
            array, python, common = _array(data, dtype)
        except RecursionError:
            raise TypeError("tensor: the list contains itself") from None
        if array.dtype == object or array.dtype.kind in "USOV":
            raise TypeError(f"tensor: cannot make a tensor of {type(data).__name__}: {data!r:.80}")
        dtype = common if dtype is None else dtype
        if python:
            array = _python_numbers(array, dtype)
        if dtype is not None and dtype in _TO_NUMPY and array.dtype != _TO_NUMPY[dtype] \
                and not (array.dtype.kind == "f" and not dtype.is_floating_point) \
                and not (array.dtype.kind == "c" and not dtype.is_complex):
            array = array.astype(_TO_NUMPY[dtype])
        out = _send(None, array, place)
    if dtype is not None and out.dtype != dtype:
        out = out.to(dtype)
    if requires_grad:
        out.requires_grad = True
    return out


tensor.__dict__["quick"] = True  # native code performs frequent calls from outside the package


def as_tensor(data: Any, dtype: _core.dtype | None = None, device: Any = None) -> Tensor:
    """Returns `data` itself if it is a tensor of that dtype and device, and a new tensor with a copy
    otherwise."""
    dtype = dtype_of(dtype)
    if isinstance(data, Tensor):
        if dtype is not None or device is not None:
            return data.to(device=device, dtype=dtype)
        return data
    return tensor(data, dtype=dtype, device=device)


def to_numpy(t: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """Returns the values as a NumPy array; waits for them. The tensor must not require grad, unless `force`
    is true: use `t.detach().numpy()`.

    The array is read-only: it holds the values at the time of the call, and writing to it could not change
    the tensor. `np.array(t)` or `force=True` gives a writable copy.

    If the client runs on the daemon's machine, a large array is not copied: the daemon's memory is mapped
    into this process, and a page of a writable array is copied when it is first written to. The daemon
    keeps that memory, charged to the session, until the array and its views are deleted.
    """
    if t.is_meta:
        raise TypeError("can't convert meta device type tensor to numpy: it has no data")
    if t.requires_grad and _core.grad_mode() and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. "
                           "Use tensor.detach().numpy() instead.")
    return values_of(t, writable=force)


def values_of(t: Tensor, *, writable: bool) -> np.ndarray[Any, Any]:
    """Returns the values as a writable array that nothing else refers to, or as a read-only array."""
    numpy_dtype = _TO_NUMPY.get(t.dtype)
    if numpy_dtype is None:
        raise TypeError(f"numpy: NumPy has no dtype {t.dtype.name}; use tensor.float().numpy()")
    array = _download(t, numpy_dtype)
    if not writable:
        array.flags.writeable = False
    elif not array.flags.writeable:
        array = array.copy()
    return array


def _with_lines(session: Session, text: str) -> str:
    def line(made: re.Match[str]) -> str:
        site: str = session._core.site_of(int(made[1]))
        return f"made at {site}" if site else made[0]
    return re.sub(r"made by command (\d+)", line, text)


def _download(t: Tensor, numpy_dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the bits of the elements as an array of a NumPy dtype of the same element size."""
    session = owner_of(t._session)
    shape = t._shape
    size = t.numel() * t.element_size()
    data = t._kept()
    if data is None and size <= session._inline:
        data = t._read()
    if data is not None:
        return np.frombuffer(data, dtype=numpy_dtype).reshape(shape)

    def receive(seq: int) -> np.ndarray[Any, Any]:
        shared = session._shared.take(session._core, seq, size)
        if shared is not None:
            return shared.view(numpy_dtype).reshape(shape)
        out = np.empty(shape, dtype=numpy_dtype)
        with watched("download", size) as moved:
            session._transport.download(seq, memoryview(out.reshape(-1)).cast("B"), moved)
        return out
    return fetched(t, receive)


def fetched(t: Tensor, receive: Callable[[int], _T]) -> _T:
    """Returns the result of `receive` for a bulk fetch of the tensor. If the fetch fails because an earlier
    command failed, raises that command's error."""
    session = owner_of(t._session)
    with t._fetch_bulk() as fetch:
        try:
            received = receive(fetch.seq)
        except RuntimeError as error:
            if isinstance(error, (SessionLostError, InterruptedOpError)):
                raise
            session._core.synchronize()  # raises the error of the command that failed, with its source line
            raise type(error)(_with_lines(session, str(error))) from None
    if session._core.has_pending:
        session._core.raise_pending()
    return received


def tolist(t: Tensor) -> Any:
    """Returns the values as a number or as nested lists of numbers; waits for them."""
    if t.is_meta:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    with_grad = t.detach()
    if t.dtype == _core.bfloat16:
        with_grad = with_grad.to(_core.float32)
    return to_numpy(with_grad).tolist()


def capsule(values: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Implements `__dlpack__` for an array that was downloaded: returns a capsule with a copy in host
    memory. The capsule is marked read-only, like the arrays of numpy(), unless a copy was requested or the
    consumer's version of DLPack has no such mark."""
    if copy is False:
        raise BufferError("__dlpack__: the elements are on the daemon, so copy=False is not possible")
    if stream is not None:
        raise BufferError("__dlpack__: the copy is in host memory, so stream must be None")
    if dl_device is not None and (int(dl_device[0]), dl_device[1]) != (1, 0):
        raise BufferError(f"__dlpack__: the copy is in host memory and cannot be on device {dl_device}")
    copied = np.array(values)
    if max_version is None:
        return copied.__dlpack__()
    copied.flags.writeable = copy is True or tuple(max_version) < (1, 0)
    return copied.__dlpack__(max_version=max_version)
