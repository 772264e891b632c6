"""Tests generators, and the distributions of the filling methods by moments and Kolmogorov-Smirnov tests
with fixed seeds."""

import numpy as np
import pytest
import scipy.stats as stats

N = 20_000


@pytest.fixture
def seeded(lib, counts):
    counts["random"] += 1
    return lib.m.Generator().manual_seed(77)


CONTINUOUS = [
    ("exponential_", (2.0,), stats.expon(scale=0.5)),
    ("log_normal_", (0.5, 0.75), stats.lognorm(0.75, scale=np.exp(0.5))),
    ("cauchy_", (1.0, 2.0), stats.cauchy(1, 2)),
    ("normal_", (-1.0, 3.0), stats.norm(-1, 3)),
    ("uniform_", (-1.0, 3.0), stats.uniform(-1, 4)),
]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("name", "args", "wanted"), CONTINUOUS, ids=[c[0] for c in CONTINUOUS])
def test_continuous(lib, seeded, name, args, wanted, dtype):
    x = lib.m.empty(N, dtype=lib.dtype(dtype))
    assert getattr(x, name)(*args, generator=seeded) is x
    assert stats.kstest(lib.numpy(x).astype(np.float64), wanted.cdf).pvalue > 1e-3


def fits(a, wanted):
    """A chi-square test over the values whose expected count is at least ten."""
    values = np.arange(a.min(), a.max() + 1)
    expected = wanted.pmf(values) * a.size
    counted = np.array([(a == v).sum() for v in values])
    keep = expected >= 10
    chi = ((counted - expected)[keep] ** 2 / expected[keep]).sum()
    assert keep.sum() > 1 and stats.chi2(keep.sum() - 1).sf(chi) > 1e-3
    assert abs(expected[keep].sum() - counted[keep].sum()) < 6 * (a.size - expected[keep].sum()) ** 0.5 + 30


@pytest.mark.parametrize("dtype", ["f32", "i64", "f16"])
def test_geometric(lib, seeded, dtype):
    a = lib.numpy(lib.m.empty(N, dtype=lib.dtype(dtype)).geometric_(0.3, generator=seeded)).astype(np.int64)
    fits(a, stats.geom(0.3))


@pytest.mark.parametrize("rate", [0.4, 6.0, 9.99, 10.0, 35.0, 4000.0])
def test_poisson(lib, seeded, rate):
    a = lib.numpy(lib.m.poisson(lib.m.full((N,), rate, dtype=lib.dtype("f64")), seeded))
    fits(a, stats.poisson(rate))


@pytest.mark.parametrize(("count", "p"), [(7, 0.3), (40, 0.9), (500, 0.4), (100_000, 0.5), (1000, 0.999)])
def test_binomial(lib, seeded, count, p):
    m, f64 = lib.m, lib.dtype("f64")
    a = lib.numpy(m.binomial(m.full((N,), float(count), dtype=f64), m.tensor(p, dtype=f64), seeded))
    assert a.min() >= 0 and a.max() <= count
    fits(a, stats.binom(count, p))


def test_edges_of_counts(lib, seeded):
    m = lib.m
    assert lib.numpy(m.poisson(m.zeros(3), seeded)).tolist() == [0, 0, 0]
    got = m.binomial(m.tensor([0.0, 5.0, 5.0]), m.tensor([0.5, 0.0, 1.0]), seeded)
    assert lib.numpy(got).tolist() == [0, 0, 5]
    for bad in (-1.0, float("nan")):
        with pytest.raises(RuntimeError, match="non-negative"):
            m.poisson(m.tensor([1.0, bad])).numpy()
    with pytest.raises(RuntimeError, match="prob"):
        m.binomial(m.tensor([2.0]), m.tensor([1.5])).numpy()


def test_normal_of_tensors(lib, seeded):
    m = lib.m
    mean, std = m.tensor([0.0, 10.0]), m.tensor([[1.0], [0.1]])
    a = lib.numpy(m.normal(mean.expand(2, 2), std.expand(2, 2), generator=seeded))
    assert a.shape == (2, 2) and abs(a[1, 1] - 10) < 1
    with pytest.raises(RuntimeError, match="std"):
        m.normal(0.0, -1.0, (3,))


def test_bernoulli_of_tensor_and_number(lib, seeded):
    m = lib.m
    p = m.tensor([0.0, 1.0, 0.5]).expand(N, 3)
    for a in (m.zeros((N, 3), dtype=lib.dtype("i64")).bernoulli_(p, generator=seeded),
              m.bernoulli(p, generator=seeded)):
        share = lib.numpy(a).mean(axis=0)
        assert share[0] == 0 and share[1] == 1 and abs(share[2] - 0.5) < 0.03
    assert abs(lib.numpy(m.bernoulli(p, 0.25, generator=seeded)).mean() - 0.25) < 0.02


@pytest.mark.parametrize("dtype", ["u8", "i32", "i64", "f16", "bf16", "f32", "f64"])
def test_random(lib, seeded, dtype):
    a = lib.numpy(lib.m.empty(N, dtype=lib.dtype(dtype)).random_(generator=seeded)).astype(np.float64)
    most = {"u8": 2**8, "i32": 2**31, "i64": 2**63, "f16": 2**11, "bf16": 2**8, "f32": 2**24, "f64": 2**53}[dtype]
    assert a.min() >= 0 and a.max() <= most and abs(a.mean() / most - 0.5) < 0.02
    b = lib.numpy(lib.m.empty(N, dtype=lib.dtype(dtype)).random_(3, 9, generator=seeded)).astype(np.int64)
    assert set(b.tolist()) == {3, 4, 5, 6, 7, 8}
    c = lib.numpy(lib.m.empty(N, dtype=lib.dtype(dtype)).random_(5, generator=seeded)).astype(np.int64)
    assert set(c.tolist()) == {0, 1, 2, 3, 4}


def draws(m, g):
    x = m.ones(4, 3)
    return [m.rand(5, generator=g), m.randn(2, 3, generator=g), m.randint(0, 9, (4,), generator=g),
            m.randperm(6, generator=g), m.rand_like(x, generator=g), m.randn_like(x, generator=g),
            m.randint_like(x, 2, 8, generator=g), m.bernoulli(x / 2, generator=g), m.poisson(x * 20, g),
            m.multinomial(x, 2, generator=g), m.normal(x, x, generator=g), m.empty(3).exponential_(generator=g),
            m.empty(3).cauchy_(generator=g), m.empty(3).normal_(generator=g), m.empty(3).uniform_(generator=g)]


def test_streams(lib, seeded):
    """The numbers of a generator depend only on its seed and on the numbers that were already drawn from
    it."""
    m = lib.m
    first = [lib.numpy(x) for x in draws(m, seeded)]
    assert seeded.initial_seed() == 77 and seeded.get_state() == (77, len(first))
    other = m.Generator().manual_seed(77)
    m.randn(3)  # uses the generator of the process
    m.ones(5).add_(1).sum().item()  # changes where frames and windows end
    repeated = [lib.numpy(x) for x in draws(m, other)]
    for a, b in zip(first, repeated, strict=True):
        assert np.array_equal(a, b)
    seeded.set_state((77, 1))
    assert np.array_equal(lib.numpy(m.randn(2, 3, generator=seeded)), first[1])
    assert seeded.seed() == seeded.initial_seed() != 77


def test_the_default_generator(lib):
    m = lib.m
    assert m.manual_seed(5) is m.default_generator and m.initial_seed() == 5
    a = lib.numpy(m.rand(4))
    state = m.default_generator.get_state()
    b = lib.numpy(m.rand(4))
    m.default_generator.set_state(state)
    assert np.array_equal(lib.numpy(m.rand(4)), b) and not np.array_equal(a, b)
    assert np.array_equal(lib.numpy(m.rand(4, generator=m.Generator().manual_seed(5))), a)


@pytest.mark.parametrize(("name", "args"), [
    ("exponential_", (0.0,)), ("geometric_", (0.0,)), ("geometric_", (1.0,)), ("log_normal_", (0.0, 0.0)),
    ("cauchy_", (0.0, 0.0)), ("bernoulli_", (1.5,)), ("normal_", (0.0, -1.0))])
def test_refused(lib, name, args):
    with pytest.raises(RuntimeError):
        getattr(lib.m.empty(3), name)(*args)
