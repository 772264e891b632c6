"""Optimizer steps against the update rules in NumPy float64."""

import numpy as np
import pytest

SHAPES = [(3, 4), (), (5,), (0,), (1030,)]


def reference(kind, params, grads, steps, lr, **o):
    """The published rules; `grads` are fixed over the steps."""
    params = [p.copy() for p in params]
    first = [np.zeros_like(p) for p in params]
    second = [np.zeros_like(p) for p in params]
    decay = o.get("weight_decay", 0.0)
    for t in range(1, steps + 1):
        for i, grad in enumerate(grads):
            g = -grad if o.get("maximize") else grad
            if kind == "AdamW":
                params[i] -= lr * decay * params[i]
            elif decay:
                g = g + decay * params[i]
            if kind == "SGD":
                mu = o.get("momentum", 0.0)
                if mu:
                    first[i] = g if t == 1 else mu * first[i] + (1 - o.get("dampening", 0.0)) * g
                    g = g + mu * first[i] if o.get("nesterov") else first[i]
                params[i] -= lr * g
            else:
                b1, b2 = o.get("betas", (0.9, 0.999))
                first[i] = b1 * first[i] + (1 - b1) * g
                second[i] = b2 * second[i] + (1 - b2) * g * g
                hat = np.sqrt(second[i] / (1 - b2**t)) + o.get("eps", 1e-8)
                params[i] -= lr * first[i] / (1 - b1**t) / hat
    return params


CASES = [
    ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.8, "dampening": 0.3}), ("SGD", {"weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {}), ("Adam", {"betas": (0.8, 0.95), "eps": 1e-6}), ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {}), ("AdamW", {"weight_decay": 0.2}), ("Adam", {"maximize": True}),
]


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_rule(lib, counts, kind, options, dtype):
    counts["optimizer"] += 1
    if kind == "AdamW":
        options = {"weight_decay": 0.01, **options}
    rng = np.random.default_rng(4)
    start = [rng.standard_normal(s) for s in SHAPES]
    grads = [rng.standard_normal(s) for s in SHAPES]
    params = [lib.plain(np.asarray(p), dtype).requires_grad_() for p in start]
    held = [p.detach() for p in params]
    optimizer = getattr(lib.m.optim, kind)(params, lr=0.05, **options)
    for p, g in zip(params, grads):
        p.grad = lib.plain(np.asarray(g), dtype)
    for _ in range(4):
        optimizer.step()
    wanted = reference(kind, start, grads, 4, 0.05, **options)
    tolerance = {"f64": 1e-12, "f32": 2e-6, "bf16": 0.05}[dtype]
    for p, h, w in zip(params, held, wanted):
        assert np.allclose(lib.numpy(p), w, rtol=tolerance, atol=tolerance)
        assert np.array_equal(lib.numpy(h), lib.numpy(p))  # in place: who shares the cell sees it
        assert p.is_leaf and p.requires_grad


def test_parameters_without_gradient_stay(lib):
    m = lib.m
    a, b = m.ones(3, requires_grad=True), m.ones(3, requires_grad=True)
    optimizer = m.optim.Adam([a, b], lr=0.1)
    (a * 2).sum().backward()
    optimizer.step()
    assert b.tolist() == [1.0] * 3 and a.tolist() != [1.0] * 3
    optimizer.zero_grad()
    assert a.grad is None
    optimizer.step()  # nothing to do


def test_groups_and_state(lib):
    m = lib.m
    a, b = m.ones(2, requires_grad=True), m.ones(2, requires_grad=True)
    optimizer = m.optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.5, momentum=0.9)
    (a.sum() + b.sum()).backward()
    optimizer.step()
    assert a.tolist() == [0.5, 0.5] and b.tolist() == [0.0, 0.0]
    state = optimizer.state_dict()
    other = m.optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.5, momentum=0.9)
    other.load_state_dict(state)
    other.step()  # velocity 0.9 + 1
    assert np.allclose(a.tolist(), [0.5 - 0.5 * 1.9] * 2) and np.allclose(b.tolist(), [-1.9] * 2)


@pytest.mark.parametrize(("kind", "options"), [("SGD", {"lr": -1}), ("SGD", {"lr": 1, "momentum": -1}),
                                               ("SGD", {"lr": 1, "nesterov": True}), ("Adam", {"betas": (1.0, 0.9)})])
def test_refuses(lib, kind, options):
    with pytest.raises(ValueError, match=r"."):
        getattr(lib.m.optim, kind)([lib.m.ones(2, requires_grad=True)], **options)
