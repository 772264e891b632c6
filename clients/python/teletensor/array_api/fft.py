"""The fft extension of the standard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import fft as _fft
from .._core import dtype as DType
from ._array import Array, require, unwrap, wrap
from ._creation import default_float

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft",
    "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip

_FLOATING = ("real floating", "complex floating")


def _one(name: str, kinds: Any, doc: str) -> Any:
    def call(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        tensor = unwrap(x, name)
        require(x.dtype, name, kinds)
        return wrap(getattr(_fft, name)(tensor, n=n, dim=axis, norm=norm))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _many(name: str, kinds: Any, doc: str) -> Any:
    def call(
        x: Array,
        /,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> Array:
        tensor = unwrap(x, name)
        require(x.dtype, name, kinds)
        if s is not None and axes is None:
            axes = tuple(range(x.ndim - len(s), x.ndim))
        dims = None if axes is None else tuple(axes)
        return wrap(
            getattr(_fft, name)(tensor, s=None if s is None else tuple(s), dim=dims, norm=norm)
        )

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


fft = _one("fft", _FLOATING, "The discrete Fourier transform along an axis.")
ifft = _one("ifft", _FLOATING, "The inverse of fft.")
rfft = _one("rfft", "real floating", "The first half of the transform of real numbers.")
irfft = _one("irfft", _FLOATING, "The inverse of rfft: real numbers.")
hfft = _one("hfft", _FLOATING, "The transform, real, of a signal with Hermitian symmetry.")
ihfft = _one("ihfft", "real floating", "The inverse of hfft.")
fftn = _many("fftn", _FLOATING, "The transform over several axes.")
ifftn = _many("ifftn", _FLOATING, "The inverse of fftn.")
rfftn = _many("rfftn", "real floating", "The transform of real numbers over several axes.")
irfftn = _many("irfftn", _FLOATING, "The inverse of rfftn.")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """The frequencies of the results of fft for n samples at a distance of d."""
    return wrap(_fft.fftfreq(n, d, dtype=dtype or default_float(), device=device))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """The frequencies of the results of rfft for n samples at a distance of d."""
    return wrap(_fft.rfftfreq(n, d, dtype=dtype or default_float(), device=device))


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Moves frequency 0 to the middle."""
    return wrap(_fft.fftshift(unwrap(x, "fftshift"), dim=axes))


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of fftshift."""
    return wrap(_fft.ifftshift(unwrap(x, "ifftshift"), dim=axes))
