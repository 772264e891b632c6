"""Every deviation of docs/differences.md about names, views, in-place writes and the tape.

One test a row, named after it, with the row's example and numbers.
"""

import pytest


@pytest.fixture
def leaf(tt):
    return lambda value=1.0: tt.tensor(value, requires_grad=True)


def test_d1_saved_tensor_modified(tt, leaf):
    w, x = leaf(), tt.tensor(2.0)
    y = x * w
    x.mul_(5)
    y.backward()
    assert w.grad.item() == 2.0
    assert x.item() == 10.0


def test_d2_data_write_after_save(tt, leaf):
    w, c = leaf(), tt.tensor(8.0)
    y = c * w
    c.data.mul_(100)
    y.backward()
    assert w.grad.item() == 8.0
    assert c.item() == 800.0


def test_d3_partial_overlap(tt):
    x = tt.arange(4, dtype=tt.float32)
    x[1:].add_(x[:-1])
    assert x.tolist() == [0.0, 1.0, 3.0, 5.0]


def test_d4_gradients_own_their_memory(tt):
    a = tt.zeros(2, 2, requires_grad=True)
    b = tt.zeros(2, 2, requires_grad=True)
    seed = tt.ones(4)
    (a.view(-1) + b.view(-1)).backward(seed)
    a.grad.mul_(2)
    assert a.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert b.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert seed.tolist() == [1.0] * 4


def test_d5_refusal_changes_nothing(tt, leaf):
    x, b = leaf(3.0), tt.ones(2, requires_grad=True)
    y = (x * x).sum()
    z = y + b.sum()
    y.backward()
    with pytest.raises(RuntimeError):
        z.backward()
    assert b.grad is None
    assert x.grad.item() == 6.0


def test_d6_recorded_fill_of_overlapping_view(tt, leaf):
    w = leaf()
    y = w * tt.ones(1, 3)
    with pytest.raises(RuntimeError):
        y.expand(2, 3).fill_(5.0)
    assert y.tolist() == [[1.0, 1.0, 1.0]]
    with tt.no_grad():
        y.expand(2, 3).fill_(5.0)
    assert y.tolist() == [[5.0, 5.0, 5.0]]


def test_d7_layout_of_gradients(tt):
    x = tt.ones(2, 3, requires_grad=True)
    seen = []
    y = x * 1
    y.register_hook(lambda g: seen.append(g.stride()))
    (gradient,) = tt.autograd.grad(y.sum(), [x])
    assert gradient.stride() == (3, 1) and gradient.is_contiguous()
    assert seen == [(3, 1)]
    t = tt.ones(2, 3).t().requires_grad_()
    t.sum().backward()
    assert t.grad.stride() == t.stride() == (1, 3)


def test_d8_recorded_write_into_overlapping_base(tt, leaf):
    w, x = leaf(), tt.zeros(1, 4)
    e = x.expand(3, 4).detach()
    with pytest.raises(RuntimeError):
        e[0].add_(w)
    assert x.tolist() == [[0.0] * 4]


def test_d9_data_assignment_with_views(tt):
    x, z = tt.zeros(4), tt.ones(4)
    v = x[1:]
    with pytest.raises(RuntimeError):
        x.data = z
    with pytest.raises(RuntimeError):
        v.data = tt.ones(3)
    assert x.tolist() == [0.0] * 4


def test_d10_overlapping_grad(tt):
    x = tt.zeros(2, requires_grad=True)
    with pytest.raises(RuntimeError):
        x.grad = tt.tensor([1.0]).expand(2)
    assert x.grad is None


def test_d11_stale_view_history(tt, leaf):
    w = leaf()
    y = tt.zeros(4)
    v = y[1:]
    y[0] = w
    v.retain_grad()
    (v * 2).sum().backward()
    assert v.grad.tolist() == [2.0, 2.0, 2.0]
    assert w.grad.item() == 0.0


def test_d12_outputs_are_separate_nodes(tt):
    y = tt.ones(2, 3, requires_grad=True) * 1
    a, b = y.unbind(0)
    seen = []
    a.register_hook(lambda g: seen.append(g))
    b.sum().backward()
    assert seen == []


def test_d13_flag_as_saved(tt, leaf):
    x, c = leaf(2.0), tt.tensor(3.0)
    y = x * c
    c.requires_grad_()
    (gradient,) = tt.autograd.grad(y, [x], create_graph=True)
    assert gradient.item() == 3.0
    assert not gradient.requires_grad
