"""kill -9 after a snapshot: later work runs again, bit for bit, or the session reports how far back it
is."""

import numpy as np
import pytest
from support.clients import wait_line
from support.daemon import wait_until
from support.raw import Raw
from support.training import digest, trainer

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(*FLAGS)


def test_what_ran_since_the_snapshot_runs_again(daemon, tt, each_transport):
    """Values that were read before the crash are not delivered twice, and no command has run twice."""
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.arange(6, dtype=tt.float32)
        s.keep("w", w)
        s.snapshot()
        w += 1.0
        view = w[2:4]
        view *= 10.0
        x = tt.tensor([1.0, 2.0], requires_grad=True)
        ((x * x).sum() * 3).backward()
        assert w.tolist() == [1.0, 2.0, 30.0, 40.0, 5.0, 6.0]
        for _ in range(2):
            daemon.crash()
            w += 1.0
            assert x.grad.tolist() == [6.0, 12.0]
        assert w.tolist() == [3.0, 4.0, 32.0, 42.0, 7.0, 8.0]
        assert view.tolist() == [32.0, 42.0]
        assert s.rolled_back is None
        assert daemon.log.count("event=session_attached") >= 1 and " replay=0" not in daemon.log
        s.close()


def test_random_numbers_and_large_downloads_are_the_same_again(daemon, tt):
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        tt.manual_seed(7)
        w = tt.randn(1000)
        s.snapshot()
        w = w * tt.randn(1000) + tt.rand(1000)
        large = tt.randn(600, 600)
        before = large.numpy().copy(), w.numpy().copy()
        daemon.crash()
        assert (large.numpy() == before[0]).all() and (w.numpy() == before[1]).all()
        after = tt.randn(5).tolist()
        tt.manual_seed(7)
        for shape in ((1000,), (1000,)):
            tt.randn(*shape)
        tt.rand(1000)
        tt.randn(600, 600)
        assert tt.randn(5).tolist() == after
        s.close()


@pytest.mark.parametrize("what", ["error", "upload", "publish", "room"])
def test_what_would_not_happen_again_is_a_rollback(start_daemon, tt, monkeypatch, what):
    """Causes of a rollback: out of memory, uploaded bytes that the client has not kept, tensors of other
    sessions, too many frames."""
    if what == "room":
        monkeypatch.setenv("TELETENSOR_REPLAY", "2000")
    daemon = start_daemon(*FLAGS, "--session-memory", "64MiB")
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.zeros(3)
        s.keep("w", w)
        command = s.snapshot()["command"]
        w += 1.0
        if what == "error":
            large = [tt.ones(7 << 20) for _ in range(3)]
            with pytest.raises(tt.OutOfMemoryError):
                s.synchronize()
            del large
        elif what == "upload":
            w += tt.tensor(np.ones((1 << 20, 3), np.float32))[0]
        elif what == "publish":
            other = tt.ones(3)
            s.publish("common", other)
        else:
            for _ in range(100):
                w += 1.0
                w.sum().item()
        s.synchronize()
        last = w.tolist()
        daemon.crash()
        with pytest.raises(tt.SessionLostError) as lost:
            w.sum().item()  # the value of w itself is known without a wait, until the client hears of the rollback
        with pytest.raises(tt.SessionLostError):
            w.tolist()
        assert lost.value.reason == "rollback" and last != [0.0, 0.0, 0.0]
        have, known = lost.value.commands
        assert have == command < known and s.rolled_back == (have, known)
        s.accept_rollback()
        assert s.rolled_back is None and s.kept()["w"].tolist() == [0.0, 0.0, 0.0]
        s.close()


def test_until_it_is_accepted(start_daemon, tt, tmp_path, monkeypatch):
    """Reading, saving and closing are possible; every other use raises an error with both numbers. After
    accept_rollback() the session continues."""
    monkeypatch.setenv("TELETENSOR_REPLAY", "0")
    daemon = start_daemon(*FLAGS)
    s = tt.connect(daemon.unix)  # has no name of its own
    with s.as_current():
        w = tt.tensor([1.0, 2.0], requires_grad=True)
        (w * w).sum().backward()
        s.keep("w", w)
        s.snapshot()
        with pytest.raises(RuntimeError, match="has not been rolled back"):
            s.accept_rollback()
        with tt.no_grad():
            w += 5.0
        s.synchronize()
        daemon.crash()
        for act in (lambda: w + 1, lambda: w.tolist(), lambda: tt.ones(3), s.synchronize,
                    lambda: s.keep("v", w), s.snapshot):
            with pytest.raises(tt.SessionLostError, match=r"command \d+; command \d+ had run"):
                act()
                s.synchronize()
        assert s.status()["handles"] >= 1 and s.memory()[0]["device"] == "cpu"
        old = s.kept()["w"]
        assert old.tolist() == [1.0, 2.0] and old.grad.tolist() == [2.0, 4.0] and old.requires_grad
        tt.save({"w": old}, tmp_path / "w.safetensors")
        assert (old + 1).sum().item() == 5.0 and "1." in repr(old)
        for act in (lambda: s.keep("v", old), lambda: old.grad.zero_(), lambda: tt.tensor([1.0]),
                    lambda: (old * 2).sum().backward(), lambda: old.detach().add_(1.0), s.snapshot):
            with pytest.raises(tt.SessionLostError, match=r"command \d+; command \d+ had run") as lost:
                act()
                pytest.fail(str(act.__code__.co_names) if hasattr(act, "__code__") else "snapshot")
            assert lost.value.reason == "rollback" and lost.value.commands == s.rolled_back
        s.accept_rollback()
        with tt.no_grad():
            old += 1.0
        assert old.tolist() == [2.0, 3.0] and s.kept()["w"].tolist() == [2.0, 3.0]
        with pytest.raises(tt.SessionLostError):
            w.tolist()
        assert tt.load(tmp_path / "w.safetensors")["w"].tolist() == [1.0, 2.0]
        s.snapshot()
        daemon.crash()
        assert old.tolist() == [2.0, 3.0]
    s.close()
    wait_until(lambda: not list(daemon.state.glob("*.session")))


def test_closing_a_rolled_back_session_ends_it(start_daemon, tt, monkeypatch):
    monkeypatch.setenv("TELETENSOR_REPLAY", "0")
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.ones(2)
        s.snapshot()
        w += 1.0
        s.synchronize()
        daemon.crash()
        wait_until(lambda: s.rolled_back is not None)  # noticed although no command is in flight
        with pytest.raises(tt.SessionLostError):
            w.tolist()
        s.close()
    wait_until(lambda: not list(daemon.state.glob("*.session")))


def test_five_crashes_under_three_training_clients(start_daemon, tmp_path):
    """SIGKILL at any moment: the daemon always starts again, and the bits are those of uninterrupted
    runs."""
    daemon = start_daemon(*FLAGS, "--snapshot-every", "0.3")
    rounds, go_on = 250, tmp_path / "go_on"
    wanted = [digest(trainer(daemon, seed, rounds, snapshot=True)) for seed in (1, 2, 3)]
    clients = [trainer(daemon, seed, rounds, snapshot=True, go_on=go_on) for seed in (1, 2, 3)]
    for process in clients:
        wait_line(process, "begun")
    for kills in range(5):
        with Raw(daemon.unix) as raw:
            def most(raw=raw):
                return max((s.completed_upto for s in raw.sessions()), default=0)
            least = most() + 100 * kills
            wait_until(lambda most=most, least=least: most() >= least or len(list(tmp_path.glob("go_on.*"))) == 3,
                       what="work before the crash")
        daemon.crash()
        assert "event=session_not_restored" not in daemon.log, daemon.log
    go_on.touch()
    assert [digest(process) for process in clients] == wanted
