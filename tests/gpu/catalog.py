"""The op tester on a device: beside NumPy, the CPU backend and PyTorch, in several processes."""

import importlib.util
import multiprocessing
import os
import time

import numpy as np

DEVICE = "cuda:0"
MOST_JOBS = 12
state = {}


def start(address):
    """A worker's session."""
    import teletensor as tt
    from arrays import Library

    session = tt.connect(address)
    session.__enter__()  # until the process ends
    tt.set_default_device(DEVICE)
    tt.backends.cudnn.allow_tf32 = False  # convolutions of f32 are compared as such
    peer = None
    if importlib.util.find_spec("torch"):
        import test_ops_torch as peer
        import torch
        torch.backends.cudnn.allow_tf32 = False
    state.update(tt=tt, lib=Library(tt), peer=peer)


def on_cpu(call):
    state["tt"].set_default_device("cpu")
    try:
        return call()
    finally:
        state["tt"].set_default_device(DEVICE)


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


def bits_beside_cpu(row):
    """The greatest distance from the CPU backend over one case a dtype."""
    from tester import Case

    lib, furthest = state["lib"], 0.0
    if row.check:  # random, or with a freedom of its own
        return None
    for dtype in ("f32", "i64", "bf16"):
        if dtype not in row.dtypes or (row.samples[0].dtypes and dtype not in row.samples[0].dtypes):
            continue
        case = Case(row, 0, dtype)

        def results(case=case):
            return [lib.numpy(r) for r in case.call(lib, case.tensors(lib)[0])]
        furthest = max([furthest, *(apart(a, b) for a, b in zip(results(), on_cpu(results)))])
    return furthest


def gradients_beside_cpu(lib, case):
    from tester import gradients, gradients_apart

    ours, cpu = gradients(lib, case), on_cpu(lambda: gradients(lib, case))
    if ours is None or cpu is None:
        return None if ours is cpu else "a history on one device alone"
    return gradients_apart(ours, cpu, "CPU")


def beside_torch(what):
    """A comparison with PyTorch whose failure counts only where the CPU backend has no such failure."""
    def compared(lib, case):
        bad = what(lib, case)
        return bad and (None if on_cpu(lambda: what(lib, case)) else bad)
    return compared


def plans(row, quick):
    """(mode, case, check) of everything that is asked of a row."""
    from tester import CHECKS, plan

    for mode in ("value", "inplace"):
        for case in plan(row, mode):
            yield mode, case, CHECKS[mode]
    if quick:
        return
    for case in plan(row, "gradient"):
        yield "gradient", case, gradients_beside_cpu
    if state["peer"] and row.torch:
        for case in plan(row, "value"):
            for what in state["peer"].checks(case):
                yield "torch", case, beside_torch(what)


def one(task):
    """What a row shows: its op, cases by mode, failures, the distance from the CPU backend."""
    from rows import ROWS

    index, quick = task
    row, counts, failures, distance = ROWS[index], {}, [], None
    try:
        distance = bits_beside_cpu(row)
    except Exception as error:
        failures.append(f"bits {row.op}: {type(error).__name__}: {error}")
    for mode, case, check in plans(row, quick):
        counts[mode] = counts.get(mode, 0) + 1
        try:
            bad = check(state["lib"], case)
        except Exception as error:
            bad = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
        if bad:
            failures.append(f"{mode} {case}: {bad}")
    return row.op, counts, failures, distance


def run(address, ops, quick, deadline):
    """A report over the catalog, or over what was done of it by the deadline."""
    from rows import ROWS

    wanted = [(i, quick) for i, row in enumerate(ROWS) if not ops or row.op in ops]
    cases, failures, distances, done = {}, [], {}, 0
    jobs = max(1, min(MOST_JOBS, os.cpu_count() or 1, len(wanted)))
    with multiprocessing.get_context("spawn").Pool(jobs, start, (address,)) as pool:
        results = pool.imap_unordered(one, wanted)
        for _ in wanted:
            try:
                op, counts, bad, distance = results.next(max(1.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            done += 1
            failures += bad
            for mode, n in counts.items():
                cases[mode] = cases.get(mode, 0) + n
            if distance is not None:
                distances[op] = max(distances.get(op, 0.0), distance)
    return {"rows": done, "of": len(wanted), "cases": cases, "failures": sorted(failures),
            "distances": distances}
