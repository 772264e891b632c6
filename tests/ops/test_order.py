"""Compares sorting by digits, cumulative extremes of whole rows, and binary search with NumPy at the sizes
where the implementation changes."""

import numpy as np
import pytest

RANGES = [(0, 3), (-5, 50), (-2**40, 2**40), (2**62, 2**62 + 2**31), (-2**63, 2**63 - 1), (0, 2**32 - 1), (0, 2**32)]


@pytest.mark.parametrize("n", [100, 127, 128, 8191, 8192, 20000])
def test_integers_of_any_range_sort_stably(tt, n):
    rng = np.random.default_rng(n)
    for low, high in RANGES:
        a = rng.integers(low, high, n, dtype=np.int64, endpoint=True)
        for descending in (False, True):
            values, indices = tt.sort(tt.tensor(a), descending=descending, stable=True)
            want = np.argsort(~a if descending else a, kind="stable")
            np.testing.assert_array_equal(indices.numpy(), want)
            np.testing.assert_array_equal(values.numpy(), a[want])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "uint64", "float16", "float32",
                                   "float64"])
def test_every_dtype_sorts_stably(tt, dtype):
    rng = np.random.default_rng(1)
    for n in (3, 129, 1500, 9000):
        if dtype.startswith("float"):
            a = (30 * rng.normal(size=n)).astype(dtype)
            a[:3] = [np.nan, -0.0, 0.0]
            a[-3:] = [np.inf, np.nan, -np.inf]
        else:
            a = rng.integers(0, 100, n).astype(dtype)
            a[:2] = [np.iinfo(dtype).max, np.iinfo(dtype).min]
        np.testing.assert_array_equal(tt.argsort(tt.tensor(a), stable=True).numpy(), np.argsort(a, kind="stable"))
        two = np.stack([a, a[::-1]], 1)
        for dim in (0, 1):
            np.testing.assert_array_equal(tt.sort(tt.tensor(two), dim, stable=True)[1].numpy(),
                                          np.argsort(two, dim, kind="stable"))


def test_binary_search(tt):
    rng = np.random.default_rng(2)
    for n in (0, 1, 2, 3, 7, 8, 100):
        edges = np.sort(rng.integers(0, 30, n).astype(np.float32))
        wanted = np.concatenate([rng.uniform(-5, 35, 300), edges, [np.inf, -np.inf]]).astype(np.float32)
        for side in ("left", "right"):
            found = tt.searchsorted(tt.tensor(edges), tt.tensor(wanted), side=side)
            np.testing.assert_array_equal(found.numpy(), np.searchsorted(edges, wanted, side))


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "uint8"])
def test_cumulative_extremes_along_any_dim(tt, dtype):
    a = np.random.default_rng(3).integers(0, 5, (20, 3, 300)).astype(dtype)
    if dtype.startswith("float"):
        a[7, 1, 3] = a[0, 0, 0] = np.nan
    x = tt.tensor(a)
    seen = [(x, a), (x.transpose(0, 2), a.transpose(2, 1, 0)), (x[::2, :, ::3], a[::2, :, ::3])]
    for name, better in (("cummax", np.greater_equal), ("cummin", np.less_equal)):
        for (x, array), dim in ((pair, d) for pair in seen for d in range(3)):
            rows = np.moveaxis(array, dim, 0)
            best, at = rows[0].copy(), np.zeros(rows[0].shape, int)
            values, places = [best], [at]
            for r in range(1, len(rows)):
                take = (rows[r] != rows[r]) | ((best == best) & better(rows[r], best))
                best, at = np.where(take, rows[r], best), np.where(take, r, at)
                values.append(best)
                places.append(at)
            found = getattr(tt, name)(x, dim)
            np.testing.assert_array_equal(np.moveaxis(found.values.numpy(), dim, 0), values)
            np.testing.assert_array_equal(np.moveaxis(found.indices.numpy(), dim, 0), places)
    assert tt.cummax(tt.zeros(0, 5), 0).values.shape == (0, 5)
