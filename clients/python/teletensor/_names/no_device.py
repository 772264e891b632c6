"""The functions of device types that no daemon has: `mps`, `xpu`, ..."""

__all__ = ["device_count", "is_available"]


def is_available() -> bool:
    """Returns False."""
    return False


def device_count() -> int:
    """Returns 0."""
    return 0
