"""Compares the steps of optimizers with the update rules in NumPy float64."""

import numpy as np
import pytest

SHAPES = [(3, 4), (), (5,), (0,), (1030,)]


def adaptive(kind, t, lr, p, g, m, v, o):
    """(new p, m, v) by the update rules that were published after Adam; m and v are initially zero."""
    b1, b2 = o.get("betas", (0.9, 0.999))
    if kind in ("Adamax", "NAdam", "RAdam"):
        m = b1 * m + (1 - b1) * g
        if kind == "Adamax":
            v = np.maximum(b2 * v, np.abs(g) + 1e-8)
            return p - lr / (1 - b1**t) * m / v, m, v
        v = b2 * v + (1 - b2) * g * g
        if kind == "NAdam":
            mu = [b1 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in range(1, t + 2)]
            top = mu[t] * m / (1 - np.prod(mu)) + (1 - mu[t - 1]) * g / (1 - np.prod(mu[:t]))
            return p - lr * top / (np.sqrt(v / (1 - b2**t)) + 1e-8), m, v
        limit = 2 / (1 - b2) - 1
        rho = limit - 2 * t * b2**t / (1 - b2**t)
        if rho <= 5:
            return p - lr * m / (1 - b1**t), m, v
        r = np.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
        return p - lr * m / (1 - b1**t) * r * np.sqrt(1 - b2**t) / (np.sqrt(v) + 1e-8), m, v
    if kind == "Adagrad":
        m = m + g * g
        return p - lr / (1 + (t - 1) * o.get("lr_decay", 0)) * g / (np.sqrt(m) + 1e-10), m, v
    if kind == "Adadelta":
        m = 0.9 * m + 0.1 * g * g
        d = np.sqrt(v + 1e-6) / np.sqrt(m + 1e-6) * g
        return p - lr * d, m, 0.9 * v + 0.1 * d * d
    if kind == "RMSprop":
        m = 0.99 * m + 0.01 * g * g
        if o.get("momentum"):
            v = o["momentum"] * v + g / (np.sqrt(m) + 1e-8)
            return p - lr * v, m, v
        return p - lr * g / (np.sqrt(m) + 1e-8), m, v
    if kind == "Rprop":  # with fixed gradients the step grows by 1.2 from the second step on
        size = np.clip(lr * 1.2 ** (t - 1), 1e-6, 50)
        return p - np.sign(g) * size, g, v
    if kind == "ASGD":
        eta = lr / (1 + 1e-4 * lr * (t - 1)) ** 0.75 if t > 1 else lr
        return p * (1 - 1e-4 * eta) - eta * g, m, v
    raise KeyError(kind)


def reference(kind, params, grads, steps, lr, **o):
    """The published update rules; `grads` are the same in all steps."""
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
            elif kind not in ("Adam", "AdamW"):
                params[i], first[i], second[i] = adaptive(kind, t, lr, params[i], g, first[i], second[i], o)
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
    ("Adamax", {}), ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}), ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {}), ("RAdam", {"betas": (0.8, 0.5), "maximize": True}), ("Adagrad", {"lr_decay": 0.1}),
    ("Adagrad", {"weight_decay": 0.1}), ("Adadelta", {}), ("Adadelta", {"weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {"weight_decay": 0.1}), ("RMSprop", {"momentum": 0.5}), ("Rprop", {}), ("Rprop", {"maximize": True}),
    ("ASGD", {}), ("ASGD", {"weight_decay": 0.1, "maximize": True}),
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
        # the update is in place, so other references to the memory see it
        assert np.array_equal(lib.numpy(h), lib.numpy(p))
        assert p.is_leaf and p.requires_grad


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in CASES}))
def test_layout_does_not_matter(lib, kind):
    """A transposed parameter whose gradient has another layout, together with a contiguous one."""
    m = lib.m
    rng = np.random.default_rng(7)
    start, grad = rng.standard_normal((37, 9)), rng.standard_normal((37, 9))
    dense = m.tensor(start).requires_grad_()
    turned = m.tensor(start.T.copy()).t().requires_grad_()
    dense.grad, turned.grad = m.tensor(grad), m.tensor(grad)
    optimizer = getattr(m.optim, kind)([dense, turned], lr=0.1)
    for _ in range(3):
        optimizer.step()
    assert not turned.is_contiguous() and np.array_equal(lib.numpy(dense), lib.numpy(turned))
    assert not np.array_equal(lib.numpy(dense), start)


def test_hooks_and_names(lib):
    m = lib.m
    p = m.ones(2, requires_grad=True)
    optimizer = m.optim.SGD([("weight", p)], lr=1.0)
    assert optimizer.param_groups[0]["param_names"] == ["weight"]
    seen = []
    first = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(p.tolist()))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: seen.append(state.pop("more")))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    p.grad = m.ones(2)
    optimizer.step()
    first.remove()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before", [0.0, 0.0], [-1.0, -1.0], 1, "loaded"]


def test_a_written_optimizer(lib):
    """An optimizer as users write it: step() itself, under no_grad."""
    m = lib.m

    class Sign(m.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @m.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign() * -group["lr"])

    p = m.zeros(3, requires_grad=True)
    p.grad = m.tensor([2.0, -3.0, 0.0])
    optimizer = Sign([p])
    schedule = m.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    schedule.step()  # no warning, because the step was counted
    assert np.allclose(p.tolist(), [-0.1, 0.1, 0.0]) and calls == [1] and optimizer.param_groups[0]["lr"] == 0.05


def test_parameters_without_gradient_stay(lib):
    m = lib.m
    a, b = m.ones(3, requires_grad=True), m.ones(3, requires_grad=True)
    optimizer = m.optim.Adam([a, b], lr=0.1)
    (a * 2).sum().backward()
    optimizer.step()
    assert b.tolist() == [1.0] * 3 and a.tolist() != [1.0] * 3
    optimizer.zero_grad()
    assert a.grad is None
    optimizer.step()  # there is nothing to update


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
    other.step()  # the velocity is 0.9 + 1
    assert np.allclose(a.tolist(), [0.5 - 0.5 * 1.9] * 2) and np.allclose(b.tolist(), [-1.9] * 2)


@pytest.mark.parametrize(("kind", "options"), [("SGD", {"lr": -1}), ("SGD", {"lr": 1, "momentum": -1}),
                                               ("SGD", {"lr": 1, "nesterov": True}), ("Adam", {"betas": (1.0, 0.9)})])
def test_refuses(lib, kind, options):
    with pytest.raises(ValueError, match=r"."):
        getattr(lib.m.optim, kind)([lib.m.ones(2, requires_grad=True)], **options)
