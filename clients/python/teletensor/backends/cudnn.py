"""cuDNN, which the daemon does not use: the switches are kept and change nothing."""

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

enabled: bool = True
benchmark: bool = False
deterministic: bool = False
allow_tf32: bool = True


def is_available() -> bool:
    """False."""
    return False


def version() -> None:
    """None."""
