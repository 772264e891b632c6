"""Measures how the lanes are divided among concurrent sessions.

    python tests/bench/fairness.py [--seconds 2] [--sessions 16] [--rounds 3]

On one daemon on this machine it measures: the work of 16 sessions together compared with that of one alone;
how evenly it is divided (Jain's index: 1 means evenly); and how long a work of about 2 ms takes for a victim
session alone, beside a session that floods the daemon, and beside as many busy loops outside of the daemon
as it has lanes, which shows the effect of the operating system for the same load. Each client is a separate
process.

For the slowest calls of the victim it also says where the time went: the processor time that the daemon
spent during them beyond what such a call needs alone (on all lanes together: the decision of the daemon),
and how long threads that were ready to run waited for a core (the decision of the operating system): those
of the client, the daemon's lanes, and its other threads. The waits of threads overlap, so they must not be
added.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

SLOWEST = 20  # one of this number of calls counts as slow
PERCENTILE_SECONDS = 2  # about 300 calls; with fewer, the 99th percentile is the slowest call

SERVE = """
    import json
    {prepare}
    print("up", flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + float(line)
        result = None
        while time.perf_counter() < end:
            {step}
        print("done", json.dumps(result), flush=True)
"""
PRODUCT = "a = tt.ones({0}, {0}); (a @ a).sum().item()"
WORKER = SERVE.format(prepare=PRODUCT.format(256), step="""result = (result or 0) + 8
            for _ in range(8):
                b = a @ a
            b.sum().item()""")
FLOOD = SERVE.format(prepare=PRODUCT.format(768), step="""for _ in range(50):
                b = a @ a
            b.sum().item()""")
BUSY = SERVE.format(prepare="", step="pass")
VICTIM = SERVE.format(prepare=PRODUCT.format(384) + """
    sys.path.insert(0, {folder!r})
    from fairness import Watch
    watch = Watch({daemon})""", step="""result = result or []
            watch.begin()
            (a @ a).sum().item()
            result.append(watch.end())
            time.sleep(0.005)""")


class Watch:
    """Measures a daemon and this process between begin() and end(), in ms."""

    def __init__(self, daemon):
        self.clock = ~daemon << 3 | 2  # the clock of that process's processor time
        self.groups = {"client": self._tasks("self", lambda name: True),
                       "lanes": self._tasks(daemon, lambda name: name == "lane"),
                       "others": self._tasks(daemon, lambda name: name != "lane")}

    @staticmethod
    def _tasks(process, wanted):
        tasks = [t for t in Path(f"/proc/{process}/task").iterdir() if wanted((t / "comm").read_text().strip())]
        return [os.open(t / "schedstat", os.O_RDONLY) for t in tasks]

    def _waited(self):
        return {name: sum(int(os.pread(task, 64, 0).split()[1]) for task in tasks) / 1e6
                for name, tasks in self.groups.items()}

    def begin(self):
        self.waited = self._waited()
        self.cpu, self.began = time.clock_gettime(self.clock), time.perf_counter()

    def end(self):
        took, cpu = time.perf_counter() - self.began, time.clock_gettime(self.clock) - self.cpu
        waited = self._waited()
        return {"ms": took * 1e3, "cpu": cpu * 1e3, **{name: waited[name] - self.waited[name] for name in waited}}


class Box:
    """A daemon, and clients that wait to be told how long to work. Started at the first use."""

    def __init__(self, sessions=16, seconds=0.5):
        self.sessions, self.seconds, self.daemon = sessions, seconds, None

    def start(self):
        from support.clients import client, wait_line
        from support.daemon import Daemon
        self.daemon = Daemon("--max-sessions", "64", "--user-sessions", "0")
        codes = [WORKER] * self.sessions + [VICTIM.format(folder=str(HERE), daemon=self.daemon.pid), FLOOD]
        codes += [BUSY] * len(os.sched_getaffinity(0))
        clients = [client(code, self.daemon.unix, stdin=subprocess.PIPE) for code in codes]
        for process in clients:
            wait_line(process, "up", 120)
        self.workers, (self.victim, self.flood), self.busy = (
            clients[:self.sessions], clients[self.sessions:self.sessions + 2], clients[self.sessions + 2:])

    def close(self):
        from support.clients import finish
        if self.daemon is None:
            return
        for process in (*self.workers, self.victim, self.flood, *self.busy):
            finish(process)
        self.daemon.stop()

    def together(self, *clients, seconds=None):
        """The results of the clients, which are started at once."""
        from support.clients import wait_line
        for process in clients:
            process.stdin.write(f"{seconds or self.seconds}\n")
            process.stdin.flush()
        return [json.loads(wait_line(process, "done", 120).removeprefix("done")) for process in clients]

    def round(self):
        """Measures everything once."""
        if self.daemon is None:
            self.start()
        alone = self.together(self.workers[0])[0]
        longer = 2 * self.seconds  # longer, because each session does little
        done = self.together(*self.workers, seconds=longer)
        long = max(self.seconds, PERCENTILE_SECONDS)
        calls = {"alone": self.together(self.victim, seconds=long)[0],
                 "beside": self.together(self.victim, self.flood, seconds=long)[0],
                 "outside": self.together(self.victim, *self.busy, seconds=long)[0]}
        figures = {"one": alone / self.seconds, "all": sum(done) / longer,
                   "jain": sum(done) ** 2 / (len(done) * sum(x * x for x in done))}
        own = statistics.median(call["cpu"] for call in calls["alone"])
        for name, these in calls.items():
            these.sort(key=lambda call: call["ms"])
            figures[f"{name} p50"] = these[len(these) // 2]["ms"]
            figures[f"{name} p99"] = these[int(len(these) * 0.99)]["ms"]
            slow = these[-max(len(these) // SLOWEST, 1):]
            figures[f"{name} slow"] = {key: statistics.fmean(call[key] for call in slow) for key in slow[0]}
            figures[f"{name} slow"]["cpu"] -= own
        return figures


def rows(row):
    """The rows of `make bench`. One round measures all of them; each row reads the rounds in turn."""
    box, rounds = Box(), []

    def figure(name):
        number = count()

        def read():
            at = next(number)
            while len(rounds) <= at:
                rounds.append(box.round())
            return rounds[at][name]
        return read
    try:
        yield row(f"beside each other: matrix products of {box.sessions} sessions", "1/s", figure("all"), figure("one"),
                  "one session", 0.95, True)
        yield row(f"beside each other: {box.sessions} sessions, Jain's index", "", figure("jain"), bound=0.95,
                  higher_is_better=True)
        flood = "beside each other: 2 ms of work and a flood"
        yield row(f"{flood}, median", "ms", figure("beside p50"), figure("alone p50"), "alone")
        yield row(f"{flood}, p99", "ms", figure("beside p99"), figure("alone p99"), "alone", 2)
        yield row(f"{flood}, p99 / busy loops outside", "ms", figure("beside p99"), figure("outside p99"), "outside")
    finally:
        box.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    box = Box(args.sessions, args.seconds)
    try:
        rounds = [box.round() for _ in range(args.rounds)]
    finally:
        box.close()

    def median(*path):
        def at(figures):
            for name in path:
                figures = figures[name]
            return figures
        return round(statistics.median(at(each) for each in rounds), 3)
    for each in rounds:
        each["together / alone"] = each["all"] / each["one"]
        for name in ("beside", "outside"):
            for part in ("p50", "p99"):
                each[f"{name} / alone {part}"] = each[f"{name} {part}"] / each[f"alone {part}"]
    print(json.dumps({name: {key: median(name, key) for key in value} if isinstance(value, dict) else median(name)
                      for name, value in rounds[0].items()}, indent=1))


if __name__ == "__main__":
    main()
