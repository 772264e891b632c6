"""Runs the example programs as separate programs against a daemon that is already running."""

import os
import re
import subprocess
import sys

import pytest
from support.daemon import ROOT, binary

EXAMPLES = ROOT / "clients/python/examples"
LIMIT = 1500  # seconds
pytestmark = pytest.mark.timeout(LIMIT + 20)


def run(daemon, name, *flags):
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py", "--address", daemon.tcp, *flags],
                          capture_output=True, text=True, timeout=LIMIT,
                          env={**os.environ, "TELETENSOR_TOKEN_FILE": daemon.token_file})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "epochs", "goal"), [("digits_mlp", 12, 0.96), ("digits_cnn", 6, 0.95)])
def test_digits(shared_daemon, name, epochs, goal):
    out = run(shared_daemon, name, "--epochs", str(epochs))
    assert float(re.search(r"^accuracy (\S+)$", out, re.M)[1]) >= goal, out


def test_char_gpt_learns_to_add(shared_daemon):
    out = run(shared_daemon, "char_gpt")
    assert float(re.search(r"^accuracy (\S+) on", out, re.M)[1]) >= 0.98, out


def test_sine_lstm(shared_daemon):
    out = run(shared_daemon, "sine_lstm", "--waves", "20", "--length", "80", "--steps", "3")
    losses = [float(v) for v in re.findall(r"test loss: (\S+)", out)]
    assert len(losses) == 3 and losses[-1] < 0.05, out


def test_vae(shared_daemon):
    out = run(shared_daemon, "vae", "--epochs", "6")
    first, last = re.search(r"^loss (\S+) -> (\S+)$", out, re.M).groups()
    assert float(last) < float(first) - 3 and float(last) < 27, out


def test_reinforce(shared_daemon):
    out = run(shared_daemon, "reinforce", "--episodes", "80")
    first, last = re.search(r"^average length (\S+) -> (\S+)$", out, re.M).groups()
    assert float(last) > 2 * float(first), out


def test_distributed_training(tmp_path):
    """The example prints all rows, and checks itself that the parameters are the same in all places."""
    plot = tmp_path / "times.png"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "distributed_training.py", "--epochs", "1", "--plot", plot],
        capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "TELETENSORD": binary()})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\w.*?) +\S+ s an epoch  x *\S+  loss (\S+)$", done.stdout, re.M)
    names = ["one process", "threads over two sessions", "two processes, one daemon", "two processes",
             "three processes", "three processes, slow network"]
    skipped = re.search(r"^three processes, slow network +skipped: (.*)$", done.stdout, re.M)
    assert [name for name, _ in rows] == names[:5 if skipped else 6], done.stdout
    assert max(float(loss) for _, loss in rows) - min(float(loss) for _, loss in rows) < 2e-3, done.stdout
    assert "parameters: equal bits on all ranks" in done.stdout and plot.stat().st_size > 1000
    if skipped:
        pytest.skip(f"no slow network: {skipped[1]}")
