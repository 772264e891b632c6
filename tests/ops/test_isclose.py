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


@pytest.mark.parametrize("first, second", [("uint8", "int8"), ("int16", "int64"), ("bool", "int8"), ("float32", "int8"),
                                           ("float32", "float64")])
def test_two_dtypes_are_refused(tt, first, second):
    """As in PyTorch, also beside a 0-d tensor."""
    a, b = tt.ones(2, dtype=getattr(tt, first)), tt.ones(2, dtype=getattr(tt, second))
    for x, y in ((a, b), (b, a), (a, b[0])):
        for compare in (tt.isclose, tt.allclose):
            with pytest.raises(RuntimeError, match=r"\w+ did not match \w+"):
                compare(x, y)


def test_a_0d_operand(tt):
    x = tt.tensor([44, 200], dtype=tt.uint8)
    assert tt.isclose(x, tt.tensor(201, dtype=tt.uint8), atol=1, rtol=0).tolist() == [False, True]
    assert tt.isclose(tt.tensor(45, dtype=tt.uint8), x, atol=1, rtol=0).tolist() == [True, False]


def test_the_lowest_integer(tt):
    """It has no positive counterpart in its own dtype."""
    low, next_one = tt.tensor([-128], dtype=tt.int8), tt.tensor([-127], dtype=tt.int8)
    assert tt.isclose(next_one, low, rtol=0.01, atol=0).tolist() == [True]
    assert tt.isclose(low, next_one, rtol=0.01, atol=0).tolist() == [True]
    assert tt.isclose(low, next_one, rtol=0.001, atol=0).tolist() == [False]


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
    """True counts as 1 and False as 0."""
    a, b = tt.tensor([True, True, False, False]), tt.tensor([True, False, True, False])
    assert tt.isclose(a, b).tolist() == [True, False, False, True]
    assert tt.isclose(a, b, equal_nan=True).tolist() == [True, False, False, True]
    assert tt.isclose(a, b, atol=1).tolist() == [True] * 4
    assert tt.isclose(a, b, rtol=1, atol=0).tolist() == [True, False, True, True]
    assert tt.isclose(a, b, atol=float("inf")).tolist() == [True] * 4
    assert tt.allclose(a, b, atol=1) and not tt.allclose(a, b) and not a.allclose(b, rtol=1)
    with pytest.raises(RuntimeError, match="atol must be greater than or equal to zero, but got nan"):
        tt.isclose(a, b, atol=float("nan"))
