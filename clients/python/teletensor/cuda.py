"""The daemon's GPUs, under PyTorch's names."""

from __future__ import annotations

from ._session import current_session

__all__ = ["device_count", "is_available", "synchronize"]


def device_count() -> int:
    """How many GPUs the daemon of the current session has."""
    return sum(name.startswith("cuda") for name in current_session().devices)


def is_available() -> bool:
    """Has it any?"""
    return device_count() > 0


def synchronize(device: object = None) -> None:
    """Waits for everything issued in the current session."""
    current_session().synchronize()
