"""Optimizers and schedules against their formulas in NumPy."""

import math

import numpy as np
import pytest

SHAPES = [(3, 4), (4,), ()]


def gradients(step):
    generator = np.random.default_rng(100 + step)
    return [generator.normal(size=shape) for shape in SHAPES]


def sgd(values, lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
        maximize=False, steps=5):
    buffers = [None] * len(values)
    for step in range(steps):
        for i, g in enumerate(gradients(step)):
            g = (-g if maximize else g) + weight_decay * values[i]
            if momentum:
                b = buffers[i]
                b = buffers[i] = g if b is None else momentum * b + (1 - dampening) * g
                g = g + momentum * b if nesterov else b
            values[i] = values[i] - lr * g
    return values


def adam(values, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False,
         maximize=False, decoupled=False, steps=5):
    m, v, top = ([np.zeros(shape) for shape in SHAPES] for _ in range(3))
    for step in range(1, steps + 1):
        for i, g in enumerate(gradients(step - 1)):
            g = -g if maximize else g
            if decoupled:
                values[i] = values[i] * (1 - lr * weight_decay)
            else:
                g = g + weight_decay * values[i]
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g * g
            top[i] = np.maximum(top[i], v[i])
            root = np.sqrt((top if amsgrad else v)[i] / (1 - betas[1] ** step)) + eps
            values[i] = values[i] - lr * m[i] / (1 - betas[0] ** step) / root
    return values


def start():
    generator = np.random.default_rng(1)
    return [generator.normal(size=shape) for shape in SHAPES]


def train(tt, make, steps=5, first=0):
    params = [tt.nn.Parameter(tt.tensor(value)) for value in start()]
    optimizer = make(params)
    for step in range(first, first + steps):
        advance(tt, optimizer, params, step)
    return params, optimizer


def advance(tt, optimizer, params, step):
    optimizer.zero_grad()
    for parameter, gradient in zip(params, gradients(step), strict=True):
        parameter.grad = tt.tensor(gradient)
    optimizer.step()


def assert_equal(params, expected):
    for parameter, value in zip(params, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True, "maximize": True}, {"weight_decay": 0.2, "maximize": True},
], ids=str)
def test_sgd(tt, options):
    params, _ = train(tt, lambda p: tt.optim.SGD(p, lr=0.1, **options))
    assert_equal(params, sgd(start(), **options))


@pytest.mark.parametrize("options", [
    {}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True, "betas": (0.8, 0.9)}, {"eps": 0.1},
], ids=str)
def test_adam(tt, options):
    params, _ = train(tt, lambda p: tt.optim.Adam(p, lr=0.01, **options))
    assert_equal(params, adam(start(), **options))
    options = {"weight_decay": 0.01, **options}
    params, _ = train(tt, lambda p: tt.optim.AdamW(p, lr=0.01, **options))
    assert_equal(params, adam(start(), decoupled=True, **options))


def test_rate_as_a_tensor(tt):
    params, _ = train(tt, lambda p: tt.optim.SGD(p, lr=tt.tensor(0.1, dtype=tt.float64)))
    assert_equal(params, sgd(start()))


def test_groups_and_gradients_that_come_late(tt):
    late = tt.nn.Parameter(tt.zeros(2, dtype=tt.float64))
    never = tt.nn.Parameter(tt.ones(2))
    early = tt.nn.Parameter(tt.zeros(2, dtype=tt.float64))
    optimizer = tt.optim.Adam([{"params": [early, late]}, {"params": never, "lr": 9.0}], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        early.grad = tt.ones(2, dtype=tt.float64)
        if step == 2:
            late.grad = tt.ones(2, dtype=tt.float64) * 5
        optimizer.step()
    # Under constant gradients each step of Adam is lr.
    np.testing.assert_allclose(early.detach().numpy(), [-0.3, -0.3], rtol=1e-6)
    np.testing.assert_allclose(late.detach().numpy(), [-0.1, -0.1], rtol=1e-6)
    assert np.array_equal(never.detach().numpy(), [1, 1])
    assert optimizer.state[early]["step"] == 3 and optimizer.state[late]["step"] == 1
    assert never not in optimizer.state


@pytest.mark.parametrize("name, options", [
    ("SGD", {"momentum": 0.9, "dampening": 0.5}), ("Adam", {"amsgrad": True}), ("AdamW", {})])
def test_state_dict_goes_on(tt, tmp_path, name, options):
    def make(params):
        return getattr(tt.optim, name)(params, lr=0.1, **options)

    whole, _ = train(tt, make, steps=6)
    half, optimizer = train(tt, make, steps=3)
    tt.save({"optimizer": optimizer.state_dict(), "params": list(half)}, tmp_path / "half.st")
    saved = tt.load(tmp_path / "half.st")
    params = [tt.nn.Parameter(p) for p in saved["params"]]
    again = make(params)
    again.param_groups[0]["lr"] = 77.0
    again.load_state_dict(saved["optimizer"])
    for step in range(3, 6):
        advance(tt, again, params, step)
    for a, b in zip(params, whole, strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())


def test_state_dict_layout(tt):
    _, optimizer = train(tt, lambda p: tt.optim.SGD(p, lr=0.1, momentum=0.9), steps=1)
    state = optimizer.state_dict()
    assert list(state) == ["state", "param_groups"] and list(state["state"]) == [0, 1, 2]
    assert list(state["state"][0]) == ["momentum_buffer"]
    assert state["param_groups"][0]["params"] == [0, 1, 2]
    other = tt.optim.SGD([tt.nn.Parameter(tt.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="doesn't match the size"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict({"state": {}, "param_groups": []})
    optimizer.load_state_dict(state)
    assert not tt.shares_storage(list(optimizer.state.values())[0]["momentum_buffer"],
                                 state["state"][0]["momentum_buffer"])


def test_refusals(tt):
    p = tt.nn.Parameter(tt.ones(2))
    for arguments, error in [
        (([p], -1.0), "Invalid learning rate: -1.0"),
        (([p], 0.1, -0.5), "Invalid momentum value: -0.5"),
        (([p], 0.1, 0.0, 0.0, -1), "Invalid weight_decay value: -1"),
        (([p], 0.1, 0.0, 0.0, 0.0, True), "Nesterov momentum requires"),
        (([], 0.1), "empty parameter list"),
        (([p, p], 0.1), "appear twice"),
        (([{"params": p}, {"params": [p]}], 0.1), "more than one parameter group"),
        (([p * 2], 0.1), "non-leaf"),
    ]:
        with pytest.raises(ValueError, match=error):
            tt.optim.SGD(*arguments)
    for bad in (p, [3], [{"params": [1]}]):
        with pytest.raises(TypeError):
            tt.optim.SGD(bad, 0.1)
    with pytest.raises(ValueError, match="Invalid beta parameter at index 1: 1.0"):
        tt.optim.Adam([p], betas=(0.9, 1.0))
    assert repr(tt.optim.SGD([p], lr=0.5)).startswith("SGD (\nParameter Group 0\n    dampening: 0\n")


def test_closure_and_zero_grad(tt):
    p = tt.nn.Parameter(tt.tensor([3.0]))
    optimizer = tt.optim.SGD([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with tt.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == 9.0 and p.item() == pytest.approx(2.4)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.item() == 0.0
    optimizer.zero_grad()
    assert p.grad is None and p.is_leaf and p.requires_grad


def rates(tt, make, steps):
    optimizer = tt.optim.SGD([tt.nn.Parameter(tt.ones(1))], lr=0.5)
    scheduler = make(optimizer)
    seen = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


SCHEDULES = {
    "StepLR": ((3, 0.5), lambda e: 0.5 * 0.5 ** (e // 3)),
    "MultiStepLR": (([2, 5],), lambda e: 0.5 * 0.1 ** ((e >= 2) + (e >= 5))),
    "ExponentialLR": ((0.9,), lambda e: 0.5 * 0.9**e),
    "LambdaLR": ((lambda e: 1 / (e + 1),), lambda e: 0.5 / (e + 1)),
    "MultiplicativeLR": ((lambda e: 0.8,), lambda e: 0.5 * 0.8**e),
    "CosineAnnealingLR": ((4, 0.1), lambda e: 0.1 + 0.4 * (1 + math.cos(math.pi * e / 4)) / 2),
    "ConstantLR": ((0.25, 3), lambda e: 0.5 * (0.25 if e < 3 else 1)),
    "LinearLR": ((0.5, 1.0, 4), lambda e: 0.5 * min(1.0, 0.5 + 0.125 * e)),
    "PolynomialLR": ((5, 2.0), lambda e: 0.5 * max(0.0, 1 - e / 5) ** 2),
    "CosineAnnealingWarmRestarts": (
        (3,), lambda e: 0.5 * (1 + math.cos(math.pi * (e % 3) / 3)) / 2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(tt, name):
    arguments, formula = SCHEDULES[name]
    seen = rates(tt, lambda o: getattr(tt.optim.lr_scheduler, name)(o, *arguments), 9)
    assert seen == pytest.approx([formula(epoch) for epoch in range(10)], abs=1e-12)


def test_sequence_one_cycle_plateau(tt):
    schedules = tt.optim.lr_scheduler
    seen = rates(tt, lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.1, 2), schedules.ExponentialLR(o, 0.5)], [3]), 5)
    assert seen == pytest.approx([0.05, 0.05, 0.5, 0.5, 0.25, 0.125])
    seen = rates(tt, lambda o: schedules.OneCycleLR(o, 1.0, total_steps=10), 9)
    assert seen[0] == pytest.approx(0.04) and seen[2] == pytest.approx(1.0)
    assert seen[-1] == pytest.approx(0.04 / 1e4) and max(seen) == seen[2]
    optimizer = tt.optim.SGD([tt.nn.Parameter(tt.ones(1))], lr=0.5)
    plateau = schedules.ReduceLROnPlateau(optimizer, patience=1)
    for value in (3.0, 2.0, 2.0, tt.tensor(2.0), 2.0, 1.0):
        plateau.step(value)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_scheduler_state_and_order(tt):
    optimizer = tt.optim.SGD([tt.nn.Parameter(tt.ones(1))], lr=0.5)
    scheduler = tt.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()
    state = scheduler.state_dict()
    assert "optimizer" not in state and state["last_epoch"] == 1
    other = tt.optim.lr_scheduler.StepLR(optimizer, 5)
    other.load_state_dict(state)
    assert other.step_size == 2 and other.last_epoch == 1


def test_training_needs_no_more_memory_with_time(tt):
    nn, data = tt.nn, tt.utils.data
    model = nn.Sequential(nn.Linear(4, 10), nn.LayerNorm(10), nn.GELU(), nn.Dropout(0.1),
                          nn.Linear(10, 3))
    optimizer = tt.optim.AdamW(model.parameters(), lr=1e-3)
    batches = data.DataLoader(data.TensorDataset(tt.randn(64, 4), tt.randint(0, 3, (64,))), 16,
                              shuffle=True)
    used = []
    for _ in range(8):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        used += [m["used"] for m in tt.current_session().memory() if m["device"] == "cpu"]
    # Memory that the last lines released may still be counted: a few KB of one step.
    assert max(used[4:]) < max(used[:4]) + 8192


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_training_in_other_dtypes(tt, dtype):
    tt.manual_seed(2)
    model = tt.nn.Sequential(tt.nn.Linear(2, 16), tt.nn.Tanh(), tt.nn.Linear(16, 1))
    model.to(getattr(tt, dtype))
    optimizer = tt.optim.AdamW(model.parameters(), lr=0.02, eps=1e-4)
    x = tt.randn(32, 2).to(getattr(tt, dtype))
    target = x[:, :1] * x[:, 1:]
    losses = []
    for _ in range(150):
        loss = tt.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert losses[0].dtype == getattr(tt, dtype)
    assert losses[-1].item() < 0.2 * losses[0].item()
