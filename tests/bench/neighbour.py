"""Measures how long a small read takes for a session beside sessions of other users that take all that they can get.

    python tests/bench/neighbour.py [--seconds 5] [--only NAME] [--svd 2000] [--bytes 2147483648]

One daemon on this machine, as people run it (state directory, restarts, HTTP). The victim is a session in a
process of its own, which computes and reads one number, with 5 ms between two reads. It is measured alone,
and beside each neighbour, which runs in processes of its own and is a user of its own. Across a drain the
victim's read waits for the next daemon, which is started at once.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from attacks.http import AttackOfAnotherProcess  # noqa: E402
from fairness import SERVE  # noqa: E402
from support.clients import client, finish, wait_line  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402

FLAGS = ("--restart", "60", "--drain", "30")
VICTIM = SERVE.format(prepare="""x = tt.ones(3)
    (x + 1).sum().item()""", step="""result = result or []
            began = time.perf_counter()
            (x + 1).sum().item()
            result.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.005)""")
LOOP = """
    {prepare}
    print("up", flush=True)
    while True:
        {step}
"""


def loop(daemon, prepare, step):
    process = client(LOOP.format(prepare=prepare, step=step), daemon.unix, stdin=subprocess.PIPE)
    wait_line(process, "up")
    return process


@contextlib.contextmanager
def ended(*processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def published(daemon, options):
    """As many sessions as lanes factorize one published tensor, and one writes to it."""
    size = options.svd
    made = loop(daemon, f"w = tt.randn({size}, {size}); tt.publish('w', w, writable=True); s.synchronize()",
                "time.sleep(1)")
    svd = [loop(daemon, "v = tt.published('w')", "tt.linalg.svdvals(v).sum().item()") for _ in range(2)]
    write = loop(daemon, "v = tt.published('w')", "v.mul_(2.0); v.mul_(0.5)[0, 0].item()")
    with ended(made, *svd, write):
        yield


@contextlib.contextmanager
def snapshots(daemon, options):
    """A session of 2 GiB is written again and again."""
    with ended(loop(daemon, f"held = [tt.rand(1 << 26) for _ in range({options.bytes >> 28})]", "s.snapshot()")):
        wait_until(lambda: any(path.name != "lock" for path in daemon.state.iterdir()))
        yield


@contextlib.contextmanager
def streams(daemon, _):
    """1,100 uploads that send nothing."""
    process = subprocess.Popen([sys.executable, "-u", "-m", "attacks.streams", daemon.tcp], cwd=HERE.parent,
                               env={**os.environ, "TELETENSOR_TOKEN": daemon.token}, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    with ended(process):
        yield


@contextlib.contextmanager
def storm(name, daemon):
    with AttackOfAnotherProcess(daemon.http, name, "127.0.0.1") as attack:
        wait_until(lambda: attack.pieces > 0)
        yield


@contextlib.contextmanager
def drain(daemon, options):
    """A session of 2 GiB is written at a drain while the victim reads; the next daemon starts at once."""
    held = loop(daemon, f"held = [tt.rand(1 << 26) for _ in range({options.bytes >> 28})]; s.synchronize()",
                "time.sleep(1)")

    def renew():
        daemon.drain()
        daemon.restart()
    thread = threading.Timer(options.seconds / 5, renew)
    thread.start()
    with ended(held):
        try:
            yield
        finally:
            thread.join()


NEIGHBOURS = {
    "nobody": lambda daemon, options: contextlib.nullcontext(),
    "a published tensor under svd": published,
    "a snapshot": snapshots,
    "1,100 streams": streams,
    "HTTP, answers unread": lambda daemon, _: storm("unread", daemon),
    "HTTP, chunks": lambda daemon, _: storm("chunks", daemon),
    "a drain and the next daemon": drain,
}


def measure(neighbour, options):
    """The times of the victim's reads in ms."""
    daemon = Daemon(*FLAGS)
    victim = client(VICTIM, daemon.unix, stdin=subprocess.PIPE)
    try:
        wait_line(victim, "up")
        with neighbour(daemon, options):
            victim.stdin.write(f"{options.seconds}\n")
            victim.stdin.flush()
            return json.loads(wait_line(victim, "done").removeprefix("done"))
    finally:
        finish(victim)
        daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", default="", help="a part of the neighbour's name")
    parser.add_argument("--svd", type=int, default=2000, help="rows and columns of the published tensor")
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the session that is written")
    options = parser.parse_args()
    print("| beside | reads | median | p99 | longest |\n|---|---|---|---|---|")
    for name, neighbour in NEIGHBOURS.items():
        if options.only not in name:
            continue
        times = sorted(measure(neighbour, options))
        p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
        print(f"| {name} | {len(times)} | {statistics.median(times):.2f} ms | {p99:.1f} ms | {times[-1]:.1f} ms |",
              flush=True)


if __name__ == "__main__":
    main()
