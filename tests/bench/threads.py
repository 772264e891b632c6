"""Measures the throughput on all cores alone, beside a busy process, and beside a second session: the mean
over some time, because a median would hide a collapse. Run by hand: python tests/bench/threads.py
[seconds]"""

import multiprocessing
import sys
import time

import numpy as np
import teletensor as tt
import torch
from rows import elementwise, mlp_step, product
from support.daemon import Daemon

WORK = {"sgemm 64": product(64), "sgemm 256": product(256), "sgemm 1024": product(1024),
        "elementwise 1M": elementwise, "MLP step": mlp_step}
CORES = multiprocessing.cpu_count()


def burn():
    x = 1.0
    while True:
        x = x * 1.0000001 + 1e-9


def each(call, finish, seconds):
    """The calls per second, in rounds, each of which waits for its end."""
    for _ in range(3):
        call()
    finish()
    begin, count, batch = time.perf_counter(), 0, 1
    while (took := time.perf_counter() - begin) < seconds:
        for _ in range(batch):
            call()
        finish()
        count += batch
        batch = max(1, min(200, int(count / max(took, 1e-3) * seconds / 10)))
    return count / (time.perf_counter() - begin)


def second_session(address, stop):
    with tt.connect(address):
        call, finish = product(256)(tt)
        while not stop.is_set():
            for _ in range(20):
                call()
            finish()


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.6
    torch.set_num_threads(CORES)
    daemon = Daemon("--lanes", str(CORES))
    context = multiprocessing.get_context("spawn")
    print(f"{CORES} lanes of the daemon, {CORES} threads of PyTorch; calls a second, mean of {seconds} s")
    print("| work | alone: ours / torch | busy neighbour: ours / torch | kept of alone: ours / torch | "
          "beside a second session |\n|---|---|---|---|---|")
    lowest = 1.0
    try:
        with tt.connect(daemon.unix):
            for name, make in WORK.items():
                rates = {}
                for m in (tt, torch):
                    call, finish = make(m)
                    rates[m, "alone"] = each(call, finish, seconds)
                    neighbour = context.Process(target=burn, daemon=True)
                    neighbour.start()
                    rates[m, "busy"] = each(call, finish, seconds)
                    neighbour.kill()
                    neighbour.join()
                stop = context.Event()
                other = context.Process(target=second_session, args=(daemon.unix, stop), daemon=True)
                other.start()
                time.sleep(1)
                call, finish = make(tt)
                shared = each(call, finish, seconds)
                stop.set()
                other.join(30)
                kept = {m: rates[m, "busy"] / rates[m, "alone"] for m in (tt, torch)}
                lowest = min(lowest, kept[tt], shared / rates[tt, "alone"])
                print(f"| {name} | {rates[tt, 'alone']:.0f} / {rates[torch, 'alone']:.0f} | "
                      f"{rates[tt, 'busy']:.0f} / {rates[torch, 'busy']:.0f} | "
                      f"{kept[tt]:.2f}x / {kept[torch]:.2f}x | {shared / rates[tt, 'alone']:.2f}x |", flush=True)
    finally:
        daemon.stop()
    print(f"the least that was kept: {lowest:.2f}x")
    return 0 if lowest > 0.15 else 1


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
