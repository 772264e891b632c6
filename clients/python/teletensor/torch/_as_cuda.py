"""Makes programs that say "cuda" compute on the device "tt": `python -m teletensor.torch --as-cuda`.

Names of devices are replaced where PyTorch's functions take them, and `torch.cuda` answers as for one GPU,
or as for a given number of them, all of which are the device "tt". The backends "nccl" and "gloo" of
torch.distributed use the device's backend for it.
"""

from __future__ import annotations

import functools
import multiprocessing.spawn
import re
from collections.abc import Callable
from typing import Any

import torch

from . import _device

__all__ = ["install"]

_Real = torch.device
_count = 1  # the number of GPUs that the program sees

# The backends of a program as those of the device.
_BACKENDS = {"nccl": "tt:teletensor", "gloo": "cpu:gloo,tt:teletensor"}
_names: dict[str, str] = {}  # the program's name of each of them


def _index(index: int) -> int:
    """The index of the device "tt" for that of a GPU; other numbers are left, for an error that names
    them."""
    return 0 if 0 <= index < _count else index


def _moved(value: Any) -> Any:
    """The same argument with "tt" in place of "cuda"."""
    if isinstance(value, str) and (found := re.fullmatch(r"cuda(?::(\d+))?", value)):
        return "tt" if found[1] is None else f"tt:{_index(int(found[1]))}"
    if isinstance(value, _Real) and (value.type == "cuda" or value.type == "tt" and value.index):
        return _Real("tt", _index(value.index or 0))
    if isinstance(value, dict) and all(isinstance(each, (str, _Real)) for each in value):
        return {_moved(key): _moved(each) for key, each in value.items()}  # a map_location
    return value


def _placed(value: Any) -> Any:
    """As _moved(), for an argument that is a device, where a number is that of a GPU."""
    return _Real("tt", _index(value)) if type(value) is int else _moved(value)


def _named(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with "tt" in place of "cuda"."""
    return {key: (_placed if key in ("device", "device_id") else _moved)(value)
            for key, value in kwargs.items()}


def _moving(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose arguments may name "cuda"."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_moved, args), **_named(kwargs))

    return call


def _placing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose arguments may name "cuda" or be the number of a GPU."""

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_placed, args), **_named(kwargs))

    return call


class _StandIn(type):
    """The type of a class in whose place calls make objects of another one."""

    real: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.real)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _moved(cls.real(*map(_moved, args), **_named(kwargs)))


class _Device(metaclass=_StandIn):
    """torch.device, which makes devices "tt" of "cuda"."""

    real = _Real


class _Generator(metaclass=_StandIn):
    """torch.Generator, which takes "cuda" for "tt"."""

    real = torch.Generator


class _Event(metaclass=_StandIn):
    """torch.cuda.Event."""

    real = torch.Event


_KINDS = {"FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
          "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
          "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8,
          "BoolTensor": torch.bool}


class _Kind(type):
    """A class such as torch.cuda.FloatTensor: tensors of a dtype on the device."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "tt" and value.dtype == cls.dtype

    def __call__(cls, *args: Any) -> Any:
        return getattr(torch, cls.__name__)(*args).to("tt")


_kinds = {name: _Kind(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
          for name, dtype in _KINDS.items()}


def _kind_of(value: Any) -> _Kind | None:
    """The class of a name such as "torch.cuda.FloatTensor", or the class itself; None for all else."""
    if isinstance(value, str) and value.startswith("torch.cuda."):
        return _kinds.get(value[len("torch.cuda."):])
    return value if isinstance(value, _Kind) else None


def _type(of: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of)
    def type(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        kind = _kind_of(dtype)
        if kind is not None:
            return self.to("tt", kind.dtype, non_blocking)
        made = of(self, dtype, non_blocking, **kwargs)
        return made.replace("torch.tt.", "torch.cuda.") if isinstance(made, str) else made

    return type


def _default_type(of: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of)
    def set_default_tensor_type(t: Any) -> None:
        kind = _kind_of(t)
        if kind is None:
            of(t)
        torch.set_default_device(None if kind is None else "tt")
        if kind is not None:
            torch.set_default_dtype(kind.dtype)

    return set_default_tensor_type


def _backend(name: Any) -> Any:
    """A program's backend as that of the device."""
    if not isinstance(name, str):
        return name
    found = name.lower()
    own = _BACKENDS.get(found) or re.sub("cuda:(nccl|gloo)", "tt:teletensor", found)
    _names[own] = found
    return own


def _with_backend(of: Callable[..., Any], position: int) -> Callable[..., Any]:
    """A function of torch.distributed, whose argument at this position is a backend."""

    @functools.wraps(of)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [_backend(value) if at == position else _moved(value) for at, value in enumerate(args)]
        if "backend" in kwargs:
            kwargs["backend"] = _backend(kwargs["backend"])
        return of(*given, **_named(kwargs))

    return call


def _get_backend(of: Callable[..., Any]) -> Callable[..., Any]:
    """torch.distributed.get_backend, which returns the program's name."""

    @functools.wraps(of)
    def get_backend(group: Any = None) -> str:
        own: str = of(group)
        return _names.get(own, own)

    return get_backend


def _in_children(of: Callable[..., Any]) -> Callable[..., Any]:
    """The command of a process that multiprocessing starts, in which the names are replaced as well."""
    before = "from multiprocessing.spawn import spawn_main"

    @functools.wraps(of)
    def get_command_line(**kwargs: Any) -> list[Any]:
        own = f"from teletensor.torch import _as_cuda; _as_cuda.install({_count}); {before}"
        return [word.replace(before, own) if isinstance(word, str) else word for word in of(**kwargs)]

    return get_command_line


class _Graph:
    """torch.cuda.CUDAGraph and what makes one, which the device does not have."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("tt: a graph of CUDA cannot be captured on this device; "
                                  "teletensor.torch.capture(step) makes a whole step one command")


def _no_interface(self: torch.Tensor) -> Any:
    """Hides the interface from libraries that would read memory of a GPU at the tensor's address."""
    raise AttributeError("__cuda_array_interface__: the tensor's memory is the daemon's")


class Stream(_device.Stream):
    """torch.cuda.Stream."""

    cuda_stream = 0


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing: the device has no such state."""


def _restored(storage: Any, location: str) -> Any:
    """The storage of a file on the device, if it was on a GPU."""
    return storage.tt() if location.startswith("cuda") else None


def _answers() -> dict[str, Any]:
    """Names of torch.cuda."""
    return {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": _nothing,
        "device_count": lambda: _count, "current_device": _device.current_device,
        "set_device": _placing(_device.set_device), "device": _placing(_device.device),
        "get_device_name": _device.get_device_name, "get_arch_list": lambda: ["sm_80"],
        "get_device_capability": _device.get_device_capability,
        "get_device_properties": _device.get_device_properties, "device_of": _device.device_of,
        "synchronize": _device.synchronize, "empty_cache": _device.empty_cache, "ipc_collect": _nothing,
        "memory_allocated": _placing(_device.memory_allocated),
        "memory_reserved": _placing(_device.memory_reserved),
        "max_memory_allocated": _placing(_device.max_memory_allocated),
        "max_memory_reserved": _placing(_device.max_memory_reserved),
        "mem_get_info": _device.mem_get_info, "memory_stats": _device.memory_stats,
        "reset_peak_memory_stats": _device.reset_peak_memory_stats,
        "reset_max_memory_allocated": _device.reset_peak_memory_stats,
        "memory_summary": _device.memory_summary,
        "manual_seed": _device.manual_seed, "manual_seed_all": _device.manual_seed_all,
        "seed": _device.seed, "seed_all": _device.seed, "initial_seed": _device.initial_seed,
        "get_rng_state": lambda device=0: _device.get_rng_state(),
        "set_rng_state": lambda state, device=0: _device.set_rng_state(state),
        "get_rng_state_all": _device.get_rng_state_all, "set_rng_state_all": _device.set_rng_state_all,
        "is_bf16_supported": lambda including_emulation=True: True,
        "Event": _Event, "Stream": Stream, "stream": _device.stream,
        "current_stream": lambda device=None: Stream(), "default_stream": lambda device=None: Stream(),
        "is_current_stream_capturing": _device.is_current_stream_capturing, "CUDAGraph": _Graph,
        "graph": _Graph, "make_graphed_callables": _Graph, **_kinds,
    }


def _patch(owner: Any, *names: str) -> None:
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, _moving(getattr(owner, name)))


def _compiled(of: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, whose own backend is for GPUs: the device's takes its place."""

    @functools.wraps(of)
    def compile(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
        return of(*args, backend="teletensor" if backend == "inductor" else backend, **kwargs)

    return compile


def _first_is_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def to_cuda(self: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = _moved(device) if device is not None else "tt"
        return self.to(_Real("tt", place) if isinstance(place, int) else place)

    return to_cuda


def _distributed() -> None:
    """Replaces the names of torch.distributed."""
    distributed, meshes = torch.distributed, torch.distributed.device_mesh
    distributed.init_process_group = _with_backend(distributed.init_process_group, 0)
    distributed.new_group = _with_backend(distributed.new_group, 2)
    distributed.get_backend = _get_backend(distributed.get_backend)
    distributed.is_nccl_available = lambda: True
    _patch(meshes.DeviceMesh, "__init__")
    _patch(meshes, "init_device_mesh")
    distributed.init_device_mesh = meshes.init_device_mesh


def install(count: int) -> None:
    """Replaces the names, for the rest of the process. The program sees that number of GPUs."""
    global _count
    _count = count
    from torch.utils._device import _device_constructors

    for constructor in _device_constructors():
        name = constructor.__name__
        for module in (torch, torch.fft, torch.nested):
            if getattr(module, name, None) is constructor:
                _patch(module, name)
    likes = [f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")]
    _patch(torch, "load", "set_default_device", "asarray", "get_device_module", "normal", *likes)
    _patch(torch.fft, "fftfreq", "rfftfreq")
    torch.set_default_tensor_type = _default_type(torch.set_default_tensor_type)
    torch.compile = _compiled(torch.compile)
    torch.Tensor.to = _placing(torch.Tensor.to)
    torch.nn.Module.to = _placing(torch.nn.Module.to)
    _patch(torch.Tensor, "new_tensor", "new_empty", "new_zeros", "new_ones", "new_full")
    _patch(torch.nn.Module, "to_empty")
    torch.nn.Module.cuda = _first_is_device(torch.nn.Module.cuda)
    torch.Tensor.cuda = _first_is_device(torch.Tensor.cuda)
    torch.Tensor.is_cuda = property(lambda self: self.device.type == "tt")
    torch.Tensor.__cuda_array_interface__ = property(_no_interface)
    torch.Tensor.type = _type(torch.Tensor.type)
    torch.Tensor.record_stream = _nothing
    # With one device nn.DataParallel calls its module.
    torch.nn.parallel.data_parallel._get_available_device_type = lambda: None
    if torch.distributed.is_available():
        _distributed()
    multiprocessing.spawn.get_command_line = _in_children(multiprocessing.spawn.get_command_line)
    for owner in (torch.autocast, torch.amp.GradScaler):
        _patch(owner, "__init__")
    _patch(torch, "is_autocast_enabled", "get_autocast_dtype")
    for name, answer in _answers().items():
        setattr(torch.cuda, name, answer)
    torch.device = _Device
    torch.Generator = _Generator
    torch.serialization.register_package(1, _nothing, _restored)
