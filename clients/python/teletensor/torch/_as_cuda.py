"""Makes programs that say "cuda" compute on the device "tt": `python -m teletensor.torch --as-cuda`.

Names of devices are replaced where PyTorch's functions take them, and `torch.cuda` answers as for one GPU.
"""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from . import _device

__all__ = ["install"]

_Real = torch.device


def _moved(value: Any) -> Any:
    """The same argument with "tt" in place of "cuda"."""
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "tt" + value[4:]
    if isinstance(value, _Real) and value.type == "cuda":
        return _Real("tt", value.index or 0)
    if isinstance(value, dict) and all(isinstance(each, (str, _Real)) for each in value):
        return {_moved(key): _moved(each) for key, each in value.items()}  # a map_location
    return value


def _moving(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose arguments may name "cuda"."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_moved, args), **{key: _moved(value) for key, value in kwargs.items()})

    return call


class _StandIn(type):
    """The type of a class in whose place calls make objects of another one."""

    real: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.real(*map(_moved, args), **{key: _moved(value) for key, value in kwargs.items()})


class _Device(metaclass=_StandIn):
    """torch.device, which makes devices "tt" of "cuda"."""

    real = _Real


class _Generator(metaclass=_StandIn):
    """torch.Generator, which takes "cuda" for "tt"."""

    real = torch.Generator


class Event:
    """A point in time of the program. The device runs in the order of issue: all waits are alike."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Notes the time at which all that was issued has run."""
        _device.synchronize()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    wait = synchronize

    def query(self) -> bool:
        """True, always."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another."""
        if self._time is None or end._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1e3


class Stream:
    """The one stream of the device, under any name."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def synchronize(self) -> None:
        """Waits for everything."""
        _device.synchronize()

    def query(self) -> bool:
        """True, always."""
        return True

    def wait_stream(self, other: Any) -> None:
        """The stream waits for all that was issued before, without a call."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """An event that is recorded now."""
        event = event or Event()
        event.record()
        return event


class _Properties(types.SimpleNamespace):
    """What torch.cuda.get_device_properties returns."""


def _properties(device: Any = None) -> _Properties:
    sizes = [each for each in _device._session().memory(0) if each["device"] == _device.get_device_name()]
    total = int(sizes[0].get("limit") or sizes[0].get("total") or 0) if sizes else 0
    return _Properties(name=_device.get_device_name(), total_memory=total, major=8, minor=0,
                       multi_processor_count=1)


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing: the device has no such state."""


def _restored(storage: Any, location: str) -> Any:
    """The storage of a file on the device, if it was on a GPU."""
    return storage.tt() if location.startswith("cuda") else None


def _answers() -> dict[str, Any]:
    """Names of torch.cuda."""
    return {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": _nothing,
        "device_count": _device.device_count, "current_device": _device.current_device,
        "set_device": lambda device: _device.set_device(_moved(device)),
        "device": lambda device: _device.device(_moved(device)),
        "get_device_name": _device.get_device_name, "get_device_capability": lambda device=None: (8, 0),
        "get_device_properties": _properties, "get_arch_list": lambda: ["sm_80"],
        "synchronize": _device.synchronize, "empty_cache": _device.empty_cache, "ipc_collect": _nothing,
        "memory_allocated": _memory, "max_memory_allocated": _memory, "memory_reserved": _memory,
        "max_memory_reserved": _memory, "reset_peak_memory_stats": _nothing,
        "reset_max_memory_allocated": _nothing, "memory_summary": lambda *_, **__: "",
        "manual_seed": _device.manual_seed, "manual_seed_all": _device.manual_seed_all,
        "seed": _device.seed, "seed_all": _device.seed, "initial_seed": _device.initial_seed,
        "get_rng_state": lambda device=0: _device.get_rng_state(),
        "set_rng_state": lambda state, device=0: _device.set_rng_state(state),
        "get_rng_state_all": _device.get_rng_state_all, "set_rng_state_all": _device.set_rng_state_all,
        "is_bf16_supported": lambda including_emulation=True: True,
        "Event": Event, "Stream": Stream, "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(), "default_stream": lambda device=None: Stream(),
    }


def _memory(device: Any = None) -> int:
    return _device.memory_allocated()


def _patch(owner: Any, *names: str) -> None:
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, _moving(getattr(owner, name)))


def _first_is_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def to_cuda(self: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = _moved(device) if device is not None else "tt"
        return self.to(_Real("tt", place) if isinstance(place, int) else place)

    return to_cuda


def install() -> None:
    """Replaces the names, for the rest of the process."""
    from torch.utils._device import _device_constructors

    for constructor in _device_constructors():
        name = constructor.__name__
        for module in (torch, torch.fft, torch.nested):
            if getattr(module, name, None) is constructor:
                _patch(module, name)
    _patch(torch, "load", "set_default_device", "asarray", "get_device_module")
    _patch(torch.Tensor, "to", "new_tensor", "new_empty", "new_zeros", "new_ones", "new_full")
    _patch(torch.nn.Module, "to", "to_empty")
    torch.nn.Module.cuda = _first_is_device(torch.nn.Module.cuda)
    torch.Tensor.cuda = _first_is_device(torch.Tensor.cuda)
    torch.Tensor.is_cuda = property(lambda self: self.device.type == "tt")
    for owner in (torch.autocast, torch.amp.GradScaler):
        _patch(owner, "__init__")
    _patch(torch, "is_autocast_enabled", "get_autocast_dtype")
    for name, answer in _answers().items():
        setattr(torch.cuda, name, answer)
    torch.device = _Device
    torch.Generator = _Generator
    torch.serialization.register_package(1, _nothing, _restored)
