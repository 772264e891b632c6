"""Windows of signals, and the short-time Fourier transform."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .._tensors.convert import tensor
from .common import factory, made, options

__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "istft", "kaiser_window",
    "stft",
]


def window(name: str, length: int, periodic: bool, shape: Any, dtype: Any, device: Any,
            requires_grad: bool) -> Tensor:
    """A window with the values shape(k, n) for the elements k of a symmetric window of n; if `periodic`, a
    symmetric window of one more element without its last.

    Computed by the client in double precision.
    """
    if length < 0:
        raise RuntimeError(f"{name} requires non-negative window_length, got window_length={length}")
    dtype, device = options(dtype, device)
    if str(dtype).split(".")[-1] not in ("float16", "bfloat16", "float32", "float64"):
        raise RuntimeError(f"{name} expects floating point dtypes, got: {dtype}")
    n = length + periodic
    values = np.ones(length) if length <= 1 else shape(np.arange(length), n)
    out = tensor(values, dtype=_core.float64, device=device).to(dtype)
    return made(out, requires_grad)


@factory
def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                requires_grad: bool = False) -> Tensor:
    """The Hann window 0.5 - 0.5 cos(2 pi k / (n - 1)); periodic: one element longer, without the last
    element."""
    return window("hann_window", window_length, periodic,
                   lambda k, n: 0.5 - 0.5 * np.cos(2 * np.pi * k / (n - 1)), dtype, device, requires_grad)


@factory
def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46,
                   *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The Hamming window alpha - beta cos(2 pi k / (n - 1)); periodic: one element longer, without the last
    element."""
    return window("hamming_window", window_length, periodic,
                   lambda k, n: alpha - beta * np.cos(2 * np.pi * k / (n - 1)), dtype, device,
                   requires_grad)


@factory
def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None,
                    device: Any = None, requires_grad: bool = False) -> Tensor:
    """The Blackman window 0.42 - 0.5 cos(2 pi k / (n - 1)) + 0.08 cos(4 pi k / (n - 1))."""
    def shape(k: Any, n: int) -> Any:
        angle = 2 * np.pi * k / (n - 1)
        return np.maximum(0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle), 0)
    return window("blackman_window", window_length, periodic, shape, dtype, device, requires_grad)


@factory
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None,
                    device: Any = None, requires_grad: bool = False) -> Tensor:
    """The Bartlett window 1 - |2 k / (n - 1) - 1|, a triangle."""
    return window("bartlett_window", window_length, periodic,
                   lambda k, n: 1 - np.abs(2 * k / (n - 1) - 1), dtype, device, requires_grad)


@factory
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None,
                  device: Any = None, requires_grad: bool = False) -> Tensor:
    """The Kaiser window i0(beta sqrt(1 - (2 k / (n - 1) - 1)^2)) / i0(beta)."""
    return window("kaiser_window", window_length, periodic,
                   lambda k, n: np.i0(beta * np.sqrt(np.maximum(1 - (2 * k / (n - 1) - 1) ** 2, 0)))
                   / np.i0(float(beta)), dtype, device, requires_grad)


# ---------------------------------------------------------------- short-time Fourier transform

def _padded(x: Tensor, amount: int, mode: str) -> Tensor:
    """x of shape [batch, n] with `amount` elements added on both sides."""
    n = x._shape[-1]
    if mode == "constant":
        zeros = x.new_zeros(x._shape[0], amount)
        return ops["cat"]([zeros, x, zeros], -1)
    if mode not in ("reflect", "replicate", "circular"):
        raise RuntimeError(f"stft: unknown pad_mode {mode!r}")
    if mode == "reflect" and amount >= n:
        raise RuntimeError("stft: Padding size should be less than the corresponding input dimension, "
                           f"but got: padding ({amount}, {amount}) at dimension 2 of input [{n}]")
    places = _range(-amount, n + amount, x)
    if mode == "replicate":
        places = ops["clamp"](places, 0, n - 1)
    elif mode == "circular":
        places = ops["remainder"](places, n)
    else:
        places = (n - 1) - ops["abs"]((n - 1) - ops["abs"](places))
    return ops["index_select"](x, places, -1)


def _range(start: int, end: int, like: Tensor) -> Tensor:
    return ops["arange"](start, end, 1, _core.int64, like.device)


def _full_window(window: Tensor | None, length: int, n_fft: int, like: Tensor, name: str) -> Tensor:
    """The window in the middle of n_fft elements; the default window is all ones."""
    if window is None:
        dtype = _core.float64 if like.dtype in (_core.float64, _core.complex128) else _core.float32
        window = ops["full"](1, [length], dtype, like.device)
    if window.dim() != 1 or window._shape[0] != length:
        raise RuntimeError(f"{name}: expected a 1D window tensor of size equal to win_length={length}, "
                           f"but got window with size {list(window._shape)}")
    left = (n_fft - length) // 2
    if length == n_fft:
        return window
    return ops["cat"]([window.new_zeros(left), window, window.new_zeros(n_fft - length - left)], 0)


def _framing(name: str, n_fft: int, hop_length: int | None,
             win_length: int | None) -> tuple[int, int]:
    hop = n_fft // 4 if hop_length is None else hop_length
    win = n_fft if win_length is None else win_length
    if n_fft < 1:
        raise RuntimeError(f"{name}: expected 0 < n_fft, but got n_fft={n_fft}")
    if hop < 1:
        raise RuntimeError(f"{name}: expected hop_length > 0, but got hop_length={hop}")
    if not 0 < win <= n_fft:
        raise RuntimeError(f"{name}: expected 0 < win_length <= n_fft, but got win_length={win}")
    if name == "istft" and hop > win:
        raise RuntimeError(f"istft: expected 0 < hop_length <= win_length, but got hop_length={hop} and "
                           f"win_length={win}")
    return hop, win


def _places(frames: int, hop: int, n_fft: int, like: Tensor) -> Tensor:
    """The indices in the signal of the elements of each frame."""
    first = ops["unsqueeze"](_range(0, frames, like) * hop, 1)
    return ops["reshape"](first + _range(0, n_fft, like), (-1,))


def stft(input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
         window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect",
         normalized: bool = False, onesided: bool | None = None,
         return_complex: bool | None = None) -> Tensor:
    """Fourier transforms of windowed frames of a signal [n] or [batch, n]: [(batch,) bins, frames].

    Frame t begins at t * hop_length (default n_fft // 4); if `center`, the signal is first padded by n_fft
    // 2 on both sides. `normalized` divides by sqrt(n_fft). `onesided` (the default for real signals) keeps
    n_fft // 2 + 1 bins. With return_complex=False the real and imaginary parts are in a last dimension of
    size 2.
    """
    from .. import fft

    hop, win = _framing("stft", n_fft, hop_length, win_length)
    if input.dim() not in (1, 2):
        raise RuntimeError("stft: expected a 1D or 2D tensor")
    if not input.is_floating_point() and not input.dtype.is_complex:
        raise NotImplementedError("stft: expected a tensor of floating point or complex values")
    complex_result = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        if not complex_result:
            raise RuntimeError("stft requires the return_complex parameter be given for real inputs, "
                               "and will further require that return_complex=True in a future "
                               "PyTorch release.")
        return_complex = True
    if onesided is None:
        onesided = not complex_result
    if onesided and complex_result:
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    x = input.unsqueeze(0) if input.dim() == 1 else input
    if center:
        x = _padded(x, n_fft // 2, pad_mode)
    n = x._shape[-1]
    if n_fft > n:
        raise RuntimeError(f"stft: expected 0 < n_fft <= {n}, but got n_fft={n_fft}")
    cut = ops["unfold"](x, -1, n_fft, hop) * _full_window(window, win, n_fft, x, "stft")
    transform = fft.rfft if onesided else fft.fft
    out = transform(cut, norm="ortho" if normalized else None).transpose(1, 2)
    out = out.squeeze(0) if input.dim() == 1 else out
    return out if return_complex else ops["view_as_real"](out)


def istft(input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
          window: Tensor | None = None, center: bool = True, normalized: bool = False,
          onesided: bool | None = None, length: int | None = None,
          return_complex: bool = False) -> Tensor:
    """The signal whose stft is nearest to `input` [(batch,) bins, frames].

    Frames are weighted by the window and divided by the sum of its squares. If that sum is 0 somewhere (the
    windows do not overlap enough), reading the result raises RuntimeError. `length` trims or pads the
    signal.
    """
    from .. import fft

    hop, win = _framing("istft", n_fft, hop_length, win_length)
    if not input.dtype.is_complex:
        raise RuntimeError("istft requires a complex-valued input tensor matching the output from stft "
                           "with return_complex=True.")
    if input.dim() not in (2, 3):
        raise RuntimeError(f"istft: expected a tensor with 2 or 3 dimensions, but got {input.dim()}")
    x = (input.unsqueeze(0) if input.dim() == 2 else input).transpose(1, 2)
    batch, frames, bins = x._shape
    if onesided is None:
        onesided = bins != n_fft
    if bins != (n_fft // 2 + 1 if onesided else n_fft):
        raise RuntimeError("istft: expected the frequency dimension (3rd to the last) of the input "
                           f"tensor to match n_fft when onesided={onesided}, but got {bins}")
    if return_complex and onesided:
        raise RuntimeError("istft: cannot have onesided output if window or input is complex")
    scale = "ortho" if normalized else None
    if return_complex:
        cut = fft.ifft(x, norm=scale)
    else:
        cut = fft.irfft(x, n_fft, norm=scale)  # uses the first n_fft // 2 + 1 bins
    shape = _full_window(window, win, n_fft, x, "istft")
    cut = cut * shape
    n = n_fft + hop * (frames - 1)
    places = _places(frames, hop, n_fft, x)
    signal = ops["index_add"](cut.new_zeros(batch, n), places, cut.reshape(batch, frames * n_fft), -1)
    squares = (shape * shape).expand(frames, n_fft).reshape(frames * n_fft)
    envelope = ops["index_add"](squares.new_zeros(n), places, squares, -1)
    start = n_fft // 2 if center else 0
    end = n - (n_fft // 2 if center else 0) if length is None else min(start + length, n)
    envelope = envelope.narrow(0, start, end - start)
    gap = ops["any"](ops["le"](ops["abs"](envelope), 1e-11))
    envelope = ops["require"](envelope, ops["logical_not"](gap),
                              "istft: the squares of the windows sum to 0 somewhere")
    signal = signal.narrow(-1, start, end - start) / envelope
    if length is not None and length > end - start:
        signal = ops["cat"]([signal, signal.new_zeros(batch, length - (end - start))], -1)
    return signal.squeeze(0) if input.dim() == 2 else signal
