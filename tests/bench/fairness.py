"""Sessions beside each other: how the lanes are divided.

    python tests/bench/fairness.py [--seconds 4] [--sessions 16]

Three figures, of one daemon on this box: the work of 16 sessions together against one alone, how evenly
it is divided (Jain's index: 1 is evenly), and how long a victim's work of about 2 ms takes at the 99th
percentile beside a session that floods, against alone. Each client is a process of its own.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WORKER = """
    a = tt.ones(256, 256)
    (a @ a).sum().item()
    print("up", flush=True)
    sys.stdin.readline()
    done, end = 0, time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        for _ in range(8):
            b = a @ a
        b.sum().item()
        done += 8
    print("done", done, flush=True)
"""
VICTIM = """
    a = tt.ones(384, 384)
    (a @ a).sum().item()
    print("up", flush=True)
    sys.stdin.readline()
    times, end = [], time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        begin = time.perf_counter()
        (a @ a).sum().item()
        times.append(time.perf_counter() - begin)
        time.sleep(0.005)
    times.sort()
    print("done", times[len(times) // 2], times[int(len(times) * 0.99)], flush=True)
"""
FLOOD = """
    a = tt.ones(768, 768)
    (a @ a).sum().item()
    print("up", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        for _ in range(50):
            b = a @ a
        b.sum().item()
    print("done", 0, flush=True)
"""


def together(daemon, codes, seconds):
    """What each of the clients printed after "done", started at once."""
    import subprocess

    from support.clients import client, finish, wait_line
    running = [client(code.format(seconds=seconds), daemon.unix, stdin=subprocess.PIPE) for code in codes]
    for process in running:
        wait_line(process, "up", 120)
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    results = [[float(x) for x in wait_line(process, "done", 120).split()[1:]] for process in running]
    for process in running:
        finish(process, 120)
    return results


def measure(seconds, sessions, rounds):
    from support.daemon import Daemon
    daemon = Daemon("--max-sessions", "64")
    rows = []
    try:
        for _ in range(rounds):
            alone = together(daemon, [WORKER], seconds)[0][0]
            done = [r[0] for r in together(daemon, [WORKER] * sessions, seconds)]
            quiet = together(daemon, [VICTIM], seconds)[0]
            beside = together(daemon, [VICTIM, FLOOD], seconds)[0]
            rows.append({"total": sum(done) / alone,
                         "jain": sum(done) ** 2 / (len(done) * sum(x * x for x in done)),
                         "victim_p50": beside[0] / quiet[0], "victim_p99": beside[1] / quiet[1],
                         "victim_alone_ms": quiet[0] * 1e3})
    finally:
        daemon.stop()
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(json.dumps(measure(args.seconds, args.sessions, args.rounds), indent=1))


if __name__ == "__main__":
    main()
