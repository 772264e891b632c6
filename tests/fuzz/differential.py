"""One random function run in every way that there is: line by line, each line waited for; behind a busy
lane, so that its windows come whole; cut at every line in turn; captured; scripted; saved and loaded.
All give the same bits, in results and in what is written in place.

    python tests/fuzz/differential.py --programs 3000 [--seed 1]     # one daemon of its own
"""

import argparse
import importlib.util
import io
import os
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import teletensor as tt

UNARY = ["sin()", "exp()", "tanh()", "neg()", "abs()", "sigmoid()", "relu()", "square()", "sqrt()", "cos()", "floor()",
         "erf()", "double()", "float()", "round()", "clone()"]
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / {}", "{}.maximum({})", "{}.atan2({})", "{}.add({}, alpha=0.5)"]
NUMBER = ["{} * 1.5", "{} + 0.25", "1.0 - {}", "2.0 / {}", "{} ** 2", "{}.clamp(-0.5, 0.75)", "{}.gt(0.1)"]
FOLDS = ["sum(1, keepdim=True)", "mean(1, keepdim=True)", "amax(1, keepdim=True)", "sum()", "mean()",
         "softmax(1)", "log_softmax(1)", "cumsum(0)", "sum(0, keepdim=True)", "amin(0, keepdim=True)"]
WRITES = ["{}.add_({})", "{}.mul_({})", "{}.copy_({})", "{}.sub_({})"]
SHAPES = [(2, 3), (5, 1), (7, 300), (64, 257), (40, 1024)]


class Source:
    """The text of a function f(a, b, c) over tensors of one shape; c is written in place."""

    def __init__(self, number):
        rng = self.rng = random.Random(number)
        self.shape = rng.choice(SHAPES)
        self.names = {"a": self.shape, "b": self.shape, "c": self.shape}
        self.lines = []
        self.branches = rng.random() < 0.25  # on values: captured functions have none
        self.writes = rng.random() < 0.5  # a script does not write its arguments
        for _ in range(rng.randint(3, 14)):
            self.line()
        count = min(3, len(self.names))
        self.results = rng.sample(list(self.names), count)
        body = "".join(f"    {line}\n" for line in self.lines)
        self.text = f"def f(a, b, c):\n{body}    return {', '.join(self.results)}\n"

    def pick(self, shape=None):
        fits = [n for n, s in self.names.items() if shape is None or s == shape]
        return self.rng.choice(fits) if fits else None

    def line(self):
        rng, kind, name = self.rng, self.rng.random(), f"t{len(self.lines)}"
        x = self.pick()
        shape = self.names[x]
        if kind < 0.3:
            text = f"{x}.{rng.choice(UNARY)}"
        elif kind < 0.55:
            text = rng.choice(BINARY).format(x, self.pick(shape))
        elif kind < 0.68:
            text = rng.choice(NUMBER).format(x)
        elif kind < 0.8 and len(shape) == 2:
            fold = rng.choice(FOLDS)
            text = f"{x}.{fold}"
            if fold in ("sum()", "mean()"):
                shape = ()
            elif "keepdim" in fold:
                shape = (shape[0], 1) if "(1" in fold else (1, shape[1])
        elif kind < 0.86 and len(shape) == 2:
            text, shape = f"{x}.t()", shape[::-1]
        elif kind < 0.9 and len(shape) == 2 and shape != self.shape and self.pick(self.shape):
            y = self.pick(self.shape)  # a broadcast, where the shapes allow it
            if any(n not in (1, m) for n, m in zip(shape, self.shape, strict=True)):
                return
            text, shape = f"{y} * {x}", self.shape
        elif kind < 0.94:
            if not self.writes:
                return
            self.lines.append(rng.choice(WRITES).format("c", self.pick(self.shape)))
            return
        elif self.branches:
            y = self.pick(shape)
            self.lines += [f"if {x}.sum() > 0.5:", f"    {name} = {x} + {y}", "else:", f"    {name} = {x} * 3.0"]
            self.names[name] = shape
            return
        else:
            text = f"{x}[0]" if shape else f"{x}.neg()"
            shape = shape[1:]
        self.lines.append(f"{name} = {text}")
        self.names[name] = shape

    def cut(self, at):
        """The same function, which waits behind its line `at`."""
        lines = list(self.lines)
        inner = lines[at].startswith(("if ", "else", "    "))
        lines.insert(at + 1, "    tt.synchronize()" if inner else "tt.synchronize()")
        body = "".join(f"    {line}\n" for line in lines)
        return f"def f(a, b, c):\n{body}    return {', '.join(self.results)}\n"


def function(text, folder, name):
    """From a file, where the script finds its source."""
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
    if busy:  # what follows waits in the queue behind this
        x = tt.ones(600, 600)
        for _ in range(3):
            x = x @ x
    with tt.no_grad():
        results = f(a, b, c)
        results = results if isinstance(results, tuple) else (results,)
        bits = []
        for t in [*results, c]:
            array = t.numpy()
            # Which NaN it is may differ between two operands' places; that it is one may not.
            bits.append((array.dtype.str, array.shape, np.where(np.isnan(array), np.nan, array).tobytes()
                         if array.dtype.kind == "f" else array.tobytes()))
        return bits


def check(number, folder, cuts=None):
    """Runs program `number` in all ways; the ways that were possible."""
    source = Source(number)
    plain = function(source.text, folder, f"f{number}")
    tt.set_strict(True)
    try:
        expected = {seed: seen(plain, source, seed) for seed in (0, 1)}
    except (RuntimeError, TypeError):  # an op that refuses a dtype
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
    if not source.branches or not any(line.startswith("if ") for line in source.lines):
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
    if not source.writes:
        same(tt.jit.script(plain), "scripted", seeds=(0, 1, 0))
        ways.append("scripted")
    return ways


def main():
    from support.daemon import Daemon

    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    daemon, ways = Daemon(), {}
    try:
        with tempfile.TemporaryDirectory() as folder, tt.connect(daemon.unix):
            for number in range(options.seed * 1_000_000, options.seed * 1_000_000 + options.programs):
                for way in check(number, folder):
                    ways[way] = ways.get(way, 0) + 1
                for file in os.scandir(folder):
                    if file.is_file():
                        os.unlink(file)
    finally:
        problem = daemon.stop()
    print(f"differential: {options.programs} programs: {ways}")
    sys.exit(problem or 0)


if __name__ == "__main__":
    main()
