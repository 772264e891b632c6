"""Starts three connected daemons on one machine, which represent separate machines in a network if that is
possible.

With root privileges each daemon gets a network namespace, with a virtual cable between every two of them;
without them the daemons use loopback, which cannot be slowed down.
"""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from teletensor._connection.daemon import find_daemon

NAMES = ("a", "b", "c")
PORT = 7421


class Boxes:
    """A context with the daemons a, b and c, of one lane each. `addresses` are those of their UNIX sockets,
    which can be reached from everywhere on the machine. `why_no_network` is the reason why they use
    loopback, or ""."""

    def __init__(self):
        self.why_no_network = _why_no_namespaces()
        self._cleanup = contextlib.ExitStack()
        self._prefix = f"tt{os.getpid()}"

    def __enter__(self):
        with self._cleanup:
            self.folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="boxes")))
            peers = self._cables() if not self.why_no_network else {name: {} for name in NAMES}
            # of two daemons, the one with the smaller name connects to the other
            for name in reversed(NAMES):
                own = self._start(name, {**dict.fromkeys(NAMES, "127.0.0.1:0"), **peers[name]})
                if self.why_no_network:
                    for others in peers.values():
                        others[name] = own
            self.addresses = [f"unix:{self.folder / name}.sock" for name in NAMES]
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(self, *error):
        self._cleanup.close()

    def _start(self, name, peers):
        """Starts a daemon; returns the address for its peers."""
        command = [
            find_daemon(), "--socket", f"{self.folder / name}.sock", "--listen", "127.0.0.1:0",
            "--state-dir", "", "--lanes", "1", "--peer-name", name,
            "--peers", ",".join(f"{other}={address}" for other, address in peers.items() if other != name),
        ]  # fmt: skip
        if self.why_no_network:
            command += ["--peer-listen", "127.0.0.1:0"]
        else:
            _run(sys.executable, "-m", "teletensor.cli", "cert", "--peer", name, "--output", self.folder)
            command = ["ip", "netns", "exec", self._prefix + name, *command]
            command += ["--peer-listen", f"0.0.0.0:{PORT}", "--peer-ca", f"{self.folder}/ca.pem"]
            command += ["--peer-cert", f"{self.folder / name}.pem"]
            command += ["--peer-key", f"{self.folder / name}.key"]
        log = self.folder / f"{name}.log"
        with open(log, "w") as file:
            daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        self._cleanup.callback(_end, daemon)
        for line in daemon.stdout:
            if found := re.search(r" ready .*peers=(\S+)", line):
                return found[1]
        raise SystemExit(f"daemon {name} did not start:\n{log.read_text()[-2000:]}")

    def _cables(self):
        """Creates the network. Returns for each daemon the addresses of its peers as seen from its
        namespace."""
        for name in NAMES:
            _run("ip", "netns", "add", self._prefix + name)
            self._cleanup.callback(_run, "ip", "netns", "del", self._prefix + name)
            _run("ip", "-n", self._prefix + name, "link", "set", "lo", "up")
        peers = {name: {} for name in NAMES}
        for number, (one, two) in enumerate(itertools.combinations(NAMES, 2)):
            ends = ((one, two, 1), (two, one, 2))
            _run(
                "ip", "link", "add", one + two, "netns", self._prefix + one, "type", "veth",
                "peer", "name", two + one, "netns", self._prefix + two,
            )  # fmt: skip
            for here, there, last in ends:
                space, device = self._prefix + here, here + there
                _run("ip", "-n", space, "addr", "add", f"10.77.{number}.{last}/30", "dev", device)
                _run("ip", "-n", space, "link", "set", device, "up")
                peers[there][here] = f"10.77.{number}.{last}:{PORT}"
        return peers

    def slow_down(self, rate):
        """Limits the cables of daemon c to `rate` in each direction, in the notation of tc ("20mbit")."""
        for here, there in (("c", "a"), ("c", "b"), ("a", "c"), ("b", "c")):
            _run(
                "tc", "-n", self._prefix + here, "qdisc", "replace", "dev", here + there, "root",
                "tbf", "rate", rate, "burst", "64kb", "latency", "400ms",
            )  # fmt: skip


def _why_no_namespaces():
    """The reason why this process cannot create network namespaces, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need the super-user"
    for program in ("ip", "tc", "openssl"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    name = f"tt{os.getpid()}x"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"ip netns: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def _run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def _end(process):
    process.terminate()
    process.wait()
