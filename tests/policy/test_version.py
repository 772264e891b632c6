"""Checks that VERSION is the only source of the version."""

import re
import subprocess

from repository import ROOT, files, relative

VERSION = (ROOT / "VERSION").read_text().strip()


def test_daemon_and_client_agree():
    import teletensor

    daemon = subprocess.run([ROOT / "build/release/bin/teletensord", "--version"],
                            capture_output=True, text=True, check=True).stdout
    assert VERSION in daemon.split()
    assert teletensor.__version__ == VERSION


def test_nobody_else_states_it():
    stated = re.compile(rf'(version|VERSION)\w*["\']?\s*[=:]\s*["\']?{re.escape(VERSION)}')
    for path in files(".py", ".toml", ".cc", ".h", ".cmake", ".txt", ".yaml", ".json"):
        assert not stated.search(path.read_text()), f"{relative(path)} states the version itself"


def test_changelog_has_it():
    assert re.search(rf"^## \[?{re.escape(VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_version_of_pytorch_is_the_one_that_was_compared():
    import teletensor.as_torch
    from teletensor import _core

    _core.set_text_prefix("teletensor")  # importing as_torch has changed it
    compared = re.search(r"against PyTorch ([\d.]+\d)", (ROOT / "docs/names.md").read_text())[1]
    assert teletensor.as_torch.__version__ == compared
    assert f"torch=={compared}" in (ROOT / "deploy/requirements/constraints.txt").read_text()
