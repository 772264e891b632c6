"""Runs a real daemon under a mix of clients for a while, and checks that it does not grow or become slower.

    python tests/chaos/soak.py --minutes 20 [--seed 1] [--out build/soak.json]

Runs rounds of about half a minute. In each round, correct clients train, upload, download, share and call
programs; further clients crash, are stopped for a while, send garbage, or stay idle. A probe reads a small
value all the time. After each round all clients have ended, and the daemon's remaining resources are
measured: bytes, sessions and handles must be zero; threads, descriptors and resident memory must not grow
from round to round.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from support.clients import client  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.raw import Raw  # noqa: E402

FLAGS = ("--host-memory", "512MiB", "--session-memory", "192MiB", "--disk-memory", "1GiB", "--lease", "3",
         "--stall", "5", "--max-sessions", "400", "--user-sessions", "0", "--snapshot-every", "10",
         "--restart", "30")

# The program of a correct client, which runs for ever; it reports a wrong value.
GOOD = """
import itertools
host = np.arange(1 << 20, dtype=np.float32)
def work(session, i):
    x = tt.linspace(-1, 1, 64).reshape(64, 1)
    model = tt.nn.Sequential(tt.nn.Linear(1, 16), tt.nn.Tanh(), tt.nn.Linear(16, 1))
    optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
    step = tt.compile(lambda a, b: (a * b + i % 3).sin())
    for _ in range(30):
        optimizer.zero_grad()
        loss = ((model(x) - x * x) ** 2).mean()
        loss.backward()
        optimizer.step()
    if not loss.item() < 10: print("WRONG loss", flush=True)
    big = tt.tensor(host)
    if (big + i).numpy()[5] != 5 + i: print("WRONG download", flush=True)
    if step(x, x).shape != (64, 1): print("WRONG program", flush=True)
    session.keep("model", model)
    tt.publish(f"soak-{os.getpid()}", big)
    if tt.published(f"soak-{os.getpid()}")[7].item() != 7: print("WRONG publication", flush=True)
    try:
        tt.ones(1 << 26).sum().item()
    except tt.OutOfMemoryError:
        pass
    else:
        print("WRONG quota", flush=True)
print("working", flush=True)
s.close()
for i in itertools.count():
    with tt.connect(os.environ["TT_TEST_ADDRESS"], name=f"good-{os.getpid()}" if i % 2 else None) as session:
        for j in range(4): work(session, i + j)
    print("round", flush=True)
"""
CRASHING = """
import random
x = tt.randn(200, 200)
s.keep("x", x)
print("working", flush=True)
end = time.monotonic() + random.random() * 3
while time.monotonic() < end:
    x = (x @ x).tanh()
    held = tt.tensor(np.ones(1 << 19, np.float32)) + 1
    (held.sum() + x.sum()).item()
os.kill(os.getpid(), 9)
"""
IDLE = """
held = [tt.ones(1000) * i for i in range(50)]
s.keep("held", held[3])
s.synchronize()
print("working", flush=True)
time.sleep(600)
"""
SLOW = """
x = tt.ones(1 << 20)
print("working", flush=True)
while True:
    for _ in range(20): y = x.numpy() if np.random.rand() < 0.3 else (x[:4096] + 1).numpy()
    time.sleep(0.5)
"""


class Rubbish(threading.Thread):
    """A client that violates the protocol in every way that it knows."""

    def __init__(self, daemon, seed):
        super().__init__(daemon=True)
        self.target, self.random, self.end, self.sent = daemon, random.Random(seed), threading.Event(), 0

    def run(self):
        while not self.end.is_set():
            with contextlib.suppress(grpc.RpcError, OSError):
                self.random.choice((self.frame, self.upload, self.guess, self.bytes))()
            self.sent += 1
            self.end.wait(0.05)

    def noise(self, most):
        return self.random.randbytes(self.random.randrange(1, most))

    def frame(self):
        with Raw(self.target.unix) as raw:
            session = raw.session()
            session.run(session.constant([1.0, 2.0]))
            frame = bytearray(session.frame(session.constant([1.0])))
            for _ in range(3):
                frame[self.random.randrange(len(frame))] ^= 1 << self.random.randrange(8)
            session.send(bytes(frame) if self.random.random() < 0.7 else self.noise(2000))
            session.run(session.fetch(1))
            time.sleep(0.05)
            session.close()

    def upload(self):
        with Raw(self.target.unix) as raw:
            session = raw.session()
            raw.upload(session.token, [self.noise(5000), self.noise(100)])

    def guess(self):
        with Raw(self.target.unix) as raw:
            raw.download(self.random.randbytes(16).hex(), self.random.randrange(1000)).next()

    def bytes(self):
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(self.target.socket)
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[:self.random.randrange(25)] + self.noise(4000))


class Probe(threading.Thread):
    """Measures how long reading a small value takes, in milliseconds."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.address, self.end, self.took, self.error = daemon.unix, threading.Event(), [], None

    def run(self):
        import teletensor as tt

        try:
            with tt.connect(self.address).as_current() as session:
                x = tt.ones(16)
                while not self.end.wait(0.02):
                    begin = time.perf_counter()
                    if (x + 1).sum().item() != 32.0:
                        raise AssertionError("a wrong value")
                    self.took.append((time.perf_counter() - begin) * 1000)
                session.close()
        except Exception as error:  # reported by the main thread
            self.error = error


def resident(pid):
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])


def quiet(daemon):
    """All clients have ended: waits until the daemon is idle, too, and measures it."""
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not raw.sessions() and not any(raw.used().values()), 60, "all sessions gone")
    fds, before = 0, None
    for _ in range(100):  # connections end slightly later than their sessions
        fds = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        if fds == before:
            break
        before = fds
        time.sleep(0.2)
    memory, threads = resident(daemon.pid)
    return {"resident_mib": round(memory, 1), "threads": threads, "descriptors": fds,
            "files": len(list(daemon.state.glob("*.session")))}


def one_round(daemon, choose, seconds, seen):
    """Runs clients for this time; returns the figures of the probe."""
    probe, rubbish = Probe(daemon), Rubbish(daemon, choose.random())
    probe.start()
    rubbish.start()
    running = []

    def start(kind, code):
        running.append((kind, client(textwrap.dedent(code), daemon.unix)))
        seen[kind] += 1

    for kind, code in (("good", GOOD), ("good", GOOD), ("slow", SLOW), ("idle", IDLE), ("crashing", CRASHING)):
        start(kind, code)
    end = time.monotonic() + seconds
    stopped = None
    while time.monotonic() < end:
        time.sleep(0.2)
        assert daemon.alive(), daemon.log[-4000:]
        for pair in list(running):
            if pair[0] == "crashing" and pair[1].poll() is not None:
                finished(pair, seen)
                running.remove(pair)
                start("crashing", CRASHING)
        slow = next(process for kind, process in running if kind == "slow")
        if slow.poll() is None and choose.random() < 0.05:
            slow.send_signal(19 if stopped is None else 18)  # SIGSTOP, SIGCONT
            stopped = True if stopped is None else None
            seen["stops"] += 1
    probe.end.set()
    rubbish.end.set()
    for pair in running:
        pair[1].send_signal(18)
        pair[1].kill()
        finished(pair, seen)
    rubbish.join(60)
    probe.join(60)
    if probe.error is not None or not probe.took:
        raise AssertionError(f"the probe: {probe.error!r}")
    seen["rubbish"] += rubbish.sent
    took = sorted(probe.took)
    return {"reads": len(took), "p50_ms": round(took[len(took) // 2], 3),
            "p99_ms": round(took[len(took) * 99 // 100], 3)}


def finished(pair, seen):
    kind, process = pair
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"a {kind} client hangs") from None
    assert "WRONG" not in out, (kind, out, err[-2000:])
    if kind == "good":
        assert "Traceback" not in err, err[-3000:]
        seen["rounds of good clients"] += out.count("round\n")


def run(minutes, seed=1, round_seconds=25.0, note=lambda report: None):
    """Returns the report as a dictionary. `note` is called repeatedly with the report so far."""
    daemon, choose, seen, rounds = Daemon(*FLAGS), random.Random(seed), Counter(), []
    try:
        begin = time.monotonic()
        while len(rounds) < 3 or time.monotonic() < begin + minutes * 60:
            figures = one_round(daemon, choose, round_seconds, seen)
            rounds.append({**figures, **quiet(daemon)})
            print(json.dumps(rounds[-1]), flush=True)
            if len(rounds) >= 3:
                note(report_of(rounds, seen, (time.monotonic() - begin) / 60))
        problem = daemon.stop()
        assert not problem, problem
    finally:
        daemon.kill()
    return report_of(rounds, seen, (time.monotonic() - begin) / 60)


def report_of(rounds, seen, minutes):
    def trend(what):
        """The median of the first third (without the first round), and of the last third."""
        values = [r[what] for r in rounds[1:]]
        third = max(1, len(values) // 3)
        return round(statistics.median(values[:third]), 3), round(statistics.median(values[-third:]), 3)

    return {"minutes": round(minutes, 1), "rounds": len(rounds), "clients": dict(seen), "each": rounds,
            "trend": {what: trend(what) for what in
                      ("resident_mib", "threads", "descriptors", "files", "p50_ms", "p99_ms")}}


def problems(report, slower=None):
    """The quantities that have grown. `slower` is the maximum factor by which the last reads may be slower;
    None skips that check."""
    trend, found = report["trend"], []
    for what, more in (("threads", 8), ("descriptors", 4), ("files", 0)):
        before, after = trend[what]
        if after > before + more:
            found.append(f"{what} grew from {before} to {after}")
    before, after = trend["resident_mib"]
    if after > before * 1.1 + 24:
        found.append(f"resident memory grew from {before} to {after} MiB")
    before, after = trend["p99_ms"]
    if slower is not None and after > before * slower:
        found.append(f"p99 of a read went from {before} to {after} ms")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build/soak.json")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def note(report):
        args.out.write_text(json.dumps(report, indent=1), encoding="utf-8")

    report = run(args.minutes, args.seed, note=note)
    note(report)
    print(f"{report['rounds']} rounds, clients: {report['clients']}")
    for what, (before, after) in report["trend"].items():
        print(f"{what:14} {before:10} -> {after}")
    found = problems(report, slower=2.0)
    print("\n".join(found) or "nothing grows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
