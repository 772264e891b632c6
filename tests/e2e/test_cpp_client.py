"""The example of the C++ client trains a network through a daemon."""

import re
import subprocess

import pytest
from support.daemon import ROOT

EXAMPLE = ROOT / "build/release/bin/teletensor-train"


def run(*arguments):
    if not EXAMPLE.exists():
        pytest.skip("the example is not built here")
    return subprocess.run([EXAMPLE, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_it_trains(shared_daemon, way):
    done = run(getattr(shared_daemon, way), "300")
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4 and losses[-1] < 0.01 < losses[0], done.stdout


def test_nobody_answers(tmp_path):
    done = run(f"unix:{tmp_path}/none.sock")
    assert done.returncode == 1 and "code" in done.stderr, (done.stdout, done.stderr)
