"""Tests PyTorch's type promotion: tensors, 0-d tensors, Python numbers, for every pair of dtypes. Where
PyTorch refuses a pair (uint16, uint32, uint64 with other integers), NumPy's rule holds."""

import itertools

import numpy as np
import pytest
from arrays import ALL, COMPLEX, FLOATS, INTS, NUMPY

EVERY = (*ALL, *COMPLEX)
NUMBERS = {"bool": True, "i64": 3, "f32": 2.5, "c64": 1.5j}  # Python numbers, by their default dtype


def category(dtype):
    return [dtype == "bool", dtype in INTS, dtype in FLOATS, dtype in COMPLEX].index(True)


def complex_of(dtype):
    return "c128" if dtype in ("f64", "c128") else "c64"


def promote(a, b):
    high, low = sorted((a, b), key=category, reverse=True)
    if high in COMPLEX:
        return "c128" if {"c128", "f64"} & {a, b} else "c64"
    if high in FLOATS:
        if low not in FLOATS:
            return high
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=FLOATS.index)
    wide = np.promote_types(NUMPY[a], NUMPY[b])
    return next(name for name, dtype in NUMPY.items() if np.dtype(dtype) == wide)


def wanted(operands):
    """The expected dtype. operands: (dtype, priority: 0 for tensors, 1 for 0-d tensors, 2 for numbers)."""
    levels = {}
    for dtype, level in operands:
        levels[level] = promote(levels[level], dtype) if level in levels else dtype
    result = None
    for level in sorted(levels, reverse=True):
        own = levels[level]
        if result is None or category(own) >= category(result):
            result = own
        elif own in FLOATS and result in COMPLEX:
            result = complex_of(own)
        else:
            result = promote(own, result)
    return result


@pytest.mark.parametrize("a", EVERY)
def test_pairs(lib, counts, a):
    for b, da, db in itertools.product(EVERY, (0, 1), (0, 1)):
        x = lib.plain(np.ones((2,) if da == 0 else ()), a)
        y = lib.plain(np.ones((2,) if db == 0 else ()), b)
        want = wanted([(a, da), (b, db)])
        inexact = want in FLOATS or want in COMPLEX
        assert lib.name(x + y) == want, (a, da, b, db)
        assert lib.name(x * y) == want, (a, da, b, db)
        assert lib.name(x / y) == (want if inexact else "f32"), (a, da, b, db)
        assert lib.name(lib.m.where(x != 0, x, y)) == want, (a, da, b, db)
        if want not in COMPLEX:
            assert lib.name(lib.m.maximum(x, y)) == want, (a, da, b, db)
            assert lib.name(x < y) == "bool"
        counts["promotion"] += 6
    for dtype, number in NUMBERS.items():
        x = lib.plain(np.ones(2), a)
        want = wanted([(a, 0), (dtype, 2)])
        assert lib.name(x + number) == want, (a, number)
        assert lib.name(number * x) == want, (a, number)
        counts["promotion"] += 2


def test_the_lattice_is_associative_where_it_widens():
    for a, b in itertools.product(EVERY, EVERY):
        both = promote(a, b)
        assert promote(both, a) == both and promote(both, b) == both, (a, b)


def test_values_of_mixed_integers(lib):
    m = lib.m
    high = m.tensor([2**63, 2**64 - 1], dtype=m.uint64)
    assert (high + m.tensor([1], dtype=m.uint8)).tolist() == [2**63 + 1, 0]
    assert (high // 2).tolist() == [2**62, 2**63 - 1]
    assert (high % 10).tolist() == [2**63 % 10, (2**64 - 1) % 10]
    assert (high > 2**63).tolist() == [False, True]
    assert (high == 2**64 - 1).tolist() == [False, True]
    assert (high >> 63).tolist() == [1, 1] and (high << 1).tolist() == [0, 2**64 - 2]
    assert lib.name(high + m.tensor([1])) == "f64"
    assert (m.tensor([-1], dtype=m.int8) + m.tensor([200], dtype=m.uint8)).tolist() == [199]
    assert m.tensor([-1], dtype=m.int8).to(m.uint64).tolist() == [2**64 - 1]
    assert high.to(m.float64).tolist() == [2.0**63, 2.0**64]
    assert m.tensor([2.0**63, 2.0**70, -1.0, float("nan")]).to(m.uint64).tolist() == \
        [2**63, 2**64 - 1, 2**64 - 1, 0]


def test_bool_powers(lib):
    m = lib.m
    b = m.tensor([True, False])
    assert lib.name(b ** 2) == "i64" and (b ** 2).tolist() == [1, 0]
    assert lib.name(b ** True) == "bool" and (b ** True).tolist() == [True, False]
    assert b.clamp(0, 1).tolist() == [1, 0] and lib.name(b.clamp(0, 1)) == "i64"


def test_default_dtype(lib):
    m = lib.m
    assert lib.name(m.tensor(1.5)) == "f32" and lib.name(m.tensor([1, 2])) == "i64"
    m.set_default_dtype(m.float64)
    try:
        assert lib.name(m.tensor(1.5)) == "f64"
        assert lib.name(m.zeros(2)) == "f64"
        assert lib.name(m.ones(2, dtype=m.int64) / 2) == "f64"
        assert lib.name(m.ones(2, dtype=m.int64) * 2.5) == "f64"
        assert lib.name(m.tensor(1.5j)) == "c128" == lib.name(m.ones(2, dtype=m.int64) * 1j)
        assert lib.name(m.ones(2, dtype=m.float32) * 1j) == "c64"
    finally:
        m.set_default_dtype(m.float32)
