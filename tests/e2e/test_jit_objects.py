"""Captured functions and the program's objects: replaced optimizer state, lifetimes, side effects, refused
code, debuggers."""

import copy
import gc
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import teletensor as tt
from teletensor import nn


def ones(*shape):
    return tt.ones(*shape)


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


def test_options_of_another_kind():
    """A rate that becomes a tensor, betas that are replaced, parameters that are exchanged."""
    found = []
    for wrap in (lambda f: f, tt.compile):
        p, q = nn.Parameter(tt.ones(1)), nn.Parameter(tt.full((1,), 2.0))
        o = tt.optim.Adam([p], lr=0.1)

        def step(x, o=o, p=p, q=q):
            o.zero_grad()
            (p * x * q).sum().backward()
            o.step()

        step = wrap(step)
        group = o.param_groups[0]
        changes = {3: lambda g=group, q=q: g.update(params=[q]), 5: lambda g=group, p=p: g["params"].append(p),
                   7: lambda g=group: g.update(betas=(0.5, 0.6)), 9: lambda g=group: g.update(lr=tt.tensor(0.25)),
                   11: lambda g=group: g.update(lr=1), 13: lambda g=group: g.update(lr=0.5)}
        for i in range(15):
            changes.get(i, lambda: None)()
            step(tt.ones(1))
        found.append((p.item(), q.item()))
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [
    lambda s, o: s.StepLR(o, 2), lambda s, o: s.LambdaLR(o, lambda e: 0.9 ** e),
    lambda s, o: s.SequentialLR(o, [s.ConstantLR(o, 0.5, 2), s.ExponentialLR(o, 0.9)], [3]),
    lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 2), s.ExponentialLR(o, 0.9)])],
    ids=["step", "lambda", "sequential", "chained"])
def test_schedules_in_the_function(make):
    found = []
    for wrap in (lambda f: f, tt.compile):
        p = nn.Parameter(tt.ones(1))
        o = tt.optim.SGD([p], lr=1.0)
        schedule = make(tt.optim.lr_scheduler, o)

        def step(x, o=o, p=p, schedule=schedule):
            o.zero_grad()
            (p * x).sum().backward()
            o.step()
            schedule.step()

        step = wrap(step)
        for _ in range(8):
            step(tt.ones(1))
        found.append((p.item(), o.param_groups[0]["lr"]))
    assert found[0] == found[1]
    assert step._entries <= 2


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


def test_what_the_collector_runs_is_not_read_by_the_function():
    """A function in gc.callbacks, as hypothesis has one, and a finalizer read objects that differ from run
    to run."""
    global _collections, _begun, _spent

    class Cycle:
        def __init__(self):
            self.own = self

        def __del__(self):
            count()

    def count(*_):
        global _collections, _begun, _spent
        _collections += 1
        now = time.perf_counter()
        if _begun > 0:
            _spent += now - _begun
        _begun = now

    def step(x):
        for _ in range(20):
            Cycle()
            junk = [[] for _ in range(200)]  # the collector runs also where the function allocates
            x = x + len(junk) / 200
        return x

    _collections, _begun, _spent = 0, 0.0, 0.0
    before = gc.get_threshold()
    compiled = tt.compile(step)
    gc.callbacks.append(count)
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(4):
            assert compiled(tt.zeros(2)).tolist() == [20.0, 20.0]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(count)
    assert _collections > 0 and gc.isenabled()
    assert compiled._entries == 1


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


def test_a_version_of_python_that_shows_nothing_runs_functions_line_by_line(monkeypatch):
    from teletensor.jit import _compiled

    _compiled._warn_that_nothing_is_captured.cache_clear()
    assert _compiled._can_capture()
    monkeypatch.setattr(_compiled, "_can_capture", lambda: False)
    cfg = {"k": 2.0}
    compiled = tt.compile(lambda x: x * cfg["k"])
    with pytest.warns(UserWarning, match="no effect under Python"):
        assert compiled(ones(1)).item() == 2
    cfg["k"] = 3.0
    assert compiled(ones(1)).item() == 3 and compiled._entries == 0
