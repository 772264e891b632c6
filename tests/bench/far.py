"""Measures work on a remote daemon for growing round-trip times, compared with PyTorch on this machine. Run
by hand:

    python tests/bench/far.py [--trips 0 20 100 200] [--rate 125e6]
"""

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import rows
import teletensor as tt
import torch
from support.daemon import Daemon
from support.far import Far

# work, number of repetitions (only the value of the last one is read), the unit of the result in
# microseconds
LOOPS = [("chain of small ops, per op", rows.chain, 2000, 1e5), ("sin^2 training step", rows.sin2_step, 2000, 1e6),
         ("MLP 784-256-256-10 step", rows.mlp_step, 200, 1e6)]
ARRAY = np.ones(16 << 20, np.float32)  # 64 MiB


def median(run, rounds=3):
    return statistics.median(run() for _ in range(rounds))


def took(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def loops(m):
    for _, make, count, scale in LOOPS:
        call, finish = make(m)
        rows.per(call, count // 10, finish, 1)
        yield median(lambda call=call, finish=finish, count=count, scale=scale: rows.per(call, count, finish, scale))


def measure(address):
    with tt.connect(address):
        x = tt.rand(())  # A value that the client does not know and cannot derive.
        yield from loops(tt)
        yield median(lambda: took((x + 1).item) * 1e3, 9)
        yield median(lambda: took(lambda: (tt.tensor(ARRAY), tt.synchronize())))
        y = tt.tensor(ARRAY)
        yield median(lambda: took(lambda: (y.add_(1), y.numpy())))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trips", type=float, nargs="+", default=[0, 20, 100, 200], help="milliseconds there and back")
    parser.add_argument("--rate", type=float, default=125e6, help="bytes a second each way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [f"{name}, us" for name, *_ in LOOPS] + ["read a value, ms", "upload 64 MiB, s", "download 64 MiB, s"]
    columns = [[*loops(torch), 0, 0, 0]]
    daemon = Daemon("--lanes", "1")
    try:
        for trip in options.trips:
            with contextlib.closing(Far(daemon.socket, trip / 1e3, rate=options.rate)) as far:
                columns.append(list(measure(far.address)))
    finally:
        daemon.stop()
    print("| work | torch, here |", " | ".join(f"{t:g} ms away" for t in options.trips), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name, *values in zip(names, *columns):
        print(f"| {name} |", " | ".join(f"{v:.3g}" if v else "" for v in values), "|")


if __name__ == "__main__":
    main()
