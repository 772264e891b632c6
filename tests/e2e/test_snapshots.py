"""Snapshots on request and at intervals; the sessions that a drain keeps, and its report."""

import getpass
import json
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.busy import occupy
from support.daemon import HANG, wait_until
from support.raw import Raw

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


def cli(daemon, command, *arguments):
    return subprocess.run([sys.executable, "-m", "teletensor.cli", command, "--address", daemon.unix,
                           *arguments], capture_output=True, text=True, timeout=120)


def test_a_snapshot_is_there_after_a_crash(start_daemon, tt, each_transport):
    """The snapshot has all commands that were issued before the call, also queued ones."""
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.zeros(1000)
        s.keep("w", w)
        for _ in range(3000):
            w += 1.0
        facts = s.snapshot()
        assert facts["command"] >= 3000 and facts["bytes"] >= 4000 and facts["seconds"] > 0
        assert [f.suffix for f in daemon.state.iterdir() if f.name != "lock"] == [".session"]
        s.detach()
    daemon.crash()
    with tt.connect(daemon.unix, name="exp", fresh=True).as_current() as s:
        assert s.taken_over and s.kept()["w"].tolist() == [3000.0] * 1000
        s.close()


def test_snapshots_while_another_thread_works(start_daemon, tt):
    """Each snapshot has all earlier commands, as whole instructions, and the work continues meanwhile."""
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        a, b = tt.zeros(50_000), tt.zeros(50_000)
        s.keep("a", a)
        s.keep("b", b)
        end, wrong = threading.Event(), []

        def work():
            with s.as_current():
                while not end.is_set():
                    a.add_(1.0)
                    b.add_(1.0)
        thread = threading.Thread(target=work)
        thread.start()
        before = 0
        for _ in range(5):
            command = s.snapshot()["command"]
            assert command > before
            before = command
        calls = [threading.Thread(target=lambda: wrong.extend(
            [] if s.snapshot()["command"] > before else ["older"])) for _ in range(4)]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        end.set()
        thread.join()
        assert not wrong
        total = a[0].item()
        s.detach()
    daemon.crash()
    with tt.connect(daemon.unix, name="exp", fresh=True).as_current() as s:
        found = [s.kept()[name].numpy() for name in "ab"]
        assert all((each == each[0]).all() for each in found)
        assert found[1][0] <= found[0][0] <= found[1][0] + 1 and 0 < found[0][0] <= total
        s.close()


def test_what_cannot_be_written_says_so(start_daemon, tt):
    for lease, forgets in (("60", "it cannot write sessions"), ("0", "")):
        daemon = start_daemon("--lease", lease, forgets=forgets)
        with tt.connect(daemon.unix) as s, pytest.raises(RuntimeError, match="does not save sessions"):
            s.snapshot()


def test_a_late_error_is_raised_by_the_snapshot(start_daemon, tt):
    daemon = start_daemon(*FLAGS, "--session-memory", "64MiB")
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.ones(3)
        s.keep("w", w)
        large = [tt.ones(7 << 20) for _ in range(3)]  # the third one does not fit
        with pytest.raises(tt.OutOfMemoryError):
            s.snapshot()
        del large
        assert s.snapshot()["command"] > 5
        s.close()


def test_from_time_to_time(start_daemon, tt):
    """Only sessions that have done something since are written again; the end removes the file."""
    daemon = start_daemon(*FLAGS, "--snapshot-every", "0.2")
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.zeros(3)
        s.keep("w", w)
        w += 1.0
        s.synchronize()
        wait_until(lambda: "event=snapshot " in daemon.log)
        w += 1.0
        s.synchronize()

        def newest():
            lines = [line for line in daemon.lines if "event=snapshot " in line]
            return int(lines[-1].split("upto=")[1].split()[0])
        with Raw(daemon.unix) as raw:
            wait_until(lambda: newest() >= raw.sessions()[0].completed_upto)
            count = daemon.log.count("event=snapshot ")
            other = tt.connect(daemon.unix, name="other")
            with other.as_current():
                other.keep("x", tt.ones(2))
                other.synchronize()
            wait_until(lambda: 'event=snapshot session="other"' in daemon.log)
            assert daemon.log.count('event=snapshot session="exp"') == count
        other.close()
        wait_until(lambda: len(list(daemon.state.glob("*.session"))) == 1)
        s.detach()
    daemon.crash()
    with tt.connect(daemon.unix, name="exp", fresh=True).as_current() as s:
        assert s.taken_over and s.kept()["w"].tolist() == [2.0, 2.0, 2.0]
        s.close()


def test_commands(start_daemon, tt):
    """`teletensor snapshot` writes what it may see; `teletensor drain` says what was kept."""
    daemon = start_daemon(*FLAGS)
    sessions = [tt.connect(daemon.unix, name=name) for name in ("one", "two")]
    for s in sessions:
        with s.as_current():
            s.keep("w", tt.ones(5))
            s.synchronize()
    written = cli(daemon, "snapshot", "--json")
    assert written.returncode == 0, written.stderr
    assert sorted(s["name"] for s in json.loads(written.stdout)) == ["one", "two"]
    assert len(list(daemon.state.glob("*.session"))) == 2
    one = cli(daemon, "snapshot", str(sessions[0].id))
    assert one.returncode == 0 and "one" in one.stdout and "two" not in one.stdout
    bad = cli(daemon, "snapshot", "4711")
    assert bad.returncode == 1 and "no session 4711" in bad.stdout
    with sessions[1].as_current():
        large = tt.tensor(np.random.default_rng(1).random(100_000))
        sessions[1].synchronize()
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
    drained = cli(daemon, "drain", "--json")
    assert daemon.process.wait(HANG) == 0
    facts = json.loads(drained.stdout)
    assert facts["kept"] == 1 and drained.returncode == 1
    (lost,) = facts["lost"]
    assert lost["name"] == "two" and lost["goes_back"] and "too large" in lost["reason"]
    assert lost["user"] == getpass.getuser()
    daemon.restart()
    with sessions[0].as_current():
        assert sessions[0].kept()["w"].tolist() == [1.0] * 5
    with sessions[1].as_current(), pytest.raises(tt.SessionLostError, match="command"):
        large.sum().item()
    for s in sessions:
        s.close()


def test_a_drain_ends_at_its_time(start_daemon, tt):
    """A session that does not become idle is lost with an error that names it; the idle session is kept."""
    daemon = start_daemon(*FLAGS, "--lanes", "1")
    with tt.connect(daemon.unix, name="rest").as_current() as rest:
        rest.keep("w", tt.arange(10))
        rest.snapshot()  # there is nothing more to write, so the little time is enough
        rest.detach()
    busy = tt.connect(daemon.unix, name="busy")
    with busy.as_current(), Raw(daemon.unix) as raw:
        x = occupy(tt)
        wait_until(lambda: any(s.name == "busy" and s.queued for s in raw.sessions()))
        drained = cli(daemon, "drain", "--seconds", "1.5", "--json")
        assert daemon.process.wait(HANG) == 0
        facts = json.loads(drained.stdout)
        assert facts["kept"] == 1 and [s["name"] for s in facts["lost"]] == ["busy"], facts
        assert not facts["lost"][0]["goes_back"]
        daemon.restart()
        with pytest.raises(tt.SessionLostError, match="busy"):
            x.sum().item()
    with tt.connect(daemon.unix, name="rest", fresh=True).as_current() as s:
        assert s.taken_over and s.kept()["w"].tolist() == np.arange(10).tolist()
        s.close()


def test_only_admins_drain(start_daemon, tt):
    import grpc

    daemon = start_daemon(*FLAGS)
    with Raw(daemon.tcp, token=daemon.token) as raw, pytest.raises(grpc.RpcError) as refused:
        raw.unary("/teletensor.v1.Admin/Drain", raw.admin_pb.DrainRequest(), raw.admin_pb.DrainReply)
    assert refused.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
    assert daemon.alive()
