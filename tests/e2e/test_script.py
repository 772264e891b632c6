"""Scripted functions: control flow on the daemon, the values of Python's, and errors with a place."""

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


def breaks(x):
    while x.sum() > 0:
        break
    return x


def wrong_shapes(x):
    return x @ tt.ones(7, 7)


@pytest.mark.parametrize(("function", "line", "text"), [
    (uses_with, 1, "`with` is not supported"), (two_types, 1, "float32.*float64"),
    (undefined, 3, "'y' is not defined"), (grows, 1, "two types"), (breaks, 2, "`break`"),
    (wrong_shapes, 1, "sizes|size"),
])
def test_errors_name_line_and_column(function, line, text):
    first = function.__code__.co_firstlineno
    with pytest.raises(tt.jit.ScriptError, match=rf"test_script.py:{first + line}:\d+: script: .*({text})"):
        tt.jit.script(function)(tt.ones(2))
