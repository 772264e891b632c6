"""Compares lazy modules, Adafactor and Muon with PyTorch's."""

import copy
import importlib

import numpy as np
import pytest
import torch

LAYERS = [("Linear", (4,), (2, 5, 3)), ("Conv1d", (4, 3), (2, 3, 9)), ("Conv2d", (4, 3), (2, 3, 9, 9)),
          ("Conv3d", (4, 2), (2, 3, 4, 4, 4)), ("ConvTranspose1d", (4, 3), (2, 3, 9)),
          ("ConvTranspose2d", (4, 3), (2, 3, 5, 5)), ("ConvTranspose3d", (4, 3), (2, 3, 4, 4, 4)),
          ("BatchNorm1d", (), (2, 3, 9)), ("BatchNorm2d", (), (2, 3, 4, 4)), ("BatchNorm3d", (), (2, 3, 2, 2, 2)),
          ("InstanceNorm1d", (), (2, 3, 9)), ("InstanceNorm2d", (), (2, 3, 4, 4)),
          ("InstanceNorm3d", (), (2, 3, 2, 2, 2))]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "args", "shape"), LAYERS)
def test_layers(tt, name, args, shape):
    ours, theirs = getattr(tt.nn, "Lazy" + name)(*args), getattr(torch.nn, "Lazy" + name)(*args)
    before = list(ours.parameters())
    with pytest.raises(RuntimeError, match="uninitialized"):
        len(before[0].shape)
    twin = copy.deepcopy(ours)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y, want = ours(tt.tensor(x)), theirs(torch.tensor(x))
    assert type(ours) is getattr(tt.nn, name) and tuple(y.shape) == tuple(want.shape)
    assert all(a is b for a, b in zip(before, ours.parameters()))
    state = ours.state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    twin.load_state_dict(state)
    assert type(twin) is type(ours)
    ours.eval()
    twin.eval()
    np.testing.assert_array_equal(ours(tt.tensor(x)).detach().numpy(), twin(tt.tensor(x)).detach().numpy())
    y.sum().backward()
    assert all(p.grad is not None for p in before)


@pytest.mark.parametrize(("name", "options"), [
    ("Adafactor", {}), ("Adafactor", {"weight_decay": 0.1, "maximize": True, "lr": 0.5, "d": 2.0}),
    ("Muon", {}), ("Muon", {"adjust_lr_fn": "match_rms_adamw", "nesterov": False, "weight_decay": 0.0})])
def test_optimizers(tt, name, options):
    rng = np.random.default_rng(1)
    shapes = [(6, 4), (3, 5), (17, 33), *([(4,)] if name == "Adafactor" else [])]
    start = [rng.normal(size=s).astype(np.float32) for s in shapes]
    steps = [[rng.normal(size=p.shape).astype(np.float32) for p in start] for _ in range(6)]
    found = []
    for m in (tt, torch):
        parameters = [m.nn.Parameter(m.tensor(p)) for p in start]
        optimizer = getattr(m.optim, name)(parameters, **options)
        for gradients in steps:
            for p, g in zip(parameters, gradients):
                p.grad = m.tensor(g)
            optimizer.step()
        found.append([p.detach().numpy() for p in parameters])
    for ours, theirs in zip(*found):  # Muon rounds products to bfloat16, rarely in the other direction
        np.testing.assert_allclose(ours, theirs, 1e-5, 2e-5 if name == "Muon" else 1e-6)
    with pytest.raises(ValueError):
        getattr(tt.optim, name)([tt.nn.Parameter(tt.ones(2, 2))], weight_decay=-1.0)


def test_functionalize(tt):
    def f(x):
        y = x.clone()
        y[0] = 7
        return y.view(-1).mul_(2)

    x = tt.ones(3)
    assert tt.func.functionalize(f)(x).tolist() == f(x).tolist() == [14, 2, 2] and x.tolist() == [1, 1, 1]


def own_lazy(t):
    """A lazy module of a program, with a parameter and a buffer, which becomes an ordinary one."""
    parameter = importlib.import_module(f"{t.__name__}.nn.parameter")

    class Scale(t.nn.Module):
        def forward(self, x):
            return x * self.weight + self.shift

    class LazyScale(lazy_mixin(t), Scale):
        cls_to_become = Scale

        def __init__(self):
            super().__init__()
            self.weight = parameter.UninitializedParameter()
            self.register_buffer("shift", parameter.UninitializedBuffer())

        def initialize_parameters(self, x, factor=2.0):
            with t.no_grad():
                self.weight.materialize(x.shape[-1])
                self.shift.materialize((x.shape[-1],))
                self.weight.fill_(factor)
                self.shift.fill_(1.0)

    return LazyScale, Scale, parameter


def lazy_mixin(t):
    where = "torch.nn.modules.lazy" if t is torch else "teletensor.nn._layers.lazy"
    return importlib.import_module(where).LazyModuleMixin


def test_a_lazy_module_of_ones_own(tt):
    for t in (tt, torch):
        lazy, plain, parameter = own_lazy(t)
        module = lazy()
        assert module.has_uninitialized_params()
        state = module.state_dict()
        assert isinstance(state["weight"], parameter.UninitializedParameter)
        assert isinstance(state["shift"], parameter.UninitializedBuffer)
        assert module(t.ones(3, 2)).tolist() == [[3.0, 3.0]] * 3 and type(module) is plain
        with pytest.raises(RuntimeError, match="shape of an uninitialized"):
            module.load_state_dict(lazy().state_dict())
        other = lazy()
        other.load_state_dict(lazy().state_dict())
        assert other.has_uninitialized_params()
        other.load_state_dict(module.state_dict())
        assert not other.has_uninitialized_params() and other.weight.tolist() == [2.0, 2.0]

        class Forgetful(lazy):
            def initialize_parameters(self, x):
                self.weight.materialize((2,))

        with pytest.raises(RuntimeError, match="has not been fully initialized"):
            Forgetful()(t.ones(2))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("track", [False, True])
def test_states_of_lazy_layers(tt, affine, track):
    """A module without weights takes its size from its statistics; a state without shapes leaves the sizes
    unknown."""
    for t in (tt, torch):
        options = {"affine": affine, "track_running_stats": track}
        lazy = t.nn.LazyInstanceNorm1d(**options)
        lazy.load_state_dict(t.nn.InstanceNorm1d(4, **options).state_dict())
        if t is tt:  # in PyTorch num_features stays 0 without weights
            assert lazy(t.ones(2, 4, 3)).shape == (2, 4, 3) and lazy.num_features == 4
        model = t.nn.Sequential(t.nn.LazyLinear(3), t.nn.LazyBatchNorm1d())
        model.load_state_dict(model.state_dict())
        assert model(t.ones(2, 5)).shape == (2, 3)
