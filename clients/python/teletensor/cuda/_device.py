"""Which GPUs the daemon has, and to which one "cuda" refers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _core
from .._sessions.session import current_session

__all__ = [
    "current_device", "device", "device_count", "device_of", "get_device_capability",
    "get_device_name", "get_device_properties", "index_of", "init", "is_available",
    "is_initialized", "set_device", "synchronize",
]  # fmt: skip


def device_count() -> int:
    """The number of GPUs of the current session's daemon."""
    return len(current_session()._gpus)


def is_available() -> bool:
    """Returns whether the current session's daemon has a GPU."""
    return device_count() > 0


def init() -> None:
    """RuntimeError if the daemon has no GPU."""
    if not is_available():
        raise RuntimeError("Found no NVIDIA driver on the daemon's machine: it has "
                           f"{', '.join(current_session().devices)} (its log says why)")


def is_initialized() -> bool:
    """Returns whether the daemon has GPUs, which are ready before the first call."""
    return is_available()


def index_of(device: Any = None) -> int:
    """The index of a GPU of the daemon; None and "cuda" mean the current one."""
    init()
    if device is None:
        return current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        place = _core.device(device)
        if place.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {place}")
        index = place.index or 0
    if not 0 <= index < device_count():
        raise AssertionError(f"Invalid device id: {index} of {device_count()}")
    return index


def current_device() -> int:
    """The index of the GPU to which "cuda" refers in this thread."""
    init()
    return _core.current_gpu()


def set_device(device: Any) -> None:
    """Makes "cuda" refer to this GPU in this thread; a negative index has no effect."""
    if isinstance(device, int) and device < 0:
        return
    _core.set_current_gpu(index_of(device))


class device:
    """`with cuda.device(1):` makes "cuda" refer to this GPU in the block; None and -1 have no effect."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or device == -1 else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _core.current_gpu()
        if self.idx >= 0:
            _core.set_current_gpu(self.idx)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _core.set_current_gpu(self.prev_idx)


class device_of(device):
    """`with cuda.device_of(x):` selects the GPU of a tensor; it has no effect for a tensor on the CPU."""

    def __init__(self, obj: _core.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "cuda" else None)


@dataclass(frozen=True)
class _CudaDeviceProperties:
    """The properties of a GPU."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: Any = None) -> _CudaDeviceProperties:
    """The name, major, minor, total_memory and multi_processor_count of a GPU."""
    gpu = current_session()._gpus[index_of(device)]
    return _CudaDeviceProperties(gpu.model, *divmod(gpu.capability, 10), gpu.whole_memory,
                                 gpu.multiprocessors)


def get_device_name(device: Any = None) -> str:
    """The name of a GPU, such as "NVIDIA H100 80GB HBM3"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, such as (9, 0)."""
    found = get_device_properties(device)
    return found.major, found.minor


def synchronize(device: Any = None) -> None:
    """Waits until a GPU has computed everything issued in the current session; raises late errors."""
    index = index_of(device)
    session = current_session()
    # A value that is computed after all earlier work of the GPU is read, because the daemon considers an
    # instruction done when it has been given to the GPU.
    with session.as_current():
        _core.ops["full"](0, (), _core.int64, _core.device("cuda", index)).item()
    session.synchronize()
