"""Random programs about names, views, in-place writes and the tape, generated step by step.

A step is a dict: op, operands "a" and "b" (names), "p" (parameters), "out" (the name that it makes), "ng"
(under no_grad). Steps are chosen by looking at the tensors of the reference, so that most of them can run.
"""

import numpy as np
from layout import broadcasts

UNARY = ("neg", "sin", "exp", "tanh", "clone", "custom")  # custom: a Function written in Python
BINARY = ("add", "mul")
SHAPES = [(), (1,), (3,), (4,), (2, 3), (3, 2), (2, 2), (1, 3), (3, 1), (2, 1, 3), (2, 3, 2), (4, 3)]
WEIGHTS = {
    "unary": 10, "binary": 14, "matmul": 3, "sum": 6, "view": 20, "share": 5, "inplace": 18,
    "setitem": 7, "setdata": 2, "rg": 3, "retain": 3, "hook": 4, "backward": 9, "grad": 5,
    "getgrad": 3, "setgrad": 1, "gradnone": 1, "gradzero": 1, "drop": 6,
}
MAX_NAMES = 9


def attempt(call):
    """Returns (result, None) or (None, the RuntimeError). Other exceptions are faults and are not
    caught."""
    try:
        return call(), None
    except RuntimeError as error:
        return None, error


def readable_grad(tensor):
    return attempt(lambda: tensor.grad)[0]


class Chooser:
    """Writes one program. `snap`: the reference keeps saved values, so `.data` and flags may be changed."""

    def __init__(self, rng, snap):
        self.rng, self.snap = rng, snap
        self.weights, self.profile, self.queue = dict(WEIGHTS), rng.random(), []
        if self.about_order:
            self.weights.update(hook=20, backward=16, grad=8, inplace=10, drop=2)
        elif self.about_views:
            self.weights.update(view=30, inplace=36, setitem=10, backward=14, drop=2)

    @property
    def about_order(self):
        return self.profile < 0.2

    @property
    def about_views(self):
        return 0.2 <= self.profile < 0.45

    def pick(self, env, test=lambda t: True):
        live = [n for n in env if test(env[n])]
        return self.rng.choice(live) if live else None

    def fitting(self, env, x):
        return self.pick(env, lambda t: broadcasts(t.shape, x.shape))

    def index(self, shape):
        rng = self.rng
        return tuple(
            rng.choice([slice(None), slice(rng.randrange(s), s), slice(0, rng.randrange(s) + 1),
                        slice(0, s, 2), rng.randrange(s)])
            for s in shape[:rng.randrange(len(shape)) + 1])

    def diamond(self, a, i):
        """Two branches from one name, with a hook on each in either order, and a backward through their
        sum."""
        rng = self.rng
        first, second = rng.sample((f"t{i}", rng.choice((f"t{i + 1}", a))), 2)
        return [
            {"op": "mul", "a": a, "p": 0.5, "out": f"t{i}"},
            {"op": rng.choice(UNARY), "a": a, "out": f"t{i + 1}"},
            {"op": "hook", "a": first, "p": (i + 2, "log")},
            {"op": "hook", "a": second, "p": (i + 3, "scale")},
            {"op": "add", "a": first, "b": second, "out": f"t{i + 4}"},
            {"op": "backward", "a": f"t{i + 4}", "p": (i + 5, True, rng.random() < 0.3)},
        ]

    def __call__(self, env, i):
        """Returns step number `i`, given the names of the reference."""
        if self.queue:
            return self.queue.pop(0)
        rng = self.rng
        no_grad = rng.random() < 0.12
        if len(env) < 2 or rng.random() < 0.08:
            parameters = (rng.choice(SHAPES), rng.randrange(10 ** 6), rng.random() < 0.5)
            return {"op": "new", "out": f"t{i}", "p": parameters}
        if len(env) > MAX_NAMES:
            return {"op": "drop", "a": self.pick(env)}
        a = rng.choice(list(env))
        if self.about_order and rng.random() < 0.1 and env[a].requires_grad:
            self.queue.extend(self.diamond(a, i))
            return self.queue.pop(0)
        if self.about_order and rng.random() < 0.3:
            a = next((n for n in reversed(env) if env[n].requires_grad), a)
            return {"op": "hook", "a": a, "p": (i, "log")}
        if self.about_views and rng.random() < 0.5:
            inner = self.pick(env, lambda t: t._is_view() and not t._base.is_leaf)
            a = inner or self.pick(env, lambda t: not t.requires_grad) or a
        step = {"a": a, "ng": no_grad}
        op = rng.choices(list(self.weights), self.weights.values())[0]
        if op in ("unary", "binary", "matmul", "sum", "view", "share"):
            step["out"] = f"t{i}"
            self.computing(op, step, env)
        elif op in ("inplace", "setitem", "setdata"):
            self.writing(op, step, env)
        else:
            self.taping(op, step, env, i)
        return step if "op" in step else {"op": "drop", "a": a}

    def computing(self, op, step, env):
        rng, x = self.rng, env[step["a"]]
        if op == "unary":
            step.update(op=rng.choice(UNARY))
        elif op == "binary":
            fits = self.fitting(env, x)
            step.update(op=rng.choice(BINARY))
            step.update({"b": fits} if fits and rng.random() < 0.8 else {"p": self.scalar()})
        elif op == "matmul":
            y = self.pick(env, lambda t: x.dim() == 2 == t.dim() and t.shape[0] == x.shape[1])
            step.update({"op": "matmul", "b": y} if y else {"op": "sum", "p": None})
        elif op == "sum":
            step.update(op="sum", p=rng.choice([None, *range(x.dim())]))
        elif op == "share":
            step.update(op="data" if self.snap and rng.random() < 0.4 else "detach")
        else:
            self.view(step, x)

    def scalar(self):
        return round(self.rng.uniform(-1.5, 1.5), 2)

    def view(self, step, x):
        rng, shape, n = self.rng, tuple(x.shape), x.numel()
        kind = rng.choice(("slice", "slice", "select", "narrow", "transpose", "view", "reshape",
                           "expand", "unbind"))
        if kind in ("view", "reshape") or not shape:
            choices = [c for c in [*SHAPES, (n,), (1, n), (n, 1)] if int(np.prod(c)) == n]
            step.update(op="reshape" if kind == "reshape" else "view", p=rng.choice(choices))
        elif kind == "slice":
            step.update(op="slice", p=self.index(shape))
        elif kind == "expand":
            to = tuple(rng.choice((2, 3)) if d == 1 else d for d in shape)
            lead = rng.random() < 0.4 and len(to) < 3
            step.update(op="expand", p=(2, *to) if lead else to)
        else:
            d = rng.randrange(len(shape))
            i = rng.randrange(shape[d])
            step.update(op=kind, p={
                "select": (d, i), "narrow": (d, i, rng.randrange(shape[d] - i) + 1),
                "transpose": (d, rng.randrange(len(shape))), "unbind": (d,)}[kind])

    def writing(self, op, step, env):
        rng, a = self.rng, step["a"]
        x = env[a]
        if op == "setdata":
            if self.snap:
                step.update(op="setdata", b=self.pick(env, lambda t: t.shape == x.shape))
            return
        if op == "setitem":
            if not x.dim():
                return
            index = self.index(tuple(x.shape))
            region = x.detach()[index]
            v = self.pick(env, lambda t: broadcasts(t.shape, region.shape) and t.dim() <= region.dim())
            step.update(op="setitem", p=(index, self.scalar()))
            if v and rng.random() < 0.8:
                step["b"] = v
            return
        fits, kind = self.fitting(env, x), rng.random()
        zero_d = self.pick(env, lambda t: t.dim() == 0)
        if kind < 0.25:
            step.update(op=rng.choice(("neg_", "sin_", "tanh_", "exp_")))
        elif kind < 0.6 and fits:
            step.update(op=rng.choice(("add_", "mul_", "copy_")), b=rng.choice([fits, fits, a]))
        elif kind < 0.7 and zero_d:
            step.update(op="fill_", b=zero_d)
        else:
            step.update(op=rng.choice(("add_", "mul_", "fill_")), p=self.scalar())

    def taping(self, op, step, env, i):
        rng, a = self.rng, step["a"]
        x = env[a]
        if op == "rg":
            if self.snap:  # D13: otherwise the flags of the reference's saved names change later
                step.update(op="rg", p=rng.random() < 0.75)
        elif op == "retain":
            step.update(op="retain")
        elif op == "hook":
            step.update(op="hook", p=(i, rng.choice(("log", "scale"))))
        elif op == "backward":
            a = self.pick(env, lambda t: t.requires_grad) or a
            scalar_loss = env[a].dim() == 0 and rng.random() < 0.9
            step.update(op="backward", a=a, ng=False,
                        p=(None if scalar_loss or rng.random() < 0.05 else i,
                           rng.choice((None, True, True, True, False)), rng.random() < 0.2))
        elif op == "grad":
            a = self.pick(env, lambda t: t.requires_grad) or a
            inputs = {self.pick(env, lambda t: t.requires_grad or rng.random() < 0.01) or a
                      for _ in range(rng.randrange(1, 4))}
            step.update(op="grad", a=a, ng=False, ins=sorted(inputs), out=f"t{i}",
                        p=(i, rng.choice((None, True, True, True)), rng.random() < 0.5,
                           rng.random() < 0.95))
        elif op == "getgrad":
            step.update(op="getgrad", a=self.pick(env, lambda t: readable_grad(t) is not None) or a,
                        out=f"t{i}")
        elif op == "setgrad":
            same = self.pick(env, lambda t: t.shape == x.shape or rng.random() < 0.02)
            step.update(op="setgrad", b=same or a)
        elif op == "drop":
            step.update(op="drop")
        else:  # gradnone or gradzero
            step.update(op=op, ng=op == "gradzero")
