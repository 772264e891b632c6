"""The daemon's GPUs under the names of torch.cuda.

If the daemon has no GPU, all functions behave as in PyTorch on a machine without a driver: counts and bytes
are 0, setting seeds and emptying the cache have no effect, and functions that need a device raise
RuntimeError.
"""

from __future__ import annotations

from typing import Any

from .._sessions.session import current_session
from .._tensors.generator import default_generator
from .._tensors.tensor_types import CUDA_TYPES as _CUDA_TYPES
from ._device import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    index_of,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)
from ._memory import (
    OutOfMemoryError,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from ._streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "Event", "OutOfMemoryError", "Stream", "StreamContext", "amp", "can_device_access_peer",
    "current_device", "current_stream", "default_stream", "device", "device_count", "device_of",
    "empty_cache", "get_arch_list", "get_device_capability", "get_device_name",
    "get_device_properties", "get_rng_state", "init", "initial_seed", "ipc_collect", "is_available",
    "is_bf16_supported", "is_current_stream_capturing", "is_initialized", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state", "set_stream",
    "stream", "synchronize", *_CUDA_TYPES,
]  # fmt: skip


globals().update(_CUDA_TYPES)


def manual_seed(seed: int) -> None:
    """Seeds the random generator, which is the same on every device; does nothing without a GPU."""
    if is_available():
        default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """As manual_seed()."""
    manual_seed(seed)


def seed() -> None:
    """Seeds the random generator with a random seed."""
    if is_available():
        default_generator.seed()


def seed_all() -> None:
    """As seed()."""
    seed()


def initial_seed() -> int:
    """The seed of the random generator."""
    init()
    return default_generator.initial_seed()


def get_rng_state(device: Any = "cuda") -> tuple[int, int]:
    """The state of the random generator, as `teletensor.get_rng_state`."""
    index_of(device)
    return default_generator.get_state()


def set_rng_state(new_state: tuple[int, int], device: Any = "cuda") -> None:
    """Restores a state from get_rng_state."""
    index_of(device)
    default_generator.set_state(new_state)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the GPUs can compute with bfloat16, which all GPUs that the daemon uses can."""
    return is_available()


def get_arch_list() -> list[str]:
    """The architectures of the daemon's GPUs: kernels are compiled for the GPU on which they run."""
    return sorted({f"sm_{gpu.capability}" for gpu in current_session()._gpus})


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Returns False: tensors are moved from GPU to GPU only by copies."""
    index_of(device), index_of(peer_device)
    return False


def ipc_collect() -> None:
    """Does nothing: GPU memory is not shared with other processes."""
    init()


def is_current_stream_capturing() -> bool:
    """Returns whether a program is being captured."""
    return False


