"""Windows of the stream: the same results whatever is fused, errors at their own instruction."""

import numpy as np
import pytest
from support.busy import held


def test_an_error_inside_a_window_names_its_line_and_leaves_the_rest(tt):
    x = tt.ones(4)
    with held(tt, tt.current_session()):  # all commands have arrived when the first one runs
        a = x * 2 + 1
        wrong = tt.tensor([1, 2]) // tt.tensor([1, 0])  # the line
        b = (a - 1) * 3
        bad = wrong + 1
    with pytest.raises(RuntimeError, match="floor_divide: ZeroDivisionError") as caught:
        bad.numpy()
    assert "test_windows.py:12 in" in str(caught.value)  # the line above
    np.testing.assert_array_equal(b.numpy(), [6, 6, 6, 6])


def test_names_that_are_dropped_or_kept_make_no_difference(tt):
    x = tt.tensor(np.linspace(-1, 1, 3000, dtype=np.float32))
    kept = []
    wanted = None
    for keep in (False, True):
        with held(tt, tt.current_session()):
            y = x
            for _ in range(6):
                y = (y.sin() * x + 0.5).tanh()
                if keep:
                    kept.append(y)
            total = y.sum()
        found = total.item(), y.numpy().tobytes()
        assert wanted in (None, found)
        wanted = found
    again = x
    for y in kept:
        again = (again.sin() * x + 0.5).tanh()
        assert y.numpy().tobytes() == again.numpy().tobytes()


@pytest.mark.parametrize("shape", [(7, 1000), (5, 256), (3, 257), (4, 2049), (2, 3, 700), (2, 5, 255)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_operands_that_repeat_along_rows(tt, shape, dtype):
    rng = np.random.default_rng(0)
    a, column = ((rng.normal(size=s) * 9).astype(dtype) for s in (shape, (*shape[:-1], 1)))
    take = rng.random(column.shape) < 0.5
    x, c, t = tt.tensor(a), tt.tensor(column), tt.tensor(take)
    for got, want in ((x * c, a * column), (c - x, column - a), (x < c, a < column),
                      (tt.where(t, x, c), np.where(take, a, column))):
        assert np.array_equal(got.numpy(), want)
    product = tt.tensor((x * c).numpy())  # each step by itself
    step = tt.tensor((product + c).numpy())
    assert np.array_equal((((x * c) + c) * x).numpy(), (step * x).numpy())
    assert np.array_equal((x * c).sum(-1).numpy(), product.sum(-1).numpy())
