"""cuDNN, which the daemon does not use: the switches are kept and change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "flags", "is_available", "version"]

enabled: bool = True
benchmark: bool = False
deterministic: bool = False
allow_tf32: bool = True


def is_available() -> bool:
    """False."""
    return False


def version() -> None:
    """None."""


@contextmanager
def flags(enabled: bool = False, benchmark: bool = False, benchmark_limit: int = 10,
          deterministic: bool = False, allow_tf32: bool = True) -> Iterator[None]:
    """The switches with these values within it; `benchmark_limit` is not kept."""
    switches = {"enabled": enabled, "benchmark": benchmark, "deterministic": deterministic,
                "allow_tf32": allow_tf32}
    before = {name: globals()[name] for name in switches}
    globals().update(switches)
    try:
        yield
    finally:
        globals().update(before)
