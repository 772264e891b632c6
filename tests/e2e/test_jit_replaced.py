"""Captured functions follow what the program has replaced in Python since: parameters, optimizer
state, attributes, globals, closures, containers."""

import copy
import dataclasses
import functools
import gc
import sys
import threading
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
    """`f` is called, then after each of `changes`; what it gives must be what the plain function gives."""

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


def test_a_program_is_found_again_when_what_it_read_stands_again():
    cfg = {"k": 1.0}
    compiled = tt.compile(lambda x: x * cfg["k"])
    for k in (1.0, 2.0, 1.0, 2.0, 1.0):
        cfg["k"] = k
        assert compiled(ones(1)).item() == k
    assert compiled._entries == 2


OPTIMIZERS = [
    lambda p: tt.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: tt.optim.Adam(p, lr=0.1),
    lambda p: tt.optim.AdamW(p, lr=0.1, amsgrad=True), lambda p: tt.optim.RMSprop(p, lr=0.1, momentum=0.5),
    lambda p: tt.optim.Adagrad(p, lr=0.1), lambda p: tt.optim.Adadelta(p), lambda p: tt.optim.NAdam(p),
    lambda p: tt.optim.RAdam(p), lambda p: tt.optim.Adamax(p), lambda p: tt.optim.ASGD(p),
    lambda p: tt.optim.Rprop(p)]


def training(make, change, wrap):
    w = nn.Parameter(tt.tensor([1.0]))
    o = make([w])

    def step(x):
        o.zero_grad()
        ((w - x) ** 2).sum().backward()
        o.step()

    step = wrap(step)
    x = tt.tensor([0.2])
    for _ in range(3):
        step(x)
    checkpoint, before = copy.deepcopy(o.state_dict()), w.detach().clone()
    for _ in range(4):
        step(x)
    change(o, checkpoint)
    w.data.copy_(before)
    for _ in range(3):
        step(x)
    state = {k: v.tolist() if isinstance(v, tt.Tensor) else v for k, v in o.state_dict()["state"][0].items()}
    return w.tolist(), state


@pytest.mark.parametrize("make", OPTIMIZERS, ids=range(len(OPTIMIZERS)))
@pytest.mark.parametrize("change", [
    lambda o, c: o.load_state_dict(c), lambda o, c: o.state.clear(),
    lambda o, c: o.state.pop(o.param_groups[0]["params"][0])], ids=["load", "clear", "pop"])
def test_optimizer_state_that_is_replaced(make, change):
    assert training(make, change, tt.compile) == training(make, change, lambda f: f)


def test_a_checkpoint_that_is_loaded_often_keeps_no_old_state():
    w = nn.Parameter(tt.ones(4))
    o = tt.optim.Adam([w])

    @tt.compile
    def step(x):
        o.zero_grad()
        ((w - x) ** 2).sum().backward()
        o.step()

    x = tt.zeros(4)
    step(x)
    checkpoint = copy.deepcopy(o.state_dict())
    old = []
    for _ in range(6):
        for _ in range(3):
            step(x)
        old.append(weakref.ref(o.state[w]["exp_avg"]))
        o.load_state_dict(checkpoint)
    for _ in range(3):
        step(x)
    gc.collect()
    assert [ref for ref in old if ref() is not None] == []
    assert step._entries == 1


def test_a_model_that_is_replaced_is_not_kept():
    models = [nn.Linear(2, 2) for _ in range(3)]
    holder = types.SimpleNamespace(model=models[0])
    compiled = tt.compile(lambda x: holder.model(x))
    x = ones(1, 2)
    for m in models:
        holder.model = m
        assert compiled(x).tolist() == m(x).tolist()
    weak = [weakref.ref(m.weight) for m in models]
    models.clear()
    del m
    for _ in range(2):
        holder.model = nn.Linear(2, 2)
        compiled(x)
    gc.collect()
    assert [w() for w in weak] == [None] * 3
    assert compiled._entries == 1


def test_counters_of_the_function_itself_do_not_capture_it_again():
    calls, seen = {"n": 0}, []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            calls["n"] += 1
            seen.append(x.shape)
            self.last_shape = x.shape
            return x.reshape(self.last_shape) * 2

    compiled = tt.compile(Net())
    for _ in range(4):
        compiled(ones(2))
    assert compiled._entries == 1 and calls["n"] == len(seen) == 1


def test_a_counter_that_takes_part_in_the_result():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    compiled = tt.compile(Net())
    assert [compiled(ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]


def test_iterators_and_large_arrays_of_outside_are_refused():
    numbers = iter([1.0, 2.0])
    with pytest.raises(RuntimeError, match="iterator"):
        tt.compile(lambda x: x * next(numbers))(ones(1))
    with pytest.raises(RuntimeError, match="iterator"):
        tt.compile(lambda x, values: x * sum(values))(ones(1), (float(i) for i in range(3)))
    table = np.ones(1 << 20)
    with pytest.raises(RuntimeError, match="from outside"):
        tt.compile(lambda x: x * tt.from_numpy(table).sum())(ones(1))


def test_the_warning_about_many_captures_names_what_changes():
    cfg = types.SimpleNamespace(beta=0.0)
    compiled = tt.compile(lambda x: x * cfg.beta)
    with pytest.warns(UserWarning, match="'beta' of types.SimpleNamespace"):
        for i in range(18):
            cfg.beta = float(i)
            compiled(ones(1))


def test_captures_are_collected_with_what_they_belong_to():
    class Trainer:
        def __init__(self):
            self.model = nn.Linear(1, 1)
            self.step = tt.compile(self._step)

        def _step(self, x):
            return self.model(x)

    t = Trainer()
    for _ in range(3):
        t.step(ones(1, 1))
    gone = weakref.ref(t.model)
    del t
    gc.collect()
    assert gone() is None


def test_a_tracer_of_the_program_goes_on_being_told():
    lines, kinds = [], set()
    cfg = {"k": 2.0}

    def f(x):
        y = x * cfg["k"]
        return y + 1

    def tracer(frame, kind, arg):
        if frame.f_code is f.__code__:
            kinds.add(kind)
            lines.append(frame.f_lineno - f.__code__.co_firstlineno)
        return tracer

    compiled = tt.compile(f)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert compiled(ones(1)).item() == 3
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert {1, 2} <= set(lines) and {"call", "line", "return"} <= kinds
    cfg["k"] = 3.0
    assert compiled(ones(1)).item() == 4
    assert compiled._entries == 2


def test_a_tracer_that_starts_on_the_way_makes_no_stale_program():
    cfg = {"k": 2.0}

    @tt.compile
    def f(x):
        sys.settrace(lambda *_: None)
        return x * cfg["k"]

    before = sys.gettrace()
    try:
        for k in (2.0, 3.0, 2.0):
            cfg["k"] = k
            assert f(ones(1)).item() == k
    finally:
        sys.settrace(before)


def test_an_exception_leaves_no_tracer_behind():
    @tt.compile
    def f(x):
        raise KeyError("k")

    before = sys.gettrace()
    for _ in range(2):
        with pytest.raises(KeyError):
            f(ones(1))
        assert sys.gettrace() is before
    assert tt.compile(lambda x: x + 1)(ones(1)).item() == 2


def test_threads_capture_one_after_the_other_and_script_beside():
    start = threading.Barrier(2)
    found = {}

    def work(name):
        start.wait()
        scripted = tt.jit.script(plain)
        found[name] = scripted(ones(1)).item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {0: 2.0, 1: 2.0}


def plain(x):
    return x * BETA


BETA = 2.0
