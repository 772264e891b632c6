"""Measures the time to the first gradient of a streamed backward, compared with the time to its end.

    python tests/bench/backward_stream.py [--layers 20] [--width 512] [--batch 256] [--runs 5]

Uses a daemon of its own, and an MLP of linear layers and tanh. Prints medians in milliseconds, counted from
the call of backward_stream, and for comparison those of a plain backward until the last and the first
gradient have been read.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def measure(tt, layers, width, batch, runs):
    model = tt.nn.Sequential(
        *[m for _ in range(layers) for m in (tt.nn.Linear(width, width), tt.nn.Tanh())])
    x = tt.randn(batch, width)
    first, last, plain, early = [], [], [], []
    for run in range(runs + 1):
        model.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.item()
        start = time.perf_counter()
        times = []
        for _, g in loss.backward_stream(model):
            g.numpy()
            times.append(time.perf_counter() - start)
        model.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.item()
        start = time.perf_counter()
        loss.backward()
        model[-2].weight.grad.numpy()  # reading the first final gradient waits for the whole backward
        whole = time.perf_counter() - start
        for p in model.parameters():
            p.grad.numpy()
        end = time.perf_counter() - start
        if run:  # the first run warms up
            first.append(times[0])
            last.append(times[-1])
            early.append(whole)
            plain.append(end)
    return [1e3 * statistics.median(each) for each in (first, last, early, plain)]


def main():
    import teletensor as tt
    from support.daemon import Daemon

    parser = argparse.ArgumentParser()
    for name, value in (("layers", 20), ("width", 512), ("batch", 256), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    daemon = Daemon()
    try:
        with tt.connect(daemon.unix):
            first, last, early, plain = measure(tt, **vars(options))
    finally:
        daemon.stop()
    print(f"stream: first gradient {first:.1f} ms, last {last:.1f} ms ({first / last:.2f} of it)")
    print(f"backward(): first gradient read {early:.1f} ms, all {plain:.1f} ms")


if __name__ == "__main__":
    main()
