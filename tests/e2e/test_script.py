"""Scripted functions: control flow on the daemon, with the values of Python and errors with a place."""

import io
from typing import NamedTuple

import pytest
import teletensor as tt
from teletensor import nn


def collatz(n):
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def early(x):
    total = x.sum()
    if total > 10:
        return total * 2, "large"
    scaled = x * 3
    if total < 0:
        scaled = -scaled
    return scaled.sum(), "large"


def newton(a, limit):
    x = a
    for _ in range(limit):
        x = 0.5 * (x + a / x)
    return x


def nested(x):
    count = 0
    while count < 4:
        inner = 0
        while inner < count:
            x = x + inner * 1.0
            inner += 1
        if count % 2 == 1 and not x.sum() > 100:
            x = x * 2
        count += 1
    return x, count


def helper(x):
    if x.mean() > 0:
        return x.sqrt()
    return x.abs()


def calls(x, shift):
    return helper(x) + helper(x - shift)


@pytest.mark.parametrize(("function", "cases"), [
    (collatz, [(tt.tensor, 27), (tt.tensor, 1), (tt.tensor, 6)]),
    (early, [(tt.full, (3,), 1.0), (tt.full, (3,), 9.0), (tt.full, (3,), -2.0)]),
    (nested, [(tt.ones, 2), (tt.zeros, 2), (tt.full, (2,), 60.0)]),
])
def test_control_flow_has_pythons_values(function, cases):
    scripted = tt.jit.script(function)
    for make, *args in cases:
        x = make(*args)
        with tt.no_grad():
            expected, got = function(x), scripted(x)
        if not isinstance(expected, tuple):
            expected, got = (expected,), (got,)
        for a, b in zip(expected, got, strict=True):
            plain = [v.tolist() if isinstance(v, tt.Tensor) else v for v in (a, b)]
            assert plain[0] == plain[1]
    assert len(scripted._cache) == 1  # whatever the values


def test_a_loop_over_a_tensors_range_and_calls():
    a = tt.tensor([2.0, 9.0])
    root = tt.jit.script(newton)
    for n in (0, 3, 8):
        assert root(a, tt.tensor(n)).tolist() == newton(a, n).tolist()
    assert root(a, 3).tolist() == newton(a, 3).tolist()
    scripted = tt.jit.script(calls)
    for x in (tt.tensor([4.0, 9.0]), tt.tensor([-4.0, -9.0]), tt.tensor([4.0, 1.0])):
        for shift in (1.0, 8.0):
            assert str(scripted(x, shift).tolist()) == str(calls(x, shift).tolist())
    assert "while" in str(root) or "range" in str(root) or str(root)


def leaves_early(x, limit=4, *, by=2.0):
    rounds = 0
    while x.sum() < 100:
        rounds += 1
        if rounds % 2 == 0:
            x = x + 1
            continue
        x = x * by
        if rounds > limit:
            x = -x
            break
        x = x + 0.5
    for i in range(5):
        if i == 3:
            break
        if i == 1:
            continue
        x = x + i
    y = x if x.sum() > 0 else x * 10
    return y, rounds


def first_over(x, n):
    at = -1
    for i in range(n):
        if i % 2 == 0:
            continue
        if x[i % 3] > 1:
            at = i
            break
    return at


def contained(pair, options):
    a, b = pair["a"], pair["b"]
    if a.sum() > b.sum():
        return {"best": a * options[0], "rest": [b]}
    return {"best": b * options[0], "rest": [a]}


def numbers_of(value):
    if isinstance(value, tt.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: numbers_of(each) for key, each in value.items()}
    return [numbers_of(each) for each in value] if isinstance(value, (tuple, list)) else value


def test_break_continue_keywords_and_defaults():
    scripted = tt.jit.script(leaves_early)
    for start in (1.0, 20.0, -3.0, 90.0):
        x = tt.full((2,), start)
        for args, kwargs in (((x,), {}), ((x, 7), {}), ((), {"x": x, "by": 1.5}), ((x,), {"limit": 2, "by": 3.0})):
            assert numbers_of(scripted(*args, **kwargs)) == numbers_of(leaves_early(*args, **kwargs))
    assert len(scripted._cache) == 4  # one program for each kind of limit and step, whatever their values
    search = tt.jit.script(first_over)
    for values in ([0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]):
        assert search(tt.tensor(values), tt.tensor(9)).item() == first_over(tt.tensor(values), 9)
    with pytest.raises(TypeError, match="limits"):
        scripted(tt.ones(2), limits=1)


def test_containers_are_arguments_and_results():
    scripted = tt.jit.script(contained)
    for low, high in ((1.0, 2.0), (4.0, 3.0)):
        pair = {"a": tt.full((3,), low), "b": tt.full((3,), high)}
        assert numbers_of(scripted(pair, options=[2.0, "x"])) == numbers_of(contained(pair, [2.0, "x"]))
    assert len(scripted._cache) == 1


def test_saved_and_repeated():
    gate = Gate()
    for function, args in ((collatz, [tt.tensor(27)]), (tt.jit.script(nested), [tt.ones(2)]), (gate, [tt.ones(4, 3)])):
        scripted = tt.jit.script(function)
        file = io.BytesIO()
        with tt.no_grad():
            scripted(*args)
            tt.jit.save(scripted, file)
            loaded = tt.jit.load(io.BytesIO(file.getvalue()))
            for x in (args[0], args[0] * 3, args[0] - args[0]):
                assert numbers_of(loaded(x)) == numbers_of(function(x))
    assert loaded.weights.keys() == dict(gate.named_parameters()).keys()
    scripted = tt.jit.script(collatz)
    data = tt.tensor([1, 2, 3, 27, 6, 7, 9])
    expected = [collatz(n) for n in data.tolist()] * 2
    assert list(scripted.repeat(14, data=data)) == expected
    file = io.BytesIO()
    tt.jit.save(scripted, file)
    assert list(tt.jit.load(io.BytesIO(file.getvalue())).repeat(14, data=data)) == expected


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.yes, self.no = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def forward(self, x):
        if x.sum() > 0:
            y = self.yes(x)
        else:
            y = self.no(x)
        return y * 2


def test_modules_and_gradients():
    tt.manual_seed(0)
    gate = Gate()
    scripted = tt.jit.script(gate)
    for x in (tt.ones(4, 3), -tt.ones(4, 3)):
        with tt.no_grad():
            assert scripted(x).tolist() == gate(x).tolist()
        scripted(x).sum().backward()
    grads = [p.grad.tolist() for p in gate.parameters()]
    gate.zero_grad()
    for x in (tt.ones(4, 3), -tt.ones(4, 3)):
        gate(x).sum().backward()
    assert [p.grad.tolist() for p in gate.parameters()] == grads


def uses_with(x):
    with tt.no_grad():
        return x


def two_types(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.double()
    return y


def undefined(x):
    if x.sum() > 0:
        y = x
    return y


def grows(x):
    while x.sum() > 0:
        x = tt.cat([x, x])
    return x


def unrolled_break(x):
    for i in range(3):
        if x.sum() > i:
            break
    return x


def wrong_shapes(x):
    return x @ tt.ones(7, 7)


@pytest.mark.parametrize(("function", "line", "text"), [
    (uses_with, 1, "`with` is not supported"), (two_types, 1, "float32.*float64"),
    (undefined, 3, "'y' is not defined"), (grows, 1, "two types"),
    (unrolled_break, 3, "`break` under a condition on a tensor"),
    (wrong_shapes, 1, "sizes|size"),
])
def test_errors_name_line_and_column(function, line, text):
    first = function.__code__.co_firstlineno
    with pytest.raises(tt.jit.ScriptError, match=rf"test_script.py:{first + line}:\d+: script: .*({text})"):
        tt.jit.script(function)(tt.ones(2))


class Scaled(NamedTuple):
    values: tt.Tensor
    factor: int


def named_tuples(x):
    made = Scaled(x * 3, 3)
    return made, x.max(0), [made.values.sort(descending=True)]


def test_named_tuples_are_results():
    x = tt.tensor([1.0, 2.0])
    for _ in range(2):
        made, largest, (ordered,) = tt.jit.script(named_tuples)(x)
        assert type(made) is Scaled and made.values.tolist() == [3.0, 6.0] and made.factor == 3
        assert largest.values.item() == 2.0 and largest.indices.item() == 1
        assert ordered.values.tolist() == [6.0, 3.0] and ordered.indices.tolist() == [1, 0]
