"""Runs one random function in every possible way: line by line with a wait after each line; behind a busy
lane, so that its windows are complete; cut at every line in turn; captured; scripted; saved and loaded. All
must give the same bits, in results and in tensors that are written in place.

    python tests/fuzz/differential.py --programs 3000 [--seed 1]     # uses a daemon of its own
"""

import argparse
import importlib.util
import io
import math
import os
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import teletensor as tt

UNARY = ["sin()", "exp()", "tanh()", "neg()", "abs()", "sigmoid()", "relu()", "square()", "sqrt()", "cos()", "floor()",
         "erf()", "round()", "clone()", "contiguous()", "sgn()", "logit()", "reciprocal()", "softplus()"]
CASTS = {"double()": "f64", "float()": "f32", "bfloat16()": "bf16", "half()": "f16", "to(tt.int64)": "i64"}
INTEGER = ["{0} + 3", "{0} * {0}", "{0} // 2", "{0} % 5", "{0}.clamp(-2, 2)", "{0} ^ 1", "-{0}", "{0}.abs()"]
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / {}", "{}.maximum({})", "{}.atan2({})", "{}.add({}, alpha=0.5)",
          "{}.minimum({})", "{} * {}.sigmoid()"]
NUMBER = ["{} * 1.5", "{} + 0.25", "1.0 - {}", "2.0 / {}", "{} ** 2", "{}.clamp(-0.5, 0.75)", "{} * 2", "{}.pow(3)"]
FOLDS = ["sum(1, keepdim=True)", "mean(1, keepdim=True)", "amax(1, keepdim=True)", "sum()", "mean()",
         "std(1, keepdim=True)", "softmax(1)", "log_softmax(1)", "cumsum(0)", "sum(0, keepdim=True)",
         "amin(0, keepdim=True)",
         "flip(1)", "roll(1, 0)"]
WRITES = ["{}.add_({})", "{}.mul_({})", "{}.copy_({})", "{}.sub_({})", "{}[0] = {}[1]", "{}[:, 1:] = {}[:, :1]",
          "{}.t().add_({}.t())", "{}.select(0, 1).mul_({}.select(0, 0))", "{}[1:].clamp_(-1.0, 1.0).add_({}[1:])"]
RANDOM = ["tt.rand_like({0}) + {0}", "tt.randn_like({0}) * {0}", "{0} * tt.bernoulli(tt.full_like({0}, 0.5))",
          "tt.where(tt.rand_like({0}) > 0.5, {0}, -{0})"]
SHAPES = [(2, 3), (5, 1), (7, 300), (64, 257), (40, 1024), (3, 3)]
FLOATS = ("f32", "f64", "bf16", "f16")


class Source:
    """The text of a function f(a, b, c) over tensors of the same shape; c is written in place."""

    def __init__(self, number):
        rng = self.rng = random.Random(number)
        self.shape = rng.choice(SHAPES)
        self.names = dict.fromkeys("abc", self.shape)
        self.kinds = dict.fromkeys("abc", "f32")
        self.lines = []
        self.branches = rng.random() < 0.45  # branches on values, which captured functions cannot have
        self.writes = rng.random() < 0.5  # a script does not write to its arguments
        self.random = rng.random() < 0.3
        for _ in range(rng.randint(3, 14)):
            self.line()
        count = min(3, len(self.names))
        self.results = rng.sample(list(self.names), count)
        self.text = self.whole(self.lines)

    def whole(self, lines):
        body = "".join(f"    {line}\n" for line in lines)
        return f"def f(a, b, c):\n{body}    return {', '.join(self.results)}\n"

    def pick(self, shape=None, kinds=FLOATS):
        fits = [n for n, s in self.names.items() if (shape is None or s == shape) and self.kinds[n] in kinds]
        return self.rng.choice(fits) if fits else None

    def line(self):
        rng, name = self.rng, f"t{len(self.lines)}"
        x = self.pick()
        made = rng.choices(
            [self.unary, self.binary, self.number, self.fold, self.view, self.broadcast, self.write, self.branch,
             self.loop, self.cast, self.integers, self.index, self.draw, self.twice, self.parts],
            [10, 12, 8, 9, 9, 4, 6, 6, 6, 4, 3, 5, 3, 3, 5])[0](name, x, self.names[x], self.kinds[x])
        if made is not None:
            text, self.names[name], self.kinds[name] = made
            self.lines.append(f"{name} = {text}")

    # Each of these methods returns the text of a value, its shape and its dtype, or appends lines.
    def unary(self, name, x, shape, kind):
        op = self.rng.choice(UNARY)
        text = f"tt.nn.functional.softplus({x})" if op == "softplus()" else f"{x}.{op}"
        return text, shape, kind

    def binary(self, name, x, shape, kind):
        y = self.pick(shape)  # of any floating-point dtype, to test promotion
        wide = max(kind, self.kinds[y], key=["bf16", "f16", "f32", "f64"].index)
        if {kind, self.kinds[y]} == {"bf16", "f16"}:
            wide = "f32"
        if not shape and kind != self.kinds[y]:
            return None
        return self.rng.choice(BINARY).format(x, y), shape, wide

    def number(self, name, x, shape, kind):
        return self.rng.choice(NUMBER).format(x), shape, kind

    def fold(self, name, x, shape, kind):
        if len(shape) != 2:
            return None
        fold = self.rng.choice(FOLDS)
        if fold in ("sum()", "mean()"):
            shape = ()
        elif "keepdim" in fold:
            shape = (shape[0], 1) if "(1" in fold else (1, shape[1])
        return f"{x}.{fold}", shape, kind

    def view(self, name, x, shape, kind):
        rng = self.rng
        if not shape:
            return f"{x}.reshape(1)", (1,), kind
        choices = [(f"{x}[0]", shape[1:]), (f"{x}.unsqueeze(0).squeeze(0)", shape),
                   (f"{x}.flatten()", (math.prod(shape),))]
        if len(shape) == 2:
            n, m = shape
            choices += [(f"{x}.t()", (m, n)), (f"{x}[:, ::2]", (n, (m + 1) // 2)), (f"{x}.reshape({m}, {n})", (m, n)),
                        (f"{x}.narrow(0, {n // 2}, {n - n // 2})", (n - n // 2, m)),
                        (f"{x}[{n // 2}:, {m // 2}]", (n - n // 2,)), (f"{x}[None, 0].expand(2, {m})", (2, m)),
                        (f"{x}.t().t()", (n, m)), (f"{x}.diagonal()", (min(n, m),))]
        return *rng.choice(choices), kind

    def parts(self, name, x, shape, kind):
        """Views as another dtype."""
        y = self.pick(shape, ("f32",))
        if kind != "f32" or y is None:
            return None
        if self.rng.random() < 0.4:
            return f"({x}.view(tt.int32) ^ 1).view(tt.float32)", shape, kind
        write = self.rng.choice(("{0}.real.mul_({1})", "tt.view_as_real({0}).add_(1.0)", "{0}.imag.copy_({0}.real)",
                                 "{0}.view(tt.int64).copy_({0}.conj().view(tt.int64))"))
        self.lines += [f"{name} = {x} * (1 + 0.5j)", write.format(name, y)]
        return f"{name}.imag + {name}.real", shape, kind

    def broadcast(self, name, x, shape, kind):
        y = self.pick(self.shape)
        if len(shape) != 2 or y is None or kind != self.kinds[y] or any(
                n not in (1, m) for n, m in zip(shape, self.shape, strict=True)):
            return None
        return f"{y} * {x}", self.shape, kind

    def write(self, name, x, shape, kind):
        if self.writes and self.shape[1] > 1:
            self.lines.append(self.rng.choice(WRITES).format("c", self.pick(self.shape, ("f32",)) or "a"))

    def branch(self, name, x, shape, kind):
        if not self.branches:
            return
        y = self.pick(shape, (kind,))
        self.lines += [f"if {x}.sum() > 0.5:", f"    {name} = {x} + {y}", "else:", f"    {name} = {x} * 3.0"]
        if self.rng.random() < 0.4:
            self.lines += [f"if {y}.sum() > 4.0 and {x}.sum() < 0.0:", f"    {name} = {name}.neg()"]
        self.names[name], self.kinds[name] = shape, kind

    def loop(self, name, x, shape, kind):
        rng, y = self.rng, self.pick(shape, (kind,))
        self.names[name], self.kinds[name] = shape, kind
        if not self.branches:
            self.lines += [f"{name} = {x} * 0.5", f"for _i in range({rng.randint(1, 4)}):",
                           f"    {name} = {name}.{rng.choice(['sin()', 'tanh()', 'neg()'])} + {y}"]
            return
        self.lines += [f"{name}, n{name} = {x} * 0.5, 0", f"while n{name} < 4 and {name}.sum() < 30.0:",
                       f"    {name} = {name}.abs() * 1.5 + {y}"]
        if rng.random() < 0.5:
            self.lines += [f"    if {name}.sum() > 9.0:", f"        {name} = {name} - 1.0"]
        self.lines.append(f"    n{name} += 1")

    def cast(self, name, x, shape, kind):
        to = self.rng.choice(list(CASTS))
        if to == "to(tt.int64)":  # the result of values that are out of range is undefined
            return f"{x}.float().nan_to_num(0.0).clamp(-100.0, 100.0).{to}", shape, "i64"
        return f"{x}.{to}", shape, CASTS[to]

    def integers(self, name, x, shape, kind):
        i = self.pick(None, ("i64",))
        if i is None:
            return None
        if self.rng.random() < 0.3:
            return f"{i}.to(tt.float32) * 0.25", self.names[i], "f32"
        return self.rng.choice(INTEGER).format(i), self.names[i], "i64"

    def index(self, name, x, shape, kind):
        if len(shape) != 2:
            return None
        n, m = shape
        rng, y = self.rng, self.pick(shape, (kind,))
        rows = [rng.randrange(n) for _ in range(3)]
        columns = [rng.randrange(m) for _ in range(3)]
        return *rng.choice([
            (f"{x}[tt.tensor({rows})]", (3, m)), (f"{x}.index_select(1, tt.tensor({columns}))", (n, 3)),
            (f"{x}[tt.tensor({rows}), tt.tensor({columns})]", (3,)), (f"tt.where({x} > {y}, {x}, {y} * 0.5)", shape),
            (f"{x}.masked_fill({y} < 0.0, 0.125)", shape), (f"tt.cat([{x}, {y}], 1)", (n, 2 * m)),
            (f"tt.stack([{x}, {y}]).sum(0)", shape), (f"{x}.gather(0, tt.zeros(1, {m}, dtype=tt.int64))", (1, m)),
            (f"{x}.matmul({y}.t())", (n, n)), (f"{x} * tt.arange({m})", shape)]), kind

    def draw(self, name, x, shape, kind):
        return (self.rng.choice(RANDOM).format(x), shape, kind) if self.random else None

    def twice(self, name, x, shape, kind):
        """Expressions for the passes: repeated expressions, and operations that cancel each other."""
        return self.rng.choice(["{0}.sin() + {0}.sin()", "{0}.neg().neg()", "{0}.clone().clone() * 2.0",
                                "{0}.double().to({0}.dtype)" if kind != "f64" else "{0}.clone()",
                                "({0} * 0.5) * ({0} * 0.5)", "{0} * (tt.ones(1) * 2.0 + 1.0)"
                                if kind in ("f32", "f64") and shape else "{0}.clone()"]).format(x), shape, kind

    def cut(self, at):
        """The same function with a wait after its line `at`."""
        lines = list(self.lines)
        shown = lines[at + 1] if lines[at].endswith(":") else lines[at]
        lines.insert(at + 1, " " * (len(shown) - len(shown.lstrip())) + "tt.synchronize()")
        return self.whole(lines)


def function(text, folder, name):
    """Writes the text to a file and imports the function from there, because `script` needs its source."""
    path = Path(folder) / f"{name}.py"
    path.write_text(f"import teletensor as tt\n\n\n{text}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


def given(source, seed):
    rng = np.random.default_rng(seed)
    return [tt.tensor(rng.standard_normal(source.shape).astype(np.float32)) for _ in range(3)]


def seen(f, source, seed, busy=False):
    a, b, c = given(source, seed)
    tt.manual_seed(seed)
    if busy:  # later commands wait in the queue behind this one
        x = tt.ones(400, 400)
        for _ in range(3):
            x = x @ x
    with tt.no_grad():
        results = f(a, b, c)
        results = results if isinstance(results, tuple) else (results,)
        bits = []
        for t in [*results, c]:
            array = (t.float() if t.dtype == tt.bfloat16 else t).numpy()
            # The bits of a NaN may differ, depending on the operand; whether a value is NaN may not.
            bits.append((array.dtype.str, array.shape, np.where(np.isnan(array), np.nan, array).tobytes()
                         if array.dtype.kind == "f" else array.tobytes()))
        return bits


def check(number, folder, cuts=None):
    """Runs program `number` in all ways; returns the ways that were possible."""
    source = Source(number)
    plain = function(source.text, folder, f"f{number}")
    tt.set_strict(True)
    try:
        expected = {seed: seen(plain, source, seed) for seed in (0, 1)}
    except (RuntimeError, TypeError, IndexError):  # an op refuses a dtype or a shape
        return ["refused"]
    finally:
        tt.set_strict(False)
    ways = ["lines", "window"]

    def same(f, way, seeds=(0, 1), busy=False):
        for seed in seeds:
            assert seen(f, source, seed, busy) == expected[seed], f"program {number}, {way}:\n{source.text}"

    same(plain, "window", busy=True)
    places = range(len(source.lines))
    for at in places if cuts is None else random.Random(number).sample(places, min(cuts, len(places))):
        same(function(source.cut(at), folder, f"f{number}c{at}"), f"cut behind line {at}", seeds=(0,), busy=True)
    ways.append("cuts")
    control = any(line.startswith(("if ", "while ")) for line in source.lines)
    if not control:
        captured = tt.compile(plain)
        same(captured, "captured", seeds=(0, 1, 0))
        same(captured, "captured, behind others", busy=True)
        ways.append("captured")
        file = io.BytesIO()
        with tt.no_grad():
            tt.jit.save(captured, file)
        loaded = tt.jit.load(io.BytesIO(file.getvalue()))
        names = [str(argument).split(":")[0] for argument in loaded.arguments]
        if names == ["a", "b", "c"]:
            same(loaded, "loaded")
            ways.append("loaded")
    if not any("c." in line.lstrip()[:2] or "c[" in line.lstrip()[:2] for line in source.lines):
        scripted = tt.jit.script(plain)
        same(scripted, "scripted", seeds=(0, 1, 0))
        same(scripted, "scripted, behind others", busy=True)
        ways.append("scripted with control flow" if control else "scripted")
        file = io.BytesIO()
        tt.jit.save(scripted, file)
        same(tt.jit.load(io.BytesIO(file.getvalue())), "script loaded")
    return ways


def main():
    from support.daemon import Daemon

    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=4, help="places of each program, of at most all")
    options = parser.parse_args()
    daemon, ways = Daemon(), {}
    try:
        with tempfile.TemporaryDirectory() as folder, tt.connect(daemon.unix):
            for number in range(options.seed * 1_000_000, options.seed * 1_000_000 + options.programs):
                for way in check(number, folder, options.cuts):
                    ways[way] = ways.get(way, 0) + 1
                if number % 100 == 99:
                    print(f"differential: as far as program {number}: {ways}", flush=True)
                for file in os.scandir(folder):
                    if file.is_file():
                        os.unlink(file)
    finally:
        problem = daemon.stop()
    print(f"differential: {options.programs} programs: {ways}")
    sys.exit(problem or 0)


if __name__ == "__main__":
    main()
