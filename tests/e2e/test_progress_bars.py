"""Bars of long transfers: a stopped daemon makes any transfer long."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest
from support.clients import START
from support.daemon import HANG, wait_until

MIB = 1 << 20
UPLOAD = """
a = np.ones(16 << 20, np.uint8)
print("go", flush=True)
sys.stdin.readline()
x = tt.tensor(a)
print("sent", int(x[-1].item()), flush=True)
"""
DOWNLOAD = """
x = tt.ones(4 << 20)
s.synchronize()
print("go", flush=True)
sys.stdin.readline()
print("got", x.numpy().sum(), flush=True)
"""
# Tells what an upload would draw on, and whether something is there that draws.
WATCHED = """
import contextlib
from teletensor._connection import progress_bar as bars
from teletensor._tensors import convert as _convert
watched = bars.watched

@contextlib.contextmanager
def telling(what, size):
    with watched(what, size) as moved:
        there = any(t.name == "teletensor-progress" for t in threading.enumerate())
        print(f"on {bars._display()}, {'a' if there else 'no'} thread", flush=True)
        yield moved

_convert.watched = telling
"""


def start(daemon, code, stderr, **more):
    """A client over TCP, which has no shared memory; its daemon is stopped before it transfers."""
    environment = {**os.environ, "TT_TEST_ADDRESS": daemon.tcp, "TELETENSOR_TOKEN_FILE": daemon.token_file,
                   "PYTHONUNBUFFERED": "1", **more}
    process = subprocess.Popen([sys.executable, "-c", START + code], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout.readline() == "go\n"
    os.kill(daemon.pid, signal.SIGSTOP)
    process.stdin.write("\n")
    process.stdin.flush()
    return process


class Screen:
    """A terminal's text, as it comes."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.ours, 4096):
                self.text += data.decode()

    def end(self):
        os.close(self.theirs)
        self._thread.join(HANG)
        os.close(self.ours)
        return self.text


@pytest.mark.parametrize(("code", "what"), [(UPLOAD, "upload"), (DOWNLOAD, "download")])
def test_on_a_terminal(start_daemon, each_transport, code, what):
    daemon = start_daemon("--lease", "60")
    screen = Screen()
    process = start(daemon, code, screen.theirs)
    try:
        wait_until(lambda: f"{what} [" in screen.text, what="a bar")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0 and out.split()[0] in ("sent", "got"), screen.text
    last = screen.end().rstrip("\r\n").split("\r")[-1]
    assert last.startswith(f"{what} [{'#' * 30}] 16.0 MiB of 16.0 MiB, "), last


@pytest.mark.parametrize("terminal", [False, True])
def test_none_in_pipes_or_when_turned_off(start_daemon, terminal):
    daemon = start_daemon("--lease", "60")
    screen = Screen() if terminal else None
    process = start(daemon, WATCHED + UPLOAD, screen.theirs if screen else subprocess.PIPE,
                    **{"TELETENSOR_PROGRESS": "0"} if terminal else {})
    assert process.stdout.readline() == "on None, no thread\n"  # the upload is under way
    os.kill(daemon.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=HANG)
    assert out == "sent 1\n" and (screen.end() if screen else err) == ""


def test_small_ones_start_no_thread(monkeypatch):
    from teletensor._connection import progress_bar as bars
    monkeypatch.setattr(bars, "_display", lambda: pytest.fail("it asks what there is to draw on"))
    before = threading.active_count()
    with bars.watched("upload", bars.LEAST - 1) as moved:
        assert threading.active_count() == before and moved.bytes == 0


def test_one_that_fails_ends_its_bar(monkeypatch):
    from teletensor._connection import progress_bar as bars
    monkeypatch.setattr(bars, "_display", lambda: bars._Terminal(sys.stderr))
    with pytest.raises(KeyError), bars.watched("upload", bars.LEAST):
        assert any(t.name == "teletensor-progress" for t in threading.enumerate())
        raise KeyError
    assert not any(t.name == "teletensor-progress" for t in threading.enumerate())


def test_in_a_notebook(monkeypatch):
    """A frontend shows one element, which is updated."""
    import IPython
    import IPython.display
    from teletensor._connection import progress_bar as bars
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what.data)

    def display(what, display_id):
        assert display_id and not shown
        shown.append(what.data)
        return Handle()
    monkeypatch.setattr(IPython, "get_ipython", lambda: type("Shell", (), {"kernel": object()})())
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(bars, "PATIENCE", 0.01)
    with bars.watched("download", 8 * MIB) as moved:
        wait_until(lambda: shown)
        assert "waits for the daemon" in shown[0]
        moved.bytes = 2 * MIB
        wait_until(lambda: f"max='{8 * MIB}' value='{2 * MIB}'" in shown[-1])
        moved.bytes = 8 * MIB
    assert "8.0 MiB of 8.0 MiB" in shown[-1]
