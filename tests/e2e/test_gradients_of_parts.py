"""Gradients of many parts of one tensor are added into it part by part, not each through a tensor of its size."""

import numpy as np
import pytest


def backward_of(tt, parts):
    """The text of the program of one backward through these parts of a [12, 4] tensor."""
    def step(x):
        y = x * 2
        sum(part.sin().sum() * (k + 1) for k, part in enumerate(parts(y))).backward()

    x = tt.ones(12, 4, requires_grad=True)
    compiled = tt.compile(step)
    compiled(x)
    return str(compiled.program)


WAYS = {
    "unbind": lambda y: y.unbind(0), "iteration": list, "select": lambda y: [y[i] for i in range(12)],
    "columns": lambda y: [y[:, i] for i in range(4)], "split": lambda y: y.split(2),
    "chunk": lambda y: y.chunk(3, 1), "slices": lambda y: [y[i:i + 3] for i in range(0, 12, 3)],
    "of a view": lambda y: y.t().unbind(0), "windows": lambda y: [y[i:i + 4] for i in range(8)],
    "repeated": lambda y: [y[0:1].expand(3, 4)] * 3}


@pytest.mark.parametrize("name", [name for name in WAYS if name != "repeated"])
def test_one_whole_tensor_at_most(tt, name):
    text = backward_of(tt, WAYS[name])
    assert text.count("scatter_region(") == 1, text
    assert text.count("add_region(") == len(list(WAYS[name](tt.ones(12, 4)))) - 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex128"])
@pytest.mark.parametrize("parts", WAYS.values(), ids=WAYS)
def test_values(tt, parts, dtype):
    """Compares with the gradient of the same sum by an explicit gather."""
    kind = getattr(tt, dtype)
    x = tt.arange(48.0).reshape(12, 4).to(kind).requires_grad_()
    y = x * 1
    sum((part * (k + 1)).sum() for k, part in enumerate(parts(y))).real.backward()
    numbers = np.arange(48).reshape(12, 4)
    expected = np.zeros(48)
    for k, part in enumerate(parts(tt.tensor(numbers))):
        np.add.at(expected, part.numpy().reshape(-1), k + 1)
    got = x.grad.to(tt.complex128).numpy().real.reshape(-1)
    assert np.array_equal(got, expected)


def test_with_other_consumers_and_twice(tt):
    x = tt.arange(6.0).reshape(3, 2).requires_grad_()
    y = x * 1
    a, b, c = y.unbind(0)
    loss = (a * b * 2).sum() + (y * y).sum() + (b * c).sum() + (y.t() * 3).sum()
    (first,) = tt.autograd.grad(loss, x, create_graph=True)
    v = x.detach().numpy()
    expected = 2 * v + 3
    expected[0] += 2 * v[1]
    expected[1] += 2 * v[0] + v[2]
    expected[2] += v[1]
    assert np.allclose(first.detach().numpy(), expected)
    (first**2).sum().backward()
    jacobian = np.zeros((6, 6))
    for i in range(6):
        jacobian[i, i] = 2
    for i, j, n in ((0, 1, 2), (1, 2, 1)):
        for k in range(2):
            jacobian[2 * i + k, 2 * j + k] = jacobian[2 * j + k, 2 * i + k] = n
    assert np.allclose(x.grad.numpy().reshape(-1), 2 * jacobian.T @ expected.reshape(-1))


def test_hooks_see_their_gradients(tt):
    x = tt.ones(4, 2, requires_grad=True)
    y = x * 1
    seen = []
    parts = y.unbind(0)
    parts[2].register_hook(lambda g: g * 10)
    parts[1].grad_fn.register_hook(lambda given, got: seen.append(given[0].tolist()))
    y.retain_grad()
    sum(p.sum() * (k + 1) for k, p in enumerate(parts)).backward()
    assert x.grad[:, 0].tolist() == y.grad[:, 0].tolist() == [1, 2, 30, 4]
    assert seen == [[[0, 0], [2, 2], [0, 0], [0, 0]]]


def test_written_parts(tt):
    """For out[t] = value in a loop, the gradient of each write reads its part of the whole gradient."""
    w = tt.tensor(2.0, requires_grad=True)
    out = tt.zeros(5, 3)
    for t in range(5):
        out[t] = w * (t + 1)
    (out * tt.arange(1.0, 4)).sum().backward()
    assert w.grad.item() == 15 * 6


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers(tt, kind, batch_first):
    """The backward of a layer has one tensor of its gates' size, whatever the length of the sequence."""
    layer = getattr(tt.nn, kind)(3, 4, batch_first=batch_first)

    def step(x):
        layer(x)[0].sum().backward()

    for length in (4, 9):
        compiled = tt.compile(step)
        compiled(tt.ones(2, length, 3) if batch_first else tt.ones(length, 2, 3))
        assert str(compiled.program).count("scatter_region(") <= 2
        layer.zero_grad()
