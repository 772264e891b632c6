"""The collectives in `make bench`: ranks on one daemon and on two, and PyTorch's device "tt" with ranks on one
daemon, compared with gloo in PyTorch.

Each rank is a process (rank.py); a figure is that of the slowest rank.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.daemon import Daemon
from support.daemons import start_daemons

RANK = Path(__file__).resolve().parent / "rank.py"
US, MS = 1e6, 1e3


class World:
    """Two ranks that wait for work."""

    def __init__(self, library, method, addresses=("", "")):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen([sys.executable, RANK, library, str(rank), str(len(addresses)), method, address],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for rank, address in enumerate(addresses)]

    def seconds(self, work, elements, times):
        for rank in self.ranks:
            print(json.dumps({"work": work, "elements": elements, "times": times}), file=rank.stdin, flush=True)
        return max(float(rank.stdout.readline()) for rank in self.ranks)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(60)
            rank.stdout.close()


def certificates(folder, name):
    """The flags of a daemon whose connections to peers are encrypted; gloo's are not."""
    subprocess.run([sys.executable, "-m", "teletensor.cli", "cert", "--peer", name, "--output", folder],
                   check=True, capture_output=True)
    return ("--peer-cert", f"{folder}/{name}.pem", "--peer-key", f"{folder}/{name}.key",
            "--peer-ca", f"{folder}/ca.pem")


def rows(row):
    """Measured with two lanes, because PyTorch's two processes have one thread each."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        alone = Daemon("--lanes", "2")
        stack.callback(alone.stop)
        both, secret = (start_daemons(Daemon, 2, "--lanes", "1", own=own)
                        for own in (None, lambda name: certificates(folder, name)))
        for daemon in both + secret:
            stack.callback(daemon.stop)
        worlds = [World("torch", f"file://{folder}/store"), World("teletensor", "tcp://bench:1", [alone.unix] * 2),
                  World("teletensor", "tcp://bench:2", [daemon.unix for daemon in both]),
                  World("teletensor", "tcp://bench:3", [daemon.unix for daemon in secret]),
                  World("tt", f"file://{folder}/device", [alone.unix] * 2)]
        for world in worlds:
            stack.callback(world.close)
        gloo, one, two, hidden, device = worlds

        def figure(world, work, elements, times, scale):
            return lambda: world.seconds(work, elements, times) * scale
        for where, world, bounds in (("one daemon", one, (0.3, 0.5, 0.67)), ("two daemons", two, (0.7, None, 1.25)),
                                     ("two daemons, TLS", hidden, (None, None, 2.5))):
            for name, elements, times, unit, scale, bound in (
                    ("4 bytes", 1, 200, "us", US, bounds[0]), ("1 MiB", 1 << 18, 20, "ms", MS, bounds[1]),
                    ("25 MiB", 25 << 18, 3, "ms", MS, bounds[2])):
                work = ("all_reduce", elements, times, scale)
                yield row(f"all_reduce of {name}, 2 ranks, {where}", unit, figure(world, *work), figure(gloo, *work),
                          "gloo", bound)
            if world is hidden:
                continue
            work = ("ddp", 0, 20, MS)
            yield row(f"MLP 784-256-256-10 step with DDP, 2 ranks, {where}", "ms", figure(world, *work),
                      figure(gloo, *work), "gloo", 0.6 if world is one else None)
            yield row(f"the same / without DDP, {where}", "ms", figure(world, *work), figure(world, "mlp", *work[1:]),
                      "without DDP", 1.25)
        for way, work, bound in (("", "ddp", 1.0), (", captured", "captured ddp", 0.67)):
            yield row(f"torch device: MLP step with DDP, 2 ranks{way}", "ms", figure(device, work, 0, 20, MS),
                      figure(gloo, "ddp", 0, 20, MS), "gloo", bound)
