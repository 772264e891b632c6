"""Checks that testing.assert_close accepts and refuses what PyTorch's does."""

import itertools

import numpy as np
import pytest
import teletensor
import torch

VALUES = [
    lambda m: m.tensor([1.0, 2.0]), lambda m: m.tensor([1.0, 2.0 + 1e-6]), lambda m: m.tensor([1.0, 2.1]),
    lambda m: m.tensor([1.0, float("nan")]), lambda m: m.tensor([float("inf"), 2.0]), lambda m: m.tensor([1, 2]),
    lambda m: m.tensor([1, 2], dtype=m.uint8), lambda m: m.tensor([True, False]), lambda m: m.tensor([[1.0, 2.0]]),
    lambda m: m.tensor([1.0, 2.0], dtype=m.float64), lambda m: m.tensor([1.0, 2.0 + 1e-6], dtype=m.float64),
    lambda m: m.tensor([1.0, 2.01], dtype=m.bfloat16), lambda m: m.tensor([1 + 1j, 2.0]), lambda m: m.ones(0),
    lambda m: 1.0, lambda m: 1, lambda m: m.tensor(1.0), lambda m: [1.0, 2.0], lambda m: {"a": m.ones(2)},
    lambda m: {"a": m.zeros(2)}, lambda m: [m.ones(2), m.zeros(1)], lambda m: None,
]
OPTIONS = [{}, {"equal_nan": True}, {"check_dtype": False}, {"rtol": 0.1, "atol": 0.0}, {"rtol": 0.0, "atol": 0.0},
           {"check_stride": True}]


def outcome(m, a, b, options):
    try:
        m.testing.assert_close(a(m), b(m), **options)
    except (AssertionError, TypeError, ValueError) as e:
        return type(e)
    return None


@pytest.fixture(scope="module", autouse=True)
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_pairs_are_close(options):
    for (i, a), (j, b) in itertools.product(enumerate(VALUES), repeat=2):
        wanted = outcome(torch, a, b, options)
        assert outcome(teletensor, a, b, options) is wanted, (i, j)


def test_messages():
    with pytest.raises(AssertionError, match=r"(?s)Tensor-likes are not close!.*Mismatched elements: 1 / 2 \(50.0%\)"):
        teletensor.testing.assert_close(teletensor.tensor([1.0, 2.0]), teletensor.tensor([1.0, 3.0]))
    with pytest.raises(AssertionError, match="^mine$"):
        teletensor.testing.assert_close(1.0, 2.0, msg="mine")
    with pytest.raises(AssertionError, match="item .1..'a'."):
        teletensor.testing.assert_close([1, {"a": np.ones(2)}], [1, {"a": np.zeros(2)}])
    with pytest.raises(ValueError, match="rtol and atol must both be specified"):
        teletensor.testing.assert_close(1.0, 1.0, rtol=1.0)
