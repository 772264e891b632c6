"""Windows of signals: M values, symmetric, or with sym=False a symmetric window of M + 1 values without the
last.

Each window is computed in double precision by the client, and then rounded to dtype (the default dtype if
none is given). ValueError for a negative M, for a dtype that is not a real floating-point dtype, and for
parameters out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._core import Tensor
from .._functions.common import factory
from .._functions.windows import window

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]

_NUTTALL = (0.3635819, 0.4891775, 0.1365995, 0.0106411)


def _window(
    name: str,
    M: int,
    sym: bool,
    shape: Callable[[Any, int], Any],
    dtype: Any,
    device: Any,
    requires_grad: bool,
) -> Tensor:
    if M < 0:
        raise ValueError(f"signal.windows.{name}: window length M must be non-negative, got: {M}")
    if not (dtype is None or dtype.is_floating_point):
        raise ValueError(f"signal.windows.{name}: expected a floating-point dtype, got: {dtype}")
    return window(f"signal.windows.{name}", M, not sym, shape, dtype, device, requires_grad)


def _positive(name: str, what: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"signal.windows.{name}: {what} must be positive, got: {value}")


@factory
def bartlett(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A triangle: 1 - |2 k / (n - 1) - 1|."""
    return _window(
        "bartlett", M, sym, lambda k, n: 1 - np.abs(2 * k / (n - 1) - 1), dtype, device, requires_grad
    )


@factory
def cosine(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """sin(pi (k + 1/2) / n)."""
    return _window(
        "cosine", M, sym, lambda k, n: np.sin(np.pi * (k + 0.5) / n), dtype, device, requires_grad
    )


@factory
def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """exp(-|k - center| / tau); center defaults to the middle, and can be given only if sym is False."""
    _positive("exponential", "Tau", tau)
    if sym and center is not None:
        raise ValueError("signal.windows.exponential: Center must be None for symmetric windows")
    return _window(
        "exponential",
        M,
        sym,
        lambda k, n: np.exp(-np.abs(k - ((n - 1) / 2 if center is None else center)) / tau),
        dtype,
        device,
        requires_grad,
    )


@factory
def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """exp(-((k - (n - 1) / 2) / std)^2 / 2)."""
    _positive("gaussian", "Standard deviation", std)
    return _window(
        "gaussian",
        M,
        sym,
        lambda k, n: np.exp(-(((k - (n - 1) / 2) / std) ** 2) / 2),
        dtype,
        device,
        requires_grad,
    )


@factory
def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """i0(beta sqrt(1 - (2 k / (n - 1) - 1)^2)) / i0(beta)."""
    if beta < 0:
        raise ValueError(f"signal.windows.kaiser: beta must be non-negative, got: {beta}")
    return _window(
        "kaiser",
        M,
        sym,
        lambda k, n: (
            np.i0(beta * np.sqrt(np.maximum(1 - (2 * k / (n - 1) - 1) ** 2, 0))) / np.i0(float(beta))
        ),
        dtype,
        device,
        requires_grad,
    )


def _cosines(name: str, M: int, a: Iterable[float], sym: bool, *made: Any) -> Tensor:
    weights = list(a)
    if not weights:
        raise ValueError(f"signal.windows.{name}: Coefficients cannot be empty")
    return _window(
        name,
        M,
        sym,
        lambda k, n: sum(
            (-1) ** i * weight * np.cos(2 * np.pi * i * k / (n - 1)) for i, weight in enumerate(weights)
        ),
        *made,
    )


@factory
def general_cosine(
    M: int,
    *,
    a: Iterable[float],
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The sum of (-1)^i a[i] cos(2 pi i k / (n - 1))."""
    return _cosines("general_cosine", M, a, sym, dtype, device, requires_grad)


@factory
def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi k / (n - 1))."""
    return _cosines("general_hamming", M, (alpha, 1 - alpha), sym, dtype, device, requires_grad)


@factory
def hamming(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """general_hamming with alpha 0.54."""
    return _cosines("hamming", M, (0.54, 0.46), sym, dtype, device, requires_grad)


@factory
def hann(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """general_hamming with alpha 0.5."""
    return _cosines("hann", M, (0.5, 0.5), sym, dtype, device, requires_grad)


@factory
def blackman(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """general_cosine with a = (0.42, 0.5, 0.08)."""
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, dtype, device, requires_grad)


@factory
def nuttall(
    M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """general_cosine with four weights. Source: Nuttall 1981, "Some windows with very good sidelobe
    behavior"."""
    return _cosines("nuttall", M, _NUTTALL, sym, dtype, device, requires_grad)
