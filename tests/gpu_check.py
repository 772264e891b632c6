"""What a machine with a GPU has to show: `make gpu-check`.

    python tests/gpu_check.py [--quick] [--fake] [--rounds 5] [--output FILE] [OP...]

1. a training on the device and on the CPU; 2. times beside PyTorch on the same device, where PyTorch with CUDA is
installed; 3. the op tester's calls on the device and on the CPU backend, with the greatest distance by op; 4. the op
tester on cuda:0 against NumPy and finite differences. What is known is written behind each of them, to
build/gpu_check.json and .log, so that a run that is cut off has told the most; ends with 1 when a result is wrong.
--fake runs it on the stand-in for the driver (tests/support/fake_cuda), which shows that this script works.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "ops")]
OUTPUT = HERE.parent / "build/gpu_check.json"


def run_tester(lib, rows, quick):
    """(cases, failures) of the op tester with everything on the device."""
    from tester import cases, fits_inplace, run

    modes = ("value", "inplace") if quick else ("value", "inplace", "gradient")
    count, failures = 0, []
    for row in rows:
        for mode in modes:
            if mode == "inplace" and not any(map(fits_inplace, cases(row))):
                continue
            n, bad = run(lib, row, mode)
            count += n
            failures += bad
    return count, failures


def apart(a, b):
    """The greatest distance of two arrays, in units of the last place of the greater magnitude; 0: equal."""
    if a.dtype.kind not in "fc" or np.array_equal(a, b, equal_nan=True):
        return 0.0 if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") else float("inf")
    real = a.view(a.real.dtype), b.view(b.real.dtype)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(real[0]), np.abs(real[1])))
        distance = np.abs(real[0].astype("f8") - real[1].astype("f8")) / unit
    same = (real[0] == real[1]) | (np.isnan(real[0]) & np.isnan(real[1]))
    return float(np.nanmax(np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))))


def compare(tt, rows):
    """The greatest distance between device and CPU backend, by op, of one case a dtype."""
    from arrays import Library
    from tester import Case

    lib, found = Library(tt), {}
    for row in rows:
        if row.check:  # random, or with a freedom of its own
            continue
        for dtype in ("f32", "i64", "bf16"):
            if dtype not in row.dtypes or (row.samples[0].dtypes and dtype not in row.samples[0].dtypes):
                continue
            results = []
            for device in ("cpu", "cuda:0"):
                tt.set_default_device(device)
                case = Case(row, 0, dtype)
                results.append([lib.numpy(r) for r in case.call(lib, case.tensors(lib)[0])])
            tt.set_default_device("cpu")
            far = max((apart(a, b) for a, b in zip(*results)), default=0.0)
            found[row.op] = max(found.get(row.op, 0.0), far)
    return found


def train(tt, device, steps=20):
    tt.manual_seed(1)
    model = tt.nn.Sequential(tt.nn.Linear(16, 64), tt.nn.ReLU(), tt.nn.Linear(64, 4)).to(device)
    optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
    data = np.random.default_rng(0).normal(size=(128, 16)).astype("float32")
    x = tt.tensor(data).to(device)
    y = tt.tensor(data[:, :4] ** 2).to(device)
    losses = []
    for _ in range(steps):
        loss = tt.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def works(m, n, side):
    """Name -> a function that does it once, for one library with its tensors on the device."""
    x, y = m.rand(n, device="cuda"), m.rand(n, device="cuda")
    square = m.rand(side, side, device="cuda")
    small = m.rand(64, device="cuda")
    rows = square.reshape(-1, side // 2)
    model = m.nn.Sequential(m.nn.Linear(64, 64), m.nn.ReLU(), m.nn.Linear(64, 1)).to("cuda")
    optimizer = m.optim.SGD(model.parameters(), lr=0.01)
    batch = m.rand(32, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    return {
        f"elementwise chain, {n} floats": lambda: ((x * y + 0.5).relu() - y) * 2.0,
        f"sum of {n} floats": lambda: x.sum(),
        f"matmul {side}": lambda: square @ square,
        f"softmax {2 * side}x{side // 2}": lambda: m.nn.functional.softmax(rows, 1),
        "a small op": lambda: small + 1.0,
        "a small training step": step,
        f"to the host, {n} floats": lambda: x.cpu(),
    }


def bench(m, n, side, rounds, count):
    """Name -> the median time of one work, in seconds."""
    found = {}
    for name, work in works(m, n, side).items():
        times = []
        for _ in range(3):
            work()
        m.cuda.synchronize()
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(count):
                work()
            m.cuda.synchronize()
            times.append((time.perf_counter() - began) / count)
        found[name] = statistics.median(times)
    return found


def times_beside_torch(tt, options):
    n, side, count = (1 << 10, 64, 2) if options.quick else (1 << 24, 2048, 30)
    ours = bench(tt, n, side, options.rounds, count)
    theirs = {}
    try:
        import torch
        if torch.cuda.is_available():
            theirs = bench(torch, n, side, options.rounds, count)
    except ImportError:
        pass
    for name, seconds in ours.items():
        beside = f"{theirs[name] * 1e6:12.1f} us torch  {seconds / theirs[name]:6.2f}x" if theirs else ""
        print(f"  {name:36s}{seconds * 1e6:12.1f} us  {beside}")
    return {"ours": ours, "torch": theirs}


def tester(tt, options, rows):
    from arrays import Library

    began = time.monotonic()
    tt.set_default_device("cuda:0")
    try:
        count, failures = run_tester(Library(tt), rows, options.quick)
    finally:
        tt.set_default_device("cpu")
    print(f"op tester: {count} cases, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    print("\n".join(f"  {failure}" for failure in failures[:50]))
    return {"cases": count, "failures": failures}


def beside_cpu(tt, options, rows):
    try:
        far = compare(tt, rows)
    finally:
        tt.set_default_device("cpu")
    worst = sorted(far.items(), key=lambda item: -item[1])[:10]
    equal = sum(v == 0 for v in far.values())
    print(f"beside the CPU backend: {equal} of {len(far)} ops equal in all bits; furthest, in units of the last "
          "place: " + ", ".join(f"{op} {v:.3g}" for op, v in worst if v))
    return far


def training(tt, options, rows):
    losses, wanted = train(tt, "cuda:0"), train(tt, "cpu")
    close = bool(np.allclose(losses, wanted, rtol=1e-4))
    print(f"training: {losses[0]:.6f} -> {losses[-1]:.6f} {'as' if close else 'NOT as'} on the CPU")
    return close


def times(tt, options, rows):
    return times_beside_torch(tt, options)


# The shortest first: what is cut off then is the most of one thing, not one thing of each.
SECTIONS = (training, times, beside_cpu, tester)


def check(tt, options, report):
    """Every section, each by itself: the report so far is written behind each one."""
    from rows import ROWS

    rows = [r for r in ROWS if not options.ops or r.op in options.ops]
    for section in SECTIONS:
        try:
            report[section.__name__] = section(tt, options, rows)
        except Exception as error:
            report[section.__name__] = None
            report.setdefault("errors", []).append(f"{section.__name__}: {type(error).__name__}: {error}")
            print(f"{section.__name__} ended with {type(error).__name__}: {error}")
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def sound(report):
    return (not report.get("errors") and report["training"] and not report["tester"]["failures"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ops", nargs="*", help="these alone [all of the catalog]")
    parser.add_argument("--quick", action="store_true", help="no gradients, small tensors in times")
    parser.add_argument("--fake", action="store_true", help="on the stand-in for the driver")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the report [build/gpu_check.json]; the "
                        "daemon's log goes beside it, as .log")
    options = parser.parse_args()
    import teletensor as tt
    from support.cuda import fake
    from support.daemon import Daemon

    options.output.parent.mkdir(parents=True, exist_ok=True)
    flags, environment = fake() if options.fake else ([], {})
    daemon = Daemon(*flags, env=environment)
    report = {}
    try:
        lines = [line for line in daemon.log.splitlines() if "event=device" in line]
        with tt.connect(daemon.unix):
            if not tt.cuda.is_available():
                sys.exit("this daemon has no GPU:\n" + "\n".join(lines or [daemon.log]))
            report["device"] = lines[0].split('text="')[1].rstrip('"')
            print(report["device"])
            check(tt, options, report)
    finally:
        problem = daemon.stop()
        options.output.with_suffix(".log").write_text(daemon.log, encoding="utf-8")
    print("\n".join(line for line in daemon.log.splitlines() if "ran as kernels" in line))
    print(f"written to {options.output}")
    sys.exit(problem or (0 if sound(report) else 1))


if __name__ == "__main__":
    main()
