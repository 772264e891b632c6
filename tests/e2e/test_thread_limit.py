"""A daemon whose user may have few threads: it starts, or reports why it cannot, and it ends all threads
that it has started."""

import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from support.daemon import SANITIZED, binary, wait_until
from support.users import need_two_users

need_two_users()  # root has no such limit
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer has threads of its own")

FREE = 1000  # threads: more than it starts
USER = 61_234  # of this test alone: the limit counts all threads of a user
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
FLAGS = ("--listen", "", "--http", "127.0.0.1:0", "--lanes", "2", "--cuda-driver", "", "--restart", "60")


class Limited:
    """Starts teletensord as USER, who may have `limit` threads. `ready` tells whether it became ready before
    it ended."""

    def __init__(self, folder, limit):
        self.state = folder / "state"
        self.socket = f"{folder}/s"
        self.process = subprocess.Popen(
            [*AS_USER, "prlimit", f"--nproc={limit}",
             binary(), *FLAGS, "--socket", self.socket, "--state-dir", str(self.state)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # OpenBLAS starts its threads before main(), and sends SIGINT if that fails.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        self.errors = []
        self._reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self._reader.start()
        self.ready = "ready" in self.process.stdout.readline()

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def end(self):
        """Returns the exit status; afterwards `errors` has all lines of stderr."""
        status = self.process.wait(60)
        self._reader.join(60)
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.end()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="tt-") as path:  # USER could not enter pytest's
        os.chown(path, USER, USER)
        yield Path(path)
        subprocess.run([*AS_USER, "kill", "-9", "-1"], check=False)  # a daemon that a failed test has left


@pytest.fixture(name="threads")
def threads_of_a_daemon(folder):
    """The number of threads of a daemon that is ready."""
    free = Limited(folder, FREE)
    assert free.ready
    found = free.threads()
    assert free.terminate() == 0, free.errors
    return found


def test_a_thread_that_is_refused_at_the_start_is_one_line(folder, threads):
    """gRPC starts some of its threads only when it is busy, so close to the limit either result is right."""
    refused = 0
    for limit in range(2, threads, 3):
        daemon = Limited(folder, limit)
        if daemon.ready:
            assert daemon.terminate() == 0, (limit, daemon.errors)
            continue
        assert daemon.end() == 1, (limit, daemon.errors)
        lines = [line for line in daemon.errors
                 if line.startswith("teletensord: ") or "event=not_started" in line]
        assert len(lines) == 1 and "thread" in lines[0], (limit, daemon.errors)
        refused += 1
    assert refused > threads // 6


def test_at_its_limit_it_writes_sessions(folder, tt, monkeypatch):
    """The work after SIGTERM needs no new thread."""
    monkeypatch.setenv("TELETENSOR_SOCKET_OWNER", str(USER))
    daemon = Limited(folder, FREE)
    with tt.connect("unix:" + daemon.socket, name="exp").as_current() as s:
        s.keep("w", tt.ones(10))
        s.synchronize()
        s.detach()
    subprocess.run([*AS_USER, "prlimit", f"--pid={daemon.process.pid}", "--nproc=1"], check=True)
    assert daemon.terminate() == 0, daemon.errors
    assert len(list((daemon.state / "sessions").glob("*.session"))) == 1
    daemon = Limited(folder, FREE)
    with tt.connect("unix:" + daemon.socket, name="exp").as_current() as s:
        assert s.taken_over and s.kept()["w"].tolist() == [1.0] * 10
        s.close()
    wait_until(lambda: not list((daemon.state / "sessions").glob("*.session")))
    assert daemon.terminate() == 0, daemon.errors
