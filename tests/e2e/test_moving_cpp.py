"""Programs in C++ follow their sessions from daemon to daemon."""

import functools
import os
import signal
import subprocess

import pytest
from support.clients import finish, wait_line
from support.daemon import ROOT, wait_until
from support.moving import OTHER, Pair, begins, sessions
from support.tls import Authority

pytestmark = pytest.mark.usefixtures("invariants")

TRAIN = ROOT / "build/release/bin/teletensor-train"
STEPS = 20_000  # seconds, so that the program is stopped long before its end


@pytest.fixture(autouse=True)
def built():
    if not TRAIN.exists():
        pytest.skip("the example is not built here")


def train(address, **environment):
    """Trains, and prints a loss each 100 steps."""
    return subprocess.Popen(["stdbuf", "-oL", TRAIN, address, str(STEPS)], stdout=subprocess.PIPE, text=True,
                            stderr=subprocess.PIPE, env={**os.environ, **environment})


def losses(process, before=""):
    status, out, err = finish(process)
    assert status == 0, err
    return before + out


def move_at(pair, process, line, source):
    """Moves the session of a program that has printed `line`. The program is stopped meanwhile, so that it
    does not end first."""
    found = wait_line(process, line)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: begins(pair, source), what="a connection between the daemons")
    wait_until(lambda: len(sessions(getattr(pair, OTHER[source]))) == 1, what="the session's arrival")
    process.send_signal(signal.SIGCONT)
    return found


def test_a_training_that_moves_there_and_back_has_the_same_losses(start_daemon):
    """The link is cut in each move, and afterwards the daemon that has the session is killed."""
    pair = Pair(start_daemon)
    try:
        wanted = losses(train(pair.a.unix))
        process, lines, where = train(pair.a.unix), "", "a"
        for i in range(3):
            pair.link.cut_after_frames(2 + 3 * i)
            lines += move_at(pair, process, f"step {100 * i} ", where)
            where = OTHER[where]
            pair.crash(where)
            pair.wait_connected()
        assert losses(process, lines) == wanted
        wait_until(lambda: pair.counts() == (0, 0), what="the end of the session")
    finally:
        pair.link.close()


def test_it_follows_by_tls_with_its_token(start_daemon, new_token, tmp_path):
    """The new daemon has a certificate of the same authority, and takes the token as a hash."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    pair = Pair(functools.partial(start_daemon, "--tls-cert", str(certificate), "--tls-key", str(key)))
    try:
        process = train("tls://" + pair.a.tcp, TELETENSOR_CA=str(authority.ca),
                        TELETENSOR_TOKEN=new_token(pair.a, "ann"))
        lines = move_at(pair, process, "step 0 ", "a")
        assert f"step {STEPS - 1} " in losses(process, lines)
        wait_until(lambda: pair.counts() == (0, 0), what="the end of the session")
    finally:
        pair.link.close()
