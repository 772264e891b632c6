"""Runs the demo as a separate program against a daemon that is already running."""

import os
import re
import subprocess
import sys

import pytest
from support.daemon import ROOT

DEMO = ROOT / "clients/python/examples/demo.py"


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_demo(shared_daemon, tmp_path, device):
    path = tmp_path / "made" / "demo.png"
    done = subprocess.run(
        [sys.executable, DEMO, "--address", shared_daemon.tcp, "--device", device, "--output", path,
         "--wave-epochs", "2", "--epochs", "20"],
        capture_output=True, text=True, timeout=800,
        env={**os.environ, "MPLBACKEND": "Agg", "TELETENSOR_TOKEN_FILE": shared_daemon.token_file})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ +2/2  loss \d\.\d{4}$", done.stdout, re.M)) == 2
    accuracy = re.search(r"accuracy (\d+\.\d+)% \((\d+) of 360 held out\)", done.stdout)
    assert float(accuracy[1]) >= 97.0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
