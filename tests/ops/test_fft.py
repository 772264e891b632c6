"""Tests Fourier transforms beyond the rows: mathematical laws at many lengths, precision, refusals."""

import numpy as np
import pytest


@pytest.fixture
def tt(lib):
    return lib.m


@pytest.mark.parametrize("n", [2**17, 100003, 2 * 50021, 3 * 5 * 7 * 11 * 13 * 2, 2**16 + 1])
def test_long_lines(tt, n):
    x = np.random.default_rng(n).standard_normal(n)
    got = tt.fft.rfft(tt.tensor(x))
    assert np.abs(got.numpy() - np.fft.rfft(x)).max() < 1e-11 * np.sqrt(n)
    assert np.abs(tt.fft.irfft(got, n).numpy() - x).max() < 1e-13 * np.log2(n)
    single = tt.fft.fft(tt.tensor(x.astype(np.float32)))
    assert single.dtype == tt.complex64
    error = np.abs(single.numpy() - np.fft.fft(x.astype(np.float32).astype(np.float64)))
    assert np.sqrt((error**2).mean()) < 5e-7 * np.sqrt(n)


def test_lines_of_any_dim_and_layout(tt):
    x = np.random.default_rng(1).standard_normal((9, 33, 20, 6))
    t = tt.tensor(x).permute(3, 1, 0, 2)
    y = x.transpose(3, 1, 0, 2)
    for dim in range(4):
        assert np.allclose(tt.fft.fft(t, dim=dim).numpy(), np.fft.fft(y, axis=dim), atol=1e-12)
        assert np.allclose(tt.fft.rfft(t, dim=dim).numpy(), np.fft.rfft(y, axis=dim), atol=1e-12)


def test_integers_and_dtypes(tt):
    x = tt.arange(6)
    assert tt.fft.fft(x).dtype == tt.complex64
    assert tt.fft.rfft(x.double()).dtype == tt.complex128
    assert tt.fft.irfft(x.to(tt.complex64)).dtype == tt.float32
    assert np.allclose(tt.fft.fft(x).numpy(), np.fft.fft(np.arange(6)), atol=1e-5)


def test_energy_is_kept(tt):
    x = tt.randn(3, 40, dtype=tt.complex128)
    y = tt.fft.fftn(x, norm="ortho")
    assert np.isclose((abs(x) ** 2).sum().item(), (abs(y) ** 2).sum().item())


@pytest.mark.parametrize(("call", "text"), [
    (lambda tt, x: tt.fft.fft(x, n=0), "data points"), (lambda tt, x: tt.fft.fft(x[:, :0]), "data points"),
    (lambda tt, x: tt.fft.fft(x, norm="none"), "normalization"), (lambda tt, x: tt.fft.rfft(x * 1j), "floating"),
    (lambda tt, x: tt.fft.fftn(x, dim=(0, 0)), "unique"), (lambda tt, x: tt.fft.fftn(x, s=(1, 2, 3)), "3 values"),
    (lambda tt, x: tt.fft.fftn(x, s=(1,), dim=(0, 1)), "same length"),
    (lambda tt, x: tt.fft.irfft(x[:, :1]), "data points"),
    (lambda tt, x: tt.fft.fft(x.half()), "dtype"), (lambda tt, x: tt.stft(x[0], 16), "return_complex"),
    (lambda tt, x: tt.stft(x[0], 99, return_complex=True), "dimension|padding"),
    (lambda tt, x: tt.istft(x, 4), "complex"),
    (lambda tt, x: tt.hann_window(-1), "non-negative")])
def test_refused(tt, call, text):
    with pytest.raises((RuntimeError, TypeError), match=f"(?i){text}"):
        call(tt, tt.ones(2, 5))


def test_dim_out_of_range(tt):
    with pytest.raises(IndexError):
        tt.fft.fft(tt.ones(2, 3), dim=2)


def test_plans_of_many_lengths(tt):
    """More lengths than the cache holds, in an order in which they are used again."""
    for _ in range(2):
        for n in range(1, 300):
            x = np.sin(np.arange(n))
            assert np.allclose(tt.fft.fft(tt.tensor(x)).numpy(), np.fft.fft(x), atol=1e-11)
