"""Switches for convolutions on GPUs: `allow_tf32` has an effect; the remaining ones are stored without
effect."""

import sys
from types import ModuleType
from typing import Any

from .. import _core
from .._sessions.scopes import Restoring

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "flags", "is_available", "version"]

enabled: bool = True
benchmark: bool = False
deterministic: bool = False
allow_tf32: bool = True


class _Module(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_tf32":
            _core.set_tf32_in_convolutions(value)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Module


def is_available() -> bool:
    """Returns False."""
    return False


def version() -> None:
    """Returns None."""


def flags(enabled: bool = False, benchmark: bool = False, benchmark_limit: int = 10,
          deterministic: bool = False, allow_tf32: bool = True) -> Restoring:
    """A context in which the switches have these values; `benchmark_limit` is ignored."""
    switches = {"enabled": enabled, "benchmark": benchmark, "deterministic": deterministic,
                "allow_tf32": allow_tf32}
    module = sys.modules[__name__]

    def put(values: dict[str, bool]) -> None:
        for name, value in values.items():
            setattr(module, name, value)

    return Restoring(lambda: {name: getattr(module, name) for name in switches},
                     lambda: put(switches), put)
