"""Runs distributed training under faults for a while, and checks that results are right and that nothing
grows.

    python tests/chaos/distributed_soak.py --minutes 20 [--seed 1] [--seconds 10]

Three connected daemons, with one rank on each, train the same small network repeatedly. Every `--seconds` a
fault is caused: a program is killed or stopped for a moment, a daemon is killed and restarted, or the links
are cut. A program that has lost its world creates it again, and one that has ended is restarted. Each
training that completes must have the same bits as the first one. After each minute all programs end, and the
conditions that must hold after any fault (tests/support/invariants.py) are checked on every daemon;
descriptors and threads must not grow.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from chaos.soak import quiet  # noqa: E402
from support.clients import client, finish, read_line  # noqa: E402
from support.daemon import Daemon  # noqa: E402
from support.daemons import start_daemons  # noqa: E402
from support.invariants import hold  # noqa: E402
from support.proxy import Proxy  # noqa: E402

RANKS = 3
PROGRAM = """
import hashlib
dist = tt.distributed
R, N, end = {rank}, {ranks}, {end!r}
def train():
    dist.init_process_group(rank=R, world_size=N, init_method="tcp://soak:1", timeout=120)
    tt.manual_seed(0)
    net = tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.ReLU(), tt.nn.Linear(40, 3))
    ddp = tt.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
    step = tt.optim.Adam(ddp.parameters(), lr=0.01)
    for i in range(40):
        step.zero_grad()
        data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
        (ddp(data) - 1).square().mean().backward()
        step.step()
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
    found = [None] * N
    dist.all_gather_object(found, (bits, os.path.exists(end)))
    print("WRONG ranks differ" if {{each for each, _ in found}} != {{bits}} else "done " + bits, flush=True)
    return any(last for _, last in found)  # so no rank waits for one that has seen the end earlier
over = False
while not over:
    try:
        over = train()
    except tt.RankLostError as e:
        over = os.path.exists(end)
        print("lost", str(e).replace("\\n", " "), flush=True)
    s.clear_errors()
    if dist.is_initialized():
        dist.destroy_process_group()
"""


class Programs:
    """The ranks, each with a thread that reads its output."""

    def __init__(self, daemons, folder, seen):
        self.daemons, self.end, self.seen, self.bits = daemons, Path(folder) / "end", seen, set()
        self.end.unlink(missing_ok=True)
        self.running = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank):
        process = client(PROGRAM.format(rank=rank, ranks=RANKS, end=str(self.end)), self.daemons[rank].unix)
        reader = threading.Thread(target=self.read, args=(process,), daemon=True)
        reader.start()
        return process, reader

    def read(self, process):
        while line := read_line(process):
            word, _, rest = line.strip().partition(" ")
            self.seen[word] += 1
            if word == "done":
                self.bits.add(rest)
            elif word == "WRONG":
                self.bits.add(line)

    def again(self):
        """Restarts the programs that have ended."""
        for rank, (process, _) in enumerate(self.running):
            if process.poll() is not None:
                err = process.stderr.read()
                known = ("SessionLostError", "UnavailableError", "ConnectionError", "RankLostError")
                if process.returncode > 0 and not any(word in err for word in known):
                    raise AssertionError(f"rank {rank} has ended:\n{err[-3000:]}")
                self.seen["programs started again"] += 1
                self.running[rank] = self.start(rank)

    def finish(self):
        self.end.touch()
        for process, reader in self.running:
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(AssertionError):
                finish(process, 30)  # it waited for a program that has ended
            process.kill()
            process.wait()
            reader.join(10)


def disturb(choose, daemons, proxies, programs, seen):
    what = choose.choice(("kill a program", "stop a program", "kill a daemon", "cut the links", "cut the links"))
    which = choose.randrange(RANKS)
    seen[what] += 1
    if what == "kill a program":
        programs.running[which][0].kill()
    elif what == "stop a program":
        programs.running[which][0].send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        programs.running[which][0].send_signal(signal.SIGCONT)
    elif what == "kill a daemon":
        daemons[which].crash()
        proxies[daemons[which]].target = daemons[which].peers
    else:
        for proxy in proxies.values():
            proxy.cut()


def run(minutes, seed=1, seconds=10.0, round_seconds=60.0):
    """Returns counts of events, and what each round has left, as a dictionary."""
    choose, seen, running, bits, rounds = random.Random(seed), Counter(), [], set(), []
    relays = []

    def start(*flags, **keywords):
        running.append(Daemon(*flags, **keywords))
        return running[-1]

    def through(address):
        relays.append(Proxy(address, tcp=True))
        return relays[-1].address
    try:
        daemons = start_daemons(start, RANKS, "--rank-grace", "0.5", "--peer-patience", "3", through=through)
        # the order in which the daemons are started
        proxies = dict(zip(reversed(daemons), relays, strict=True))
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            while not rounds or time.monotonic() < begin + minutes * 60:
                programs = Programs(daemons, folder, seen)
                end = min(time.monotonic() + round_seconds, begin + minutes * 60)
                while time.monotonic() < end:
                    time.sleep(min(seconds * choose.uniform(0.5, 1.5), max(0.1, end - time.monotonic())))
                    disturb(choose, daemons, proxies, programs, seen)
                    programs.again()
                programs.finish()
                bits |= programs.bits
                for daemon in daemons:
                    hold(daemon)
                rounds.append([quiet(daemon) for daemon in daemons])
                print(dict(seen), [each["resident_mib"] for each in rounds[-1]], flush=True)
        bad = [problem for daemon in daemons if (problem := daemon.stop())]
        assert not bad, "\n".join(bad)
    finally:
        for proxy in relays:
            proxy.close()
        for daemon in running:
            daemon.kill()
    return {"seen": dict(seen), "bits": sorted(bits), "rounds": rounds}


def problems(report):
    found = []
    if len(report["bits"]) != 1:
        found.append(f"trainings have {len(report['bits'])} results: {report['bits'][:4]}")
    for i, (first, last) in enumerate(zip(report["rounds"][0], report["rounds"][-1], strict=True)):
        for what, more in (("threads", 8), ("descriptors", 6)):
            if last[what] > first[what] + more:
                found.append(f"daemon {i}: {what} grew from {first[what]} to {last[what]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=10, help="between two faults, on average")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    report = run(args.minutes, args.seed, args.seconds)
    print(report["seen"])
    found = problems(report)
    print("\n".join(found) or "all trainings have the same bits, nothing grows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
