"""Special functions whose call forms differ from the catalog's."""

from __future__ import annotations

import math
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .stores import real, stored

__all__ = ["mvlgamma", "mvlgamma_", "polygamma"]


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of the digamma function at input."""
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return ops["polygamma"](input, n)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    steps = ops["arange"](0, p, 1, _core.int64, input.device)
    x = real(input)
    total: Any = ops["lgamma"](ops["unsqueeze"](x, -1) - ops["cast"](steps, x.dtype) * 0.5)
    return ops["sum"](total, -1) + p * (p - 1) / 4 * math.log(math.pi)


def mvlgamma_(input: Tensor, p: int) -> Tensor:
    """mvlgamma in place."""
    return stored(input, mvlgamma(input, p))
