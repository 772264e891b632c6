"""Compares the gates of LSTM and GRU with the same formulas made from single ops: values, gradients,
layouts."""

import numpy as np
import pytest
from teletensor._names import ops as _ops

TOLERANCE = {"f64": 1e-12, "f32": 3e-6, "f16": 4e-3, "bf16": 3e-2}


def lstm(m, x, y, c):
    i, f, g, o = (x + y).chunk(4, -1)
    new = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
    return m.sigmoid(o) * m.tanh(new), new


def gru(m, x, y, h):
    (a, b, d), (e, f, g) = x.chunk(3, -1), y.chunk(3, -1)
    r, z = m.sigmoid(a + e), m.sigmoid(b + f)
    n = m.tanh(d + r * g)
    return ((1 - z) * n + z * h,)


def fused(m, kind, x, y, s):
    return _ops.lstm_gates(x, y, s) if kind == "lstm" else (_ops.gru_gates(x, y, s),)


RULES = {"lstm": (lstm, 4), "gru": (gru, 3)}
SHAPES = [(3, 5), (2, 3, 130), (1, 1), (0, 4), (3, 0), (7,)]


def operands(lib, shape, parts, dtype, turned=False):
    rng = np.random.default_rng(2)
    out = []
    for factor in (parts, parts, 1):
        whole = (*shape[:-1], shape[-1] * factor)
        x = lib.plain(rng.standard_normal(whole[::-1] if turned else whole), dtype)
        out.append((x.permute(*range(len(shape))[::-1]) if turned else x).detach().requires_grad_())
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", RULES)
def test_values_and_gradients(lib, kind, shape, dtype):
    m, (rule, parts) = lib.m, RULES[kind]
    for turned in (False, True):
        results = []
        for run in (lambda *a: fused(m, kind, *a), lambda *a: rule(m, *a)):
            leaves = operands(lib, shape, parts, dtype, turned)
            outputs = run(*leaves)
            sum((o * (i + 2)).sum() for i, o in enumerate(outputs)).backward()
            results.append([*outputs, *(leaf.grad for leaf in leaves)])
        for a, b in zip(*results):
            assert a.dtype == b.dtype and a.shape == b.shape
            assert np.allclose(lib.numpy(a), lib.numpy(b), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", RULES)
def test_derivatives_of_derivatives(lib, kind):
    m, (rule, parts) = lib.m, RULES[kind]
    results = []
    for run in (lambda *a: fused(m, kind, *a), lambda *a: rule(m, *a)):
        leaves = operands(lib, (2, 3), parts, "f64")
        outputs = run(*leaves)
        first = m.autograd.grad(sum((o ** 2).sum() for o in outputs), leaves, create_graph=True)
        second = m.autograd.grad(sum((g ** 3).sum() for g in first), leaves, create_graph=True)
        third = m.autograd.grad(sum((g ** 2).sum() for g in second), leaves)
        results.append([*first, *second, *third])
    for a, b in zip(*results):
        assert np.allclose(lib.numpy(a), lib.numpy(b), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(3, 130), (40, 7)])
@pytest.mark.parametrize("kind", RULES)
def test_no_element_depends_on_its_place(lib, kind, shape):
    m, (_, parts) = lib.m, RULES[kind]
    x, y, s = operands(lib, shape, parts, "f32")
    whole = fused(m, kind, x, y, s)[0]
    rows = [fused(m, kind, x[i], y[i], s[i])[0] for i in range(shape[0])]
    assert np.array_equal(lib.numpy(whole), lib.numpy(m.stack(rows)))


def test_refuses(lib):
    m = lib.m
    x, c = m.ones(2, 8), m.ones(2, 2)
    for bad in ((x, x, m.ones(2, 3)), (x, m.ones(2, 7), c), (x, x, c.double()), (m.ones(1, 8), x, c),
                (x.long(), x.long(), c.long()), (m.ones(()), m.ones(()), m.ones(()))):
        with pytest.raises(RuntimeError, match="lstm_gates"):
            _ops.lstm_gates(*bad)
