"""Rows for Fourier transforms and windows, compared with SciPy."""

import numpy as np
import scipy.fft
import scipy.signal
from arrays import In
from table import Row, Sample

REAL, COMPLEX = ("f32", "f64"), ("c64", "c128")
BOTH = (*REAL, *COMPLEX)
LENGTHS = (1, 2, 3, 4, 5, 8, 17, 30)
LARGE = (6, 7, 11, 12, 13, 16, 31, 34, 97, 100, 128, 1009, 1024, 1155)


def of(module, name):
    return lambda m, *args, **kwargs: getattr(getattr(m, module), name)(*args, **kwargs)


def reference(name):
    def call(x, **kwargs):
        several = name[-1] in "2n"
        renamed = {{"dim": "axes" if several else "axis"}.get(k, k): v for k, v in kwargs.items()}
        return getattr(scipy.fft, name)(x, **renamed)
    return call


def to_complex(dtype, sample):
    return "c128" if dtype in ("f64", "c128") else "c64"


def to_real(dtype, sample):
    return "f64" if dtype in ("f64", "c128") else "f32"


def lines(least=1, **kwargs):
    made = [Sample((In((n,), -1, 1),), kwargs) for n in LENGTHS if n >= least]
    made += [Sample((In((n,), -1, 1),), kwargs, None, False) for n in LARGE]
    made += [Sample((In(s, -1, 1, x),), kwargs) for s in ((3, 4), (2, 3, 5)) for x in ("plain", "transposed", "sliced", "expanded")]
    made += [Sample((In((4, 6), -1, 1),), {**kwargs, **more}) for more in (
        {"norm": "ortho"}, {"norm": "forward"}, {"norm": "backward"}, {"dim": 0}, {"n": 3}, {"n": 9}, {"n": 5, "dim": -2})]
    return [*made, Sample((In((0, 6), -1, 1),), kwargs), Sample((In((33, 17), -1, 1),), kwargs, None, False)]


def boxes(least=1, **kwargs):
    made = [Sample((In(s, -1, 1, x),), kwargs) for s, x in (((3, 4), "plain"), ((2, 3, 5), "transposed"), ((4, 3), "sliced"))]
    made += [Sample((In((3, 4, 5), -1, 1),), {**kwargs, **more}) for more in (
        {"dim": (0, 2)}, {"dim": (2, 0)}, {"s": (2, 6), "dim": (1, 0)}, {"norm": "ortho", "dim": (0, 1)}, {"norm": "forward", "dim": (-1,)})]
    return [*made, Sample((In((17, 20, 9), -1, 1),), kwargs, None, False)]


def row(name, made, dtypes, result):
    return Row(f"fft.{name}", of("fft", name), reference(name), made, dtypes, result, gradients=True, tolerance=16)


def squares(made):
    """Samples for transforms of two dims."""
    return [s for s in made if len(s.kwargs.get("dim", (0, 0))) == 2]


def window(name, reference, *arguments):
    return Row(name, lambda m, like, *args, **kwargs: getattr(m, name)(*args, dtype=like.dtype, **kwargs),
               lambda like, *args, **kwargs: reference(*args, **kwargs),
               [Sample((In((1,)), n, p, *arguments)) for n in (0, 1, 2, 5, 16) for p in (True, False)], REAL, tolerance=4)


def scipy_window(name):
    def call(n, periodic, *rest):
        return scipy.signal.get_window((name, *rest) if rest else name, n, periodic) if n else np.zeros(0)
    return call


def hamming(n, periodic, alpha, beta):
    k = np.arange(n)
    return alpha - beta * np.cos(2 * np.pi * k / (n + periodic - 1)) if n > 1 else np.ones(n)


def stft(m, x, n_fft, hop=None, win=None, **kwargs):
    w = None if win is None else m.hann_window(win, dtype=x.dtype)
    out = m.stft(x, n_fft, hop, win, w, return_complex=True, **kwargs)
    return m.view_as_real(out)


def stft_reference(x, n_fft, hop=None, win=None, center=True, pad_mode="reflect", normalized=False, onesided=True):
    hop, win = hop or n_fft // 4, win or n_fft
    w = scipy_window("hann")(win, True) if win != n_fft or hop * 4 != n_fft else np.ones(n_fft)
    w = np.pad(w, ((n_fft - win) // 2, n_fft - win - (n_fft - win) // 2))
    if center:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)], mode=pad_mode)
    frames = [x[..., i:i + n_fft] * w for i in range(0, x.shape[-1] - n_fft + 1, hop)]
    out = (np.fft.rfft if onesided else np.fft.fft)(np.stack(frames, -2), norm="ortho" if normalized else None)
    out = np.swapaxes(out, -1, -2)
    return np.stack([out.real, out.imag], -1)


def round_trip(m, x, n_fft, **kwargs):
    w = m.hann_window(n_fft, dtype=x.dtype)
    return m.istft(m.stft(x, n_fft, window=w, return_complex=True, **kwargs), n_fft, window=w, length=x.shape[-1], **kwargs)


def shift(name):
    return Row(f"fft.{name}", of("fft", name), lambda x, dim=None: getattr(np.fft, name)(x, dim), [
        Sample((In(s),), k) for s, k in (((5,), {}), ((4,), {}), ((3, 4), {}), ((3, 4), {"dim": 1}), ((1, 3, 5), {"dim": (0, 2)}), ((0,), {}))],
        (*BOTH, "i64"), gradients=True)


def frequencies(name):
    return Row(f"fft.{name}", lambda m, like, *args: getattr(m.fft, name)(*args, dtype=like.dtype),
               lambda like, *args: getattr(np.fft, name)(*args), [Sample((In((1,)), n, d)) for n in (1, 2, 5, 8) for d in (1.0, 0.5, 3.0)], REAL)


ROWS = [
    row("fft", lines(), BOTH, to_complex), row("ifft", lines(), BOTH, to_complex), row("rfft", lines(), REAL, to_complex),
    row("irfft", lines(2), BOTH, to_real), row("hfft", lines(2), BOTH, to_real), row("ihfft", lines(), REAL, to_complex),
    row("fftn", boxes(), BOTH, to_complex), row("ifftn", boxes(), BOTH, to_complex), row("rfftn", boxes(), REAL, to_complex),
    row("irfftn", boxes(2), BOTH, to_real), row("hfftn", boxes(2), BOTH, to_real), row("ihfftn", boxes(), REAL, to_complex),
    row("fft2", squares(boxes()), BOTH, to_complex), row("ifft2", squares(boxes()), BOTH, to_complex),
    row("rfft2", squares(boxes()), REAL, to_complex), row("irfft2", squares(boxes(2)), BOTH, to_real),
    row("hfft2", squares(boxes(2)), BOTH, to_real), row("ihfft2", squares(boxes()), REAL, to_complex),
    shift("fftshift"), shift("ifftshift"), frequencies("fftfreq"), frequencies("rfftfreq"),
    window("hann_window", scipy_window("hann")), window("blackman_window", scipy_window("blackman")),
    window("bartlett_window", scipy_window("bartlett")), window("kaiser_window", scipy_window("kaiser"), 7.5),
    window("hamming_window", hamming, 0.5, 0.4),
    Row("stft", stft, stft_reference, [Sample((In(s, -1, 1), *a), k) for s, a, k in (
        ((40,), (16,), {}), ((2, 40), (16, 5, 12), {}), ((40,), (16, 4, 10), {"center": False}), ((40,), (15, 4, 10), {"pad_mode": "constant"}),
        ((2, 40), (8,), {"normalized": True, "onesided": False}), ((33,), (8,), {"pad_mode": "reflect"}))], REAL, gradients=True, torch=False,
        tolerance=16),
    Row("istft", round_trip, lambda x, n_fft, **k: x, [Sample((In(s, -1, 1), 16), k) for s, k in (
        ((64,), {}), ((2, 61), {}), ((64,), {"normalized": True}), ((64,), {"onesided": False}))], REAL, gradients=True, tolerance=64),
]
NAMES = {r.op for r in ROWS}
