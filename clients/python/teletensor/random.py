"""The random generator of the process."""

from __future__ import annotations

from typing import Any

from . import _core
from ._sessions.scopes import Restoring
from ._tensors.generator import Generator, default_generator

__all__ = ["default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed",
           "set_rng_state", "thread_safe_generator"]


def manual_seed(seed: Any) -> Generator:
    """Seeds the random generator; the same seed gives the same numbers on CPU and GPU."""
    return default_generator.manual_seed(seed)


def initial_seed() -> Any:
    """The seed of the random generator."""
    return default_generator.initial_seed()


def seed() -> Any:
    """Seeds the random generator from the operating system; returns the seed."""
    return default_generator.seed()


def get_rng_state() -> tuple[Any, Any]:
    """The state of the generator: (seed, number of the next random instruction)."""
    return _core.rng_state()


def set_rng_state(state: tuple[Any, Any]) -> None:
    """Restores a state from get_rng_state."""
    _core.set_rng_state(*state)


def thread_safe_generator() -> None:
    """Returns None: the workers of a DataLoader are processes, each with a generator of its own."""


def fork_rng(devices: Any = None, enabled: bool = True, device_type: str = "cuda") -> Restoring:
    """A context that restores the state of the generator at its end. The generator is the same for all
    devices."""
    def restore(before: tuple[Any, Any]) -> None:
        if enabled:
            set_rng_state(before)

    return Restoring(get_rng_state, lambda: None, restore)
