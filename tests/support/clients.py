"""Starts and observes the client processes of a test."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from support.daemon import HANG, wait_until

# If a shell starts the tests in the background, they and their children ignore SIGINT.
START = f"""
import os, signal, sys, threading, time
sys.path.append({str(Path(__file__).resolve().parents[1])!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import teletensor as tt
s = tt.connect(os.environ["TT_TEST_ADDRESS"])
s.__enter__()
"""


# In front of a command: the program handles these signals as usual, although a shell that starts the tests
# in the background makes them ignore SIGINT. A preexec_fn would run gRPC's handlers of fork in the child of
# a test process that uses grpcio. They start gRPC's threads there, which abort or hang the child when its
# descriptors are closed before exec.
DEFAULT_SIGNALS = ("env", "--default-signal=INT,TERM,HUP")


def client(code, address, **options):
    """Starts a Python process in which teletensor is connected as `s`, and which then runs `code`. Its
    output is lines of text."""
    environment = {**os.environ, "TT_TEST_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-c", START + textwrap.dedent(code)], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def read_line(process):
    """Returns the next line, "" at the end. Reads nothing after it, because communicate() sees only the
    pipe."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def wait_line(process, text, seconds=HANG):
    """Reads lines until one contains `text`."""
    import threading
    timer, others = threading.Timer(seconds, process.kill), []
    timer.start()
    try:
        while line := read_line(process):
            if text in line:
                return line
            others.append(line)
    finally:
        timer.cancel()
    err, came = process.stderr.read(), "".join(others[-20:])
    raise AssertionError(f"no line with {text!r}, but {came!r}; status {process.poll()}; stderr: {err}")


def wait_asleep(process, seconds=0.05):
    """Waits until the main thread of `process` has slept in one system call for `seconds`.

    CPython runs a signal handler between two bytecodes. A signal that arrives after the interpreter's last
    check and before a blocking system call is seen only when that call returns: `await asyncio.sleep(600)`
    then continues to sleep. A program without teletensor that has a second thread loses 4 of 1,000 signals
    in this way.
    """
    status = Path(f"/proc/{process.pid}/task/{process.pid}/status")

    def switches():
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        assert fields["State"][0] not in "ZX", "the process has ended"
        return fields["State"].startswith("S") and fields["voluntary_ctxt_switches"]

    def sleeps():
        before = switches()
        time.sleep(seconds)
        return before and switches() == before

    wait_until(sleeps, what="the main thread sleeps")


def wait_stopped(process):
    """Waits until SIGSTOP has stopped the process."""
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the process stops")


def finish(process, seconds=HANG):
    """Waits for the end of the process; returns (status, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the client hangs:\n{out}\n{err}") from None
    return process.returncode, out, err
