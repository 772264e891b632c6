"""ONNX operators for Fourier transforms and windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _api as tt, fft
from .._core import Tensor
from ._file import OnnxError
from ._table import Host, Ints, op
from ._values import bounded, dtype, type_name


def _transform(x: Tensor, length: int | None, axis: int, inverse: Any, onesided: Any) -> Tensor:
    """The last dimension of `x` and of the result contains real parts, or real and imaginary parts."""
    if x.dim() < 2 or x.shape[-1] not in (1, 2):
        raise OnnxError(f"the last size of {list(x.shape)} is neither 1 nor 2")
    signal = x[..., 0] if x.shape[-1] == 1 else tt.complex(x[..., 0], x[..., 1])
    axis = axis % x.dim() if axis >= 0 else axis + x.dim()
    if inverse and onesided:
        return fft.irfft(signal, length, axis).unsqueeze(-1)
    found = (fft.ifft if inverse else fft.fft)(signal, length, axis)
    if onesided:
        found = found.narrow(axis, 0, found.shape[axis] // 2 + 1)
    return tt.view_as_real(found).clone()


@op("DFT", since=20)
def dft(
    input: Tensor,
    dft_length: Ints | None = None,
    axis: Ints | None = None,
    *,
    inverse: Any = 0,
    onesided: Any = 0,
) -> Tensor:
    return _transform(
        input, dft_length[0] if dft_length else None, axis[0] if axis else -2, inverse, onesided
    )


@op("DFT", since=17)
def dft_17(
    input: Tensor, dft_length: Ints | None = None, *, axis: Any = 1, inverse: Any = 0, onesided: Any = 0
) -> Tensor:
    return _transform(input, dft_length[0] if dft_length else None, axis, inverse, onesided)


@op("STFT")
def stft(
    signal: Tensor,
    frame_step: Ints,
    window: Tensor | None = None,
    frame_length: Ints | None = None,
    *,
    onesided: Any = 1,
) -> Tensor:
    size = frame_length[0] if frame_length else window.shape[0] if window is not None else signal.shape[1]
    frames = [signal[..., 0].unfold(1, size, frame_step[0])]
    if signal.shape[-1] == 2:
        frames.append(signal[..., 1].unfold(1, size, frame_step[0]))
    stacked = tt.stack(frames if window is None else [f * window for f in frames], -1)
    return _transform(stacked, None, 2, 0, onesided)


def _window(name: str, terms: Callable[[Any], Any]) -> None:
    @op(name)
    def window(size: Ints, *, output_datatype: Any = 1, periodic: Any = 1) -> Any:
        count = size[0]
        bounded(count)
        angles = np.arange(count) * (2 * math.pi / (count if periodic else max(count - 1, 1)))
        return tt.tensor(terms(angles)).to(dtype(type_name(output_datatype)))


_window("HannWindow", lambda a: 0.5 - 0.5 * np.cos(a))
_window("HammingWindow", lambda a: 25 / 46 - 21 / 46 * np.cos(a))
_window("BlackmanWindow", lambda a: 0.42 - 0.5 * np.cos(a) + 0.08 * np.cos(2 * a))


@op("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Ints,
    dft_length: Ints,
    sample_rate: Ints,
    lower_edge_hertz: Host,
    upper_edge_hertz: Host,
    *,
    output_datatype: Any = 1,
) -> Any:
    bins, spectrum = num_mel_bins[0], dft_length[0] // 2 + 1
    low, high = (2595 * np.log10(1 + float(v) / 700) for v in (lower_edge_hertz, upper_edge_hertz))
    edges = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700 * (np.power(10, edges / 2595) - 1)
    places = (dft_length[0] + 1) * hertz // sample_rate[0]
    bounded(spectrum * bins)
    found = np.zeros((spectrum, bins))
    for i in range(bins):
        first, middle, last = (int(v) for v in places[i : i + 3])
        if middle == first:
            found[middle, i] = 1
        for j in range(first, middle + 1):
            if middle != first:
                found[j, i] = (j - first) / (middle - first)
        for j in range(middle, last):
            found[j, i] = (last - j) / (last - middle)
    return tt.tensor(found).to(dtype(type_name(output_datatype)))
