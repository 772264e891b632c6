"""PyTorch's promotion: tensors, 0-d tensors, Python numbers; every pair of dtypes."""

import itertools

import numpy as np
import pytest
from arrays import ALL, FLOATS

ORDER = ["bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"]
NUMBERS = {"bool": True, "i64": 3, "f32": 2.5}  # category's default dtype: a Python number


def category(dtype):
    return 0 if dtype == "bool" else 2 if dtype in FLOATS else 1


def promote(a, b):
    if a == b:
        return a
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    return max(a, b, key=ORDER.index)


def wanted(operands):
    """operands: (dtype, rank of priority: 0 tensors, 1 0-d tensors, 2 numbers)."""
    levels = {}
    for dtype, level in operands:
        levels[level] = promote(levels[level], dtype) if level in levels else dtype
    result = None
    for level in sorted(levels):
        if result is None or category(levels[level]) > category(result):
            result = levels[level]
    return result


@pytest.mark.parametrize("a", ALL)
def test_pairs(lib, counts, a):
    for b, da, db in itertools.product(ALL, (0, 1), (0, 1)):
        x = lib.plain(np.ones((2,) if da == 0 else ()), a)
        y = lib.plain(np.ones((2,) if db == 0 else ()), b)
        want = wanted([(a, da), (b, db)])
        assert lib.name(x + y) == want, (a, da, b, db)
        assert lib.name(x * y) == want, (a, da, b, db)
        assert lib.name(x / y) == (want if want in FLOATS else "f32"), (a, da, b, db)
        assert lib.name(lib.m.maximum(x, y)) == want, (a, da, b, db)
        assert lib.name(lib.m.where(x != 0, x, y)) == want, (a, da, b, db)
        assert lib.name(x < y) == "bool"
        counts["promotion"] += 6
    for dtype, number in NUMBERS.items():
        x = lib.plain(np.ones(2), a)
        want = wanted([(a, 0), (dtype, 2)])
        assert lib.name(x + number) == want, (a, number)
        assert lib.name(number * x) == want, (a, number)
        counts["promotion"] += 2


def test_default_dtype(lib):
    m = lib.m
    assert lib.name(m.tensor(1.5)) == "f32" and lib.name(m.tensor([1, 2])) == "i64"
    m.set_default_dtype(m.float64)
    try:
        assert lib.name(m.tensor(1.5)) == "f64"
        assert lib.name(m.zeros(2)) == "f64"
        assert lib.name(m.ones(2, dtype=m.int64) / 2) == "f64"
        assert lib.name(m.ones(2, dtype=m.int64) * 2.5) == "f64"
    finally:
        m.set_default_dtype(m.float32)
