"""Starts a real daemon for a test: teletensord on port 0 and on a socket in a temporary folder."""

import contextlib
import functools
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# seconds after which an event that has not happened is considered a hang; pyproject.toml has a longer limit
# for a whole test
HANG = 240
READY = HANG
SANITIZED = bool(os.environ.get("TELETENSOR_SANITIZED"))  # the daemon is slow and keeps freed memory


def binary():
    return os.environ.get("TELETENSORD") or str(ROOT / "build/release/bin/teletensord")


class Daemon:
    """A daemon that runs until stop(), as people run it: it has a state directory of its own, restores its
    sessions when it is restarted, serves HTTP, and a client on TCP needs a token.

    `tcp` and `unix` are addresses for tt.connect, `http` is its HTTP address, `peers` the address for its
    peers (with the flag), `log` its output, and `url` that of the dashboard, with a token that is never in
    the log. `token` is a token for its TCP address, and `monitor` one for its metrics. `may_say`: words of
    the error lines that the test itself causes (invariants.py)."""

    may_say = ()
    held = None  # the socket that holds its port for peers (daemons.py)

    def __init__(self, *flags, env=None, under=(), socket=None, anonymous="", forgets=""):
        """`under`: the words of a program that runs it. `socket`: a path, whose folder is created.

        A test that needs a daemon that people do not run gives its reason: with `anonymous`, clients on
        loopback need no token; with `forgets`, sessions end with the process."""
        self.folder = tempfile.mkdtemp(prefix="tt-")  # short, because socket paths have at most 108 bytes
        self.socket = socket or f"{self.folder}/d.sock"
        self.anonymous, self.forgets = anonymous, forgets
        os.makedirs(os.path.dirname(self.socket), exist_ok=True)
        self.flags, self.env, self.under = flags, env, under
        self.lives = []  # the logs of the earlier processes
        self._start(flags, env)

    def restart(self, *flags):
        """Starts another process on the same socket and state directory, with the same flags and these
        additional ones."""
        self._end_log()
        self.lives.append(self._lines)
        self._start((*self.flags, *flags), self.env)

    @property
    def state(self):
        """The folder with a file for each session that is kept."""
        return Path(self.folder) / "state" / "sessions"

    def _new_token(self, who):
        state = self.flags[self.flags.index("--state-dir") + 1] if "--state-dir" in self.flags else self.state.parent
        return subprocess.run([binary(), "--state-dir", str(state), "--create-token", who], check=True,
                              stdout=subprocess.PIPE, text=True, timeout=HANG).stdout.strip()

    @functools.cached_property
    def token(self):
        """A token of the user "tester", which is made when it is first needed."""
        return self._new_token("tester:user")

    @functools.cached_property
    def monitor(self):
        """A token that may read the metrics of all users."""
        return self._new_token("monitor:metrics")

    @functools.cached_property
    def token_file(self):
        """The path of a file with `token`, for the environment of a client."""
        path = Path(self.folder) / "token"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(self.token)
        return str(path)

    def _start(self, flags, env):
        command = [*self.under, binary(), "--listen", "127.0.0.1:0", "--socket", self.socket,
                   *(["--allow-anonymous"] if self.anonymous else []),
                   *(["--restart", "0"] if self.forgets else []),
                   *([] if "--http" in flags else ["--http", "127.0.0.1:0"]),
                   *([] if "--state-dir" in flags else ["--state-dir", f"{self.folder}/state"]), *flags,
                   *os.environ.get("TELETENSOR_TEST_FLAGS", "").split()]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TELETENSOR_")}
        # The daemon drops lines for which its pipe has no room.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                                        pipesize=1 << 20, env={**environment, **(env or {})})
        os.set_blocking(self.process.stdout.fileno(), False)
        self._lines, self._part, self._taking, self._ready = [], b"", threading.Lock(), threading.Event()
        self.tcp = self.http = self.url = self.peers = None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        if not self._ready.wait(READY) or self.tcp is None:
            self.kill()
            raise RuntimeError("teletensord did not become ready:\n" + self.log)
        self.unix = "unix:" + self.socket
        self.descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))

    def _read(self, pipe):
        written = select.poll()
        written.register(pipe, select.POLLIN)
        while self._take(pipe):
            written.poll()
        self._ready.set()

    def _take(self, pipe):
        """Reads what the daemon has written so far. Returns False if it has ended and everything is read."""
        with self._taking:
            while not pipe.closed and (data := pipe.read(1 << 16)) is not None:
                if not data:
                    return False
                *lines, self._part = (self._part + data).split(b"\n")
                for line in lines:
                    self._note(line.decode(errors="surrogateescape") + "\n")
            return not pipe.closed

    def _note(self, line):
        url = re.search(r" url=(\S+)", line)
        if url:
            self.url = url.group(1)
            line = line.replace(self.url.split("#")[1], "...")
        self._lines.append(line)
        found = re.search(r"(127\.0\.0\.1:\d+)", line)
        if "ready" in line and found:
            self.tcp = found.group(1)
            http = re.search(r" http=(\S+)", line)
            self.http = http.group(1) if http else self.http
            peers = re.search(r" peers=(\S+)", line)
            self.peers = peers.group(1) if peers else self.peers
            self._ready.set()

    def _end_log(self):
        self._reader.join(5)
        with self._taking:
            self.process.stdout.close()

    @property
    def lines(self):
        """The lines that the daemon has logged. A line that it writes before it answers a call is included
        once the call has returned."""
        self._take(self.process.stdout)
        return self._lines

    @property
    def log(self):
        return "".join(self.lines)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def terminate(self, timeout=HANG):
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def drain(self):
        """Sends SIGTERM, and checks that the daemon exits with status 0."""
        assert self.terminate() == 0, self.log

    def crash(self):
        """Kills the daemon with kill -9, and starts another process in its place."""
        self.kill()
        self.restart()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._end_log()

    def stop(self):
        """Ends the daemon; returns a description of any fault in how it ended, or ""."""
        bad = ""
        if not self.alive():
            bad = f"the daemon had ended with {self.process.returncode}:\n{self.log[-4000:]}"
        else:
            try:
                status = self.terminate()
                bad = "" if status == 0 else f"SIGTERM ended it with {status}:\n{self.log[-4000:]}"
            except subprocess.TimeoutExpired:
                bad = "SIGTERM did not end it"
        self.kill()
        if self.held is not None:
            self.held.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return bad


def resident(pid):
    """The resident memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def wait_until(true, timeout=HANG, what="the condition"):
    """Polls until true() holds. The time limit only ends a hang; it is not an assertion."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not hold within {timeout} s")
        time.sleep(0.01)
