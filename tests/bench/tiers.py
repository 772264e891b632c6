"""Measures sessions that use four times the memory: the slowdown compared with all data in memory, and how
fast bytes are moved.

    python tests/bench/tiers.py [--memory 256] [--rounds 3] [--passes 10] [--random]
"""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import teletensor as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.daemon import Daemon
from support.http import scrape

MIB = 1 << 20
SESSIONS = 8


def metrics(daemon):
    text = scrape(daemon)
    found = re.findall(r'^(teletensor_mov\w+)(?:\{direction="(\w+)"\})? (\S+)$', text, re.M)
    return {(name, direction): float(value) for name, direction, value in found}


def run(memory, flags, args):
    """Runs each session in turn, with some work on all its tensors. Returns the seconds, and what was
    moved."""
    daemon = Daemon("--host-memory", f"{memory}MiB", *flags)
    try:
        each = 4 * args.memory * MIB // SESSIONS // 4  # bytes of a tensor, four per session
        random = np.random.default_rng(1)
        sessions, held = [], []
        for i in range(SESSIONS):
            s = tt.connect(daemon.unix)
            with s.as_current():
                if args.random:
                    held.append([tt.tensor(random.random(each // 4, np.float32)) for _ in range(4)])
                else:
                    held.append([tt.full((each // 4,), float(i + k)) for k in range(4)])
                s.synchronize()
            sessions.append(s)
        began, times = time.perf_counter(), []
        for _ in range(args.rounds):
            for s, tensors in zip(sessions, held, strict=True):
                start = time.perf_counter()
                with s.as_current():
                    for _ in range(args.passes):
                        for tensor in tensors:
                            tensor += 1
                        s.synchronize()
                times.append(time.perf_counter() - start)
        took = time.perf_counter() - began
        moved = metrics(daemon)
        used = sum(s.memory()[0]["used"] + s.memory()[0]["away"] for s in sessions)
        for s in sessions:
            s.close()
        return took, statistics.median(times), moved, used
    finally:
        daemon.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, default=256, help="MiB that there are; four times that is held")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=10, help="over all that a session has, in its turn")
    parser.add_argument("--random", action="store_true", help="contents that do not compress")
    args = parser.parse_args()
    whole, whole_turn, _, _ = run(args.memory * 6, (), args)
    short, short_turn, moved, used = run(args.memory, ("--disk-memory", f"{args.memory * 8}MiB"), args)
    result = {
        "memory_mib": args.memory, "held_mib": round(used / MIB), "turns": args.rounds * SESSIONS,
        "contents": "random" if args.random else "constant", "passes": args.passes,
        "in_memory_seconds": round(whole, 2), "seconds": round(short, 2),
        "slowdown": round(short / whole, 3),
        "median_turn": [round(whole_turn, 3), round(short_turn, 3)]}
    for direction in ("out", "in"):
        size = moved["teletensor_moved_bytes_total", direction]
        seconds = moved["teletensor_moving_seconds_total", direction]
        result[f"moved_{direction}_mib"] = round(size / MIB)
        result[f"{direction}_mib_per_second"] = round(size / MIB / seconds) if seconds else None
    written = moved["teletensor_moved_written_bytes_total", ""]
    result["written_mib"] = round(written / MIB)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
