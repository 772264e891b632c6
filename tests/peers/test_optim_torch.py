"""Compares every optimizer, schedule and average with PyTorch's, from equal weights and gradients."""

import copy
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SHAPES = [(3, 5), (5,), (), (2, 3, 4)]
OPTIMIZERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "betas": (0.4, 0.9)}),
    ("Adamax", {}), ("Adamax", {"lr": 0.02, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {"lr": 0.01}), ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.9)}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Adagrad", {}), ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"maximize": True}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {}), ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1}), ("RMSprop", {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "alpha": 0.4, "maximize": True}),
    ("Rprop", {}), ("Rprop", {"etas": (0.4, 1.5), "step_sizes": (1e-3, 0.02), "maximize": True}),
    ("ASGD", {}), ("ASGD", {"lambd": 0.1, "t0": 3, "weight_decay": 0.1, "maximize": True}),
]


def start(m, dtype="float64"):
    rng = np.random.default_rng(1)
    return [m.nn.Parameter(m.tensor(rng.standard_normal(s).astype(dtype))) for s in SHAPES]


def advance(m, optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        rng = np.random.default_rng(100 + step)
        for i, p in enumerate(params):
            g = rng.standard_normal(tuple(p.shape))
            g[np.abs(g) < 0.3] = 0
            # The last parameter gets its first gradient later, so its bias corrections are those of earlier
            # steps.
            late = i == 3 and step < 2
            p.grad = None if late else m.tensor(g).to(p.dtype)
        optimizer.step()


def values(params):
    return [p.detach().double().numpy() for p in params]


def close(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 2e-5)])
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=str)
def test_optimizer(tt, kind, options, dtype, tolerance):
    result = []
    for m in (tt, torch):
        params = start(m, dtype)
        advance(m, getattr(m.optim, kind)(params, foreach=False, **options), params, 8)
        result.append(values(params))
    close(*result, tolerance)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=str)
def test_state_goes_over_and_back(tt, kind, options):
    """Four steps in PyTorch, four in teletensor, and again with the state carried back."""
    theirs = start(torch)
    before = getattr(torch.optim, kind)(theirs, foreach=False, **options)
    advance(torch, before, theirs, 4)
    ours = [tt.nn.Parameter(tt.from_torch(p.detach())) for p in theirs]
    optimizer = getattr(tt.optim, kind)(ours, lr=123.0)
    optimizer.load_state_dict(tt.from_torch(before.state_dict()))
    # The state is a copy: steps of the other optimizer do not change it.
    advance(torch, before, theirs, 4, first=4)
    advance(tt, optimizer, ours, 4, first=4)
    close(values(ours), values(theirs), 1e-6)
    state, known = optimizer.state_dict(), before.state_dict()
    assert set(state["param_groups"][0]) == set(known["param_groups"][0])
    for number, entries in known["state"].items():
        assert set(state["state"][number]) == set(entries)
    again = start(torch)
    for p, q in zip(again, theirs, strict=True):
        p.data.copy_(q)
    third = getattr(torch.optim, kind)(again, lr=5.0)
    third.load_state_dict(tt.to_torch(copy.deepcopy(state)))
    advance(torch, before, theirs, 2, first=8)
    advance(torch, third, again, 2, first=8)
    close(values(again), values(theirs), 1e-6)


def rosenbrock(m, options, steps):
    p = m.nn.Parameter(m.tensor([-1.5, 2.0], dtype=m.float64))
    q = m.nn.Parameter(m.tensor([[0.5], [-1.0]], dtype=m.float64))
    optimizer = m.optim.LBFGS([p, q], **options)
    sign = -1 if options.get("maximize") else 1
    seen = []

    def closure():
        optimizer.zero_grad()
        x, y = p[0], p[1]
        loss = (1 - x) ** 2 + 100 * (y - x * x) ** 2 + ((q - 3) ** 4).sum()
        loss = loss * sign
        loss.backward()
        seen.append(loss.detach())
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return [v.item() for v in seen], p.tolist(), optimizer.state[p]["func_evals"]


@pytest.mark.parametrize("options", [
    {"lr": 1e-3, "max_iter": 5}, {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3},
    {"line_search_fn": "strong_wolfe", "maximize": True, "max_iter": 8}], ids=str)
def test_lbfgs(tt, options):
    ours, theirs = rosenbrock(tt, options, 4), rosenbrock(torch, options, 4)
    # A line search near the minimum repeatedly amplifies rounding errors.
    np.testing.assert_allclose(ours[0][:40], theirs[0][:40], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4)
    if "line_search_fn" in options:
        assert abs(ours[0][-1]) < 1e-2 * abs(ours[0][0])


SCHEDULES = [
    ("StepLR", {"step_size": 3}), ("MultiStepLR", {"milestones": [2, 5, 5], "gamma": 0.5}), ("ConstantLR", {}),
    ("LinearLR", {"start_factor": 0.25, "total_iters": 6}), ("ExponentialLR", {"gamma": 0.9}),
    ("PolynomialLR", {"total_iters": 7, "power": 2.0}), ("CosineAnnealingLR", {"T_max": 4, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}), ("LambdaLR", {"lr_lambda": lambda e: 0.9**e}),
    ("MultiplicativeLR", {"lr_lambda": lambda e: 0.95}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3, "step_size_down": 2}),
    ("CyclicLR", {"base_lr": [0.01, 0.02], "max_lr": 0.2, "step_size_up": 3, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3, "mode": "exp_range", "gamma": 0.9,
                  "cycle_momentum": False}),
    ("OneCycleLR", {"max_lr": 0.3, "total_steps": 15}), ("OneCycleLR", {"max_lr": [0.3, 0.2], "epochs": 3,
                                                                       "steps_per_epoch": 5, "three_phase": True}),
    ("OneCycleLR", {"max_lr": 0.3, "total_steps": 20, "anneal_strategy": "linear", "cycle_momentum": False}),
]


def groups_of(m, kind="SGD", **options):
    params = [m.nn.Parameter(m.zeros(2)), m.nn.Parameter(m.zeros(3))]
    return getattr(m.optim, kind)([{"params": params[:1]}, {"params": params[1:], "lr": 0.05}], lr=0.1, **options)


def record(optimizer, scheduler, steps, argument=lambda i: ()):
    rows = []
    for i in range(steps):
        optimizer.step()
        scheduler.step(*argument(i))
        rows.append([[g["lr"], g.get("momentum", 0), g.get("betas", (0, 0))[0]] for g in optimizer.param_groups])
        assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
    return np.array(rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(("kind", "options"), SCHEDULES, ids=[f"{k}-{i}" for i, (k, _) in enumerate(SCHEDULES)])
def test_schedule(tt, kind, options, optimizer):
    more = {"momentum": 0.5} if optimizer == "SGD" else {}
    result = []
    for m in (tt, torch):
        each = groups_of(m, optimizer, **more)
        scheduler = getattr(m.optim.lr_scheduler, kind)(each, **options)
        rows = record(each, scheduler, 6)
        # a new one continues from the states
        other = groups_of(m, optimizer, **more)
        again = getattr(m.optim.lr_scheduler, kind)(other, **options)
        again.load_state_dict(scheduler.state_dict())
        other.load_state_dict(each.state_dict())
        result.append(np.concatenate([rows, record(other, again, 8)]))
    np.testing.assert_allclose(*result, rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_schedules_of_schedules(tt):
    result = []
    for m in (tt, torch):
        s = m.optim.lr_scheduler
        a = groups_of(m)
        chained = s.ChainedScheduler([s.ConstantLR(a, factor=0.1, total_iters=2), s.ExponentialLR(a, gamma=0.9)])
        b = groups_of(m)
        sequence = s.SequentialLR(b, [s.LinearLR(b, total_iters=4), s.CosineAnnealingLR(b, T_max=5),
                                      s.ExponentialLR(b, gamma=0.5)], milestones=[4, 9])
        c = groups_of(m)
        swa = m.optim.swa_utils.SWALR(c, swa_lr=[0.01, 0.02], anneal_epochs=4)
        d = groups_of(m)
        line = m.optim.swa_utils.SWALR(d, swa_lr=0.2, anneal_epochs=5, anneal_strategy="linear")
        e = groups_of(m)
        plateau = s.ReduceLROnPlateau(e, patience=1, cooldown=1, min_lr=[0.01, 0.0], factor=0.3)
        f = groups_of(m)
        warm = s.CosineAnnealingWarmRestarts(f, T_0=3, T_mult=2)
        result.append(np.concatenate([
            record(a, chained, 12), record(b, sequence, 12), record(c, swa, 8), record(d, line, 8),
            record(e, plateau, 12, lambda i: ([5, 4, 4, 4, 4, 4, 4, 3.9999, 3, 3, 3, 3][i],)),
            record(f, warm, 20, lambda i: (i / 4,))]))
    np.testing.assert_allclose(*result, rtol=1e-12)


@pytest.mark.parametrize("kind", ["swa", "ema", "avg_fn", "ema_fn", "buffers"])
def test_averaged_model(tt, kind):
    result = []
    for m in (tt, torch):
        utils = m.optim.swa_utils
        options = {"swa": {}, "ema": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.8)},
                   "avg_fn": {"avg_fn": utils.get_swa_avg_fn()}, "ema_fn": {"avg_fn": utils.get_ema_avg_fn(0.7)},
                   "buffers": {"use_buffers": True}}[kind]
        model = m.nn.Linear(2, 3)
        model.register_buffer("level", m.zeros(2))
        average = utils.AveragedModel(model, **options)
        for step in range(4):
            rng = np.random.default_rng(step)
            with m.no_grad():
                for t in itertools.chain(model.parameters(), model.buffers()):
                    t.copy_(m.tensor(rng.standard_normal(tuple(t.shape)).astype("f4")))
            average.update_parameters(model)
        result.append({k: v.numpy() for k, v in average.state_dict().items()})
        assert int(average.n_averaged) == 4
    assert list(result[0]) == list(result[1])
    for name in result[0]:
        np.testing.assert_allclose(result[0][name], result[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "betas": (0.8, 0.99), "maximize": True}])
def test_rows_that_were_not_looked_up(tt, options):
    def trained(m):
        layer = m.nn.Embedding(6, 3, sparse=True)
        with m.no_grad():
            layer.weight.copy_(m.arange(1.0, 19.0).reshape(6, 3) / 10)
        optimizer = m.optim.SparseAdam(layer.parameters(), **options)
        for rows in ([0, 1, 1], [2, 1, 5], [0], [5, 5]):
            optimizer.zero_grad()
            (layer(m.tensor(rows)) ** 2).sum().backward()
            optimizer.step()
        state = optimizer.state_dict()["state"][0]
        assert state["step"] == 4
        return values([layer.weight, state["exp_avg"], state["exp_avg_sq"]])

    close(trained(tt), trained(torch), 1e-6)


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"eps": 0.0}, {"betas": (1.0, 0.9)}])
def test_sparse_adam_refuses(tt, options):
    for m in (tt, torch):
        with pytest.raises(ValueError):
            m.optim.SparseAdam([m.ones(2, requires_grad=True)], **options)
