"""Measures sessions that use twice a device's memory: the slowdown, how fast bytes are moved, and that they
are unchanged."""

import re
import statistics
import time

import teletensor as tt
from support.daemon import Daemon
from support.http import scrape

MIB = 1 << 20
SESSIONS, TENSORS = 4, 4


def moved(daemon):
    """{(kind, direction): bytes or seconds} of the moves between the device and the host."""
    text = scrape(daemon)
    line = r'^teletensor_device_mov(ed_bytes|ing_seconds)_total\{device="cuda:0",direction="(\w+)"\} (\S+)$'
    found = re.findall(line, text, re.M)
    return {(kind, direction): float(value) for kind, direction, value in found}


def turns(memory, held, flags, environment, rounds, passes):
    """In each session in turn, adds one to all its tensors. Returns the seconds in total and per turn, what
    was moved, and whether the values are right."""
    daemon = Daemon("--device-memory", f"{memory}MiB", *flags, env=environment)
    try:
        count = held * MIB // SESSIONS // TENSORS // 4
        sessions = [tt.connect(daemon.unix) for _ in range(SESSIONS)]
        tensors = []
        for i, session in enumerate(sessions):
            with session.as_current():
                tensors.append([tt.full((count,), float(i + k), device="cuda") for k in range(TENSORS)])
                session.synchronize()
        began, times = time.perf_counter(), []
        for _ in range(rounds):
            for session, own in zip(sessions, tensors, strict=True):
                start = time.perf_counter()
                with session.as_current():
                    for _ in range(passes):
                        for tensor in own:
                            tensor += 1
                    tt.cuda.synchronize()
                times.append(time.perf_counter() - start)
        took, right = time.perf_counter() - began, True
        for i, (session, own) in enumerate(zip(sessions, tensors, strict=True)):
            with session.as_current():
                for k, tensor in enumerate(own):
                    wanted = float(i + k + rounds * passes)
                    right = right and bool((tensor == wanted).all().item())
        found = moved(daemon)
        for session in sessions:
            session.close()
        return took, statistics.median(times), found, right
    finally:
        daemon.stop()


def run(flags, environment, quick):
    memory = 16 if quick else 4096
    rounds, passes = (2, 1) if quick else (3, 10)
    whole = turns(3 * memory, 2 * memory, flags, environment, rounds, passes)
    short = turns(memory, 2 * memory, flags, environment, rounds, passes)
    found = {"memory_mib": memory, "held_mib": 2 * memory, "turns": rounds * SESSIONS, "passes": passes,
             "in_memory_seconds": whole[0], "seconds": short[0], "slowdown": short[0] / whole[0],
             "median_turn": [whole[1], short[1]], "right": whole[3] and short[3],
             "moved_in_memory": whole[2].get(("ed_bytes", "out"), 0.0)}
    for direction in ("out", "in"):
        size, seconds = (short[2].get((kind, direction), 0.0) for kind in ("ed_bytes", "ing_seconds"))
        found[f"moved_{direction}_mib"] = size / MIB
        found[f"{direction}_gb_per_second"] = size / seconds / 1e9 if seconds else None
    return found


HEAD = ("memory", "held", "slowdown", "out", "in", "numbers")


def cells(found):
    def rate(direction):
        speed = found[f"{direction}_gb_per_second"]
        return f"{found[f'moved_{direction}_mib']:.0f} MiB" + (f" at {speed:.2f} GB/s" if speed else "")
    return [f"{found['memory_mib']} MiB", f"{found['held_mib']} MiB", f"{found['slowdown']:.2f}x",
            rate("out"), rate("in"), "right" if found["right"] else "WRONG"]
