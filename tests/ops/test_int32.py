"""Compares int32, which is computed in 32 bits where that gives the result of 64 bits, with int64 truncated
to 32 bits."""

import numpy as np
import pytest

EDGES = np.array([0, 1, -1, 2, 31, 32, 33, 64, 2**31 - 1, -2**31, -2**31 + 1, 12345, -777], np.int64)
BINARY = ["add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge",
          "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"]
UNARY = ["neg", "abs", "sign", "square", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite",
         "bitwise_not", "relu", "logical_not", "positive"]


@pytest.fixture
def pairs(tt):
    a, b = (tt.tensor(x.astype(np.int32)) for x in np.meshgrid(EDGES, EDGES))
    return a, b, a.long(), b.long()


def cut(x):
    array = x.numpy()
    return array if array.dtype == np.bool_ else array.astype(np.int32)


@pytest.mark.parametrize("name", BINARY)
def test_of_two(tt, pairs, name):
    a, b, wide_a, wide_b = pairs
    op = getattr(tt, name)
    want = cut(op(wide_a, wide_b))
    np.testing.assert_array_equal(op(a, b).numpy(), want)
    np.testing.assert_array_equal(op(a.t(), b.t()).numpy(), want.T)
    np.testing.assert_array_equal(op(a[::2, 1:], b[::2, 1:]).numpy(), want[::2, 1:])
    np.testing.assert_array_equal(op(a[:1], b).numpy(), cut(op(wide_a[:1], wide_b)))
    for dtype in (tt.int8, tt.uint8, tt.int16):
        np.testing.assert_array_equal(op(a, b.to(dtype)).numpy(), cut(op(wide_a, b.to(dtype).long())))
    numbers = () if name.startswith(("logical", "f", "max", "min")) else (0, 3, -5, 2**31 - 1, -2**31)
    for number in (*numbers, *((2**31, -2**40) if name in ("add", "sub", "mul") else ())):
        np.testing.assert_array_equal(op(a, number).numpy(), cut(op(wide_a, number)))


@pytest.mark.parametrize("name", UNARY)
def test_of_one(tt, pairs, name):
    np.testing.assert_array_equal(getattr(tt, name)(pairs[0]).numpy(), cut(getattr(tt, name)(pairs[2])))


def test_shifts_have_the_dtypes_width(tt, pairs):
    a, b = pairs[:2]
    left, right = (a << b).tolist(), (a >> b).tolist()
    for x, k, shifted, back in zip(a.view(-1).tolist(), b.view(-1).tolist(), sum(left, []), sum(right, []),
                                   strict=True):
        fits = 0 <= k < 32
        assert back == (x >> k if fits else -(x < 0))
        assert shifted % 2**32 == ((x << k) % 2**32 if fits else 0)


def test_chains_and_in_place(tt, pairs):
    a, b, wide_a, wide_b = pairs
    np.testing.assert_array_equal(((a + b) * 3 - a).bitwise_xor(b).numpy(),
                                  cut(((wide_a + wide_b) * 3 - wide_a).bitwise_xor(wide_b)))
    x = a.clone()
    x += b
    x *= 2
    x -= 1
    np.testing.assert_array_equal(x.numpy(), cut((wide_a + wide_b) * 2 - 1))
