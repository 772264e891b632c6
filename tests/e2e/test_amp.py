"""Mixed precision without PyTorch: which operands are cast, the effect of a skipped step, and which values
are read."""

import pytest


@pytest.fixture
def unread(tt, monkeypatch):
    """From now on reading a value fails."""
    def start():
        for name in ("item", "tolist", "numpy"):
            def refuse(self, *args, name=name):
                raise AssertionError(f"{name}() waits for the daemon")

            monkeypatch.setattr(tt.Tensor, name, refuse)
    yield start
    monkeypatch.undo()


def model_of(tt):
    tt.manual_seed(0)
    return tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.Tanh(), tt.nn.Linear(8, 1))


KINDS = ["SGD", "Adam", "AdamW", "Adamax", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop"]


@pytest.mark.parametrize("kind", [*KINDS, "NAdam", "ASGD"])
def test_no_step_reads(tt, unread, kind):
    model, x = model_of(tt), tt.ones(3, 4)
    optimizer = getattr(tt.optim, kind)(model.parameters(), lr=0.01)
    schedule = tt.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10, cycle_momentum=False)
    average = tt.optim.swa_utils.AveragedModel(model)
    unread()
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        tt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)


@pytest.mark.parametrize("kind", KINDS)
def test_no_scaled_step_reads(tt, unread, kind):
    model, x = model_of(tt), tt.ones(3, 4)
    optimizer = getattr(tt.optim, kind)(model.parameters(), lr=0.01)
    scaler = tt.amp.GradScaler("cpu")
    unread()
    for _ in range(3):
        optimizer.zero_grad()
        with tt.autocast("cpu", dtype=tt.float16):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("kind", [*KINDS, "NAdam", "ASGD"])
def test_a_left_out_step_changes_nothing(tt, kind):
    def run(poison):
        p = tt.nn.Parameter(tt.linspace(-1, 1, 9))
        optimizer = getattr(tt.optim, kind)([p], lr=0.1)
        scaler = tt.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        good = 0
        for step in range(4 + len(poison)):
            value = float("inf") if step in poison else float(good + 1)
            good += step not in poison
            optimizer.zero_grad()
            scaler.scale((p * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 8.0 / 2 ** len(poison)
        state = optimizer.state_dict()["state"].get(0, {})
        return p.tolist(), {k: v.tolist() if isinstance(v, tt.Tensor) else v for k, v in state.items()}

    assert run(()) == run((0, 3)) == run((2,))


def test_a_parameter_that_joins_after_a_left_out_step(tt):
    """The bias correction of a parameter begins with its own first step."""
    def run(poison):
        a, b = tt.nn.Parameter(tt.ones(2)), tt.nn.Parameter(tt.ones(2))
        optimizer = tt.optim.Adam([a, b], lr=0.1)
        scaler = tt.amp.GradScaler("cpu", init_scale=1.0)
        good = 0
        for step in range(4 + len(poison)):
            bad = step in poison
            good += not bad
            optimizer.zero_grad()
            loss = (a * (float("nan") if bad else good)).sum()
            if good >= 3:
                loss = loss + (b * good).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return a.tolist(), b.tolist()

    assert run(()) == run((1,))


def test_casts(tt):
    w, x = tt.nn.Parameter(tt.ones(3, 3)), tt.ones(2, 3)
    with tt.autocast("cpu"):
        y = tt.nn.functional.linear(x, w)
        assert (y.dtype, tt.nn.functional.mse_loss(y, x).dtype) == (tt.bfloat16, tt.float32)
        assert (x.double() @ w.double()).dtype == tt.float64
        assert tt.cat([x, y]).dtype == tt.float32
    y.float().sum().backward()
    assert w.grad.dtype == tt.float32
    for wrong, error in (("abacus", RuntimeError), (3, ValueError)):
        with pytest.raises(error):
            tt.autocast(wrong)


def test_a_region_that_ends_by_an_error_ends(tt):
    x = tt.ones(2, 2)
    with pytest.raises(KeyError), tt.autocast("cpu"):
        raise KeyError
    assert (x @ x).dtype == tt.float32 and not tt.is_autocast_enabled()


def test_weights_held_by_a_region_go_with_it(tt):
    with tt.autocast("cpu"):
        w = tt.nn.Parameter(tt.ones(2, 2))
        assert (w @ w).dtype == tt.bfloat16
        del w
        v = tt.nn.Parameter(tt.full((2, 2), 3.0))  # may take the address of w
        assert (v @ v).tolist() == [[18.0, 18.0], [18.0, 18.0]]
