"""Windows of the stream: the same results whatever is fused, errors at their own instruction."""

import numpy as np
import pytest


def crowd(tt):
    """The queue fills behind these."""
    x = tt.ones(1000, 1000)
    tt.synchronize()
    return x @ x @ x @ x


def test_an_error_inside_a_window_names_its_line_and_leaves_the_rest(tt):
    waiting = crowd(tt)
    x = tt.ones(4)
    a = x * 2 + 1
    wrong = tt.tensor([1, 2]) // tt.tensor([1, 0])  # the line
    b = (a - 1) * 3
    bad = wrong + 1
    with pytest.raises(RuntimeError, match="floor_divide: ZeroDivisionError") as caught:
        bad.numpy()
    assert "test_windows.py:18 in" in str(caught.value)  # the line above
    np.testing.assert_array_equal(b.numpy(), [6, 6, 6, 6])
    assert waiting.shape == (1000, 1000)


def test_names_that_are_dropped_or_kept_make_no_difference(tt):
    x = tt.tensor(np.linspace(-1, 1, 3000, dtype=np.float32))
    kept = []
    wanted = None
    for keep in (False, True):
        waiting = crowd(tt)
        y = x
        for _ in range(6):
            y = (y.sin() * x + 0.5).tanh()
            if keep:
                kept.append(y)
        total, whole = y.sum().item(), y.numpy().tobytes()
        assert wanted in (None, (total, whole))
        wanted = total, whole
        del waiting
    again = x
    for y in kept:
        again = (again.sin() * x + 0.5).tanh()
        assert y.numpy().tobytes() == again.numpy().tobytes()
