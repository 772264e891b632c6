"""Compares autocast and GradScaler with PyTorch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def facts(m, F, dtype):
    """Facts about the result of each op: dtypes as text."""
    x, w, b = m.ones(3, 4), m.ones(5, 4, requires_grad=True), m.ones(5)
    low = getattr(m, dtype)
    h, y = m.ones(3, 4, dtype=low), m.zeros(3, dtype=m.int64)
    out = {
        "linear": F.linear(x, w, b), "linear_low": F.linear(h, w), "matmul": x @ w.t(), "mm": m.mm(x, w.t()),
        "bmm": m.bmm(x[None], x[None].transpose(1, 2)), "f64": F.linear(x.double(), w.double()),
        "mixed": x + h, "mul": h * 2, "exp": m.exp(h), "softmax": m.softmax(h, -1),
        "relu": F.relu(h), "sum": h.sum(), "mse": F.mse_loss(h, x), "l1": F.l1_loss(h, h),
        "nll": F.nll_loss(h, y), "cross_entropy": F.cross_entropy(h, y), "prod": m.prod(h),
        "bce": F.binary_cross_entropy_with_logits(h, h), "huber": F.huber_loss(h, x), "cat": m.cat([x, h]),
        "cat_low": m.cat([h, h]), "stack": m.stack([h, x]), "int": m.ones(2, dtype=m.int64) * 2,
        "attention": F.scaled_dot_product_attention(x[None], x[None], x[None]), "layer_norm": F.layer_norm(h, (4,)),
    }
    return {name: str(t.dtype).split(".")[-1] for name, t in out.items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes(tt, dtype):
    with tt.autocast("cpu", dtype=getattr(tt, dtype)):
        ours = facts(tt, tt.nn.functional, dtype)
    with torch.autocast("cpu", dtype=getattr(torch, dtype)):
        theirs = facts(torch, torch.nn.functional, dtype)
    assert ours == theirs
    assert ours["linear"] == dtype and ours["cross_entropy"] == "float32"


def network(m, rng):
    model = m.nn.Sequential(m.nn.Linear(6, 16), m.nn.ReLU(), m.nn.LayerNorm(16), m.nn.Linear(16, 3))
    model.load_state_dict({k: m.tensor(rng.uniform(-0.4, 0.4, tuple(v.shape)).astype("f4"))
                           for k, v in model.state_dict().items()})
    return model


def train(m, steps, poison=(), kind="Adam", scaler_options=None):
    rng = np.random.default_rng(3)
    model = network(m, rng)
    x = m.tensor(rng.standard_normal((32, 6)).astype("f4"))
    y = m.tensor(rng.integers(0, 3, 32))
    optimizer = getattr(m.optim, kind)(model.parameters(), lr=0.01)
    scaler = m.amp.GradScaler("cpu", **(scaler_options or {"init_scale": 1024.0, "growth_interval": 3}))
    losses, scales = [], []
    for step in range(steps):
        with m.autocast("cpu", dtype=m.bfloat16):
            loss = m.nn.functional.cross_entropy(model(x), y)
        if step in poison:
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        m.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    return [v.item() for v in losses], scales, scaler, optimizer, model


@pytest.mark.parametrize("kind", ["Adam", "SGD", "NAdam", "RMSprop", "Rprop", "RAdam", "Adamax", "Adagrad", "ASGD"])
def test_scaled_training(tt, kind):
    ours, theirs = (train(m, 12, poison=(0, 4, 5), kind=kind) for m in (tt, torch))
    assert ours[1] == theirs[1] and ours[1][0] == 512.0
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0.03)
    # Rprop uses only the signs of gradients, which rounding to bfloat16 may change
    for a, b in () if kind == "Rprop" else zip(ours[4].parameters(), theirs[4].parameters()):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=0.05)
    a, b = ours[2].state_dict(), theirs[2].state_dict()
    assert a == b
    steps = [int(s["step"]) for s in ours[3].state_dict()["state"].values() if "step" in s]
    assert steps == [int(s["step"]) for s in theirs[3].state_dict()["state"].values() if "step" in s]
    again = tt.amp.GradScaler("cpu")
    again.load_state_dict(b)
    assert again.state_dict() == b


def test_left_out_step_is_exact(tt):
    """Seven steps of which two are skipped equal five steps, bit by bit."""
    def run(poison):
        p = tt.nn.Parameter(tt.linspace(-1, 1, 9))
        optimizer = tt.optim.AdamW([p], lr=0.1, amsgrad=True)
        scaler = tt.amp.GradScaler("cpu", init_scale=8.0)
        good = 0
        for step in range(5 + len(poison)):
            value = float("nan") if step in poison else float(good + 1)
            good += step not in poison
            optimizer.zero_grad()
            scaler.scale((p * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        state = optimizer.state_dict()["state"][0]
        return [p.tolist(), state["step"], state["exp_avg"].tolist(), state["max_exp_avg_sq"].tolist()]

    assert run(()) == run((0, 3)) == run((2, 6))


def test_refusals(tt):
    for m in (tt, torch):
        p = m.nn.Parameter(m.ones(2))
        optimizer = m.optim.SGD([p], lr=0.1)
        scaler = m.amp.GradScaler("cpu")
        scaler.scale(p.sum()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        off = m.amp.GradScaler("cpu", enabled=False)
        assert off.scale(3) == 3 and off.get_scale() == 1.0 and off.state_dict() == {}
        with pytest.raises(RuntimeError):
            m.autocast("abacus")


def test_regions(tt):
    for m in (tt, torch):
        x = m.ones(2, 2)
        with m.autocast("cpu"):
            assert m.is_autocast_enabled("cpu") and (x @ x).dtype == m.bfloat16
            with m.autocast("cpu", enabled=False):
                assert (x @ x).dtype == m.float32
            assert (x @ x).dtype == m.bfloat16 and m.get_autocast_dtype("cpu") == m.bfloat16
        assert (x @ x).dtype == m.float32 and not m.is_autocast_enabled("cpu")

        @m.autocast("cpu", dtype=m.float16)
        def product(m=m, x=x):
            return x @ x

        assert product().dtype == m.float16 and (x @ x).dtype == m.float32


def test_weights_are_cast_once(tt):
    """The float32 gradient of a weight that is used twice is PyTorch's; and the cache ends with the
    region."""
    result = []
    for m in (tt, torch):
        w = m.nn.Parameter(m.tensor([[1.0, 2.0], [3.0, 4.0]]))
        with m.autocast("cpu"):
            y = (w @ w) @ w
        y.sum().backward()
        assert w.grad.dtype == m.float32
        with m.no_grad():
            w.mul_(2)
        with m.autocast("cpu"):
            again = w @ w
        result.append([w.grad.tolist(), y.tolist(), again.tolist()])
    assert result[0] == result[1]


def test_recurrent(tt):
    for name in ("LSTM", "GRU", "RNN"):
        with tt.autocast("cpu"):
            output, _ = getattr(tt.nn, name)(3, 4)(tt.ones(5, 2, 3))
        assert output.dtype == tt.bfloat16
