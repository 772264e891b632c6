"""Compares the times of a device with those of PyTorch on the same device, in one process: medians of rounds
that alternate."""

import importlib.util
import itertools
import statistics
import threading
import time

from box import is_loss

LEAST = 0.1  # the minimum seconds of a round
WARM = 0.6  # seconds in which kernels are compiled


def peers():
    """(name, module) of the libraries to be measured: PyTorch if it can use the device."""
    import teletensor

    found = [("teletensor", teletensor)]
    if importlib.util.find_spec("torch"):
        import torch
        if torch.cuda.is_available():
            found.append(("torch", torch))
    return found


def seconds(call, finish, count):
    finish()
    began = time.perf_counter()
    for _ in range(count):
        call()
    finish()
    return (time.perf_counter() - began) / count


def repeated(call, first):
    """Calls repeatedly, each time on the previous result."""
    last = first

    def once():
        nonlocal last
        last = call(last)
    return once


def measure(work, options):
    """Name of the library -> median seconds of one execution."""
    calls, counts, found = {}, {}, {}
    for name, m in peers():
        call = work.make(m)
        call, first = call if isinstance(call, tuple) else (call, None)
        if work.captured and name == "teletensor":
            call = m.compile(call)
        if first is not None:
            call = repeated(call, first)
        warm = time.perf_counter() + (0 if options.quick else WARM)
        # the kernel of a loop is compiled after its third occurrence, while calls continue
        for i in itertools.count():
            call()
            if i >= 3:
                m.cuda.synchronize()
                if time.perf_counter() >= warm:
                    break
        once = seconds(call, m.cuda.synchronize, 1)
        counts[name] = 1 if options.quick else max(1, min(1000, int(LEAST / once)))
        calls[name], found[name] = call, []
    for _ in range(options.rounds):
        for name, m in peers():
            found[name].append(seconds(calls[name], m.cuda.synchronize, counts[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def run(works, box, options, deadline):
    """One row for each work; if the device is lost, only the present row fails."""
    rows = []
    for work in works:
        row = {"work": work.name, "moved": work.moved, "flops": work.flops}
        if time.monotonic() > deadline:
            row["error"] = "no time was left"
        else:
            try:
                row |= measure(work, options)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
                if is_loss(error):
                    box.renew()
        rows.append(row)
        print("  " + " | ".join(cells(row)), flush=True)
    return rows


HEAD = ("work", "teletensor", "PyTorch eager", "ratio", "rate of ours")


def cells(row):
    def shown(name):
        return f"{row[name] * 1e6:.1f} us" if name in row else ""
    ratio = f"{row['teletensor'] / row['torch']:.2f}x" if "torch" in row else ""
    rate = ""
    if "teletensor" in row:
        rate = (f"{row['moved'] / row['teletensor'] / 1e9:.0f} GB/s" if row["moved"] else
                f"{row['flops'] / row['teletensor'] / 1e12:.2f} TFLOP/s" if row["flops"] else "")
    return [row["work"], row.get("error") or shown("teletensor"), shown("torch"), ratio, rate]


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|",
                      *("| " + " | ".join(row) + " |" for row in rows)])


def sharing(address, quick):
    """The steps per second of one session alone, and of two and eight at the same time, and how evenly they
    are divided (Jain's index)."""
    import teletensor as tt

    steps = 3 if quick else 4000
    found = []

    def session(rates, start):
        with tt.connect(address):
            x = tt.rand(1 << (8 if quick else 22), device="cuda")
            for _ in range(4):
                x = (x * 1.5 + 0.25).relu()
            tt.cuda.synchronize()
            start.wait()
            began = time.perf_counter()
            for _ in range(steps):
                x = (x * 0.5 + 0.25).relu()
            tt.cuda.synchronize()
            rates.append(steps / (time.perf_counter() - began))
    for count in (1, 2, 8):
        rates, start = [], threading.Barrier(count)
        threads = [threading.Thread(target=session, args=(rates, start)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append({"sessions": count, "together": sum(rates),
                      "jain": sum(rates) ** 2 / (count * sum(r * r for r in rates)) if rates else 0.0})
    return found
