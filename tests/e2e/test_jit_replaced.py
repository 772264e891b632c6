"""Captured functions notice objects that the program has replaced in Python: parameters, optimizer state,
attributes, globals, closures, containers."""

import copy
import dataclasses
import functools
import types
import weakref
from collections import OrderedDict, deque

import numpy as np
import pytest
import teletensor as tt
from teletensor import nn


def ones(*shape):
    return tt.ones(*shape)


class Case:
    """Calls `f`, and again after each of `changes`; the results must equal those of the plain function."""

    def __init__(self, f, *changes, back=True):
        self.f, self.changes, self.back = f, changes, back


def setter(owner, name, *values):
    return [functools.partial(setattr, owner, name, value) for value in values]


def put(container, key, *values):
    return [functools.partial(container.__setitem__, key, value) for value in values]


CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


@case
def a_parameter_that_is_assigned():
    m = nn.Linear(1, 1, bias=False)
    return Case(m, *setter(m, "weight", *(nn.Parameter(tt.tensor([[v]])) for v in (5.0, 6.0))))


@case
def a_state_dict_that_is_assigned():
    m = nn.Sequential(nn.Linear(1, 1, bias=False))
    return Case(m, lambda: m.load_state_dict({"0.weight": tt.tensor([[9.0]])}, assign=True))


@case
def a_buffer():
    m = nn.BatchNorm1d(1).eval()
    return Case(lambda x: m(x), *setter(m, "running_mean", tt.tensor([3.0]), tt.tensor([4.0])))


@case
def a_submodule():
    m = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    return Case(m, lambda: setattr(m, "1", nn.Sigmoid()), lambda: m.append(nn.Sigmoid()))


@case
def a_submodule_in_a_list():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Tanh()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    m = Net()
    return Case(m, lambda: m.layers.append(nn.Sigmoid()), lambda: m.layers.__setitem__(0, nn.ReLU()))


@case
def a_hook():
    m = nn.Sequential(nn.Tanh())
    return Case(m, lambda: m[0].register_forward_hook(lambda m, a, r: r * 2),
                lambda: m.register_forward_pre_hook(lambda m, a: a[0] * 3))


@case
def a_hook_of_all_modules():
    m = nn.Tanh()
    handles = []
    return Case(m, lambda: handles.append(nn.modules.module.register_module_forward_hook(
        lambda m, a, r: r * 2)), lambda: handles.pop().remove())


@case
def the_rate_of_dropout():
    m = nn.Dropout(0.0)
    return Case(m, *setter(m, "p", 1.0, 0.0))


@case
def momentum_of_batch_norm():
    m = nn.BatchNorm1d(1)

    def f(x):
        m.running_mean.fill_(0.0)
        m(x.expand(2, 1))
        return m.running_mean * 1

    return Case(f, *setter(m, "momentum", 0.5, 0.25))


@case
def an_attribute():
    class Net(nn.Module):
        temperature = 2.0

        def forward(self, x):
            return x / self.temperature

    m = Net()
    return Case(m, *setter(m, "temperature", 4.0, 8), functools.partial(delattr, m, "temperature"),
                *setter(Net, "temperature", 16.0))


@case
def a_flag():
    class Net(nn.Module):
        fast = False

        def forward(self, x):
            return x * 2 if self.fast else x * 3

    m = Net()
    return Case(m, *setter(m, "fast", True, False))


@case
def a_dict():
    cfg = {"beta": 1.0}
    return Case(lambda x: x.sum() * cfg["beta"], *put(cfg, "beta", 0.5, 0.25))


@case
def get_of_a_dict():
    cfg = {}
    return Case(lambda x: x * cfg.get("beta", 7.0), *put(cfg, "beta", 0.5, 0.25))


@case
def a_key_that_is_missing():
    cfg = {}
    return Case(lambda x: x * 2 if "fast" in cfg else x, *put(cfg, "fast", 1))


@case
def tensors_in_a_dict():
    state = {"h": tt.tensor([1.0])}
    return Case(lambda x: x + state["h"], *put(state, "h", tt.tensor([2.0]), tt.tensor([3.0])))


@case
def nested_containers():
    cfg = {"a": [{"b": (1.0, {"c": 2.0})}]}
    return Case(lambda x: x * cfg["a"][0]["b"][1]["c"], *put(cfg["a"][0]["b"][1], "c", 3.0),
                *put(cfg["a"][0], "b", (1.0, {"c": 4.0})), lambda: cfg["a"].insert(0, {"b": (0, {"c": 9.0})}))


@case
def items_of_a_dict():
    cfg = {"a": 1.0, "b": 2.0}
    return Case(lambda x: x * sum(v for _, v in cfg.items()), *put(cfg, "b", 3.0), *put(cfg, "c", 3.0))


@case
def a_dict_that_is_merged():
    cfg = {"b": 2.0}

    def g(x, b=1.0, c=1.0):
        return x * b + c

    return Case(lambda x: g(x, **cfg), *put(cfg, "b", 3.0), *put(cfg, "c", 3.0))


@case
def a_list():
    scales = [1.0, 2.0]
    return Case(lambda x: x * scales[-1], *put(scales, 1, 3.0), lambda: scales.append(5.0))


@case
def a_list_that_is_iterated():
    scales = [1.0, 2.0]
    return Case(lambda x: x * sum(s * 2 for s in scales), *put(scales, 1, 3.0), lambda: scales.append(5.0))


@case
def a_list_that_c_reads():
    scales = [1.0, 2.0]
    return Case(lambda x: x * sum(scales) + max(scales), *put(scales, 1, 3.0), lambda: scales.append(5.0))


@case
def a_list_of_tensors():
    parts = [tt.tensor([1.0]), tt.tensor([2.0])]
    return Case(lambda x: tt.cat(parts) * x[0], *put(parts, 1, tt.tensor([3.0])),
                lambda: parts.append(tt.tensor([4.0])))


@case
def the_length_of_a_list():
    parts = [0]
    return Case(lambda x: x * len(parts), lambda: parts.append(1), lambda: parts.append(2))


@case
def whether_a_list_is_empty():
    parts = []
    return Case(lambda x: x * 2 if parts else x, lambda: parts.append(1), lambda: parts.clear())


@case
def a_list_that_is_unpacked():
    pair = [1.0, 2.0]

    def f(x):
        a, b = pair
        return x * a + b

    return Case(f, *put(pair, 0, 5.0))


@case
def a_slice_of_a_list():
    parts = [1.0, 2.0, 3.0]
    return Case(lambda x: x * sum(parts[1:]), *put(parts, 2, 5.0))


@case
def a_list_of_lists_in_a_tensor():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    return Case(lambda x: tt.tensor(rows) * x[0, 0], *put(rows[1], 0, 5.0))


@case
def a_set():
    names = {"a"}
    return Case(lambda x: x * 2 if "b" in names else x, lambda: names.add("b"), lambda: names.clear())


@case
def a_deque():
    last = deque([1.0, 2.0], maxlen=2)
    return Case(lambda x: x * sum(last), lambda: last.append(5.0))


@case
def an_ordered_dict():
    parts = OrderedDict(a=nn.Tanh())

    def f(x):
        for part in parts.values():
            x = part(x)
        return x

    return Case(f, *put(parts, "b", nn.Sigmoid()), lambda: parts.pop("a"))


@case
def a_variable_of_an_enclosing_function():
    beta = 1.0

    def change(value):
        nonlocal beta
        beta = value

    return Case(lambda x: x * beta, *(functools.partial(change, v) for v in (2.0, 3)))


@case
def a_tensor_of_an_enclosing_function():
    t = tt.tensor([1.0])

    def change(value):
        nonlocal t
        t = value

    return Case(lambda x: x * t, *(functools.partial(change, tt.tensor([v])) for v in (2.0, 3.0)))


@case
def a_function_in_a_function():
    beta = 1.0

    def change(value):
        nonlocal beta
        beta = value

    def f(x):
        own = 2.0

        def inner():
            return x * beta * own

        return inner()

    return Case(f, *(functools.partial(change, v) for v in (2.0, 3.0)))


GLOBAL = 1.0


def helper(x):
    return x * GLOBAL


@case
def a_global():
    def change(value):
        global GLOBAL
        GLOBAL = value

    return Case(lambda x: helper(x), *(functools.partial(change, v) for v in (2.0, 3.0)))


@case
def a_global_function():
    def change(value):
        global helper
        helper = value

    return Case(lambda x: helper(x), functools.partial(change, lambda x: x * 11))


@case
def a_module_of_python():
    config = types.ModuleType("config")
    config.beta = 2.0
    return Case(lambda x: x * config.beta, *setter(config, "beta", 3.0, 4.0))


@case
def a_dataclass():
    @dataclasses.dataclass
    class Config:
        beta: float = 1.0
        inner: object = None

    cfg = Config(inner=Config())
    return Case(lambda x: x * cfg.beta + cfg.inner.beta, *setter(cfg, "beta", 3.0),
                *setter(cfg.inner, "beta", 4.0), *setter(cfg, "inner", Config(beta=9.0)))


@case
def slots():
    class Config:
        __slots__ = ("beta",)

    cfg = Config()
    cfg.beta = 1.0
    return Case(lambda x: x * cfg.beta, *setter(cfg, "beta", 3.0, 4.0))


@case
def a_namespace():
    cfg = types.SimpleNamespace(beta=1.0)
    return Case(lambda x: x * getattr(cfg, "be" + "ta"), *setter(cfg, "beta", 3.0))


@case
def an_object_with_getattr():
    class Easy(dict):
        __getattr__ = dict.__getitem__

    cfg = Easy(beta=1.0)
    return Case(lambda x: x * cfg.beta, *put(cfg, "beta", 3.0))


@case
def hasattr_of_an_object():
    cfg = types.SimpleNamespace()
    return Case(lambda x: x * 2 if hasattr(cfg, "fast") else x, *setter(cfg, "fast", 1))


@case
def vars_of_an_object():
    cfg = types.SimpleNamespace(a=1.0)
    return Case(lambda x: x * sum(vars(cfg).values()), *setter(cfg, "a", 2.0), *setter(cfg, "b", 2.0))


@case
def a_property():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self._scale = 1.0

        @property
        def scale(self):
            return self._scale * 2

        def forward(self, x):
            return x * self.scale

    m = Net()
    return Case(m, *setter(m, "_scale", 3.0))


@case
def a_bound_method():
    class Trainer:
        scale = 1.0

        def step(self, x):
            return x * self.scale

    t = Trainer()
    return Case(t.step, *setter(t, "scale", 2.0, 3.0))


@case
def a_partial():
    cfg = {"k": 2.0}

    def f(cfg, x):
        return x * cfg["k"]

    return Case(functools.partial(f, cfg), *put(cfg, "k", 3.0))


@case
def a_default():
    cfg = {"k": 2.0}

    def f(x, cfg=cfg):
        return x * cfg["k"]

    return Case(lambda x: f(x), *put(cfg, "k", 3.0))


@case
def a_method_that_is_replaced():
    class Net(nn.Module):
        def forward(self, x):
            return x * 2

    m = Net()
    return Case(m, *setter(Net, "forward", lambda self, x: x * 3),
                *setter(m, "forward", lambda x: x * 5))


@case
def a_function_in_an_attribute():
    m = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)
    x = tt.randn(1, 3, 4)
    return Case(lambda _: m(x), *setter(m, "activation", nn.functional.gelu))


@case
def an_array():
    table = np.ones(2, np.float32)

    def change(i, v):
        table[i] = v

    return Case(lambda x: x * tt.from_numpy(table)[0], functools.partial(change, 0, 3.0),
                functools.partial(change, 0, 4.0))


@case
def a_number_of_an_array():
    table = np.ones((2, 2))

    def change(v):
        table.T[0, 1] = v

    return Case(lambda x: x * float(table.sum()), functools.partial(change, 3.0))


@case
def a_weak_reference():
    cfg = nn.Tanh()
    cfg.k = 1.0
    ref = weakref.ref(cfg)
    return Case(lambda x: x * ref().k, *setter(cfg, "k", 3.0))


@case
def a_deep_copy():
    cfg = types.SimpleNamespace(a=types.SimpleNamespace(b=1.0))
    return Case(lambda x: x * copy.deepcopy(cfg).a.b, *setter(cfg.a, "b", 3.0))


@case
def an_attribute_by_another_name():
    import operator

    cfg = types.SimpleNamespace(a=types.SimpleNamespace(b=1.0))
    get = operator.attrgetter("a.b")
    return Case(lambda x: x * get(cfg), *setter(cfg.a, "b", 3.0))


@case
def a_function_of_another_capture():
    cfg = {"k": 2.0}
    m = nn.Dropout(0.0)
    m.cfg = cfg
    inner = tt.compile(lambda x: m(x) * m.cfg["k"])
    return Case(lambda x: inner(x) + 1, *put(cfg, "k", 3.0), *setter(m, "p", 1.0))


@case
def a_tensor_with_an_attribute():
    p = nn.Parameter(tt.ones(1))
    p.scale = 2.0
    return Case(lambda x: x * p * p.scale, *setter(p, "scale", 3.0))


@case
def numbers_that_look_alike():
    cfg = {"k": 1}
    return Case(lambda x: x * (2 if isinstance(cfg["k"], bool) else 3) * tt.tensor(cfg["k"]),
                *put(cfg, "k", True, 1.0, 0.0, -0.0))


def backward(w):
    def f(x):
        w.grad = None
        (w * x * 3).sum().backward()
        return w.grad * 1

    return f


@case
def a_hook_of_a_tensor():
    w, handles = nn.Parameter(tt.tensor([1.0])), []
    return Case(backward(w), lambda: handles.append(w.register_hook(lambda g: g * 2)),
                lambda: handles.append(w.register_hook(lambda g: g + 1)), lambda: handles[0].remove())


@case
def a_hook_behind_the_gradient():
    w = nn.Parameter(tt.tensor([1.0]))
    return Case(backward(w), lambda: w.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2)))


@case
def containers_of_parameters():
    class Net(nn.Module):
        scale = 2.0

        def __init__(self):
            super().__init__()
            self.a = nn.ParameterList([nn.Parameter(tt.ones(1))])
            self.b = nn.ParameterDict({"k": nn.Parameter(tt.ones(1))})
            self.c = nn.ModuleDict({"k": nn.Tanh()})

        @classmethod
        def factor(cls):
            return cls.scale

        def forward(self, x):
            x = self.c["k"](x) * self.a[0] * self.b["k"] * self.factor() * type(self).scale
            return x + sum(p.sum() for p in self.parameters())

    m = Net()
    return Case(m, *put(m.a, 0, nn.Parameter(tt.tensor([3.0]))), *put(m.b, "k", nn.Parameter(tt.tensor([4.0]))),
                *put(m.c, "k", nn.Sigmoid()), *setter(Net, "scale", 5.0),
                lambda: m.register_parameter("new", nn.Parameter(tt.tensor([7.0]))),
                lambda: m.a.append(nn.Parameter(tt.tensor([9.0]))))


@pytest.mark.parametrize("name", CASES)
def test_what_is_replaced_is_seen(name):
    tried = CASES[name]()
    compiled = tt.compile(tried.f)
    x = tt.full((1, 1), 2.0)
    for change in (lambda: None, lambda: None, *tried.changes):
        change()
        for _ in range(2):
            state = tt.get_rng_state()
            right = tried.f(x)
            tt.set_rng_state(state)
            found = compiled(x)
            assert found.tolist() == right.tolist() and found.dtype == right.dtype
    calls = compiled._entries
    for _ in range(3):
        compiled(x)
    assert compiled._entries == calls  # nothing changes, nothing is captured


def test_autocast_around_the_call():
    a = tt.full((1, 2), 1.0 + 2.0 ** -10)
    compiled = tt.compile(lambda x: x @ a)
    x = tt.full((1, 1), 2.0)
    for _ in range(2):
        assert compiled(x).dtype == tt.float32
        for dtype in (tt.bfloat16, tt.float16):
            with tt.autocast("cpu", dtype=dtype):
                assert compiled(x).dtype == dtype and compiled(x).tolist() == (x @ a).tolist()
    assert compiled._entries == 3


def test_a_program_is_found_again_when_what_it_read_stands_again():
    cfg = {"k": 1.0}
    compiled = tt.compile(lambda x: x * cfg["k"])
    for k in (1.0, 2.0, 1.0, 2.0, 1.0):
        cfg["k"] = k
        assert compiled(ones(1)).item() == k
    assert compiled._entries == 2
