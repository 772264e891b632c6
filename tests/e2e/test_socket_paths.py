"""Sockets whose path holds bytes that mean something in a URI, which is how gRPC names a socket."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
import teletensor as tt
from support.daemon import ROOT, Daemon, binary

# One folder name with all special characters, as Jenkins ("%2F", "@"), file managers (" ") and users make
# them.
FOLDER = "feature%2Fx%41#1?q=1 &;+@é\udce9\\\"'"


@pytest.fixture(scope="module")
def daemon():
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        daemon = Daemon(socket=f"{folder}/{FOLDER}/t%41.sock")
        yield daemon
        problem = daemon.stop()
    assert not problem, problem


def run(*words, **variables):
    return subprocess.run(words, capture_output=True, text=True, errors="surrogateescape", timeout=60, check=False,
                          env={**os.environ, **variables})


@pytest.mark.parametrize("address", [str, "unix:{}".format, os.fsencode, pathlib.Path])
def test_a_session(daemon, each_transport, address):
    with tt.connect(address(daemon.socket)) as s:
        assert s.transport == each_transport and tt.ones(3).sum().item() == 3.0
        assert tt.ones(2_000_000).numpy().sum() == 2e6  # by shared memory, of a socket beside it


def test_command_health_and_cpp_client(daemon, each_transport):
    for words in ([sys.executable, "-m", "teletensor.cli", "health", "--address", daemon.unix],
                  [ROOT / "build/release/bin/teletensor-health", daemon.unix],
                  [ROOT / "build/release/bin/teletensor-health", daemon.socket],
                  [ROOT / "build/release/bin/teletensor-train", daemon.unix, "5"]):
        done = run(*words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("character", list("%#?&; @é"))
def test_each_alone(character, tmp_path):
    """A clash of two special characters could hide the effect of one."""
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        daemon = Daemon(socket=f"{folder}/a{character}41.sock")
        try:
            with tt.connect(daemon.socket):
                assert tt.ones(3).sum().item() == 3.0
        finally:
            assert not daemon.stop()


def test_a_comma_is_refused_on_both_sides(tmp_path, each_transport, monkeypatch):
    """gRPC would use the text after a comma as another socket, relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    path = "/tmp/a,b.sock"
    for address in (path, "unix:" + path, "unix:b,c.sock"):
        with pytest.raises(ValueError, match="comma"):
            tt.connect(address)
    daemon = run(binary(), "--socket", path, "--state-dir", str(tmp_path))
    assert daemon.returncode == 2 and "comma" in daemon.stderr
    assert not os.path.exists(path)
    for words in (["health"], ["sessions"]):
        done = run(sys.executable, "-m", "teletensor.cli", *words, "--address", path)
        assert done.returncode == 1 and "comma" in done.stderr and done.stderr.count("\n") == 1
    for program in ("health", "train"):
        done = run(ROOT / f"build/release/bin/teletensor-{program}", "unix:" + path)
        assert done.returncode == 1 and "comma" in done.stderr


@pytest.mark.parametrize("address", ["\udce9:80", "a\0b:80", "unix:/tmp/a\0b", "a b\n:80"])
def test_addresses_that_are_no_text(address):
    with pytest.raises(ValueError, match="address"):
        tt.connect(address)
