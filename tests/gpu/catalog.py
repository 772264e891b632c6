"""Runs the op tester on a device, compared with NumPy, the CPU backend and PyTorch, in several processes."""

import concurrent.futures
import importlib.util
import multiprocessing
import os
import shutil
import threading
import time

import numpy as np
from box import is_loss
from support.daemon import Daemon

DEVICE = "cuda:0"
MAX_JOBS = 12
PATIENCE = 60.0  # the maximum seconds for a row
state = {}


def start(address):
    """Starts the session of a worker."""
    import teletensor as tt
    from arrays import Library

    session = tt.connect(address)
    session.__enter__()  # stays entered until the process ends
    tt.set_default_device(DEVICE)
    tt.backends.cudnn.allow_tf32 = False  # convolutions of f32 are compared without TF32
    peer = None
    if importlib.util.find_spec("torch"):
        import test_ops_torch as peer
        import torch
        torch.backends.cudnn.allow_tf32 = False
        torch.set_num_threads(1)  # one process per core runs at the same time
    state.update(tt=tt, lib=Library(tt), peer=peer)


def on_cpu(call):
    state["tt"].set_default_device("cpu")
    try:
        return call()
    finally:
        state["tt"].set_default_device(DEVICE)


def apart(a, b):
    """The maximum distance of two arrays, in units of the last place of the larger magnitude; 0 if they are
    equal."""
    if a.dtype.kind not in "fc" or np.array_equal(a, b, equal_nan=True):
        return 0.0 if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") else float("inf")
    real = a.view(a.real.dtype), b.view(b.real.dtype)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(real[0]), np.abs(real[1])))
        distance = np.abs(real[0].astype("f8") - real[1].astype("f8")) / unit
    same = (real[0] == real[1]) | (np.isnan(real[0]) & np.isnan(real[1]))
    return float(np.nanmax(np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))))


def compare_bits_with_cpu(row):
    """The maximum distance from the CPU backend over one case per dtype."""
    from tester import Case

    lib, furthest = state["lib"], 0.0
    if row.check:  # the result is random, or otherwise not unique
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


def compare_with_torch(what):
    """Compares with PyTorch; a failure counts only if the CPU backend does not have it too."""
    def compared(lib, case):
        bad = what(lib, case)
        return bad and (None if on_cpu(lambda: what(lib, case)) else bad)
    return compared


def plans(row, quick):
    """The (mode, case, check) of all tests of a row."""
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
                yield "torch", case, compare_with_torch(what)


def one(task):
    """The results of a row: the numbers of cases by mode, the failures, the distance from the CPU backend,
    and whether the device is lost."""
    from rows import ROWS

    index, quick = task
    row, counts, failures, distance = ROWS[index], {}, [], None

    def failed(what, error):
        failures.append(f"{what}: {type(error).__name__}: {error}".split("\n", maxsplit=1)[0])
        return is_loss(error)
    try:
        distance = compare_bits_with_cpu(row)
    except Exception as error:
        if failed(f"bits {row.op}", error):
            return counts, failures, distance, True
    for mode, case, check in plans(row, quick):
        counts[mode] = counts.get(mode, 0) + 1
        try:
            if bad := check(state["lib"], case):
                failures.append(f"{mode} {case}: {bad}")
        except Exception as error:
            if failed(f"{mode} {case}", error):
                return counts, failures, distance, True
    return counts, failures, distance, False


class Found:
    """The results of the rows, collected by threads, each of which has its own process and daemon."""

    def __init__(self, tasks):
        self.left, self.lock = list(reversed(tasks)), threading.Lock()
        self.rows, self.of, self.cases, self.failures, self.distances, self.log = 0, len(tasks), {}, [], {}, ""

    def take(self):
        with self.lock:
            return self.left.pop() if self.left else None

    def add(self, op, counts, failures, distance):
        with self.lock:
            self.rows += 1
            self.failures += failures
            for mode, n in counts.items():
                self.cases[mode] = self.cases.get(mode, 0) + n
            if distance is not None:
                self.distances[op] = max(self.distances.get(op, 0.0), distance)


def rows_of_one_daemon(found, flags, environment, deadline):
    """Tests rows on one daemon until a row loses its device or does not end. Returns False if no row is
    left."""
    from rows import ROWS

    daemon = Daemon(*flags, env=environment)
    try:
        with multiprocessing.get_context("spawn").Pool(1, start, (daemon.unix,)) as process:
            while time.monotonic() < deadline and (task := found.take()) is not None:
                op = ROWS[task[0]].op
                try:
                    *shown, lost = process.apply_async(one, (task,)).get(
                        max(1.0, min(PATIENCE, deadline - time.monotonic())))
                except multiprocessing.TimeoutError:
                    if time.monotonic() < deadline:
                        found.add(op, {}, [f"{op}: no answer within {PATIENCE} s"], None)
                    return True
                found.add(op, *shown)
                if lost:
                    return True
        return False
    finally:
        daemon.kill()
        shutil.rmtree(daemon.folder, ignore_errors=True)
        found.log += daemon.log


def run(flags, environment, ops, quick, deadline):
    """Tests the rows of the catalog (or of `ops`, if some are given) until the deadline."""
    from rows import ROWS

    found = Found([(i, quick) for i, row in enumerate(ROWS) if not ops or row.op in ops])

    def ask():
        while time.monotonic() < deadline and rows_of_one_daemon(found, flags, environment, deadline):
            pass
    jobs = max(1, min(MAX_JOBS, os.cpu_count() or 1, found.of))
    with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        for thread in [threads.submit(ask) for _ in range(jobs)]:
            thread.result()
    return {"rows": found.rows, "of": found.of, "cases": found.cases, "failures": sorted(found.failures),
            "distances": found.distances}, found.log
