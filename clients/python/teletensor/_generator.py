"""Generator: the seed and the count of random instructions, of which every random number follows."""

from __future__ import annotations

import secrets
from typing import Any

from . import _core
from ._core import Tensor, ops

__all__ = ["Generator", "default_generator", "draw"]
DEFAULT_SEED = 67280421310721
MOST = 0x7FFFFFFFFFFFFFFF


class Generator:
    """A stream of random instructions of its own: `generator=` of the random functions.

    The numbers of an instruction are Philox blocks of (seed, ordinal of the instruction), the same on
    every device. The state is the pair itself.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = _core.device(device) if isinstance(device, str) else device
        self._seed, self._ordinal = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Starts the stream of `seed`; returns the generator."""
        self.set_state((int(seed) & MOST, 0))
        return self

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self.get_state()[0]

    def seed(self) -> int:
        """Starts the stream of a seed from the operating system; returns it."""
        seed = secrets.randbits(63)
        self.manual_seed(seed)
        return seed

    def get_state(self) -> tuple[int, int]:
        """(seed, ordinal of the next random instruction)."""
        return self._seed, self._ordinal

    def set_state(self, new_state: tuple[int, int]) -> Generator:
        """Sets what get_state gave."""
        self._seed, self._ordinal = (int(v) for v in new_state)
        return self

    def clone_state(self) -> Generator:
        """Another generator at the same place of the same stream."""
        other = Generator(self.device)
        other.set_state(self.get_state())
        return other

    def _next(self) -> tuple[int, int]:
        seed, ordinal = self.get_state()
        self.set_state((seed, ordinal + 1))
        return seed, ordinal

    def __repr__(self) -> str:
        return f"<teletensor.Generator {self.get_state()}>"


class _Default(Generator):
    """The process's generator, which `_core` holds."""

    def get_state(self) -> tuple[int, int]:
        """(seed, ordinal of the next random instruction)."""
        seed, ordinal = _core.rng_state()
        return int(seed), int(ordinal)

    def set_state(self, new_state: tuple[int, int]) -> Generator:
        """Sets what get_state gave."""
        _core.set_rng_state(*new_state)
        return self


default_generator: Generator = _Default()


def draw(op: str, *args: Any, generator: Generator | None = None) -> Tensor:
    """Calls a random op at the next place of the generator's stream (the default one's without it)."""
    if generator is None:
        return ops[op](*args)
    if not isinstance(generator, Generator):
        raise TypeError(f"{op}: generator: expected None or teletensor.Generator, not "
                        f"{type(generator).__name__}")
    seed, ordinal = generator._next()
    return ops[op](*args, seed=seed, ordinal=ordinal)
