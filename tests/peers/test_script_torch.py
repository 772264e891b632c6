"""Compares gradients through scripted loops and branches with PyTorch's, which runs the same function line
by line."""

import pytest
import teletensor as tt
import torch


def fixed_point(x, w, tolerance):
    """Iterates until the value converges; the number of iterations depends only on the data."""
    before = x + 1
    while (x - before).abs().sum() > tolerance:
        before = x
        x = (w * x).tanh() + 0.3
    return (x * w).sum()


def branches(x, w, tolerance):
    k = 0
    while x.abs().sum() < 40 + tolerance:
        if x.sum() > 5:
            x = x * w + 0.5
        elif x[0] > x[1]:
            x = x.flip(0) * 1.3
        else:
            x = x + w.exp()
            if k % 3 == 1:
                k += 2
                continue
        if x.sum() > 30:
            x = x / 2
            break
        k += 1
    if k > 4:
        return (x * x).mean()
    return x.sum() * k


def by_hand(x, w, tolerance):
    """A nested loop over a matrix."""
    m = x.unsqueeze(1) * w
    norm = (m * m).sum().sqrt()
    while norm > 1 + tolerance:
        m = m * 0.8
        inner = norm * 0
        while inner < 1:
            m = m.t() @ m * 0.5 + m
            inner = inner + 0.4
        m = m / (1 + (m * m).sum())
        norm = (m * m).sum().sqrt()
    return (m * m.sin()).sum()


def run(module, function, x, w, dtype):
    inputs = [module.tensor(v, dtype=getattr(module, dtype), requires_grad=True) for v in (x, w)]
    loss = function(*inputs, module.tensor(1e-3, dtype=getattr(module, dtype)))
    loss.backward()
    return loss.item(), *[[0.0] * 3 if t.grad is None else t.grad.tolist() for t in inputs]


POINTS = (([0.2, -0.4, 0.9], [0.5, 0.8, -0.3]), ([2.0, 1.0, 3.0], [0.9, 1.2, 0.4]),
          ([-3.0, 2.0, 0.1], [1.1, -0.6, 0.7]), ([50.0, 1.0, 1.0], [0.1, 0.2, 0.3]))


@pytest.mark.parametrize("function", [fixed_point, branches, by_hand])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients(function, dtype):
    scripted = tt.jit.script(function)
    for x, w in POINTS:
        found = run(tt, scripted, x, w, dtype)
        expected = run(torch, function, x, w, dtype)
        for a, b in zip(found, expected, strict=True):
            assert a == pytest.approx(b, rel=2e-4 if dtype == "float32" else 1e-9, abs=1e-6)
    assert len(scripted._cache) == 1 and scripted._latest.backward is not None


def penalty(module, function, x, w):
    """A penalty on the gradients, and its own gradient."""
    inputs = [module.tensor(v, dtype=module.float64, requires_grad=True) for v in (x, w)]
    loss = function(*inputs, module.tensor(1e-3, dtype=module.float64))
    firsts = module.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    total = sum((g * g).sum() for g in firsts if g is not None)
    seconds = module.autograd.grad(total, inputs, allow_unused=True) if total.requires_grad else [None] * 2
    return total.item(), *[[0.0] * 3 if g is None else g.tolist() for g in seconds]


@pytest.mark.parametrize("function", [fixed_point, branches, by_hand])
def test_second_derivatives(function):
    for x, w in POINTS:
        found, expected = penalty(tt, tt.jit.script(function), x, w), penalty(torch, function, x, w)
        for a, b in zip(found, expected, strict=True):
            assert a == pytest.approx(b, rel=1e-8, abs=1e-8)
