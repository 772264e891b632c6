"""The daemon's GPUs under PyTorch's device-independent name, torch.accelerator.

As `teletensor.cuda`: if the daemon has no GPU, counts are 0, and functions that need a device raise
RuntimeError.
"""

from __future__ import annotations

from ._core import device as Device
from .cuda import (
    current_device as current_device_index,
    current_stream,
    device as device_index,
    device_count,
    empty_cache,
    is_available,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info as get_memory_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_device as set_device_index,
    set_stream,
    synchronize,
)

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "current_stream",
    "device_count", "device_index", "empty_cache", "get_memory_info",
    "is_available", "max_memory_allocated", "max_memory_reserved", "memory_allocated",
    "memory_reserved", "memory_stats", "reset_peak_memory_stats", "set_device_idx",
    "set_device_index", "set_stream", "synchronize",
]  # fmt: skip

current_device_idx = current_device_index
set_device_idx = set_device_index


def current_accelerator(check_available: bool = False) -> Device | None:
    """The device "cuda" without an index; with check_available, None if the daemon has no GPU."""
    return Device("cuda") if not check_available or is_available() else None
