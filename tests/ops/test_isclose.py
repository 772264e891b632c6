"""Tests isclose and allclose of integers, which use the exact difference for all dtypes."""

import itertools
from fractions import Fraction

import pytest

INTEGERS = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def edges(tt, name):
    if name == "bool":
        return [0, 1]
    info = tt.iinfo(getattr(tt, name))
    return sorted({info.min, info.min + 1, info.min // 2, -1 if info.min else 0, 0, 1, 2, 10, 100,
                   info.max // 2, info.max // 2 + 1, info.max - 1, info.max})


def close(a, b, rtol, atol):
    """Computed in exact arithmetic; only the bound is a float64."""
    return a == b or abs(a - b) <= Fraction(abs(float(b)) * rtol + atol)


@pytest.mark.parametrize("name", INTEGERS)
def test_all_pairs_of_edges(tt, name):
    values = edges(tt, name)
    pairs = list(itertools.product(values, values))
    a = tt.tensor([p[0] for p in pairs], dtype=getattr(tt, name))
    b = tt.tensor([p[1] for p in pairs], dtype=getattr(tt, name))
    for rtol, atol in ((0, 0), (0, 1), (0, 60), (1e-5, 1e-8), (0.5, 0), (0, 2.0**63), (0, 2.0**64), (0, 1e300)):
        want = [close(x, y, rtol, atol) for x, y in pairs]
        assert tt.isclose(a, b, rtol=rtol, atol=atol).tolist() == want, (rtol, atol)
        for (x, y), one in list(zip(pairs, want, strict=True))[::7]:
            assert tt.allclose(tt.tensor([x], dtype=a.dtype), tt.tensor([y], dtype=a.dtype),
                               rtol=rtol, atol=atol) is one


@pytest.mark.parametrize("first, second", [
    ("uint8", "int8"), ("int8", "uint16"), ("uint32", "int64"), ("int16", "int64"), ("bool", "int8"),
    ("int64", "bool"), ("bool", "uint8"), ("bool", "uint64")])
def test_two_dtypes(tt, first, second):
    pairs = list(itertools.product(edges(tt, first), edges(tt, second)))
    a = tt.tensor([p[0] for p in pairs], dtype=getattr(tt, first))
    b = tt.tensor([p[1] for p in pairs], dtype=getattr(tt, second))
    for rtol, atol in ((0, 0), (0, 1), (1e-5, 1e-8)):
        assert tt.isclose(a, b, rtol=rtol, atol=atol).tolist() == [close(*p, rtol, atol) for p in pairs]


def test_a_0d_operand_keeps_its_value(tt):
    x = tt.tensor([44, 200], dtype=tt.uint8)
    assert tt.isclose(x, tt.tensor(300)).tolist() == [False, False]  # 300 would be 44 as a uint8
    assert tt.isclose(x, tt.tensor(201), atol=1, rtol=0).tolist() == [False, True]
    assert tt.isclose(tt.tensor(-56, dtype=tt.int8), tt.tensor([200], dtype=tt.uint8)).tolist() == [False]


def test_integers_beside_floats(tt):
    """The lowest integer has no positive counterpart in its own dtype."""
    low = tt.tensor([-128], dtype=tt.int8)
    assert tt.isclose(tt.tensor([-127.0]), low, rtol=0.01, atol=0).tolist() == [True]
    assert tt.isclose(tt.tensor([-127.0]), tt.tensor(-128, dtype=tt.int8), rtol=0.01, atol=0).tolist() == [True]
    assert tt.isclose(low, tt.tensor([-127.0]), rtol=0.01, atol=0).tolist() == [True]
    assert tt.isclose(tt.tensor([float("nan"), float("inf")]), tt.tensor([1, 2])).tolist() == [False, False]


def test_integers_on_both_sides_of_63_bits(tt):
    values = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
    assert tt.tensor(values, dtype=tt.uint64).tolist() == values
    assert tt.tensor([values, values[::-1]], dtype=tt.uint64).tolist() == [values, values[::-1]]
    assert tt.tensor([-1, 2**63], dtype=tt.uint64).tolist() == [2**64 - 1, 2**63]
    assert tt.tensor(values, dtype=tt.float64).tolist() == [float(v) for v in values]
    for dtype in (None, tt.int64, tt.uint8):
        with pytest.raises((ValueError, RuntimeError), match="uint64|overflow"):
            tt.tensor(values, dtype=dtype)


def test_bools(tt):
    """True counts as 1 and False as 0, as beside any other dtype."""
    a, b = tt.tensor([True, True, False, False]), tt.tensor([True, False, True, False])
    assert tt.isclose(a, b).tolist() == [True, False, False, True]
    assert tt.isclose(a, b, equal_nan=True).tolist() == [True, False, False, True]
    assert tt.isclose(a, b, atol=1).tolist() == [True] * 4
    assert tt.isclose(a, b, rtol=1, atol=0).tolist() == [True, False, True, True]
    assert tt.isclose(a, b, atol=float("inf")).tolist() == [True] * 4
    assert tt.isclose(a, b, atol=float("nan")).tolist() == tt.isclose(a.int(), b.int(), atol=float("nan")).tolist()
    assert tt.allclose(a, b, atol=1) and not tt.allclose(a, b) and not a.allclose(b, rtol=1)
    for dtype in (tt.uint8, tt.int64, tt.float32, tt.float16):
        assert tt.isclose(a, b.to(dtype), atol=1).tolist() == [True] * 4
        assert tt.isclose(a.to(dtype), b, rtol=1, atol=0).tolist() == [True, False, True, True]
