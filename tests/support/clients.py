"""Other client processes of a test."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from support.daemon import HANG

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
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        while line := read_line(process):
            if text in line:
                return line
    finally:
        timer.cancel()
    raise AssertionError(f"no line with {text!r}; stderr: {process.stderr.read()}")


def finish(process, seconds=HANG):
    """(status, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the client hangs:\n{out}\n{err}") from None
    return process.returncode, out, err
