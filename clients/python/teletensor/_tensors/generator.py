"""Generator: a seed and a counter of random instructions, which determine every random number."""

from __future__ import annotations

import secrets
from typing import Any

from .. import _core
from .._core import Tensor, ops

__all__ = ["Generator", "default_generator", "draw"]
DEFAULT_SEED = 67280421310721
MOST = 0x7FFFFFFFFFFFFFFF


class Generator:
    """An independent stream of random instructions; pass it as `generator=` to the random functions.

    The numbers of an instruction are Philox blocks of (seed, number of the instruction in the stream), the
    same on every device. The state is that pair.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = _core.device(device) if isinstance(device, str) else device
        self._seed, self._ordinal = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Generator:
        """Restarts the stream with `seed`, of which 63 bits count; returns the generator. ValueError for a
        seed that does not fit 64 bits."""
        if not -(2**63) <= int(seed) < 2**64:
            raise ValueError(f"Overflow when unpacking long long: the seed {seed} does not fit 64 bits")
        self.set_state((int(seed) & MOST, 0))
        return self

    def initial_seed(self) -> int:
        """Returns the seed of the stream."""
        return self.get_state()[0]

    def seed(self) -> int:
        """Restarts the stream with a seed from the operating system; returns the seed."""
        seed = secrets.randbits(63)
        self.manual_seed(seed)
        return seed

    def get_state(self) -> tuple[int, int]:
        """Returns (seed, number of the next random instruction)."""
        return self._seed, self._ordinal

    def set_state(self, new_state: tuple[int, int]) -> Generator:
        """Sets the state to a result of get_state."""
        self._seed, self._ordinal = (int(v) for v in new_state)
        return self

    def clone_state(self) -> Generator:
        """Returns another generator with the same seed at the same position of the stream."""
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
    """The default generator of the process, whose state `_core` holds."""

    def get_state(self) -> tuple[int, int]:
        """Returns (seed, number of the next random instruction)."""
        seed, ordinal = _core.rng_state()
        return int(seed), int(ordinal)

    def set_state(self, new_state: tuple[int, int]) -> Generator:
        """Sets the state to a result of get_state."""
        _core.set_rng_state(*new_state)
        return self


default_generator: Generator = _Default()


def draw(op: str, *args: Any, generator: Generator | None = None) -> Tensor:
    """Runs a random op at the next position of the generator's stream; without a generator, the default
    one's."""
    if generator is None:
        return ops[op](*args)
    if not isinstance(generator, Generator):
        raise TypeError(f"{op}: generator: expected None or teletensor.Generator, not "
                        f"{type(generator).__name__}")
    seed, ordinal = generator._next()
    return ops[op](*args, seed=seed, ordinal=ordinal)
