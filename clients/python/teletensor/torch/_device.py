"""`torch.tt`: what PyTorch asks of the module of a device."""

from __future__ import annotations

import os
from typing import Any

import torch

from .. import _core
from .._sessions.session import owner_of
from . import _bytes

# Of operators that are given none. The package sets it when the extension is there.
default_generator: torch.Generator = torch.default_generator

__all__ = [
    "current_device",
    "default_generator",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "memory_allocated",
    "seed",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
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


def _memory() -> dict[str, Any]:
    synchronize()
    _core.torch_sweep()
    name = get_device_name()
    for each in _session().memory(0):
        if each["device"] == name:
            return dict(each)
    return {}


def memory_allocated(device: Any = None) -> int:
    """Bytes that the session has in use on the device. Asks the daemon."""
    set_device(device if device is not None else 0)
    return int(_memory().get("used", 0))
