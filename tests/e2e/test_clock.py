"""The system clock jumps forward and back while a daemon runs: waits and leases use monotonic clocks, tokens
the system clock."""

import socket
import subprocess
import sys

import numpy as np
import pytest
from support.clients import client, wait_line
from support.daemon import wait_until
from support.faults import Calendar
from support.http import ask, samples, scrape
from support.http2 import Peer
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")

HOUR, DAY = 3600, 86400


@pytest.fixture
def calendar(tmp_path):
    return Calendar(tmp_path)


def age(daemon):
    """The age of the health probe's last right answer, in seconds."""
    return samples(scrape(daemon))["teletensor_canary_age_seconds", ()]


@pytest.mark.parametrize("jump", [400 * DAY, -HOUR])
def test_nobody_expires(start_daemon, tt, calendar, jump):
    """Sessions stay, attached or detached; periodic snapshots, the health probe and transfers in both
    directions continue. A daemon that is shut down while the clock is wrong restores the same sessions
    afterwards."""
    daemon = start_daemon("--lease", "300", "--restart", "120", "--snapshot-every", "0.2",
                          env=calendar.environment)
    data = np.arange(1 << 20, dtype=np.int64)
    left = tt.connect(daemon.unix, name="left")
    with left.as_current():
        left.keep("x", tt.tensor(data))
    left.detach()
    with tt.connect(daemon.unix, name="here") as here:
        x = tt.tensor(data)
        for off in (jump, 0):
            calendar.jump(off)
            before, sung = daemon.log.count("event=snapshot session=\"here\""), age(daemon)
            for i in range(3):
                np.testing.assert_array_equal((x * i).numpy(), data * i)
                np.testing.assert_array_equal(tt.tensor(data + i).numpy(), data + i)
            wait_until(lambda before=before: x.add_(0).shape and daemon.log.count(
                "event=snapshot session=\"here\"") > before + 1, what="snapshots go on")
            wait_until(lambda sung=sung: age(daemon) < sung or sung < 2.0, what="the canary sings")
            assert ask(daemon.http, "/readyz").status == 200
            with Raw(daemon.unix) as raw:
                assert sorted(s.name for s in raw.sessions()) == ["here", "left"]
        here.synchronize()
        calendar.jump(jump)
        assert daemon.terminate() == 0
        daemon.restart()  # the file still has the offset of the clock
        np.testing.assert_array_equal(x.numpy(), data)
        calendar.good()
        with tt.connect(daemon.unix, name="left", fresh=True) as again:
            np.testing.assert_array_equal(again.kept()["x"].numpy(), data)
        np.testing.assert_array_equal((x + 1).numpy(), data + 1)
    assert 'why="expired"' not in daemon.log and "event=session_lost" not in daemon.log, daemon.log[-3000:]


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_what_is_to_end_ends(start_daemon, calendar, jump):
    """A lease ends after its own time, whatever the system clock says. The same holds for handshakes and
    silent peers after a jump forward; after a jump back gRPC's own timers wait as much longer
    (docs/operating.md)."""
    daemon = start_daemon("--lease", "1", env=calendar.environment)
    process = client("x = tt.ones(1000); s.synchronize(); print('holds', flush=True); time.sleep(600)", daemon.unix)
    wait_line(process, "holds")
    with Peer(daemon.tcp) as mute:  # answers no ping
        mute.read(10)
        calendar.jump(jump)
        process.kill()
        process.wait()
        with Raw(daemon.unix) as raw:
            wait_until(lambda: not any(raw.used().values()) and not raw.sessions(), what="its memory is back")
        if jump > 0:
            with socket.create_connection(daemon.tcp.split(":"), 60) as silent:
                while silent.recv(1 << 16):
                    pass
            wait_until(lambda: mute.read(0.1) or mute.closed, what="who answers no ping is gone")


def test_tokens_go_by_the_calendar(start_daemon, tt, calendar):
    daemon = start_daemon(env=calendar.environment)

    def token(*more):
        done = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", "alice", *more, "--address",
                               daemon.unix], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def comes(token):
        with tt.connect(daemon.tcp, token=token):
            return tt.ones(3).sum().item() == 3.0
    short, endless = token("--days", "2"), token()
    for jump in (DAY, 0, -HOUR):
        calendar.jump(jump)
        assert comes(short) and comes(endless)
    calendar.jump(3 * DAY)
    assert comes(endless)
    with pytest.raises(tt.RefusedError, match="unknown"):
        comes(short)
    calendar.good()
    assert comes(short)
