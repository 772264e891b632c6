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
    """An expanded view needs no memory, so a separate limit bounds the work on it."""
    x = tt.zeros(1).expand(2**40)
    assert x.shape == (2**40,)
    with pytest.raises(RuntimeError, match="sum: an operand of shape .* repeats 1 stored elements"):
        x.sum()
    assert tt.zeros(1).expand(1000).sum().item() == 0.0


FORMS = {
    "index": lambda tt, x, i: x[i],
    "index_put": lambda tt, x, i: x.__setitem__(i, 1.0),
    "accumulate": lambda tt, x, i: x.index_put_(i, tt.tensor(1.0), accumulate=True),
    "out of place": lambda tt, x, i: tt.index_put(x, i, tt.tensor(1.0)),
    "a traced program": lambda tt, x, i: tt.jit.trace(lambda y: y[i] + 1, (x,)),
    "a result of 0 elements": lambda tt, x, i: tt.zeros(5, 5, 5, 0)[i],
}


@pytest.mark.parametrize("form", FORMS)
def test_places_without_memory_are_refused_at_their_line(tt, form):
    """Index tensors that are small, and that broadcast to 2^61 + 8 places."""
    i = tt.zeros(1, dtype=tt.int64).reshape(1, 1, 1)
    x = tt.zeros(5, 5, 5)
    places = i.expand(40, 1, 1), i.expand(1, 107367629, 1), i.expand(1, 1, 536903681)
    with pytest.raises(RuntimeError, match=r"index(_put)?: indexing tensors broadcast to shape "
                                           r"\[40, 107367629, 536903681\]"):
        FORMS[form](tt, x, places)
    assert x.sum().item() == 0.0
    FORMS[form](tt, x, (i.expand(4, 1, 1), i.expand(1, 3, 1), i))
    assert x[0, 0, 0].item() in (0.0, 1.0, 12.0)
