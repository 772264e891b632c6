"""docs/differences.md, Values: results that C++ or PyTorch leave undefined have one value here."""

import pytest

LOWEST = -(2**31)


def test_division_of_the_lowest_integer_wraps(tt):
    x = tt.tensor([LOWEST, 7], dtype=tt.int32)
    assert tt.floor_divide(x, tt.tensor([-1, 2], dtype=tt.int32)).tolist() == [LOWEST, 3]


def test_integer_division_by_zero_stores_nothing(tt):
    x = tt.tensor([6, 7])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        x.floor_divide_(tt.tensor([2, 0])).tolist()
    assert x.tolist() == [6, 7]


def test_shifts_past_the_width(tt):
    assert tt.bitwise_left_shift(tt.tensor([1, -8]), tt.tensor([70, 3])).tolist() == [0, -64]
    assert tt.bitwise_right_shift(tt.tensor([1, -8]), tt.tensor([70, 70])).tolist() == [0, -1]


def test_floats_out_of_range(tt):
    x = tt.tensor([1e20, -1e20, float("nan"), 3e9])
    assert x.to(tt.int64).tolist() == [2**63 - 1, -(2**63), 0, 3_000_000_000]
    assert x.to(tt.int32).tolist() == [-1, 0, 0, 3_000_000_000 - 2**32]
