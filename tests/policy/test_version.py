"""VERSION is the one source of the version."""

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
