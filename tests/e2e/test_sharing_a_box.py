"""docs/sharing_a_box.md: what two users do there works, as two users with tokens."""

import functools
import os
import subprocess
import sys

import pytest
from support.daemon import HANG, ROOT
from support.snippets import snippets

PROGRAMS = {s.title: s.code for s in snippets(ROOT / "docs/sharing_a_box.md") if s.title}
BOTH = "[1.0, 1.0, 1.0]"


@pytest.fixture
def environment_of(start_daemon, tmp_path):
    """environment_of(user): the settings that the page tells a user to make, for a daemon on TCP."""
    daemon = start_daemon()

    @functools.cache
    def settings(user):
        create = [sys.executable, "-m", "teletensor.cli", "token", "create", user, "--address", daemon.unix]
        done = subprocess.run(create, capture_output=True, text=True, timeout=HANG, check=True)
        file = tmp_path / f"{user}.token"
        file.write_text(done.stdout)
        file.chmod(0o600)
        return {**os.environ, "TELETENSOR_ADDRESS": daemon.tcp, "TELETENSOR_TOKEN_FILE": str(file)}

    return settings


@pytest.fixture
def alice(environment_of):
    """Her program, which has published the tensor and waits for Enter."""
    process = subprocess.Popen([sys.executable, "-u", "-c", PROGRAMS["alice.py"]], env=environment_of("alice"),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "published\n"
        yield process
    finally:
        process.kill()
        process.wait()


def run(title, environment):
    """A program of the page, to its end."""
    return subprocess.run([sys.executable, "-c", PROGRAMS[title]], env=environment, capture_output=True, text=True,
                          timeout=HANG)


def test_bob_writes_what_alice_has_published(alice, environment_of):
    bob = run("bob.py", environment_of("bob"))
    assert (bob.returncode, bob.stdout.strip()) == (0, BOTH), bob.stderr
    printed, _ = alice.communicate("\n", timeout=HANG)
    assert (alice.returncode, BOTH in printed) == (0, True), printed


def test_carol_was_not_named(alice, environment_of):
    carol = run("bob.py", environment_of("carol"))
    assert carol.returncode == 1 and "KeyError" in carol.stderr, carol.stderr


def test_work_goes_on_overnight(environment_of):
    tonight = run("tonight.py", environment_of("alice"))
    assert tonight.returncode == 0, tonight.stderr
    tomorrow = run("tomorrow.py", environment_of("alice"))
    assert (tomorrow.returncode, tomorrow.stdout.strip()) == (0, "499500.0"), tomorrow.stderr


def test_every_program_of_the_page_is_run():
    assert sorted(PROGRAMS) == ["alice.py", "bob.py", "tomorrow.py", "tonight.py"]
