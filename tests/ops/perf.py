"""Mode `perf` of the op tester: measures every op of the catalog on about 1M elements, compared with
PyTorch, with one thread each.

    .venv-peers/bin/python tests/ops/perf.py [--dtype f32] [--rounds 11] [--docs] [TEXT...]

teletensor's ops run on a daemon with one lane. Times are CPU times, of all threads of the daemon and of
PyTorch's thread, so that other programs on a shared machine have little effect; the time that the client
needs for a line is not included (`make bench` measures it). Calls of both libraries alternate; a figure is
the best of the rounds, each of which is the mean of as many calls as fill 10 ms. TEXT: only calls that
contain one of these. --docs writes the table of docs/benchmarks.md: the calls that take more than 1.3 times
PyTorch's time, with the reasons.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
OUTPUT, PAGE = ROOT / "build/op_times.json", ROOT / "docs/benchmarks.md"
MARK = "## Every op beside PyTorch"
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from perf_calls import CALLS, COVERED, WHY  # noqa: E402

LIMIT, FILL = 1.3, 0.01


def calls():
    """(op, text of the call or None, row of the op table or None), for every public op and some further
    calls."""
    from rows import ROWS
    from teletensor import _core

    rows = {}
    for row in ROWS:
        rows.setdefault(row.op, row)
    for name in [op["name"] for op in _core.catalog() if not op["internal"]]:
        if name in CALLS or name in COVERED:
            continue
        row = rows[name]
        yield name, None, row
    for name, texts in CALLS.items():
        for text in [texts] if isinstance(texts, str) else texts:
            yield name, text, None


def scaled(row, dtype):
    """The ranges of the operands in the row's first plain sample; None if it is not elementwise."""
    from arrays import In

    for sample in row.samples:
        if (
            all(isinstance(a, In) and a.shape == (3, 4) and a.data is None for a in sample.args)
            and sample.args
        ):
            return [(a.low, a.high, a.dtype) for a in sample.args], sample.kwargs
    return None


def cpu_seconds(pid):
    """The CPU seconds of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return total * 1e-9


class Side:
    """A library with the operands of all calls."""

    def __init__(self, m, dtype, arrays, clock):
        from arrays import TORCH

        self.clock = clock
        self.m, self.names, self.is_torch = m, {}, m.__name__ == "torch"
        self.own = getattr(m, TORCH[dtype])
        self.cache = {}
        for name, array in arrays.items():
            t = m.tensor(array)
            if array.dtype.kind == "f":
                t = t.to(self.own) if array.dtype == np.float32 else t
            self.names[name] = t
        for name in ("g", "ga", "h"):
            if self.own.is_floating_point or self.own.is_complex:
                self.names[name].requires_grad_()
        self.names |= {"m": m, "grad": self.grad, "step": self.step}
        self.optimizers = {}

    def grad(self, out, leaf):
        return self.m.autograd.grad(out, leaf)

    def step(self, name):
        if name not in self.optimizers:
            p = self.m.nn.Parameter(self.names["x"].detach().clone())
            p.grad = self.names["y"].detach().clone()
            options = {"lr": 0.1, "momentum": 0.9} if name == "SGD" else {}
            self.optimizers[name] = getattr(self.m.optim, name)([p], **options)
        self.optimizers[name].step()

    def operand(self, low, high, dtype, number):
        key = (low, high, dtype, number)
        if key not in self.cache:
            rng = np.random.default_rng(number)
            array = rng.uniform(low, high, (1024, 1024))
            if self.own.is_complex and dtype is None:
                array = array + 1j * rng.uniform(low, high, (1024, 1024))
            from arrays import TORCH

            own = getattr(self.m, TORCH[dtype]) if dtype else self.own
            if not (own.is_floating_point or own.is_complex):
                array = np.floor(array)
            self.cache = {k: v for k, v in self.cache.items() if k[3] != number}
            self.cache[key] = self.m.tensor(np.ascontiguousarray(array)).to(own)
        return self.cache[key]

    def prepared(self, text, row, dtype):
        """The call as a function without arguments."""
        if text is not None:
            code = compile(text, "call", "eval")
            return lambda: eval(code, self.names)
        ranges, kwargs = scaled(row, dtype)
        operands = [self.operand(low, high, own, at) for at, (low, high, own) in enumerate(ranges)]
        return lambda: row.call(self.m, *operands, **kwargs)

    def timed(self, call, count):
        """The CPU seconds of one call: of this thread for PyTorch, and of all threads of the daemon for
        teletensor."""
        wait = (lambda: None) if self.is_torch else self.m.synchronize
        wait()
        start = self.clock()
        for _ in range(count):
            call()
        wait()
        return (self.clock() - start) / count


def operands():
    rng = np.random.default_rng(7)

    def floats(*shape, low=-2.0, high=2.0):
        return rng.uniform(low, high, shape).astype(np.float32)

    x = floats(1024, 1024)
    symmetric = floats(128, 64, 64)
    return {
        "x": x,
        "y": floats(1024, 1024),
        "z": floats(1024, 1024),
        "p": floats(1024, 1024, low=0.02, high=0.98),
        "q": floats(1024, 1024, low=0.02, high=0.98),
        "g": floats(1024, 1024),
        "h": floats(1024, 1024, low=0.02, high=0.98),
        "v": floats(1 << 20),
        "s": np.sort(floats(1 << 14)),
        "n": rng.integers(0, 50, (1024, 1024)),
        "k": rng.integers(0, 50, (1024, 1024)),
        "i": rng.permutation(1024),
        "I": rng.integers(0, 1024, (1024, 1024)),
        "b": rng.random((1024, 1024)) > 0.5,
        "c": (x + 1j * floats(1024, 1024)).astype(np.complex64),
        "a": floats(16, 64, 32, 32),
        "ga": floats(16, 64, 32, 32),
        "w": floats(64, 64, 3, 3),
        "A": floats(4, 8, 32, 32, 32),
        "W": floats(8, 8, 3, 3, 3),
        "M": symmetric,
        "P": (symmetric @ symmetric.transpose(0, 2, 1) + 64 * np.eye(64)).astype(np.float32),
    }


def measure(ours, theirs, name, text, row, options):
    """One line of the table, or the reason why there is none."""
    label = text or f"{name} (elementwise)"
    try:
        calls = [side.prepared(text, row, options.dtype) for side in (ours, theirs)]
        for call in calls:
            call()
        ours.m.synchronize()
    except Exception as error:
        return {
            "op": name,
            "call": label,
            "error": f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:120],
        }
    once = [side.timed(call, 1) for side, call in zip((ours, theirs), calls)]
    counts = [max(1, min(3000, int(FILL / max(t, 1e-6)))) for t in once]
    times = [[], []]
    for _ in range(options.rounds):
        for at, side in enumerate((ours, theirs)):
            times[at].append(side.timed(calls[at], counts[at]))
    a, b = (min(t) for t in times)
    ratios = sorted(x / y for x, y in zip(*times))
    return {
        "op": name,
        "call": label,
        "ours": a * 1e3,
        "torch": b * 1e3,
        "ratio": a / b,
        "low": ratios[0],
        "high": ratios[-1],
    }


def reason(line):
    best = max((k for k in WHY if k in line["call"]), key=len, default=None)
    if best:
        return WHY[best]
    return "the daemon's cost of an instruction" if line["ours"] < 0.02 else "not looked into yet"


def page(report):
    results, versions, rounds = report["calls"], report["versions"], report["rounds"]
    measured = [r for r in results if "ratio" in r]
    slow = sorted((r for r in measured if r["ratio"] > LIMIT), key=lambda r: -r["ratio"])
    fast = sum(r["ratio"] < 1 for r in measured)
    below = len(measured) - len(slow)
    lines = f"""{MARK}

`op_tester perf` (tests/ops/perf.py, {versions}): {len(measured)} calls of every public op of the catalog
on about 1M float32 elements (complex64, integers or indices where the op wants them), one lane of the
daemon beside one thread of PyTorch: CPU time (without the client's cost of a line), the best of
{rounds} rounds. {fast} calls are faster than PyTorch,
{below} take at most {LIMIT} of its time, {len(slow)} take more.

| call | ours, ms | torch, ms | ratio (range) | why |
|---|---|---|---|---|""".splitlines()
    for r in slow:
        text = r["call"].replace("|", "\\|").replace("m.nn.functional.", "F.").replace("m.", "tt.")
        ratio = f"{r['ratio']:.2f}x ({r['low']:.2f}-{r['high']:.2f})"
        lines.append(f"| `{text}` | {r['ours']:.3g} | {r['torch']:.3g} | {ratio} | {reason(r)} |")
    lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--docs", action="store_true", help="write the table of docs/benchmarks.md")
    parser.add_argument("--page", action="store_true", help="only write it, of the last run")
    parser.add_argument("texts", nargs="*")
    options = parser.parse_args()
    if options.page:
        return write_page(json.loads(OUTPUT.read_text(encoding="utf-8")))
    import teletensor as tt
    import torch
    from support.daemon import Daemon

    torch.set_num_threads(1)
    daemon = Daemon("--lanes", "1")
    results = []
    try:
        with tt.connect(daemon.unix):
            arrays = operands()
            ours = Side(tt, options.dtype, arrays, lambda: cpu_seconds(daemon.process.pid))
            theirs = Side(torch, options.dtype, arrays, time.thread_time)
            for name, text, row in calls():
                label = text or f"{name} (elementwise)"
                if options.texts and not any(t in label or t == name for t in options.texts):
                    continue
                if text is None and scaled(row, options.dtype) is None:
                    results.append({"op": name, "call": label, "error": "no call of 1M elements is known"})
                elif text is None and options.dtype not in row.dtypes:
                    continue
                else:
                    results.append(measure(ours, theirs, name, text, row, options))
                r = results[-1]
                print(
                    r["call"],
                    r.get("error")
                    or f"{r['ours']:.3f} ms, torch {r['torch']:.3f} ms: {r['ratio']:.2f}x "
                    f"({r['low']:.2f}-{r['high']:.2f})",
                    flush=True,
                )
    finally:
        daemon.stop()
    print(f"\nworse than {LIMIT}x:")
    for r in sorted((r for r in results if r.get("ratio", 0) > LIMIT), key=lambda r: -r["ratio"]):
        print(f"{r['ratio']:7.2f}x  {r['ours']:8.3f} ms  {r['call']}")
    for r in results:
        if "error" in r:
            print("not measured:", r["call"], r["error"])
    report = {"versions": f"PyTorch {torch.__version__}", "rounds": options.rounds, "calls": results}
    if not options.texts:
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(json.dumps(report, indent=1), encoding="utf-8")
        if options.docs:
            write_page(report)


def write_page(report):
    before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
    next_section = after.find("\n## ")
    after = after[next_section:] if next_section >= 0 else ""
    PAGE.write_text(f"{before.rstrip()}\n\n{page(report)}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
