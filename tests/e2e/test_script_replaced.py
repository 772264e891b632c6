"""Scripted functions and modules notice objects that the program has replaced in Python."""

import types

import teletensor as tt
from teletensor import nn


def ones(*shape):
    return tt.ones(*shape)


BETA = 2.0


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tt.ones(1))
        self.drop = nn.Dropout(0.0)
        self.register_buffer("shift", tt.zeros(1))
        self.t = 1.0
        self.parts = [1.0, 2.0]
        self.cfg = {"k": 1.0}

    def forward(self, x):
        if x.sum() > 0:
            x = x * self.t
        for part in self.parts:
            x = x + part
        return self.drop(x * self.weight + self.shift) * self.cfg["k"] * BETA


def test_a_scripted_module_follows_what_is_replaced():
    m = Scaled()
    j = tt.jit.script(m)
    x = tt.full((1,), 3.0)

    def change(value):
        global BETA
        BETA = value

    changes = [
        lambda: None, lambda: setattr(j, "t", 2.0), lambda: setattr(m, "t", 3.0),
        lambda: setattr(m, "weight", nn.Parameter(tt.tensor([5.0]))),
        lambda: setattr(j, "weight", nn.Parameter(tt.tensor([6.0]))),
        lambda: j.load_state_dict({"weight": tt.tensor([7.0]), "shift": tt.tensor([1.0])}, assign=True),
        lambda: setattr(m, "shift", tt.tensor([9.0])), lambda: m.parts.append(3.0),
        lambda: m.parts.__setitem__(0, 4.0), lambda: m.cfg.__setitem__("k", 5.0),
        lambda: setattr(m, "cfg", {"k": 6.0}), lambda: change(3.0), lambda: setattr(m.drop, "p", 1.0),
        lambda: setattr(m, "drop", nn.Identity()), lambda: m.eval(),
    ]
    compiled = tt.compile(lambda x: j(x) * 2)
    for step in changes:
        step()
        for _ in range(2):
            right = m(x)
            assert j(x).tolist() == right.tolist()
            with tt.no_grad():  # its backward would have to be a part of what is captured
                assert compiled(x).tolist() == (right * 2).tolist()
    assert m.t == 3.0 and m.weight.item() == 7.0
    change(2.0)


def test_a_scripted_function_follows_globals_and_closures():
    k = 2.0
    cfg = types.SimpleNamespace(a=1.0)

    def bump(x):
        return x * k

    def f(x, n: int = 1):
        if x.sum() > 0:
            x = bump(x) + cfg.a
        return x * n

    scripted = tt.jit.script(f)
    x = ones(2)
    for change in range(4):
        if change == 1:
            k = 3.0
        elif change == 2:
            cfg.a = 5.0
        elif change == 3:
            k, cfg = 2.0, types.SimpleNamespace(a=1.0)
        assert scripted(x).tolist() == f(x).tolist()
        assert scripted(x, 3).tolist() == f(x, 3).tolist()


def test_attributes_of_a_compiled_module_are_the_modules():
    d = nn.Dropout(0.0)
    c = tt.compile(d)
    c(ones(2))
    c.p = 1.0
    assert d.p == 1.0 and c(ones(2)).tolist() == [0, 0]
    c.extra = 3
    assert d.extra == 3
    del c.extra
    assert not hasattr(d, "extra")
