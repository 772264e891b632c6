"""Checks that clang-format, ruff and mypy report nothing."""

import subprocess
import sys
from pathlib import Path

from repository import ROOT, files, relative

TOOLS = Path(sys.executable).parent


def check(*command) -> None:
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_cpp_is_formatted():
    check(TOOLS / "clang-format", "--dry-run", "--Werror", *map(relative, files(".cc", ".h")))


def test_python_is_clean():
    check(TOOLS / "ruff", "check", ".")


def test_client_is_typed():
    check(TOOLS / "mypy", "--strict", "clients/python/teletensor")
