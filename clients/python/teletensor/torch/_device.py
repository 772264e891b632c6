"""`torch.tt`: what PyTorch asks of the module of a device."""

from __future__ import annotations

import collections
import contextlib
import os
import types
from typing import Any

import torch

from .. import _core
from .._sessions.session import owner_of
from .._tools.admin import Admin, bytes_text
from . import _bytes

OutOfMemoryError = torch.OutOfMemoryError

# torch.utils.checkpoint repeats the random numbers of a device that has this.
_initialized = True

# Of operators that are given none. The package sets it when the extension is there.
default_generator: torch.Generator = torch.default_generator

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "current_device",
    "current_stream",
    "default_generator",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "stream",
    "synchronize",
]


def _session() -> Any:
    return owner_of(_core.torch_session())


def is_available() -> bool:
    """Returns True; the first tensor on the device connects to a daemon."""
    return True


def init() -> None:
    """Nothing needs to be done before."""


def is_initialized() -> bool:
    """True, always."""
    return True


def _is_in_bad_fork() -> bool:
    """Returns whether this process is a child of fork whose parent had used the device before."""
    return _bytes.began_in not in (0, os.getpid())


def _is_in_use() -> bool:
    """Returns whether this process has used the device."""
    return _bytes.began_in == os.getpid()


def device_count() -> int:
    """1: the daemon's first GPU, or its CPU."""
    return 1


def current_device() -> int:
    """0, always."""
    return 0


def set_device(device: Any) -> None:
    """Refuses every device but the one that there is."""
    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise RuntimeError(f"tt: there is one device, tt:0, not {device!r}")


class device:
    """A context in which the current device is this one."""

    def __init__(self, device: Any) -> None:
        set_device(device)
        self.idx = 0

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def get_device_name(device: Any = None) -> str:
    """The daemon's name of the device: "cpu" or "cuda:0"."""
    return str(_bytes.place(_core.torch_session()))


def synchronize(device: Any = None) -> None:
    """Waits until everything issued has run, and raises what has failed of it."""
    _session().synchronize()


def _generator(device: Any) -> torch.Generator:
    set_device(device)
    return default_generator


def manual_seed(seed: int) -> None:
    """Starts the random numbers of the device anew. They are not those of the CPU or of CUDA."""
    default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """Starts the random numbers of the device anew, with a seed from the operating system."""
    return int(default_generator.seed())


def initial_seed() -> int:
    """The seed of the device's random numbers."""
    return int(default_generator.initial_seed())


def get_rng_state(device: Any = 0) -> torch.Tensor:
    """16 bytes: the seed, and how many random tensors have been made since."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = 0) -> None:
    """Goes on from a state that `get_rng_state` gave."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Any) -> None:
    """Goes on from the states that `get_rng_state_all` gave."""
    set_rng_state(list(new_states)[0])


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of autocast."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Returns True, because the daemon computes in bfloat16 on every device."""
    return True


def empty_cache() -> None:
    """Lets go of what the program does not hold any more; the memory pool is the daemon's."""
    _core.torch_sweep()


def _memory(reset: bool = False) -> dict[str, Any]:
    """The daemon's account of the session on the device, after everything issued has run."""
    _core.torch_sweep()
    synchronize()
    name, account = get_device_name(), Admin(_session()._transport)
    for each in account.holdings(most=1, reset_peaks=reset)["session"]["memory"]:
        if each["device"] == name:
            return dict(each)
    return {"used": 0, "peak": 0, "quota": 0, "device_used": 0, "device_total": 0}


def _used_and_peak() -> tuple[int, int]:
    use = _memory()
    return int(use["used"]), int(use["peak"])


def memory_allocated(device: Any = None) -> int:
    """Bytes that the session has in use on the device. Asks the daemon."""
    set_device(device if device is not None else 0)
    return _used_and_peak()[0]


def max_memory_allocated(device: Any = None) -> int:
    """The maximum of `memory_allocated` so far, or since `reset_peak_memory_stats`. Asks the daemon."""
    set_device(device if device is not None else 0)
    return _used_and_peak()[1]


# The daemon keeps freed memory for all sessions.
memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts the maximum of `max_memory_allocated` anew."""
    _memory(reset=True)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The (free, total) bytes of the device for all sessions. Asks the daemon."""
    use = _memory()
    return int(use["device_total"]) - int(use["device_used"]), int(use["device_total"])


def memory_stats(device: Any = None) -> collections.defaultdict[str, int]:
    """"allocated_bytes.all.current" and ".peak", and the same of "reserved_bytes" and "active_bytes"; 0 for
    the other names of PyTorch's allocators."""
    used, peak = _used_and_peak()
    return collections.defaultdict(int, {
        f"{kind}_bytes.all.{when}": bytes for kind in ("allocated", "reserved", "active")
        for when, bytes in (("current", used), ("peak", peak))})


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The bytes of the session and of the device as a text."""
    use = _memory()
    texts = {name: bytes_text(use[name]) for name in ("used", "peak", "device_used", "device_total")}
    return ("{name}, this session: {used} (peak {peak}); all sessions: {device_used} of {device_total}"
            .format(name=get_device_name(), **texts))


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """The name of the device, its `total_memory` in bytes, and numbers that programs for GPUs ask for."""
    return types.SimpleNamespace(name=get_device_name(), total_memory=mem_get_info()[1], major=8, minor=0,
                                 multi_processor_count=1)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(8, 0): the device has the dtypes of such a GPU."""
    return 8, 0


class Stream(torch.Stream):  # type: ignore[misc]
    """The one stream of the device, under any name."""

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Any:
        return super().__new__(cls, torch.device("tt", 0))


# A point in time of the program. The device runs in the order of issue: all waits are alike.
Event = torch.Event


def current_stream(device: Any = None) -> Stream:
    """The one stream of the device."""
    made: Stream = Stream()
    return made


default_stream = current_stream


def stream(stream: Any) -> contextlib.nullcontext[None]:
    """A context without effect, as there is one stream."""
    return contextlib.nullcontext()


def is_current_stream_capturing() -> bool:
    """False: `teletensor.torch.capture` is no capture of a stream."""
    return False


class device_of(device):
    """A context in which the current device is that of a tensor."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0)


def __getattr__(name: str) -> Any:
    if name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen"):  # Inductor asks for them
        from . import _inductor

        return _inductor.CLASSES[name]
    if name == "default_generators":
        return (default_generator,)
    raise AttributeError(f"module 'torch.tt' has no attribute {name!r}")
