"""Masked reductions and masked tensors (tests/peers/test_masked_torch.py compares them with PyTorch's)."""

import math

import pytest


@pytest.fixture
def x(tt):
    return tt.masked.masked_tensor(tt.tensor([[1.0, math.nan, 3.0], [-1.0, -2.0, 6.0]]),
                                   tt.tensor([[True, False, True], [False, False, True]]), requires_grad=True)


def test_reductions_with_a_mask(tt):
    data = tt.tensor([[1.0, 2.0, 4.0], [8.0, math.nan, math.inf]])
    mask = tt.tensor([[True, True, False], [True, False, False]])
    f = tt.masked
    assert f.sum(data, mask=mask).item() == 11
    assert f.mean(data, 1, mask=mask).tolist() == [1.5, 8]
    assert f.amax(data, 1, mask=mask).tolist() == [2, 8]
    assert f.softmax(data, 1, mask=mask)[:, 2].tolist() == [0, 0]
    assert f.median(data, 1, mask=mask).tolist() == [1, 8]
    assert f.sum(data, 0, mask=tt.tensor([True, False, False])).tolist() == [9, 0, 0]  # a mask is broadcast
    assert math.isnan(f.mean(data, mask=tt.zeros(2, 3, dtype=tt.bool)).item())


def test_gradients_ignore_elements_without_meaning(tt, x):
    x.log().sum().backward()
    assert tt.masked.is_masked_tensor(x.grad)
    for row, wanted in zip(x.grad.to_tensor(0).tolist(), [[1, 0, 1 / 3], [0, 0, 1 / 6]], strict=True):
        assert row == pytest.approx(wanted)
    data = tt.tensor([0.0, -1.0, 2.0], requires_grad=True)
    tt.masked.as_masked_tensor(data, tt.tensor([False, False, True])).sqrt().log().sum().backward()
    assert data.grad.tolist() == [0, 0, 0.25]


def test_functions_operators_and_methods(tt, x):
    two = tt.add(x, 1) - x
    assert two.sum().item() == 3 and (2 * x).amax(1).to_tensor(-1).tolist() == [6, 12]
    assert tt.cat([x, x]).shape == (4, 3) and x[0].get_mask().tolist() == [True, False, True]
    assert repr(x.detach()) == (
        "MaskedTensor(\n  [\n    [  1.0000,       --,   3.0000],\n    [      --,       --,   6.0000]\n  ]\n)")
    held = x.detach().clone()
    held *= 2
    held.add_(1)
    assert held.sum().item() == 23


def test_bad_input(tt, x):
    other = tt.masked.masked_tensor(tt.ones(2, 3), tt.ones(2, 3, dtype=tt.bool))
    with pytest.raises(ValueError, match="Input masks must match"):
        x + other
    with pytest.raises(NotImplementedError, match=r"inv\(\): there is no form for masked tensors"):
        tt.linalg.inv(x)
    with pytest.raises(NotImplementedError, match=r"sort\(\).*to_tensor"):
        x.sort()
    with pytest.raises(NotImplementedError, match="cannot be written into a tensor"):
        tt.ones(2, 3).add_(x)
    with pytest.raises(TypeError, match=r"to_tensor\(value\)"):
        x.numpy()
    with pytest.raises(ValueError, match="masked out"):
        x[1, 0].item()
    with pytest.raises(TypeError, match="mask must have dtype bool"):
        tt.masked.masked_tensor(tt.ones(2), tt.ones(2))
    with pytest.raises(TypeError, match="must be Tensor or MaskedTensor, not list"):
        tt.masked.sum([1.0])
    with pytest.raises(IndexError, match="more dimensions than the input"):
        tt.masked.sum(tt.ones(3), mask=tt.ones(2, 3, dtype=tt.bool))
