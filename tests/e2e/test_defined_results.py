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


def test_work_without_memory_is_refused_at_its_line(tt):
    """An expanded view needs no memory, so nothing else would bound the work on it."""
    x = tt.zeros(1).expand(2**40)
    assert x.shape == (2**40,)
    with pytest.raises(RuntimeError, match="sum: an operand of shape .* repeats 1 stored elements"):
        x.sum()
    assert tt.zeros(1).expand(1000).sum().item() == 0.0
