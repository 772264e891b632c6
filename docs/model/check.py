"""Checks sessions.pml with Spin: all interleavings within bounds, mutations, and traces of real sessions.

    docs/model/check.py            the smallest bounds and the mutations (CI)
    docs/model/check.py --nightly  larger bounds as well
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
# Flags of the C compiler: where compiling takes longer than the search; where the search does, in less
# memory; and for a search for runs without an end.
QUICK = ("-O0", "-w", "-DSAFETY", "-DVECTORSZ=2048")
LONG = ("-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048")
CYCLES = ("-O0", "-w", "-DNP", "-DNOFAIR", "-DVECTORSZ=2048")
DEPTH, FEW_STATES = "-m100000", "-w18"  # -w: as a power of two, the size of the table of states


class Bounds(NamedTuple):
    """The bounds of a run; sessions.pml describes each number."""

    leases: int = 1
    ops: int = 2
    cuts: int = 0
    late: int = 0
    crashes: int = 0
    drains: int = 0
    snaps: int = 0
    room: int = 1

    @property
    def definitions(self) -> list[str]:
        """Arguments for spin."""
        values = {**self._asdict(), "max": self.leases * self.ops}
        return [f"-D{name.upper()}={value}" for name, value in values.items()]


class Outcome(NamedTuple):
    """The result of Spin; `broken` is the property that does not hold, "" if all hold."""

    broken: str
    states: int
    seconds: float
    megabytes: float
    steps: list[str]  # of the run that breaks it


SMALL = (Bounds(cuts=1), Bounds(cuts=1, late=1, ops=1), Bounds(crashes=1, snaps=1),
         Bounds(leases=2, ops=1, cuts=1), Bounds(leases=2, ops=1, snaps=1), Bounds(drains=1, ops=1, cuts=1))
LARGE = (Bounds(cuts=2, late=1), Bounds(cuts=1, crashes=1, snaps=1),
         Bounds(leases=2, ops=1, crashes=1, snaps=1), Bounds(leases=2, ops=1, cuts=1, crashes=1),
         Bounds(crashes=2, snaps=2, ops=1, room=0),
         Bounds(leases=2, ops=1, drains=1, crashes=1), Bounds(leases=2, ops=1, drains=1, snaps=1),
         Bounds(leases=2, cuts=1), Bounds(leases=3, ops=1))

# A definition that removes a decision of the protocol, bounds, and the property that then does not hold.
MUTATIONS = {
    "LATE_CLOSE": (Bounds(leases=2, ops=1), "NO_FENCED_FRAME"),
    "TOKEN_NOT_FENCED": (Bounds(leases=2, ops=1, cuts=1), "NO_FENCED_FRAME"),
    "TWO_AT_ONCE": (Bounds(leases=2, ops=1), "ONE_SESSION"),
    "FILE_NOT_HANDED_ON": (Bounds(leases=2, ops=1, snaps=2), "ONE_FILE"),
    "FENCE_ENDS_EARLY": (Bounds(leases=2, cuts=1), "RIGHT_CLIENTS_GO_ON"),
    "VALUES_NOT_KEPT": (Bounds(cuts=1), "DELIVERED_OR_TOLD"),
    "FRAMES_NOT_KEPT": (Bounds(cuts=1), "EXACTLY_ONCE"),
    "TELLS_AGAIN": (Bounds(crashes=1, snaps=1), "TOLD_ONCE"),
    "TOLD_TOO_EARLY": (Bounds(crashes=1, snaps=2), "LOST_FOR_A_REASON"),
    "RUN_BEFORE_ATTACH": (Bounds(cuts=1, crashes=1, snaps=1, ops=1), "RIGHT_CLIENTS_GO_ON"),
}


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """Runs the command and returns its output; raises RuntimeError if it fails."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def compiled(folder: Path, definitions: Sequence[str], flags: Sequence[str]) -> None:
    """Compiles the checker with these definitions, as `pan` in the folder."""
    for file in HERE.glob("*.pml"):
        (folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    run(["spin", *definitions, "-a", "sessions.pml"], folder)
    run([os.environ.get("CC", "cc"), *flags, "-o", "pan", "pan.c"], folder)


def number(pattern: str, text: str) -> float:
    """The number in a line of the checker's report."""
    found = re.search(pattern, text)
    return float(found.group(1)) if found else 0.0


def steps_of(folder: Path, definitions: Sequence[str]) -> tuple[str, list[str]]:
    """The property that the trail breaks, and its transitions: the process and the line of sessions.pml."""
    text = run(["spin", *definitions, "-t", "-p", "sessions.pml"], folder)
    source = (folder / "sessions.pml").read_text(encoding="utf-8").splitlines()
    steps, last = [], ""
    pattern = r"^\s*(\d+):\s+proc\s+\d+ \((\w+):\d+\) \S+:(\d+)"
    for at, process, line in re.findall(pattern, text, re.MULTILINE):
        if at != last:
            steps.append(f"{process} {line}: {source[int(line) - 1].strip()}")
        last = at
    found = re.search(r"broken: (\w+)", text)
    return (found.group(1) if found else "no assertion"), steps


def check(bounds: Bounds, mutations: Sequence[str] = (), flags: Sequence[str] = QUICK,
          arguments: Sequence[str] = ()) -> Outcome:
    """Searches all runs within the bounds."""
    definitions = [*bounds.definitions, *(f"-D{each}" for each in mutations)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled(folder, definitions, flags)
        size = [] if flags is LONG else [FEW_STATES]
        report = run(["./pan", DEPTH, *size, *arguments], folder)
        if re.search(r"max search depth too small|out of memory", report):
            raise RuntimeError(f"the search was cut short: {report[-2000:]}")
        broken, steps = "", []
        if not re.search(r"errors: 0\b", report):
            broken, steps = steps_of(folder, definitions)
        return Outcome(broken, int(number(r"(\d+) states, stored", report)),
                       number(r"elapsed time ([\d.]+)", report),
                       number(r"([\d.]+)\s+total actual memory", report), steps)


# ---------------------------------------------------------------- traces

EVENTS = ("", "opened", "given_up", "taken_over", "attached", "snapshot", "restored", "crashed",
          "drained")  # in the order of trace.pml's codes
MAX_MARKS, MAX_EVENTS, LEASES = 12, 24, 8


class Event(NamedTuple):
    """An event of one session in the daemon's log. For `attached` the numbers are the last command that had
    arrived and, if frames are replayed, the last command that had run; for `snapshot` and `restored` the
    last command in the snapshot."""

    what: str
    upto: int = 0
    replay: int = 0


def events(lives: Iterable[Sequence[str]], session: str) -> list[Event]:
    """The events of the session of this name in the logs of successive daemons, until it is closed or lost.
    Each daemon but the last has ended by a drain, which the log reports, or by kill -9."""
    found: list[Event] = []
    named = f'session="{session}"'
    for lines in lives:
        if found:
            if found[-1].what != "drained":
                found.append(Event("crashed"))
            if not any("event=session_restored" in line and named in line for line in lines):
                return found
        for line in lines:
            what = re.search(r"event=session_(\w+)|event=(snapshot) ", line)
            if what is None:
                if "event=drained" in line and found:
                    found.append(Event("drained"))
                continue
            if named not in line:
                continue
            facts = {key: int(value) for key, value in re.findall(r" (upto|from|replay)=(\d+)", line)}
            kind = what.group(1) or what.group(2)
            if kind == "ended":
                if 'why="taken"' in line:
                    found.append(Event("given_up"))
                elif 'why="restart"' not in line:
                    return found
            elif kind in EVENTS:
                upto = facts.get("upto", facts.get("from", 0))
                found.append(Event(kind, upto, facts.get("replay", 0)))
    return found


class Replayer:
    """Asks the model whether a session may have had such a history. Use as a context manager."""

    def __enter__(self) -> Replayer:
        self._folder = tempfile.TemporaryDirectory()
        definitions = Bounds(LEASES, room=0).definitions
        definitions = [d for d in definitions if not d.startswith(("-DMAX", "-DOPS"))]
        compiled(Path(self._folder.name),
                 [*definitions, "-DTRACE", f"-DMAX={MAX_MARKS}", f"-DOPS={MAX_MARKS}"],
                 [*QUICK, "-DMEMLIM=1000"])
        return self

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()

    def accepts(self, trace: Sequence[Event]) -> bool:
        """Returns true if a run of the model has these events in this order."""
        lines = encoded(trace)
        folder = Path(self._folder.name)
        (folder / "trace").write_text("\n".join(lines) + "\n", encoding="utf-8")
        report = run(["./pan", DEPTH, FEW_STATES], folder, TRACE="trace")
        if "out of memory" in report:
            raise RuntimeError(f"the search for {trace} is too long")
        return not re.search(r"errors: 0\b", report)


def encoded(trace: Sequence[Event]) -> list[str]:
    """Converts events for trace.pml: numbers of commands become their ranks among the numbers in the trace,
    because a frame of the model may stand for many commands; a trace with too many of them is cut."""
    marks: set[int] = {0}
    most, opened = 0, 0
    for each in trace[:MAX_EVENTS]:
        now = marks | {each.upto, each.replay}
        opened += each.what in ("opened", "taken_over")
        if len(now) > MAX_MARKS + 1 or opened > LEASES:
            break
        marks, most = now, most + 1
    part = trace[:most]
    if opened >= LEASES and part[-1].what == "given_up":
        part = part[:-1]  # the model has no further lease for the client that takes the session over
    rank = {mark: at for at, mark in enumerate(sorted(marks))}
    count = {what: sum(each.what == what for each in part) for what in EVENTS}
    ends = count["crashed"] + count["drained"]
    budgets = (count["attached"] + 1, 0, ends, count["drained"], count["snapshot"])
    return [" ".join(map(str, budgets)),
            *(f"{EVENTS.index(each.what)} {rank[each.upto]} {rank[each.replay]}" for each in part)]


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nightly", action="store_true")
    runs = [(bounds, "", "", QUICK) for bounds in SMALL]
    runs += [(bounds, mutation, wanted, QUICK) for mutation, (bounds, wanted) in MUTATIONS.items()]
    if parser.parse_args().nightly:
        runs += [(bounds, "", "", LONG) for bounds in LARGE]
    failed = False
    for bounds, mutation, wanted, flags in runs:
        outcome = check(bounds, [mutation] if mutation else [], flags)
        print(f"{mutation or 'model'} {bounds}: {outcome.broken or 'all properties hold'}, "
              f"{outcome.states} states, {outcome.seconds} s, {outcome.megabytes} MB", flush=True)
        if outcome.broken != wanted:
            failed = True
            print(*outcome.steps, sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
