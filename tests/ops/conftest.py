"""The session of the op tester: one connection for all cases; prints the number of cases at the end."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
COUNTS = Counter()


@pytest.fixture(scope="session")
def lib(shared_daemon):
    import teletensor
    from arrays import Library

    with teletensor.connect(shared_daemon.unix):
        yield Library(teletensor)


@pytest.fixture(scope="session")
def counts():
    return COUNTS


def pytest_terminal_summary(terminalreporter):
    if COUNTS:
        text = ", ".join(f"{mode} {n}" for mode, n in sorted(COUNTS.items()))
        terminalreporter.write_line(f"op tester: {sum(COUNTS.values())} cases: {text}")
