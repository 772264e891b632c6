"""Discrete Fourier transforms: the differentiable functions of torch.fft.

A transform of any length takes O(n log n) operations. Dtypes are float32, float64, complex64 and
complex128; integers are converted to the default dtype. `norm`: "backward" (1/n on the inverse transforms),
"ortho" (1/sqrt(n) on both), "forward" (1/n on the forward transforms). If a size n or s differs from the
input's, the input is trimmed or padded with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _core
from ._calls import checked as _checked, out as _out
from ._core import Tensor, ops
from ._functions.common import options, wrap_dim

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn",
    "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq",
    "rfftn",
]

Dims = Any


def _norm(norm: str | None, forward: bool) -> int:
    """The number for the kernel: 0 for no scaling, 1 for division by the square root of n, 2 for division
    by n."""
    if norm == "ortho":
        return 1
    if norm not in (None, "backward", "forward"):
        raise RuntimeError(f'Invalid normalization mode: "{norm}"')
    return 2 if (norm == "forward") == forward else 0


def _floating(x: Tensor) -> Tensor:
    name = str(x.dtype).split(".")[-1]
    if name in ("float16", "bfloat16"):
        raise NotImplementedError(f"Unsupported dtype {name}")
    return x if x.is_floating_point() or x.dtype.is_complex else x.to(_core.default_dtype())


def _complex(x: Tensor) -> Tensor:
    x = _floating(x)
    if x.dtype.is_complex:
        return x
    return x.to(_core.complex128 if x.dtype == _core.float64 else _core.complex64)


def _real(x: Tensor, name: str) -> Tensor:
    if x.dtype.is_complex:
        raise TypeError(f"{name} expects a floating point input tensor, but got {x.dtype}")
    return _floating(x)


def _resized(x: Tensor, dim: int, n: int) -> Tensor:
    """x trimmed, or padded with zeros at its end, to size n."""
    size = x._shape[dim]
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified")
    if n <= size:
        return x if n == size else x.narrow(dim, 0, n)
    shape = list(x._shape)
    shape[dim] = n - size
    return ops["cat"]([x, x.new_zeros(shape)], dim)


def _plan(x: Tensor, s: int | Sequence[int] | None, dim: Dims) -> tuple[list[int], list[int]]:
    """The dims and the signal sizes; -1 for the input's own size."""
    rank = x.dim()
    s = [s] if isinstance(s, int) else s
    if dim is not None:
        dims = [wrap_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
        if len(set(dims)) != len(dims):
            raise RuntimeError("FFT dims must be unique")
        if s is not None and len(s) != len(dims):
            raise RuntimeError("When given, dim and shape arguments must have the same length")
    elif s is not None:
        if len(s) > rank:
            raise RuntimeError(f"Got shape with {len(s)} values but input tensor only has {rank} "
                               "dimensions.")
        dims = list(range(rank - len(s), rank))
    else:
        dims = list(range(rank))
    sizes = [-1] * len(dims) if s is None else list(s)
    return dims, [x._shape[d] if n == -1 else n for d, n in zip(dims, sizes, strict=True)]


def _c2c(x: Tensor, s: Any, dim: Dims, norm: str | None, forward: bool) -> Tensor:
    x = _complex(x)
    dims, sizes = _plan(x, s, dim)
    for d, n in zip(dims, sizes, strict=True):
        x = _resized(x, d, n)
    return ops["fft_c2c"](x, dims, _norm(norm, forward), forward) if dims else x.clone()


def _r2c(x: Tensor, s: Any, dim: Dims, norm: str | None, name: str, forward: bool = True) -> Tensor:
    x = _real(x, name)
    dims, sizes = _plan(x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    for d, n in zip(dims, sizes, strict=True):
        x = _resized(x, d, n)
    if forward:
        return ops["fft_r2c"](x, dims, _norm(norm, True))
    out = ops["conj"](ops["fft_r2c"](x, dims[-1:], _norm(norm, False)))
    return ops["fft_c2c"](out, dims[:-1], _norm(norm, False), False) if dims[1:] else out


def _c2r(x: Tensor, s: Any, dim: Dims, norm: str | None, name: str, forward: bool = False) -> Tensor:
    x = _complex(x)
    last = None if s is None or s[-1] == -1 else s[-1]
    dims, sizes = _plan(x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    sizes[-1] = 2 * (x._shape[dims[-1]] - 1) if last is None else last
    if sizes[-1] < 1:
        raise RuntimeError(f"Invalid number of data points ({sizes[-1]}) specified")
    for d, n in zip(dims, [*sizes[:-1], sizes[-1] // 2 + 1], strict=True):
        x = _resized(x, d, n)
    if forward:
        if dims[1:]:
            x = ops["fft_c2c"](x, dims[:-1], _norm(norm, True), True)
        return ops["fft_c2r"](ops["conj"](x), dims[-1:], _norm(norm, True), sizes[-1])
    return ops["fft_c2r"](x, dims, _norm(norm, False), sizes[-1])


def _one(n: int | None) -> list[int] | None:
    return None if n is None else [n]


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform along dim: sum over j of x[j] exp(-2 pi i j k / n)."""
    return _c2c(input, _one(n), dim, norm, True)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of fft."""
    return _c2c(input, _one(n), dim, norm, False)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 elements of the transform of a real signal; the remaining ones are their
    conjugates."""
    return _r2c(input, _one(n), dim, norm, "rfft")


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of rfft: a real signal of n elements (by default 2 (m - 1) for an input of m
    elements)."""
    return _c2r(input, _one(n), dim, norm, "irfft")


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform, which is real, of a Hermitian signal whose first half is given."""
    return _c2r(input, _one(n), dim, norm, "hfft", True)


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of hfft: returns the first half of a Hermitian signal."""
    return _r2c(input, _one(n), dim, norm, "ihfft", False)


def fftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
         norm: str | None = None) -> Tensor:
    """fft along several dims: all dims, the last len(s) ones, or those in dim."""
    return _c2c(input, s, dim, norm, True)


def ifftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
          norm: str | None = None) -> Tensor:
    """The inverse of fftn."""
    return _c2c(input, s, dim, norm, False)


def rfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
          norm: str | None = None) -> Tensor:
    """fftn of a real tensor; only the first half of the last of the dims is returned."""
    return _r2c(input, s, dim, norm, "rfftn")


def irfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
           norm: str | None = None) -> Tensor:
    """The inverse of rfftn."""
    return _c2r(input, s, dim, norm, "irfftn")


def hfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
          norm: str | None = None) -> Tensor:
    """hfft along the last of the dims, and fft along the preceding ones."""
    return _c2r(input, s, dim, norm, "hfftn", True)


def ihfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims = None,
           norm: str | None = None) -> Tensor:
    """The inverse of hfftn."""
    return _r2c(input, s, dim, norm, "ihfftn", False)


def fft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
         norm: str | None = None) -> Tensor:
    """fftn along two dims."""
    return fftn(input, s, dim, norm)


def ifft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
          norm: str | None = None) -> Tensor:
    """ifftn along two dims."""
    return ifftn(input, s, dim, norm)


def rfft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
          norm: str | None = None) -> Tensor:
    """rfftn along two dims."""
    return rfftn(input, s, dim, norm)


def irfft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
           norm: str | None = None) -> Tensor:
    """irfftn along two dims."""
    return irfftn(input, s, dim, norm)


def hfft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
          norm: str | None = None) -> Tensor:
    """hfftn along two dims."""
    return hfftn(input, s, dim, norm)


def ihfft2(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1),
           norm: str | None = None) -> Tensor:
    """ihfftn along two dims."""
    return ihfftn(input, s, dim, norm)


# ---------------------------------------------------------------- frequencies


def _counted(start: int, end: int, d: float, n: int, dtype: Any, device: Any) -> Tensor:
    dtype, device = options(dtype, device)
    return ops["arange"](start, end, 1, dtype, device) * (1.0 / (n * d) if n * d else math.inf)


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None,
            requires_grad: bool = False) -> Tensor:
    """The frequencies of the elements of fft for samples at a distance of d: 0, 1, ..., -2, -1, divided by
    n d."""
    positive = _counted(0, (n + 1) // 2, d, n, dtype, device)
    out = ops["cat"]([positive, _counted(-(n // 2), 0, d, n, dtype, device)], 0)
    return out.requires_grad_() if requires_grad else out


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """The frequencies of the elements of rfft for samples at a distance of d: 0 to n // 2, divided by n
    d."""
    out = _counted(0, n // 2 + 1, d, n, dtype, device)
    return out.requires_grad_() if requires_grad else out


def _rolled(x: Tensor, dim: Dims, back: bool) -> Tensor:
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    for d in dims:
        n = x._shape[d]
        cut = n // 2 if back else n - n // 2
        if n > 1:
            x = ops["cat"]([x.narrow(d, cut, n - cut), x.narrow(d, 0, cut)], d)
    return x


def fftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """Swaps the two halves of the dims (all by default), so that frequency 0 is in the middle."""
    return _rolled(input, dim, False)


def ifftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """The inverse of fftshift."""
    return _rolled(input, dim, True)


_checked.attach(globals(), __all__)
_out.attach(globals(), _out.FFT)
