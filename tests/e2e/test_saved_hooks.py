"""saved_tensors_hooks: values that backward needs pass through Python."""

import numpy as np
import pytest


def test_pack_and_unpack(tt):
    log = []

    def pack(x):
        log.append(("pack", x.tolist(), x.requires_grad))
        return x.numpy()

    def unpack(kept):
        log.append("unpack")
        return tt.tensor(kept)

    w = tt.tensor([2.0, 3.0], requires_grad=True)
    with tt.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = w * w
        z = y.exp().sum()
    outside = (w * 5).sum()
    assert [entry[1] for entry in log[:2]] == [[2, 3], [2, 3]] and len(log) == 3
    assert all(entry[0] == "pack" and entry[2] is False for entry in log)
    (z + outside).backward()
    assert log.count("unpack") == 3
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.array([2, 3]) * np.exp([4.0, 9.0]) + 5, 1e-6)


def test_a_changed_value_is_what_backward_reads(tt):
    w = tt.tensor(3.0, requires_grad=True)
    with tt.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x * 0 + 100):
        y = w.square()
    y.backward()
    assert w.grad.item() == 200


def test_twice_freed_and_retained(tt):
    w = tt.tensor([1.0, 2.0], requires_grad=True)
    with tt.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
        y = (w ** 3).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert w.grad.tolist() == [6, 24]
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_in_place_code_after_the_save(tt):
    w = tt.tensor([1.0, 2.0], requires_grad=True)
    with tt.autograd.graph.save_on_cpu():
        x = w * 1
        y = x * x
        x.add_(10)
    y.sum().backward()
    assert w.grad.tolist() == [2, 4]


def test_functions_modules_and_nesting(tt):
    class Square(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    seen = []
    hooks = tt.autograd.graph.saved_tensors_hooks
    net = tt.nn.Sequential(tt.nn.Linear(3, 4), tt.nn.Tanh(), tt.nn.Linear(4, 1))
    x = tt.randn(5, 3)
    net(x).square().sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with hooks(lambda t: seen.append("outer") or t, lambda t: t), hooks(
            lambda t: seen.append("inner") or t, lambda t: t):
        loss = Square.apply(net(x)).sum()
    assert "inner" in seen and "outer" not in seen
    loss.backward()
    for p, g in zip(net.parameters(), want):
        np.testing.assert_allclose(p.grad.numpy(), g.numpy(), 1e-6)


def test_refusals(tt):
    w = tt.tensor([1.0, 2.0], requires_grad=True)
    hooks = tt.autograd.graph.saved_tensors_hooks

    def fails(x):
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), hooks(fails, lambda x: x):
        w * w
    with hooks(lambda x: x, lambda x: 7):
        y = (w * w).sum()
    with pytest.raises(TypeError, match="unpack_hook expected to be a Tensor but got result of type int"):
        y.backward()
    with hooks(lambda x: x, lambda x: x):
        y = (w * w).sum()
    with pytest.raises(RuntimeError, match="no history"):
        tt.autograd.grad(y, w, create_graph=True)
    with pytest.raises(RuntimeError, match="not here"), tt.autograd.graph.disable_saved_tensors_hooks(
            "not here"), hooks(lambda x: x, lambda x: x):
        pass
    assert (w * w).sum().item() == 5


def test_the_daemon_keeps_nothing(tt):
    """The saved values are packed as NumPy arrays in the client."""
    session = tt.current_session()
    x = tt.ones(1 << 18, requires_grad=True)
    before = session.memory()[0]["used"]
    with tt.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), tt.tensor):
        y = x
        for _ in range(6):
            y = y * y
        total = y.sum()
    del y
    assert total.item() == 1 << 18
    assert session.memory()[0]["used"] - before < 2 << 20  # seven tensors of 1 MiB were saved
    total.backward()
    assert x.grad.tolist()[:2] == [64, 64]
