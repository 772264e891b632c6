"""nn: registration, state, hooks, text, and the values of layers against NumPy."""

import abc
import gc
import math
import types
import weakref
from typing import Generic, TypeVar

import numpy as np
import pytest

rng = np.random.default_rng(5)


def make_net(nn, tt):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.middle = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(4))
            self.many = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)] + [nn.Identity()])
            self.named = nn.ModuleDict({"x": nn.Linear(4, 2, bias=False),
                                        "y": nn.Embedding(5, 3, padding_idx=1)})
            self.register_buffer("kept", tt.ones(2))
            self.register_buffer("scratch", tt.ones(2), persistent=False)
            self.slope = nn.LeakyReLU(0.1, inplace=True)

        def forward(self, x):
            x = self.middle(self.first(x))
            for module in self.many:
                x = module(x)
            return self.named["x"](x)

    return Net()


def test_repr_is_pytorchs(tt):
    assert repr(make_net(tt.nn, tt)) == """Net(
  (first): Linear(in_features=3, out_features=4, bias=True)
  (middle): Sequential(
    (0): Linear(in_features=4, out_features=4, bias=True)
    (1): ReLU()
    (2): Dropout(p=0.1, inplace=False)
    (3): LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)
  )
  (many): ModuleList(
    (0-2): 3 x Linear(in_features=4, out_features=4, bias=True)
    (3): Identity()
  )
  (named): ModuleDict(
    (x): Linear(in_features=4, out_features=2, bias=False)
    (y): Embedding(5, 3, padding_idx=1)
  )
  (slope): LeakyReLU(negative_slope=0.1, inplace=True)
)"""


def test_names(tt):
    net = make_net(tt.nn, tt)
    names = [name for name, _ in net.named_parameters()]
    assert names == [
        "first.weight", "first.bias", "middle.0.weight", "middle.0.bias", "middle.3.weight",
        "middle.3.bias", "many.0.weight", "many.0.bias", "many.1.weight", "many.1.bias",
        "many.2.weight", "many.2.bias", "named.x.weight", "named.y.weight",
    ]
    assert list(net.state_dict()) == ["kept", *names]
    assert [name for name, _ in net.named_buffers()] == ["kept", "scratch"]
    assert [name for name, _ in net.named_children()] == ["first", "middle", "many", "named", "slope"]
    assert [name for name, _ in net.named_modules()][:4] == ["", "first", "middle", "middle.0"]
    assert net.get_submodule("middle.0") is net.middle[0]
    assert net.get_parameter("named.x.weight") is net.named["x"].weight
    with pytest.raises(AttributeError, match="has no submodule `absent`"):
        net.get_submodule("middle.absent")


def test_shared_parameters_are_listed_once(tt):
    nn = tt.nn
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    both = nn.Sequential(first, second, first)
    assert len(list(both.parameters())) == 3
    assert len(list(both.named_parameters(remove_duplicate=False))) == 6
    assert len(list(both.modules())) == 3
    assert len(both.state_dict()) == 6


def test_assignment(tt):
    nn = tt.nn
    module = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'weight'"):
        module.weight = tt.ones(2, 2)
    module.bias = None
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    assert module(tt.ones(1, 2)).shape == (1, 2)
    module.bias = nn.Parameter(tt.zeros(2))
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias"]
    module.extra = nn.ReLU()
    with pytest.raises(TypeError, match="cannot assign 'int' as child module 'extra'"):
        module.extra = 3
    del module.extra
    assert not hasattr(module, "extra") and list(module.children()) == []
    module.register_buffer("count", tt.zeros(()))
    with pytest.raises(TypeError, match="cannot assign 'float' as buffer 'count'"):
        module.count = 1.0
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        module.register_buffer("forward", tt.zeros(()))
    with pytest.raises(KeyError, match="name can.*t contain"):
        module.add_module("a.b", nn.ReLU())
    with pytest.raises(ValueError, match="non-leaf"):
        made = nn.Parameter(tt.ones(2), requires_grad=False)
        made.copy_(tt.ones(2, requires_grad=True) * 2)  # gives it a history
        module.register_parameter("made", made)

    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.ReLU()

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Early()


def test_parameter(tt):
    data = tt.ones(2)
    parameter = tt.nn.Parameter(data)
    assert isinstance(parameter, tt.Tensor) and parameter.requires_grad and parameter.is_leaf
    assert type(parameter * 2) is tt.Tensor
    assert tt.shares_storage(parameter, data) and not data.requires_grad
    assert repr(parameter).startswith("Parameter containing:\ntensor(")
    assert not tt.nn.Parameter(tt.ones(2, dtype=tt.int64), requires_grad=False).requires_grad
    with pytest.raises(RuntimeError):
        tt.nn.Parameter(tt.ones(2, dtype=tt.int64))


def test_state_dict_shares_and_loads(tt):
    net, other = make_net(tt.nn, tt), make_net(tt.nn, tt)
    state = net.state_dict()
    assert tt.shares_storage(state["first.weight"], net.first.weight)
    assert not state["first.weight"].requires_grad
    weight = other.first.weight
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert other.first.weight is weight and weight.requires_grad
    assert np.array_equal(weight.detach().numpy(), net.first.weight.detach().numpy())
    assert not tt.shares_storage(weight, net.first.weight)
    other.load_state_dict(state, assign=True)
    assert tt.shares_storage(other.first.weight, net.first.weight)


class Mixin:
    pass


@pytest.mark.parametrize("other", [abc.ABC, Generic[TypeVar("T")], Mixin, None],
                         ids=["ABC", "Generic", "mixin", "none"])
@pytest.mark.parametrize("first", [False, True])
def test_state_of_a_module_with_another_base_class(tt, other, first):
    """Which of a module's classes define the methods of extra state does not depend on the order or
    the number of its base classes."""
    nn = tt.nn
    bases = [nn.Module] + ([] if other is None else [other])
    Base = types.new_class("Base", tuple(bases[::-1] if first else bases))

    class Extra(Base):
        def get_extra_state(self):
            return 7

        def set_extra_state(self, state):
            self.got = state

    class Net(Base):
        def __init__(self, extra):
            super().__init__()
            self.child = Extra() if extra else Base()
            self.linear = nn.Linear(2, 1)

    plain, extra = Net(False), Net(True)
    assert list(plain.state_dict()) == ["linear.weight", "linear.bias"]
    assert str(plain.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
    state = extra.state_dict()
    assert state["child._extra_state"] == 7
    extra.load_state_dict(state)
    assert extra.child.got == 7
    del state["child._extra_state"]
    with pytest.raises(RuntimeError, match='Missing key.*"child._extra_state"'):
        extra.load_state_dict(state)


def test_extra_state_that_is_only_written(tt):
    """A module that defines only get_extra_state writes the entry; loading reports it as unexpected."""
    class Written(tt.nn.Module):
        def get_extra_state(self):
            return 1

    module = Written()
    assert module.state_dict() == {"_extra_state": 1}
    with pytest.raises(RuntimeError, match='Unexpected key.*"_extra_state"'):
        module.load_state_dict(module.state_dict())
    module.load_state_dict(module.state_dict(), strict=False)


def test_load_state_dict_names_everything_wrong(tt):
    net = tt.nn.Sequential(tt.nn.Linear(2, 3))
    before = net[0].weight.detach().numpy().copy()
    bad = {"0.weight": tt.zeros(3, 3), "1.weight": tt.zeros(1)}
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(bad)
    text = str(error.value)
    assert 'Unexpected key(s) in state_dict: "1.weight"' in text
    assert 'Missing key(s) in state_dict: "0.bias"' in text
    assert "size mismatch for 0.weight" in text and "[3, 3]" in text and "[3, 2]" in text
    assert np.array_equal(net[0].weight.detach().numpy(), before)
    found = net.load_state_dict({"0.weight": tt.zeros(3, 2), "x": tt.zeros(1)}, strict=False)
    assert found.missing_keys == ["0.bias"] and found.unexpected_keys == ["x"]
    with pytest.raises(RuntimeError, match="expected teletensor.Tensor"):
        net.load_state_dict({"0.weight": np.zeros((3, 2))}, strict=False)


def test_hooks(tt):
    nn = tt.nn
    module, seen = nn.Linear(1, 1), []
    first = module.register_forward_pre_hook(lambda m, args: seen.append("pre") or (args[0] * 0,))
    module.register_forward_hook(lambda m, args, out: seen.append("post") or out + 7)
    module.register_forward_hook(lambda m, args, kw, out: seen.append(sorted(kw)), with_kwargs=True,
                                 prepend=True)
    out = module(tt.ones(1, 1))
    assert seen == ["pre", [], "post"]
    assert out.item() == pytest.approx(module.bias.item() + 7)
    first.remove()
    first.remove()
    seen.clear()
    module(input=tt.ones(1, 1))
    assert seen == [["input"], "post"]
    failing = nn.Linear(1, 1)
    failing.register_forward_hook(lambda m, a, out: seen.append(out), always_call=True)
    with pytest.raises(RuntimeError):
        failing(tt.ones(1, 2))
    assert seen[-1] is None


def test_train_eval_apply_zero_grad(tt):
    net = make_net(tt.nn, tt)
    assert net.eval() is net and not any(m.training for m in net.modules())
    net.train()
    assert all(m.training for m in net.modules())
    kinds = []
    net.apply(lambda m: kinds.append(type(m).__name__))
    assert kinds[0] == "Linear" and kinds[-1] == "Net"
    net(tt.ones(2, 3)).sum().backward()
    assert net.first.weight.grad is not None and net.named["y"].weight.grad is None
    net.zero_grad(set_to_none=False)
    assert not net.first.weight.grad.numpy().any()
    net.zero_grad()
    assert net.first.weight.grad is None
    net.requires_grad_(False)
    assert not net(tt.ones(2, 3)).requires_grad


def test_to_moves_parameters_gradients_and_buffers(tt):
    net = make_net(tt.nn, tt)
    optimizer = tt.optim.SGD(net.parameters(), lr=0.1)
    net(tt.ones(2, 3)).sum().backward()
    weight = net.first.weight
    assert net.to("sim:0", tt.float64) is net
    assert net.first.weight is weight and optimizer.param_groups[0]["params"][0] is weight
    for tensor in (weight, weight.grad, net.kept, net.scratch):
        assert tensor.dtype == tt.float64 and str(tensor.device) == "sim:0"
    assert weight.is_leaf and weight.requires_grad
    net.to("cpu").float()
    assert net(tt.ones(2, 3)).dtype == tt.float32
    with pytest.raises(TypeError, match="floating-point"):
        net.to(tt.int64)
    net.register_buffer("index", tt.arange(3))
    assert net.half().index.dtype == tt.int64 and net.kept.dtype == tt.float16


def test_a_dropped_model_is_gone_at_once(tt):
    gc.disable()
    try:
        net = make_net(tt.nn, tt)
        net(tt.ones(2, 3)).sum().backward()
        repr(net), net.state_dict(), list(net._parameters)
        weight = weakref.ref(net.first.weight)
        del net
        assert weight() is None
    finally:
        gc.enable()


def test_containers(tt):
    nn = tt.nn
    seq = nn.Sequential(nn.ReLU(), nn.Tanh())
    seq.append(nn.Sigmoid()).insert(1, nn.Identity())
    assert [type(m).__name__ for m in seq] == ["ReLU", "Identity", "Tanh", "Sigmoid"]
    assert [type(m).__name__ for m in seq[1:3]] == ["Identity", "Tanh"]
    assert type(seq.pop(0)).__name__ == "ReLU" and len(seq) == 3
    del seq[-1]
    seq[0] = nn.GELU()
    assert repr(seq) == "Sequential(\n  (0): GELU(approximate='none')\n  (1): Tanh()\n)"
    with pytest.raises(IndexError):
        seq[2]
    named = nn.Sequential({"a": nn.ReLU(), "b": nn.Tanh()})
    assert named.a is named[0] and list(dict(named.named_children())) == ["a", "b"]
    modules = nn.ModuleDict([("one", nn.ReLU())])
    modules.update({"two": nn.Tanh()})
    assert list(modules.keys()) == ["one", "two"] and "two" in modules
    assert type(modules.pop("one")).__name__ == "ReLU" and len(modules) == 1
    values = nn.ParameterList([tt.ones(2), nn.Parameter(tt.zeros(3))])
    assert len(list(values.parameters())) == 2 and values[1].shape == (3,)
    both = nn.ModuleList([nn.ReLU()]) + [nn.Tanh()]
    assert len(both) == 2 and type(both[-1]).__name__ == "Tanh"


def test_deepcopy(tt):
    import copy

    net = make_net(tt.nn, tt)
    twin = copy.deepcopy(net)
    assert repr(twin) == repr(net) and twin.first.weight is not net.first.weight
    assert type(twin.first.weight) is tt.nn.Parameter and twin.first.weight.requires_grad
    assert not tt.shares_storage(twin.first.weight, net.first.weight)
    assert np.array_equal(twin.first.weight.detach().numpy(), net.first.weight.detach().numpy())


def test_linear_layer_norm_embedding(tt):
    nn = tt.nn
    x = rng.normal(size=(4, 5, 3)).astype(np.float32)
    layer = nn.Linear(3, 2)
    w, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    bound = 1 / math.sqrt(3)
    assert np.abs(w).max() <= bound and np.abs(b).max() <= bound
    np.testing.assert_allclose(layer(tt.tensor(x)).detach().numpy(), x @ w.T + b, rtol=1e-5, atol=1e-6)

    norm = nn.LayerNorm((5, 3), eps=1e-3)
    out = norm(tt.tensor(x)).detach().numpy()
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    np.testing.assert_allclose(out, (x - mean) / np.sqrt(var + 1e-3), rtol=1e-4, atol=1e-5)
    scaled = nn.RMSNorm(3, eps=1e-6)(tt.tensor(x)).detach().numpy()
    np.testing.assert_allclose(scaled, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), rtol=1e-5)

    table = nn.Embedding(6, 3, padding_idx=-2)
    indices = np.array([[0, 4], [5, 4]])
    rows = table(tt.tensor(indices))
    weight = table.weight.detach().numpy()
    assert table.padding_idx == 4 and not weight[4].any()
    assert np.array_equal(rows.detach().numpy(), weight[indices])
    rows.sum().backward()
    assert np.array_equal(table.weight.grad.numpy()[:, 0], [1, 0, 0, 0, 0, 1])
    with pytest.raises(AssertionError, match="padding_idx"):
        nn.Embedding(3, 2, padding_idx=3)
    given = nn.Embedding.from_pretrained(tt.ones(2, 2))
    assert not given.weight.requires_grad


def test_dropout(tt):
    tt.manual_seed(3)
    layer = tt.nn.Dropout(0.25)
    x = tt.ones(100, 100)
    out = layer(x).numpy()
    assert set(np.unique(out)) == {0.0, np.float32(1 / 0.75)}
    assert abs((out == 0).mean() - 0.25) < 0.02
    assert not np.array_equal(layer(x).numpy(), out)
    tt.manual_seed(3)
    assert np.array_equal(layer(x).numpy(), out)
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match="between 0 and 1"):
        tt.nn.Dropout(1.5)


X = np.array([-30.0, -4.0, -1.0, -0.3, 0.0, 0.2, 0.5, 1.0, 3.5, 25.0])


def erf(x):
    return np.array([math.erf(v) for v in x])


def softplus(x):
    return np.logaddexp(0, x)


ACTIVATIONS = {
    "relu": (), "sigmoid": (), "tanh": (), "silu": (), "mish": (), "softsign": (), "selu": (),
    "tanhshrink": (), "gelu": (), "leaky_relu": (0.2,), "elu": (1.5,), "celu": (2.0,),
    "softplus": (2.0,), "logsigmoid": (), "relu6": (), "hardtanh": (-2.0, 0.7), "hardsigmoid": (),
    "hardswish": (), "softshrink": (0.4,), "hardshrink": (0.4,), "threshold": (0.3, 9.0),
}
FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "leaky_relu": lambda x, s: np.where(x > 0, x, s * x),
    "elu": lambda x, a: np.where(x > 0, x, a * np.expm1(x)),
    "celu": lambda x, a: np.maximum(x, 0) + np.minimum(0, a * np.expm1(x / a)),
    "softplus": lambda x, b: softplus(b * x) / b,
    "logsigmoid": lambda x: -softplus(-x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": np.clip,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softshrink": lambda x, s: np.sign(x) * np.maximum(np.abs(x) - s, 0),
    "hardshrink": lambda x, s: np.where(np.abs(x) > s, x, 0),
    "threshold": lambda x, t, v: np.where(x > t, x, v),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(tt, name):
    got = getattr(tt.nn.functional, name)(tt.tensor(X), *ACTIVATIONS[name]).numpy()
    np.testing.assert_allclose(got, FORMULAS[name](X, *ACTIVATIONS[name]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "silu", "elu", "hardtanh", "threshold", "mish"])
def test_inplace_activations_write_their_input(tt, name):
    x = tt.tensor(X)
    out = getattr(tt.nn.functional, name)(x, *ACTIVATIONS[name], inplace=True)
    assert out is x
    np.testing.assert_allclose(x.numpy(), FORMULAS[name](X, *ACTIVATIONS[name]), rtol=1e-9, atol=1e-12)


def test_softmax_family(tt):
    F = tt.nn.functional
    x = rng.normal(size=(3, 4))
    e = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(F.softmax(tt.tensor(x), 1).numpy(), e, rtol=1e-12)
    np.testing.assert_allclose(F.log_softmax(tt.tensor(x), 1).numpy(), np.log(e), rtol=1e-9)
    with pytest.warns(UserWarning, match="give dim"):
        np.testing.assert_allclose(tt.nn.Softmax()(tt.tensor(x)).numpy(), e, rtol=1e-12)
    inverse = np.exp(-x) / np.exp(-x).sum(0)
    np.testing.assert_allclose(tt.nn.Softmin(0)(tt.tensor(x)).numpy(), inverse, rtol=1e-9)
    a, b = np.split(x, 2, 1)
    np.testing.assert_allclose(F.glu(tt.tensor(x)).numpy(), a / (1 + np.exp(-b)), rtol=1e-9)


def reduced(loss, reduction):
    return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]


P, T = rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0.0, 1.0, (4, 3))
LOSSES = {
    "MSELoss": (P, T, (P - T) ** 2),
    "L1Loss": (P, T, np.abs(P - T)),
    "SmoothL1Loss": (4 * P, T, np.where(np.abs(4 * P - T) < 1, 0.5 * (4 * P - T) ** 2,
                                        np.abs(4 * P - T) - 0.5)),
    "HuberLoss": (4 * P, T, np.where(np.abs(4 * P - T) < 1, 0.5 * (4 * P - T) ** 2,
                                     np.abs(4 * P - T) - 0.5)),
    "BCELoss": (P, T, -(T * np.log(P) + (1 - T) * np.log(1 - P))),
    "BCEWithLogitsLoss": (P, T, softplus(P) - P * T),
    "KLDivLoss": (np.log(P), T, T * (np.log(T) - np.log(P))),
    "PoissonNLLLoss": (P, T, np.exp(P) - T * P),
    "SoftMarginLoss": (P, np.sign(T - 0.5), softplus(-P * np.sign(T - 0.5))),
    "HingeEmbeddingLoss": (P, np.sign(T - 0.5), np.where(T > 0.5, P, np.maximum(0, 1 - P))),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(tt, name, reduction):
    x, target, expected = LOSSES[name]
    loss = getattr(tt.nn, name)(reduction=reduction)(tt.tensor(x), tt.tensor(target))
    np.testing.assert_allclose(loss.numpy(), reduced(expected, reduction), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_losses(tt, reduction):
    scores = rng.normal(size=(5, 4))
    target = np.array([0, 3, -100, 2, 2])
    weight = np.array([1.0, 2.0, 3.0, 4.0])
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    used = np.where(target < 0, 0, weight[np.maximum(target, 0)])
    per_sample = -used * logs[np.arange(5), np.maximum(target, 0)]
    expected = {"none": per_sample, "sum": per_sample.sum(),
                "mean": per_sample.sum() / used.sum()}[reduction]
    loss = tt.nn.CrossEntropyLoss(tt.tensor(weight), reduction=reduction)
    np.testing.assert_allclose(loss(tt.tensor(scores), tt.tensor(target)).numpy(), expected, rtol=1e-9)
    loss = tt.nn.NLLLoss(tt.tensor(weight), reduction=reduction)
    np.testing.assert_allclose(loss(tt.tensor(logs), tt.tensor(target)).numpy(), expected, rtol=1e-9)
    assert "weight" in dict(loss.named_buffers())
    smooth = tt.nn.CrossEntropyLoss(label_smoothing=0.2, reduction=reduction)
    chosen = np.array([1, 0, 3, 2, 2])
    per_sample = -0.8 * logs[np.arange(5), chosen] - 0.2 * logs.mean(1)
    np.testing.assert_allclose(smooth(tt.tensor(scores), tt.tensor(chosen)).numpy(),
                               reduced(per_sample, reduction), rtol=1e-9)


def test_losses_of_unequal_shapes(tt):
    for name in ("BCELoss", "BCEWithLogitsLoss"):
        with pytest.raises((RuntimeError, ValueError), match=r"\[2, ?3\].*\[2, ?1\]"):
            getattr(tt.nn, name)()(tt.ones(2, 3), tt.ones(2, 1))
    for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"):
        with pytest.warns(UserWarning, match="different to the input size"):
            assert getattr(tt.nn, name)()(tt.ones(2, 3), tt.zeros(2, 1)).item() in (0.5, 1.0)
    with pytest.raises((RuntimeError, ValueError), match="reduction"):
        tt.nn.MSELoss(reduction="median")(tt.ones(2), tt.ones(2))


def test_attention(tt):
    q, k, v = (rng.normal(size=(2, 5, 4)) for _ in range(3))
    scores = q @ k.transpose(0, 2, 1) / 2
    causal = np.where(np.tril(np.ones((5, 5))) > 0, scores, -np.inf)
    weights = np.exp(causal) / np.exp(causal).sum(-1, keepdims=True)
    got = tt.nn.functional.scaled_dot_product_attention(
        tt.tensor(q), tt.tensor(k), tt.tensor(v), is_causal=True)
    np.testing.assert_allclose(got.numpy(), weights @ v, rtol=1e-9)


def test_init(tt):
    init = tt.nn.init
    tt.manual_seed(0)
    w = tt.empty(200, 100)
    for name, arguments, mean, std, limits in [
        ("uniform_", (-2, 3), 0.5, 5 / math.sqrt(12), (-2, 3)),
        ("normal_", (1, 2), 1.0, 2.0, None),
        ("xavier_uniform_", (), 0.0, math.sqrt(2 / 300), (-0.1415, 0.1415)),
        ("xavier_normal_", (2.0,), 0.0, 2 * math.sqrt(2 / 300), None),
        ("kaiming_uniform_", (0, "fan_in", "relu"), 0.0, math.sqrt(2 / 100), (-0.245, 0.245)),
        ("kaiming_normal_", (0, "fan_out"), 0.0, math.sqrt(2 / 200), None),
        ("trunc_normal_", (), 0.0, 0.8796, (-2, 2)),
    ]:
        values = getattr(init, name)(w, *arguments).numpy()
        assert values.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(values.size)), name
        assert values.std() == pytest.approx(std, rel=0.03), name
        if limits:
            assert limits[0] <= values.min() and values.max() <= limits[1], name
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("leaky_relu", 0.5) == math.sqrt(2 / 1.25)
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.xavier_uniform_(tt.empty(3))
    assert np.array_equal(init.eye_(tt.empty(2, 3)).numpy(), np.eye(2, 3))
    parameter = tt.nn.Parameter(tt.empty(3))
    assert init.ones_(parameter) is parameter and parameter.is_leaf


def test_clip_and_vectors(tt):
    from teletensor.nn import utils

    a, b = tt.nn.Parameter(tt.ones(2, 3)), tt.nn.Parameter(tt.ones(4))
    unused = tt.nn.Parameter(tt.ones(1))
    (a * 3).sum().backward()
    (b * -4).sum().backward()
    total = utils.clip_grad_norm_([a, b, unused], 1.0)
    norm = math.sqrt(6 * 9 + 4 * 16)
    assert total.item() == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(a.grad.numpy(), np.full((2, 3), 3 / (norm + 1e-6)), rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), np.full(4, -4 / (norm + 1e-6)), rtol=1e-5)
    utils.clip_grad_norm_([a, b], 100.0)
    assert a.grad.numpy()[0, 0] == pytest.approx(3 / norm, rel=1e-5)
    a.grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_([a], 1.0, error_if_nonfinite=True)
    utils.clip_grad_value_([b], 0.1)
    np.testing.assert_allclose(b.grad.numpy(), np.full(4, -0.1), rtol=1e-6)
    vector = utils.parameters_to_vector([a, b])
    assert vector.shape == (10,)
    utils.vector_to_parameters(tt.arange(10.0), [a, b])
    assert np.array_equal(b.detach().numpy(), [6, 7, 8, 9]) and a.is_leaf
    with pytest.raises(ValueError, match=r"expected \[10\]"):
        utils.vector_to_parameters(tt.arange(9.0), [a, b])


def test_state_from_another_device(tt):
    net, other = tt.nn.Linear(2, 2), tt.nn.Linear(2, 2).to("sim:0")
    other.load_state_dict(net.state_dict())
    assert str(other.weight.device) == "sim:0"
    assert np.array_equal(other.weight.detach().numpy(), net.weight.detach().numpy())


def test_backward_after_a_leaf_was_moved_is_refused(tt):
    net = tt.nn.Linear(2, 2)
    loss = net(tt.ones(1, 2)).sum()
    net.double()
    with pytest.raises(RuntimeError, match="another shape, dtype or device"):
        loss.backward()
    assert net.weight.grad is None
    net(tt.ones(1, 2, dtype=tt.float64)).sum().backward()
    assert net.weight.grad.dtype == tt.float64
    with pytest.raises(RuntimeError, match="cannot become int64"):
        net.weight.data = tt.zeros(2, 2, dtype=tt.int64)
