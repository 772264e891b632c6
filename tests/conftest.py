"""Fixtures for all test folders: a daemon for one test, a shared daemon, a connected session."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from support.daemon import Daemon


def pytest_collection_modifyitems(items):
    """Files with a test that has a long time limit begin first, then those with many tests. Workers take
    whole files in this order: a long file that began last would run alone after all other files."""
    tests, limits = Counter(item.path for item in items), Counter()
    for item in items:
        for mark in item.iter_markers("timeout"):
            limits[item.path] = max(limits[item.path], *mark.args)
    files = sorted(tests, key=lambda path: (-limits[path], -tests[path]))
    places = {path: i for i, path in enumerate(files)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(autouse=True)
def default_device():
    """With $TELETENSOR_TEST_DEVICE ("cuda:0") the tests create their tensors on that device (tests/gpu)."""
    name = os.environ.get("TELETENSOR_TEST_DEVICE")
    if not name:
        yield
        return
    from teletensor import _core, backends
    from teletensor._tensors import convert as _convert

    backends.cudnn.allow_tf32 = False  # convolutions of float32 are compared without TF32
    # set_default_device would ask a session whether the device exists
    _convert._default_device[0] = _core.device(name)
    yield
    backends.cudnn.allow_tf32 = True
    _convert._default_device[0] = _core.device("cpu")


@pytest.fixture
def start_daemon():
    """Returns start_daemon(*flags), which starts a daemon for this test only; it is ended and checked at
    the end of the test. Keywords are those of Daemon."""
    running = []

    def start(*flags, **keywords):
        running.append(Daemon(*flags, **keywords))
        return running[-1]
    start.running = running
    yield start
    problems = [p for d in running if (p := d.stop())]
    assert not problems, "\n".join(problems)


@pytest.fixture
def new_token():
    """new_token(daemon, user, role="user") -> the token"""
    def create(daemon, user, role="user"):
        made = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, "--role", role,
                               "--address", daemon.unix], capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()
    return create


@pytest.fixture
def invariants(start_daemon):
    """Checks the conditions that must hold after any fault (support/invariants.py), on the daemons that the
    test has not ended."""
    from support.invariants import hold

    yield
    for daemon in start_daemon.running:
        if daemon.alive():
            hold(daemon)


@pytest.fixture(scope="session")
def shared_daemon():
    """One daemon with a simulated device, for tests that leave nothing behind."""
    daemon = Daemon("--sim-devices", "2")
    yield daemon
    problem = daemon.stop()
    assert not problem, problem


@pytest.fixture(params=["native", "grpcio"])
def each_transport(request, monkeypatch):
    """Runs the test with each transport of the Python client, which the clients that it starts use too."""
    if request.param == "native":
        from teletensor._connection import native as _native, transport as _transport
        try:
            _native.wire()
        except _transport.CallError as error:
            pytest.skip(str(error))
    monkeypatch.setenv("TELETENSOR_TRANSPORT", request.param)
    return request.param


@pytest.fixture
def tt(shared_daemon):
    """The module, with a fresh session on the shared daemon as the current one."""
    import teletensor

    with teletensor.connect(shared_daemon.unix):
        yield teletensor
