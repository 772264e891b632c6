"""Random orders of samples, which are drawn by the client: they decide what is sent, so they cannot wait
for the daemon.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _api as tt

__all__ = ["numpy_generator"]


def numpy_generator(generator: Any = None) -> np.random.Generator:
    """Returns a NumPy generator: the given one, one that is seeded by the given number, or one that is
    derived from the given `teletensor.Generator` (None: that of `teletensor.manual_seed`), whose stream is
    advanced by one position."""
    if generator is None:
        generator = tt.default_generator
    if isinstance(generator, tt.Generator):
        seed, ordinal = generator.get_state()
        generator.set_state((seed, ordinal + 1))
        return np.random.default_rng((seed, ordinal))
    if isinstance(generator, np.random.Generator):
        return generator
    if isinstance(generator, (int, np.integer)):
        return np.random.default_rng(int(generator))
    raise TypeError(
        "generator: expected None, a number, teletensor.Generator or numpy.random.Generator, not "
        f"{type(generator).__name__}"
    )
