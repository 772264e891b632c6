"""Other client processes of a test."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from support.daemon import HANG, wait_until

# A shell that starts the tests in the background has them ignore SIGINT, and their children as well.
START = f"""
import os, signal, sys, threading, time
sys.path.append({str(Path(__file__).resolve().parents[1])!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import teletensor as tt
s = tt.connect(os.environ["TT_TEST_ADDRESS"])
s.__enter__()
"""


def client(code, address, **options):
    """Starts Python with teletensor connected as `s`, then `code`. Its output is text lines."""
    environment = {**os.environ, "TT_TEST_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-c", START + textwrap.dedent(code)], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def read_line(process):
    """The next line, "" at the end. Nothing behind it is read: communicate() sees only the pipe."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def wait_line(process, text, seconds=HANG):
    """Reads lines until one holds `text`."""
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

    CPython runs a signal's handler between two bytecodes. A signal that arrives after the interpreter's last
    look and before a system call that blocks is seen only when that call returns: `await asyncio.sleep(600)`
    then sleeps on. A program without teletensor that has a second thread loses 4 of 1,000 signals this way.
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
    """(status, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the client hangs:\n{out}\n{err}") from None
    return process.returncode, out, err
