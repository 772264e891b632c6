"""Memory of the daemon's GPUs mapped into this process: for PyTorch, CuPy and Numba on the daemon's
machine."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import _core
from .._core import Tensor
from .._sessions.errors import OutOfMemoryError
from .._sessions.session import owner_of
from .convert import _TO_NUMPY, fetched

__all__ = ["SharedCuda", "shared_cuda"]

_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class _Place(ctypes.Structure):
    """CUmemLocation"""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Kind(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = (("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", _Place),
                ("unused", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8))


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = (("place", _Place), ("flags", ctypes.c_int))


@functools.cache
def _library() -> ctypes.CDLL:
    """The CUDA driver library; the environment variable TELETENSOR_CUDA_DRIVER names one other than the
    system's."""
    name = os.environ.get("TELETENSOR_CUDA_DRIVER", "libcuda.so.1")
    try:
        library = ctypes.CDLL(name)
        code = library.cuInit(0)
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"shared_cuda: this process has no CUDA driver: {error}") from None
    if code != 0:
        raise RuntimeError(f"shared_cuda: this process cannot use CUDA: cuInit fails with error {code}")
    return library


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_library(), name)(*arguments)
    if code == 2:  # CUDA_ERROR_OUT_OF_MEMORY
        raise OutOfMemoryError(f"shared_cuda: {name} has no memory left")
    if code != 0:
        raise RuntimeError(f"shared_cuda: {name} fails with error {code}")


def _ordinal(gpu: bytes) -> int:
    """The index of a GPU in this process; CUDA_VISIBLE_DEVICES may hide it."""
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        uuid = ctypes.create_string_buffer(16)
        _call("cuDeviceGetUuid_v2", uuid, ordinal)
        if uuid.raw == gpu:
            return ordinal
    raise RuntimeError("shared_cuda: this process does not see the GPU that the tensor lies on "
                       "(CUDA_VISIBLE_DEVICES?)")


@contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    """Makes the context current for the calls of this thread."""
    _call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class _Memory:
    """Memory of a GPU that is mapped into this process until `end`."""

    def __init__(self, descriptor: int, hold: int, gpu: bytes, size: int) -> None:
        self._hold, self._process = hold, os.getpid()
        self.address, self._length = 0, 0
        self._context = ctypes.c_void_p()
        try:
            self._ordinal = _ordinal(gpu)
            _call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._ordinal)
            with _current(self._context):
                self._map(descriptor, size)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(descriptor)

    def _map(self, descriptor: int, size: int) -> None:
        place = _Place(_DEVICE, self._ordinal)
        unit, at, physical = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        kind = _Kind(_PINNED, _DESCRIPTOR, place)
        _call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(kind), 0)
        length = (size + unit.value - 1) // unit.value * unit.value
        _call("cuMemImportFromShareableHandle", ctypes.byref(physical),
              ctypes.c_void_p(descriptor), _DESCRIPTOR)
        try:
            _call("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(length),
                  ctypes.c_size_t(unit.value), ctypes.c_uint64(0), ctypes.c_uint64(0))
            self.address = at.value
            _call("cuMemMap", at, ctypes.c_size_t(length), ctypes.c_size_t(0), physical,
                  ctypes.c_uint64(0))
            self._length = length
            access = _Access(place, _READ_WRITE)
            _call("cuMemSetAccess", at, ctypes.c_size_t(length), ctypes.byref(access),
                  ctypes.c_size_t(1))
        finally:
            _call("cuMemRelease", physical)  # the mapping keeps the memory alive
            if self._length == 0 and self.address != 0:
                _call("cuMemAddressFree", at, ctypes.c_size_t(length))

    def end(self) -> None:
        """Waits for the work that this process has issued on the GPU, then removes the mapping, and then
        releases the hold on the daemon's memory."""
        try:
            if self._context and os.getpid() == self._process:  # a forked child has no CUDA context
                self._unmap()
        finally:
            os.close(self._hold)

    def _unmap(self) -> None:
        if self._length != 0:
            at, length = ctypes.c_uint64(self.address), ctypes.c_size_t(self._length)
            with _current(self._context):
                _call("cuCtxSynchronize")
                _call("cuMemUnmap", at, length)
                _call("cuMemAddressFree", at, length)
        _call("cuDevicePrimaryCtxRelease_v2", self._ordinal)


class SharedCuda:
    """GPU memory with the values of a tensor, for libraries that read `__cuda_array_interface__`.

    The memory belongs to this process, which may write to it. It is charged to the session until `close`,
    or until this object and everything made from it are deleted.
    """

    def __init__(self, memory: _Memory | None, shape: tuple[int, ...], typestr: str) -> None:
        self._address = 0 if memory is None else memory.address
        self._shape, self._typestr = shape, typestr
        self._end = weakref.finalize(self, _Memory.end, memory) if memory is not None else None
        if self._end is not None:
            self._end.atexit = False
        self._closed = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol; no stream has to be waited for."""
        if self._closed:
            raise ValueError("shared_cuda: the memory has been closed; call shared_cuda() again")
        return {"shape": self._shape, "typestr": self._typestr, "data": (self._address, False),
                "strides": None, "stream": None, "version": 3}

    def close(self) -> None:
        """Releases the memory. Nothing that was made from it may be used afterwards."""
        self._closed = True
        if self._end is not None:
            self._end()

    def __enter__(self) -> SharedCuda:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"at {self._address:#x}"
        return f"SharedCuda(shape={self._shape}, typestr={self._typestr!r}, {state})"


def shared_cuda(tensor: Tensor) -> SharedCuda:
    """Returns the values of a tensor on one of the daemon's GPUs in memory of that GPU that is mapped into
    this process; waits for the values: `torch.as_tensor(tt.shared_cuda(x), device="cuda")`. The values are
    not copied through the host.

    The result is a copy, made on the GPU, that belongs to this process: later writes to the tensor do not
    change it, and writes to it do not change the tensor. It is available to clients on the daemon's machine
    that use its UNIX socket, run as the daemon's user or root, and have the CUDA driver. The tensor must
    not require grad: `shared_cuda(t.detach())`.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"shared_cuda: expected a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cuda":
        raise RuntimeError(f"shared_cuda: the tensor lies on {tensor.device}, not on a GPU")
    if tensor.requires_grad and _core.grad_mode():
        raise RuntimeError("shared_cuda: the tensor requires grad; share tensor.detach()")
    kind = _TO_NUMPY.get(tensor.dtype)
    if kind is None:
        raise TypeError(f"shared_cuda: __cuda_array_interface__ has no {tensor.dtype.name}; share "
                        "tensor.view(teletensor.int16)")
    shape, size = tuple(tensor.shape), tensor.numel() * tensor.element_size()
    session = owner_of(tensor._session)
    if not session._shared.available:
        raise RuntimeError("shared_cuda: the daemon shares memory with processes of its own machine and "
                           "user, over its UNIX socket")
    if size == 0:
        return SharedCuda(None, shape, kind.str)
    _library()  # raises its error before the daemon makes a copy

    def receive(seq: int) -> _Memory:
        try:
            taken = session._shared.take_gpu(session._core, seq, size)
        except Exception as error:
            session._core.synchronize()  # raises the error of the command that failed, with its source line
            if isinstance(error, OutOfMemoryError):
                raise OutOfMemoryError(f"shared_cuda: no memory on {tensor.device} for {size} bytes, or "
                                       "too many pieces are shared already") from None
            if isinstance(error, NotImplementedError):
                raise RuntimeError(f"shared_cuda: {tensor.device} cannot share memory with other "
                                   "processes") from None
            raise
        return _Memory(*taken, size)
    return SharedCuda(fetched(tensor, receive), shape, kind.str)
