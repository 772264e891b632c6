"""What programs ask of kinds of devices that no daemon has: `mps`, `xpu`, ..."""

__all__ = ["device_count", "is_available"]


def is_available() -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0
