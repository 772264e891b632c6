"""Compares optimizers of complex parameters with PyTorch's: real and imaginary parts are optimized
separately."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

KINDS = [
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": True}),
    ("Adam", {"lr": 0.1}), ("Adam", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.1, "amsgrad": True}), ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "weight_decay": 0.1}), ("Adadelta", {"lr": 0.5}), ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5}), ("Adamax", {}), ("NAdam", {}), ("RAdam", {"lr": 0.01}),
    ("ASGD", {"weight_decay": 0.1}), ("Rprop", {}),
]
STATE = {"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "sum", "square_avg", "acc_delta", "momentum_buffer",
         "grad_avg", "ax", "prev", "step_size"}


def train(t, kind, options, captured=False):
    z = t.tensor([[1 + 2j, 3 - 1j], [-0.5 + 0.25j, 2j]], requires_grad=True)
    w = t.tensor([1.0, -2.0], requires_grad=True)
    optimizer = getattr(t.optim, kind)([z, w], **options)

    def step():
        optimizer.zero_grad()
        loss = ((z * z * w).abs().sum() + (z.real * w).sum() - z.imag.sum()) * 0.1
        loss.backward()
        optimizer.step()
        return loss

    run = t.compile(step) if captured else step
    for _ in range(6):
        run()
    kept = [{k: v for k, v in each.items() if k in STATE} for each in optimizer.state_dict()["state"].values()]
    return z, w, kept


def same(ours, theirs):
    assert str(ours.dtype).partition(".")[2] == str(theirs.dtype).partition(".")[2]
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("captured", [False, True], ids=["lines", "captured"])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_real_and_imaginary_parts(tt, kind, options, captured):
    ours, theirs = train(tt, kind, options, captured), train(torch, kind, options)
    same(ours[0], theirs[0])
    same(ours[1], theirs[1])
    assert len(ours[2]) == len(theirs[2])
    for a, b in zip(ours[2], theirs[2], strict=True):
        assert set(a) == set(b)
        for name, value in a.items():
            same(value, b[name])


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(tt, search):
    def fit(t):
        z = t.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        optimizer = t.optim.LBFGS([z], lr=0.5, line_search_fn=search)

        def closure():
            optimizer.zero_grad()
            loss = ((z - t.tensor([2 - 1j, 1j])).abs() ** 2).sum()
            loss.backward()
            return loss

        return optimizer.step(closure), z

    for ours, theirs in zip(fit(tt), fit(torch), strict=True):
        same(ours, theirs)


def test_a_step_left_out(tt):
    """GradScaler finds an infinite imaginary part; the steps before and after it count."""
    z = tt.tensor([1 + 2j], requires_grad=True)
    optimizer = tt.optim.Adam([z], lr=0.1)
    scaler = tt.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((z.imag * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert z.item() == pytest.approx(1 + 1.8j, rel=1e-5)


def test_refused_as_in_pytorch(tt):
    for t in (tt, torch):
        z = t.tensor([[1 + 2j]], requires_grad=True)
        z.abs().sum().backward()
        with pytest.raises(RuntimeError, match="Adafactor does not support complex parameters"):
            t.optim.Adafactor([z]).step()
