"""Compares statistics that are composed of several ops with NumPy."""

import numpy as np
import pytest

RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 5, 6))
HOLES = np.where(RNG.random(X.shape) < 0.3, np.nan, X)


@pytest.fixture
def t(lib, counts):
    counts["statistics"] += 1
    return lambda a, dtype="f64": lib.plain(np.asarray(a), dtype)


def same(lib, got, want, **tolerance):
    got = lib.numpy(got)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, **({"rtol": 1e-12, "atol": 1e-14} | tolerance))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_without_nan(lib, t, dim, keepdim):
    m = lib.m
    same(lib, m.nansum(t(HOLES), dim, keepdim), np.nansum(HOLES, axis=dim, keepdims=keepdim))
    same(lib, m.nanmean(t(HOLES), dim, keepdim), np.nanmean(HOLES, axis=dim, keepdims=keepdim))
    low, high = m.aminmax(t(X), dim=dim, keepdim=keepdim)
    same(lib, low, X.min(axis=dim, keepdims=keepdim))
    same(lib, high, X.max(axis=dim, keepdims=keepdim))
    ordered = np.sort(HOLES, axis=dim)
    count = (~np.isnan(HOLES)).sum(axis=dim, keepdims=True)
    want = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis=dim)
    found = m.nanmedian(t(HOLES), dim, keepdim)
    same(lib, found.values, want if keepdim else want.squeeze(dim))
    at = lib.numpy(found.indices if keepdim else found.indices.unsqueeze(dim))
    assert np.array_equal(np.take_along_axis(HOLES, at, axis=dim), want, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("shape", [(3, 5000), (3, 7), (1, 1), (200, 70), (2, 40, 33)])
def test_sums_without_nan_of_every_layout(lib, t, shape, dtype):
    m = lib.m
    holes = np.where(RNG.random(shape) < 0.3, np.nan, RNG.integers(-8, 9, shape)).astype(np.float32)
    for dim in [*range(len(shape)), None, (0, -1)]:
        same(lib, m.nansum(t(holes, dtype), dim), np.nansum(holes.astype(np.float64), axis=dim))
        same(lib, m.nansum(t(holes, dtype).transpose(0, -1), dim),
             np.nansum(holes.astype(np.float64).swapaxes(0, -1), axis=dim))
    x = t(np.array([[np.nan, np.inf], [2.0, -np.nan]]), dtype).requires_grad_()
    m.nansum(x, 0).sum().backward()
    assert lib.numpy(x.grad).tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize(("dim", "keepdim"), [(None, False), (None, True), (0, False), (1, True), (-1, False)])
def test_quantiles(lib, t, dim, keepdim, interpolation):
    for q in (0.0, 0.3, 1.0, np.array([0.1, 0.5, 0.99])):
        levels = t(q) if isinstance(q, np.ndarray) else q
        for name, x, reference in (("quantile", X, np.quantile), ("nanquantile", HOLES, np.nanquantile)):
            got = getattr(lib.m, name)(t(x), levels, dim, keepdim, interpolation=interpolation)
            same(lib, got, reference(x, q, axis=dim, keepdims=keepdim, method=interpolation))
    assert np.isnan(lib.numpy(lib.m.quantile(t([1.0, np.nan, 2.0]), 0.5)))
    with pytest.raises(RuntimeError, match="range"):
        lib.m.quantile(t(X), 1.5)
    with pytest.raises(RuntimeError, match="non-empty"):
        lib.m.quantile(t(np.zeros((0,))), 0.5)


def test_mode(lib, t):
    a = RNG.integers(0, 4, (7, 9))
    values, indices = (lib.numpy(v) for v in lib.m.mode(t(a, "i64"), 1))
    for row, value, index in zip(a, values, indices):
        counted = np.bincount(row)
        assert value == counted.argmax() and index == np.flatnonzero(row == value)[-1]


def test_spread_and_mean(lib, t):
    for name, reference in (("var_mean", np.var), ("std_mean", np.std)):
        spread, mean = getattr(lib.m, name)(t(X), 1, correction=0, keepdim=True)
        same(lib, spread, reference(X, axis=1, keepdims=True))
        same(lib, mean, X.mean(axis=1, keepdims=True))
        same(lib, getattr(lib.m, name)(t(X), False)[0], reference(X))


def test_histograms(lib, t):
    m, flat = lib.m, np.concatenate([X.ravel(), [0.0, 1.0, -1.0, 7.0]])
    same(lib, m.histc(t(flat), 10, -1, 1), np.histogram(flat, 10, (-1, 1))[0])
    same(lib, m.histc(t(flat), 7), np.histogram(flat, 7)[0])
    same(lib, m.histc(t([2.0, 2.0]), 4), [0, 0, 2, 0])
    for bins, limits in ((10, None), (10, (-2, 1.5)), (1, None)):
        got = m.histogram(t(flat), bins, range=limits)
        want = np.histogram(flat, bins, limits)
        same(lib, got.hist, want[0])
        same(lib, got.bin_edges, want[1])
    edges, w = np.array([-1.0, 0.0, 0.3, 2.0]), RNG.random(flat.shape)
    same(lib, m.histogram(t(flat), t(edges), weight=t(w)).hist, np.histogram(flat, edges, weights=w)[0])
    same(lib, m.histogram(t(flat), t(edges), density=True).hist, np.histogram(flat, edges, density=True)[0])
    points = RNG.normal(size=(50, 2))
    hist, both = m.histogramdd(t(points), [4, 3])
    want, wanted = np.histogramdd(points, [4, 3])
    same(lib, hist, want)
    for a, b in zip(both, wanted):
        same(lib, a, b)


def test_bincount(lib, t):
    m, a = lib.m, RNG.integers(0, 6, 40)
    same(lib, m.bincount(t(a, "i32")), np.bincount(a))
    w = RNG.random(40)
    same(lib, m.bincount(t(a, "u8"), t(w), 9), np.bincount(a, w, 9))
    same(lib, m.bincount(t(np.zeros(0), "i64"), minlength=3), [0, 0, 0])
    for bad in (t([-1, 2], "i64"), t([0.5]), t([[1]], "i64")):
        with pytest.raises(RuntimeError, match="1-d non-negative"):
            len(m.bincount(bad))


def test_covariances(lib, t):
    m, a = lib.m, RNG.normal(size=(3, 20))
    f, w = RNG.integers(1, 5, 20), RNG.random(20)
    same(lib, m.cov(t(a)), np.cov(a))
    same(lib, m.cov(t(a), correction=0, fweights=t(f, "i64")), np.cov(a, ddof=0, fweights=f))
    same(lib, m.cov(t(a), fweights=t(f, "i64"), aweights=t(w)), np.cov(a, fweights=f, aweights=w))
    same(lib, m.cov(t(a[0])), np.cov(a[0]))
    same(lib, m.corrcoef(t(a)), np.corrcoef(a))


def test_differences(lib, t):
    m = lib.m
    for n, dim in ((0, 0), (1, 0), (2, 1), (3, -1), (9, 0)):
        same(lib, m.diff(t(X), n, dim), np.diff(X, n, axis=dim))
    more = RNG.normal(size=(4, 2, 6))
    same(lib, m.diff(t(X), 1, 1, t(more), t(more[:, :1])), np.diff(X, 1, 1, more, more[:, :1]))
    assert np.array_equal(lib.numpy(m.diff(t([True, True, False], "bool"))), [False, True])
    at = np.sort(RNG.random(6))
    same(lib, m.trapezoid(t(X), t(at)), np.trapezoid(X, at))
    same(lib, m.trapz(t(X), dx=0.5, dim=1), np.trapezoid(X, dx=0.5, axis=1))
    running = np.cumsum((X[..., 1:] + X[..., :-1]) / 2 * np.diff(at), axis=-1)
    same(lib, m.cumulative_trapezoid(t(X), t(at)), running)
    for order in (1, 2):
        for got, want in zip(m.gradient(t(X), spacing=0.5, edge_order=order),
                             np.gradient(X, 0.5, edge_order=order)):
            same(lib, got, want)
    got = m.gradient(t(X), spacing=(t(at),), dim=2, edge_order=2)[0]
    same(lib, got, np.gradient(X, at, axis=2, edge_order=2), rtol=1e-9)


def test_renorm(lib, t):
    got = lib.numpy(lib.m.renorm(t(X), 2, 1, 2.0))
    norms = np.sqrt((got**2).sum(axis=(0, 2)))
    before = np.sqrt((X**2).sum(axis=(0, 2)))
    np.testing.assert_allclose(norms, np.minimum(before, 2.0), rtol=1e-6)


def test_products(lib, t):
    m = lib.m
    a, b, v, w = (RNG.normal(size=s) for s in ((3, 4), (4, 5), (4,), (3,)))
    batch, other = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 4, 5))
    c = RNG.normal(size=(3, 5))
    same(lib, m.addmv(t(w), t(a), t(v), beta=2, alpha=3), 2 * w + 3 * a @ v)
    same(lib, m.addr(t(a), t(w), t(v)), a + np.outer(w, v))
    same(lib, m.addbmm(t(c), t(batch), t(other), alpha=2), c + 2 * (batch @ other).sum(0))
    same(lib, m.baddbmm(t(c), t(batch), t(other), beta=0), batch @ other)
    same(lib, m.chain_matmul(t(a), t(b), t(c.T)), a @ b @ c.T)
    same(lib, m.inner(t(batch), t(a)), np.inner(batch, a))
    same(lib, m.ger(t(w), t(v)), np.outer(w, v))
    same(lib, m.vdot(t(v), t(v)), v @ v)
    same(lib, m.cross(t(a[:, :3]), t(c[:, :3]), dim=1), np.cross(a[:, :3], c[:, :3]))
    x = t(w)
    assert x.addmv_(t(a), t(v)) is x
    same(lib, x, w + a @ v)


def test_rounded_and_shared_forms(lib, t):
    m, x = lib.m, np.array([0.125, 1234.567, -2.5, 3.5])
    same(lib, m.round(t(x), decimals=2), np.round(x, 2))
    same(lib, t(x).round(decimals=-2), np.round(x, -2))
    same(lib, m.ldexp(t(x), t([1, 2, 3, -1], "i64")), np.ldexp(x, [1, 2, 3, -1]))
    assert lib.name(m.float_power(t([2, 3], "i32"), 2)) == "f64"
    same(lib, m.rsub(t(x), 1, alpha=2), 1 - 2 * x)
    same(lib, m.threshold(t(x), 1.0, -9.0), np.where(x > 1, x, -9))
    same(lib, m.dist(t(x), t(x[::-1].copy()), 1), np.abs(x - x[::-1]).sum())
    assert lib.numpy(m.isposinf(t([np.inf, -np.inf, 1]))).tolist() == [True, False, False]
    assert lib.numpy(m.isneginf(t([np.inf, -np.inf, 1]))).tolist() == [False, True, False]
    y = t(x)
    assert m.sin_(y) is y
    same(lib, y, np.sin(x))
