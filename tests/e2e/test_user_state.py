"""Files of a user in the state directory are limited (--user-state-memory): at the limit a session is not written
and is told, and the sessions of other users are."""

import subprocess
import sys

import numpy as np
import pytest
from support.daemon import wait_until
from support.http import ask, scrape

pytestmark = pytest.mark.usefixtures("invariants")

MIB = 1 << 20
KEEPS = ("--lease", "120", "--restart", "60", "--drain", "60")
LIMIT = (*KEEPS, "--user-state-memory", "4MiB")


def filled(tt, session, bytes, seed):
    """A tensor of random bytes in the session, which do not compress, and its contents."""
    data = np.random.default_rng(seed).integers(0, 255, bytes, np.uint8)
    with session.as_current():
        tensor = tt.tensor(data)
        session.synchronize()
    return tensor, data


def metric(daemon, name, user):
    for line in scrape(daemon).splitlines():
        if line.startswith(f'{name}{{user="{user}"}}'):
            return float(line.split()[-1])
    return None


def files(daemon):
    return sum(f.stat().st_size for f in daemon.state.iterdir() if f.suffix in (".session", ".common"))


def test_a_drain_writes_other_users_and_tells_the_one_over_the_limit(start_daemon, tt, new_token):
    daemon = start_daemon(*LIMIT)
    tokens = {user: new_token(daemon, user) for user in ("alice", "mallory")}
    large = tt.connect(daemon.unix, token=tokens["mallory"], name="large")
    less = tt.connect(daemon.unix, token=tokens["mallory"], name="less")
    small = tt.connect(daemon.unix, token=tokens["alice"])
    v, _ = filled(tt, large, 6 * MIB, 1)
    u, of_less = filled(tt, less, MIB, 2)
    w, of_small = filled(tt, small, 3 * MIB, 3)
    daemon.drain()
    assert 'event=session_lost session="large"' in daemon.log and daemon.log.count("event=session_lost") == 1
    assert "event=tensors_lost" not in daemon.log
    daemon.restart()
    with less.as_current():
        np.testing.assert_array_equal(u.numpy(), of_less)
    with small.as_current():
        np.testing.assert_array_equal(w.numpy(), of_small)
    reason = r"files of mallory in the state directory may have 4194304 bytes \(limit user_state_memory\).*" \
             r"--user-state-memory"
    with large.as_current(), pytest.raises(tt.SessionLostError, match=reason):
        v.sum().item()
    for session in (less, small, large):
        session.close()


def test_a_snapshot_beyond_the_limit_is_refused_and_told(start_daemon, tt):
    """The older file stays; the refusal is in the error, in the status, in `teletensor sessions` and in the
    metrics, until a snapshot is written."""
    daemon = start_daemon(*LIMIT)
    with tt.connect(daemon.unix, name="exp") as s, s.as_current():
        user = s.status()["user"]
        w, data = filled(tt, s, 3 * MIB, 1)
        s.snapshot()
        assert s.status()["not_saved"] == ""
        assert metric(daemon, "teletensor_user_state_bytes", user) == files(daemon) > 3 * MIB
        more = tt.rand(MIB // 2)
        before = files(daemon)
        with pytest.raises(RuntimeError, match="limit user_state_memory"):
            s.snapshot()
        assert files(daemon) == before
        assert "user_state_memory" in s.status()["not_saved"]
        told = subprocess.run([sys.executable, "-m", "teletensor.cli", "sessions", "--address", daemon.unix],
                              capture_output=True, text=True, timeout=120)
        assert f"session {s.id} was not saved: the files of" in told.stdout, told
        assert metric(daemon, "teletensor_snapshots_refused_total", user) == 1
        state = ask(daemon.http, "/api/state", token=daemon.url.split("token=")[1]).json
        assert "user_state_memory" in state["sessions"][0]["not_saved"]
        assert [(u["state_used"], u["state_quota"]) for u in state["users"]] == [(before, 4 * MIB)]
        daemon.crash()  # continues from the older file: the client sends the rest again
        np.testing.assert_array_equal(w.numpy(), data)
        del more
        s.snapshot()
        assert s.status()["not_saved"] == "" and metric(daemon, "teletensor_snapshots_refused_total", user) is not None
        s.close()
    wait_until(lambda: metric(daemon, "teletensor_user_state_bytes", user) in (0, None), what="no bytes are counted")


def test_a_session_with_an_older_file_goes_back_to_it(start_daemon, tt):
    daemon = start_daemon(*LIMIT)
    with tt.connect(daemon.unix, name="exp") as s, s.as_current():
        w, data = filled(tt, s, MIB, 1)
        s.keep("w", w)
        s.snapshot()
        more = tt.rand(MIB + MIB // 2)
        random = more.numpy()
        daemon.drain()
        assert 'event=session_goes_back session="exp"' in daemon.log and "user_state_memory" in daemon.log
        daemon.restart()
        np.testing.assert_array_equal(w.numpy(), data)
        np.testing.assert_array_equal(more.numpy(), random)  # the client has sent the commands again
        s.close()


@pytest.mark.parametrize("size", [MIB // 8, 2 * MIB, 6 * MIB], ids=["frame", "stream", "shared"])
def test_a_client_that_cannot_send_again_is_told_why(each_transport, start_daemon, tt, size):
    """An upload is not sent again: the session is rolled back, with the reason, and so are later uploads
    refused."""
    daemon = start_daemon(*LIMIT)
    with tt.connect(daemon.unix, name="exp") as s, s.as_current():
        w, _ = filled(tt, s, MIB, 1)
        s.snapshot()
        more, _ = filled(tt, s, 6 * MIB, 2)
        daemon.drain()
        daemon.restart()
        with pytest.raises(tt.SessionLostError, match="not written: the files of .*user_state_memory") as lost:
            more.numpy()
        assert lost.value.reason == "rollback"
        with pytest.raises(tt.SessionLostError, match="not written: the files of .*user_state_memory") as lost:
            tt.tensor(np.zeros(size, np.uint8)).sum().item()
        assert lost.value.reason == "rollback"
        del w
        s.close()


def test_periodic_snapshots_report_the_limit(start_daemon, tt):
    daemon = start_daemon(*LIMIT, "--snapshot-every", "0.1")
    with tt.connect(daemon.unix, name="exp") as s:
        held = filled(tt, s, 6 * MIB, 1)
        wait_until(lambda: "user_state_memory" in s.status()["not_saved"], what="the failure of the snapshot")
        wait_until(lambda: "event=no_snapshot" in daemon.log, what="a line in the log")
        del held
        wait_until(lambda: s.status()["not_saved"] == "", what="a snapshot that fits")
        s.close()


def test_published_tensors_count_for_their_publisher(start_daemon, tt, new_token):
    """The publisher's session is not written. The session of another user is, without the tensor, whose
    error names the limit of the publisher."""
    daemon = start_daemon(*LIMIT)
    tokens = {user: new_token(daemon, user) for user in ("alice", "mallory")}
    publisher = tt.connect(daemon.unix, token=tokens["mallory"], name="publisher")
    reader = tt.connect(daemon.unix, token=tokens["alice"], name="reader")
    shared, _ = filled(tt, publisher, 6 * MIB, 1)
    with publisher.as_current():
        tt.publish("shared", shared, users="*")
        publisher.synchronize()
    w, data = filled(tt, reader, MIB, 2)
    with reader.as_current():
        v = tt.published("mallory/shared")
        reader.synchronize()
    daemon.drain()
    assert 'event=session_lost session="publisher"' in daemon.log
    assert 'event=tensors_lost session="reader"' in daemon.log and daemon.log.count("event=session_lost") == 1
    assert not list(daemon.state.glob("*.common"))
    daemon.restart()
    with reader.as_current():
        np.testing.assert_array_equal(w.numpy(), data)
        with pytest.raises(RuntimeError, match="files of mallory"):
            v.sum().item()
    reader.close()
    publisher.close()


def test_limits_of_one_user(start_daemon, tt, new_token, tmp_path):
    """`state_memory` of a user replaces the limit for all; 0 refuses every file."""
    config = tmp_path / "config.toml"
    config.write_text('user_state_memory = 0\n[users.alice]\nstate_memory = "64MiB"\n')
    daemon = start_daemon(*KEEPS, "--config", str(config))
    tokens = {user: new_token(daemon, user) for user in ("alice", "bob")}
    with tt.connect(daemon.unix, token=tokens["alice"], name="a") as a:
        held = filled(tt, a, 5 * MIB, 1)
        a.snapshot()
        del held
        a.close()
    with tt.connect(daemon.unix, token=tokens["bob"], name="b") as b:
        with pytest.raises(RuntimeError, match="bob may have no files in the state directory"):
            b.snapshot()
        b.close()
