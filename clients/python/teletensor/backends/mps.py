"""Apple's GPUs, which no daemon has."""

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """Returns False."""
    return False


def is_built() -> bool:
    """Returns False."""
    return False
