"""A program that comes to a daemon again and again while it is attacked: it connects, uploads, computes,
downloads, and attaches to its session again.

    TELETENSOR_TOKEN=... python -m attacks.newcomers ADDRESS        (in the folder tests)
"""

import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np
from support.daemon import wait_until

VALUES = np.arange(500_000, dtype=np.float32)  # too many for a frame


def come(tt, address, number):
    """One newcomer. Every value that it reads must be right."""
    name = f"newcomer{number}"
    with tt.connect(address, name=name).as_current() as session:
        x = tt.tensor(VALUES)
        session.keep("x", x * 2)
        assert (x + 1).sum().item() == (VALUES + 1).sum(dtype=np.float32), "a sum"
        session.detach()
    with tt.connect(address, name=name, fresh=True).as_current() as session:
        assert session.taken_over, "its session is there"
        assert (session.kept()["x"].numpy() == 2 * VALUES).all(), "the kept tensor"
        session.close()


class Newcomers:
    """Context manager that runs the program in a process of its own, as the user of a token. served() returns
    when a newcomer that came after the call has been served."""

    def __init__(self, address, token):
        self._environment = {**os.environ, "TELETENSOR_TOKEN": token}
        self._command = [sys.executable, "-u", "-m", "attacks.newcomers", address]
        self.count = 0

    def __enter__(self):
        self._process = subprocess.Popen(self._command, cwd=Path(__file__).parents[1], env=self._environment,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.served()
        return self

    def __exit__(self, *exception):
        self._process.stdin.close()
        self._reader.join()
        error = self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()
        assert self._process.wait() == 0, error

    def _read(self):
        for line in self._process.stdout:
            self.count = int(line)

    def served(self):
        """The newcomer of this moment may have come before the call; the next one has not."""
        wanted = self.count + 2
        wait_until(lambda: self.count >= wanted or self._process.poll() is not None, what="a newcomer is served")
        assert self.count >= wanted, self._process.stderr.read()


def main():
    """Comes until the end of standard input; writes the number of newcomers that were served."""
    import teletensor as tt

    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    for number in count(1):
        if stop.is_set():
            return
        come(tt, sys.argv[1], number)
        print(number, flush=True)


if __name__ == "__main__":
    main()
