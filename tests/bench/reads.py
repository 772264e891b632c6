"""Loops and small programs that read values, as ratios to PyTorch: with the values that the client knows, and
without (every read is then a Fetch). Run by hand:

    .venv-peers/bin/python tests/bench/reads.py [--rounds 5] [--threads 1]
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import teletensor as tt
import torch
from support.daemon import Daemon


def index(m):
    c, i = m.zeros(27, 10), m.tensor(3)
    return lambda: c[i]


def count(m):
    c, i = m.zeros(27, 10), m.tensor(3)

    def step():
        c[i] += 1.0
    return step


def count_by_rows(m):
    """Bigram counts: the indices are the elements of a tensor."""
    c, pairs = m.zeros(27, 27), m.tensor(np.random.default_rng(0).integers(0, 27, (64, 2)))

    def step():
        for i, j in pairs:
            c[i, j] += 1
    return step


def branch(m):
    x = m.tensor(2.0)

    def step():
        if not x > 1:
            raise AssertionError
    return step


def iterate(m):
    x = m.tensor(np.arange(100, dtype=np.float32)) * 2
    return lambda: [float(v) for v in x]


def elements(m):
    x = m.tensor(np.arange(100, dtype=np.float32)) * 2
    return lambda: [x[j].item() for j in range(100)]


def fresh_elements(m):
    """The values are new in each call: one read must wait."""
    x = m.tensor(np.arange(100, dtype=np.float32))

    def step():
        y = x * 2
        return [float(v) for v in y]
    return step


def argmax(m):
    x, w = m.tensor(np.ones((1, 16), np.float32)), m.tensor(np.ones((16, 4), np.float32))
    return lambda: int((x @ w).argmax())


def controlled_step(m):
    """An adaptive solver of order two with a step control."""
    w, h = m.ones(2, 2) * 0.1, m.tensor(0.01)
    y = [m.tensor([[2.0, 0.0]])]

    def step():
        k1 = m.mm(y[0]**3, w)
        k2 = m.mm((y[0] + h * k1)**3, w)
        if (h * (k2 - k1)).abs().max() <= 1.0:
            y[0] = y[0] + h * k2
    return step


def kmeans(m):
    """One round over 64 points, with a loop over points and clusters."""
    points = m.tensor(np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32))

    def step():
        centres = points[:4].clone()
        nearest = ((points[:, None] - centres[None])**2).sum(2).argmin(1)
        sums, counts = [0.0] * 4, [0] * 4
        for label in nearest:
            counts[label] += 1
        for k in range(4):
            if counts[k] > 0:
                centres[k] = points[nearest == k].mean(0)
        return [float(v) for v in centres.flatten()], sums
    return step


def dataset(m):
    def step():
        x = m.zeros(16, dtype=m.long)
        x[1:4] = m.tensor([1, 2, 3])
        return x
    return step


def counter(m):
    """Numbers that follow from numbers: a loop whose counter is a tensor."""
    def step():
        i = m.zeros((), dtype=m.long)
        while i < 20:
            i += 1
    return step


def clock(m):
    t, h = m.tensor(0.0), m.tensor(0.1)
    return lambda: (t + 2 * h).item()


def epoch(m, item):
    class Items(m.utils.data.Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, i):
            return item(i)
    loader = m.utils.data.DataLoader(Items(), batch_size=32)
    return lambda: list(loader)


def digits(m):
    """minGPT's adder: both tensors of an item are made from numbers."""
    def item(i):
        numbers = [i % 10, i // 10 % 10, 3, 4, 5, 6, 7]
        x, y = m.tensor(numbers[:-1], dtype=m.long), m.tensor(numbers[1:], dtype=m.long)
        y[:2] = -1
        return x, y
    return epoch(m, item)


def characters(m):
    text, block = m.tensor(list(range(500))), 16
    return epoch(m, lambda i: (text[i:i + block], text[i + 1:i + block + 1]))


def words(m):
    """makemore: an item is written into tensors of zeros."""
    def item(i):
        x, y = m.zeros(16, dtype=m.long), m.zeros(16, dtype=m.long)
        x[1:4] = y[:3] = m.tensor([1, 2, i % 27])
        y[4:] = -1
        return x, y
    return epoch(m, item)


ROWS = {  # name: (function, calls)
    "C[i], i a known integer": (index, 2000),
    "C[i] += 1.": (count, 1000),
    "for i, j in pairs: C[i, j] += 1 (64 pairs)": (count_by_rows, 5),
    "if x > 1": (branch, 2000),
    "[float(v) for v in X] (100)": (iterate, 30),
    "X[j].item() (100)": (elements, 30),
    "the same of a new tensor": (fresh_elements, 30),
    "int((x @ w).argmax())": (argmax, 500),
    "a step with a step control": (controlled_step, 300),
    "a round of k-means, 64 points": (kmeans, 20),
    "while i < 20: i += 1": (counter, 50),
    "(t + 2 * h).item()": (clock, 500),
    "an item of a dataset": (dataset, 1000),
    "a dataset of numbers, 256 items": (digits, 3),
    "a dataset of slices, 256 items": (characters, 3),
    "a dataset of words, 256 items": (words, 3),
}


def microseconds(step, calls, finish):
    finish()
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    finish()
    return (time.perf_counter() - begin) / calls * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    daemon = Daemon("--lanes", "1")
    try:
        with tt.connect(daemon.unix) as session, session.as_current():
            core = session._core
            most = core.most_known_bytes
            print("| loop body | torch, us | every read a Fetch | known values |\n|---|---|---|---|")
            for name, (make, calls) in ROWS.items():
                times = {"torch": [], "fetch": [], "known": []}
                for _ in range(options.rounds):
                    for which, bound in (("torch", most), ("fetch", 0), ("known", most)):
                        core.most_known_bytes = bound
                        m, finish = (torch, lambda: None) if which == "torch" else (tt, session.synchronize)
                        step = make(m)
                        microseconds(step, max(calls // 10, 2), finish)
                        times[which].append(microseconds(step, calls, finish))
                peer = statistics.median(times["torch"])
                ratios = [statistics.median(times[which]) / peer for which in ("fetch", "known")]
                print(f"| `{name}` | {peer:.1f} | {ratios[0]:.1f}x | {ratios[1]:.1f}x |", flush=True)
            session.close()
    finally:
        daemon.stop()


if __name__ == "__main__":
    main()
