"""teletensor-health, the health check of the container images."""

import subprocess

from support.daemon import ROOT

PROGRAM = ROOT / "build/release/bin/teletensor-health"


def ask(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)


def test_a_daemon_that_serves(start_daemon):
    daemon = start_daemon()
    for address in (daemon.unix, daemon.tcp):
        done = ask(address)
        assert (done.returncode, done.stdout) == (0, "serving\n")


def test_nobody_there(tmp_path):
    assert ask(f"unix:{tmp_path}/none.sock").returncode == 1


def test_usage():
    assert ask().returncode == 2
