"""Tests random ops: distributions, bounds, dtypes, seeds and the numbers of instructions."""

import numpy as np
import pytest
from arrays import FLOATS, INTS

N = 40_000


@pytest.fixture(autouse=True)
def seeded(lib, counts):
    lib.m.manual_seed(1234)
    counts["random"] += 1


def moments(a):
    a = a.astype(np.float64)
    return a.mean(), a.std()


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(lib, dtype):
    m = lib.m
    for x in (m.rand(N, dtype=lib.dtype(dtype)), m.empty(N, dtype=lib.dtype(dtype)).uniform_(0, 1)):
        a = lib.numpy(x)
        assert lib.name(x) == dtype and a.shape == (N,)
        assert (a >= 0).all() and (a < 1).all() if dtype in ("f32", "f64") else (a <= 1).all()
        mean, std = moments(a)
        assert abs(mean - 0.5) < 0.01 and abs(std - 12**-0.5) < 0.01
        if dtype in ("f32", "f64"):
            counted, _ = np.histogram(a, 50, (0, 1))
            chi = ((counted - N / 50) ** 2 / (N / 50)).sum()
            assert 15 < chi < 110  # there are 49 degrees of freedom
            assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.02
    a = lib.numpy(m.empty(N, dtype=lib.dtype(dtype)).uniform_(-3, 5))
    assert a.min() >= -3 and a.max() <= 5 and a.min() < -2.9 and a.max() > 4.9


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(lib, dtype):
    m = lib.m
    for x, want in ((m.randn(N, dtype=lib.dtype(dtype)), (0, 1)),
                    (m.empty(N, dtype=lib.dtype(dtype)).normal_(2, 3), (2, 3))):
        a = lib.numpy(x)
        mean, std = moments(a)
        assert lib.name(x) == dtype and abs(mean - want[0]) < 0.06 and abs(std - want[1]) < 0.06
        z = (a.astype(np.float64) - want[0]) / want[1]
        assert abs((z**3).mean()) < 0.1 and abs((z**4).mean() - 3) < 0.25
        assert (np.abs(z) < 7).all() and (np.abs(z) > 3).any()


@pytest.mark.parametrize("dtype", [*INTS, "f32"])
def test_randint(lib, dtype):
    a = lib.numpy(lib.m.randint(3, 11, (N,), dtype=lib.dtype(dtype)))
    counted = np.bincount(a.astype(np.int64), minlength=11)
    assert counted[:3].sum() == 0 and len(counted) == 11
    assert (np.abs(counted[3:] - N / 8) < 6 * (N / 8) ** 0.5).all()


def test_randint_defaults_and_errors(lib):
    m = lib.m
    x = m.randint(10, (5,))
    assert lib.name(x) == "i64" and tuple(x.shape) == (5,)
    with pytest.raises(RuntimeError):
        m.randint(5, 5, (2,))


def test_randperm(lib):
    for n in (0, 1, 2, 1000, 5000):
        a = lib.numpy(lib.m.randperm(n))
        assert a.dtype == np.int64 and sorted(a.tolist()) == list(range(n))
    assert (a != np.arange(5000)).mean() > 0.99


def test_bernoulli(lib):
    m = lib.m
    p = m.tensor([0.0, 0.25, 1.0]).expand(N, 3)
    a = lib.numpy(m.bernoulli(p))
    assert set(np.unique(a)) <= {0.0, 1.0}
    assert a[:, 0].sum() == 0 and a[:, 2].sum() == N and abs(a[:, 1].mean() - 0.25) < 0.02
    x = m.zeros(N)
    assert abs(lib.numpy(x.bernoulli_(0.7)).mean() - 0.7) < 0.02


def test_multinomial(lib):
    m = lib.m
    weights = m.tensor([1.0, 0.0, 3.0])
    a = lib.numpy(m.multinomial(weights, N, replacement=True))
    counted = np.bincount(a, minlength=3)
    assert counted[1] == 0 and abs(counted[2] / N - 0.75) < 0.02
    for _ in range(20):
        assert sorted(lib.numpy(m.multinomial(weights, 2)).tolist()) == [0, 2]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_dropout(lib, dtype):
    f = lib.m.nn.functional
    x = lib.plain(np.ones(N), dtype).requires_grad_()
    y = f.dropout(x, 0.25, training=True)
    a = lib.numpy(y).astype(np.float64)
    assert abs((a == 0).mean() - 0.25) < 0.02
    assert np.allclose(a[a != 0], 1 / 0.75, rtol=1e-2 if dtype in ("f16", "bf16") else 1e-6)
    y.sum().backward()
    assert np.array_equal(lib.numpy(x.grad), lib.numpy(y))  # forward and backward use the same mask
    assert np.array_equal(lib.numpy(f.dropout(x, 0.25, training=False)), lib.numpy(x))
    assert not lib.numpy(f.dropout(x, 1.0, training=True)).any()
    assert np.array_equal(lib.numpy(f.dropout(x, 0.0, training=True)), lib.numpy(x))
    with pytest.raises((RuntimeError, ValueError)):
        f.dropout(x, 1.5)


def draws(m):
    return [m.randn(7), m.rand(3, 3), m.randint(0, 100, (5,)), m.randperm(9), m.empty(4).normal_()]


def test_seeds_repeat(lib):
    m = lib.m
    first = [lib.numpy(x) for x in draws(m)]
    again = [lib.numpy(x) for x in draws(m)]
    m.manual_seed(1234)
    repeated = [lib.numpy(x) for x in draws(m)]
    m.manual_seed(1235)
    other = [lib.numpy(x) for x in draws(m)]
    for a, b, c, d in zip(first, repeated, again, other):
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c) and not np.array_equal(a, d)


def test_other_ops_do_not_shift_the_stream(lib):
    """Only random instructions are counted."""
    m = lib.m
    first = [lib.numpy(m.randn(6)), lib.numpy(m.randn(6))]
    m.manual_seed(1234)
    x = m.randn(6)
    for _ in range(50):
        m.ones(3).add_(1).sum().item()
    assert np.array_equal(lib.numpy(x), first[0]) and np.array_equal(lib.numpy(m.randn(6)), first[1])


def test_empty(lib):
    for dtype in ("bool", "u8", "i32", "i64", *FLOATS):
        x = lib.m.empty((2, 3), dtype=lib.dtype(dtype))
        assert tuple(x.shape) == (2, 3) and lib.name(x) == dtype and x.stride() == (3, 1)
        assert lib.numpy(x.fill_(1)).sum() == 6


def test_both_parts_of_complex_numbers_are_filled(lib):
    tt = lib.m
    low = tt.ones(50, dtype=tt.complex64).uniform_(2, 3)
    for part in (low.real, low.imag):
        assert 2 <= part.min().item() and part.max().item() <= 3
    for x in (tt.ones(20000, dtype=tt.complex128).normal_(2, 3),
              tt.normal(2.0, 3.0, (20000,), dtype=tt.complex128)):
        for part in (x.real, x.imag):
            assert abs(part.mean().item() - 2) < 0.1 and abs(part.std().item() - 4.5**0.5) < 0.1
