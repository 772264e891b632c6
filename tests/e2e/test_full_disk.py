"""The disk is full, fails or is slow: only data that cannot be written is lost, and everything continues
once there is room."""

import os
import subprocess
import sys

import numpy as np
import pytest
from support.cuda import fake
from support.daemon import wait_until
from support.faults import Disk

pytestmark = pytest.mark.usefixtures("invariants")

MIB = 1 << 20
KEEPS = ("--lease", "120", "--restart", "60", "--drain", "60")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


@pytest.mark.parametrize("after", [0, 100_000, 3 * MIB])
def test_nothing_moves_to_a_full_disk(start_daemon, tt, disk, after):
    """Tensors stay in memory; allocations that do not fit fail as out of memory, until there is room."""
    daemon = start_daemon("--host-memory", "48MiB", "--disk-memory", "1GiB", env=disk.environment)
    data = np.random.default_rng(1).random(4 * MIB, np.float32)
    disk.full("spill", after=after)
    with tt.connect(daemon.unix) as idle, tt.connect(daemon.unix) as busy:
        with idle.as_current():
            held = [tt.tensor(data[i * MIB:(i + 1) * MIB]) for i in range(4)]
            idle.synchronize()
        with busy.as_current():
            mine = [tt.ones(MIB) for _ in range(7)]
            with pytest.raises(tt.OutOfMemoryError, match="out of memory"):
                for _ in range(3):
                    mine.append(tt.ones(MIB))
                    busy.synchronize()
            del mine[7:]
            busy.synchronize()
            assert [m.sum().item() for m in mine] == [MIB] * 7
        with idle.as_current():
            assert all((h.numpy() == data[i * MIB:(i + 1) * MIB]).all() for i, h in enumerate(held))
        disk.good()
        with busy.as_current():
            more = [tt.full((MIB,), float(i)) for i in range(4)]
            assert [m[5].item() for m in more] == [0.0, 1.0, 2.0, 3.0]
        with idle.as_current():
            assert all((h.numpy() == data[i * MIB:(i + 1) * MIB]).all() for i, h in enumerate(held))


@pytest.mark.parametrize("after", [0, 1000, 2 * MIB])
@pytest.mark.parametrize("error", ["enospc", "eio"])
def test_a_snapshot_that_does_not_fit_leaves_the_older_one(start_daemon, tt, disk, after, error):
    daemon = start_daemon(*KEEPS, env=disk.environment)
    data = np.random.default_rng(2).random(MIB, np.float32)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        w = tt.tensor(data)
        s.keep("w", w)
        s.snapshot()
        before = {f.name: f.stat().st_size for f in daemon.state.iterdir()}
        w.mul_(2)
        disk.full("sessions/", after=after, error=error)
        with pytest.raises(RuntimeError, match="No space left" if error == "enospc" else "Input/output"):
            s.snapshot()
        assert {f.name: f.stat().st_size for f in daemon.state.iterdir()} == before
        w.add_(1)
        np.testing.assert_array_equal(w.numpy(), data * 2 + 1)
        daemon.crash()  # continues from the older one
        np.testing.assert_array_equal(w.numpy(), data * 2 + 1)
        disk.good()
        s.snapshot()
        daemon.crash()
        np.testing.assert_array_equal(w.numpy(), data * 2 + 1)
        s.close()


def test_a_full_disk_at_a_drain(start_daemon, tt, disk):
    """A session with an older file continues from it, without a loss; the client of a session without one
    gets the reason."""
    daemon = start_daemon(*KEEPS, env=disk.environment)
    with tt.connect(daemon.unix, name="old") as old, tt.connect(daemon.unix, name="new") as new:
        with old.as_current():
            w = tt.arange(100_000.0)
            old.snapshot()
            w += 1
        with new.as_current():
            v = tt.arange(100_000.0) + 0
            new.synchronize()
        disk.full("sessions/", after=1000)
        daemon.drain()
        assert 'event=session_goes_back session="old"' in daemon.log
        assert 'event=session_lost session="new"' in daemon.log and "No space left" in daemon.log
        disk.good()
        daemon.restart()
        with old.as_current():
            assert w[[0, -1]].tolist() == [1.0, 100_000.0]
        with new.as_current(), pytest.raises(tt.SessionLostError):
            v.sum().item()
        old.close()


def test_what_there_is_room_for_is_kept_at_a_drain(start_daemon, tt, disk):
    """Smaller sessions are complete; the tensors of a too large session are kept as far as they fit, and
    each lost one is named."""
    daemon = start_daemon(*KEEPS, env=disk.environment)
    data = np.random.default_rng(5).random((3, MIB // 4))  # 2 MiB each
    with tt.connect(daemon.unix, name="large") as large, tt.connect(daemon.unix, name="less") as less, \
            tt.connect(daemon.unix) as small:
        with small.as_current():
            x = tt.arange(100)
            small.synchronize()
        with less.as_current():
            y = tt.tensor(data[0])
            less.synchronize()
        with large.as_current():  # goes first: it has a name, and worked last
            kept = tt.tensor(data[1])
            others = [tt.tensor(row) for row in data]
            w = tt.tensor([1.0, 2.0], requires_grad=True)
            loss = (w * w).sum()
            large.keep("kept", kept)
            large.synchronize()
        disk.room("sessions/", 5 * MIB)
        daemon.drain()
        assert "event=session_lost" not in daemon.log and "event=session_goes_back" not in daemon.log, daemon.log
        assert 'event=tensors_lost session="large"' in daemon.log
        disk.good()
        daemon.restart()
        assert x.tolist() == list(range(100))
        np.testing.assert_array_equal(y.numpy(), data[0])
        np.testing.assert_array_equal(kept.numpy(), data[1])
        for tensor in others:
            with pytest.raises(RuntimeError, match="no room for it on the disk") as raised:
                tensor.numpy()
            assert "test_full_disk.py" in str(raised.value)
        with large.as_current():
            loss.backward()
            assert w.grad.tolist() == [2.0, 4.0]
            others[0] = tt.tensor(data[2])
            np.testing.assert_array_equal(others[0].numpy(), data[2])
    wait_until(lambda: not list(daemon.state.glob("*.session")), what="no file is left")


def test_what_there_is_no_time_for_is_lost_by_name(start_daemon, tt, disk):
    """With a slow disk, tensors that are kept by name are written first, and each tensor that is not written
    in time is lost alone. Its error names the tensor, the reason, and the line that made it."""
    daemon = start_daemon(*KEEPS[:4], "--drain", "6", env=disk.environment)
    data = np.random.default_rng(3).random((3, 8 * MIB), np.float32)  # 32 MiB each
    with tt.connect(daemon.unix, name="exp") as s:
        with s.as_current():
            others = [tt.tensor(row) for row in data]
            small = tt.tensor(data[0][:1000])
            kept = tt.tensor(data[1][:MIB])
            s.keep("kept", kept)
            w = tt.tensor([1.0, 2.0], requires_grad=True)
            loss = (w * w).sum()
            s.synchronize()
        disk.slow("sessions/", 150)
        daemon.drain()
        assert "event=tensors_lost" in daemon.log and "event=session_lost" not in daemon.log, daemon.log
        disk.good()
        daemon.restart()
        assert "event=session_restored" in daemon.log
        with s.as_current():
            np.testing.assert_array_equal(kept.numpy(), data[1][:MIB])
            lost = 0
            for row, tensor in zip(data, others, strict=True):
                try:
                    np.testing.assert_array_equal(tensor.numpy(), row)
                except RuntimeError as error:
                    lost += 1
                    text = str(error)
                    assert "was not written when the daemon was shut down" in text, text
                    assert "no time left" in text and "test_full_disk.py" in text, text
            assert lost > 0
            others[0] = tt.tensor(data[0])
            assert (others[0] + 1).shape == (8 * MIB,)
            kept += 1
            np.testing.assert_array_equal(kept.numpy(), data[1][:MIB] + 1)
            del small, loss
            s.synchronize()
        s.close()


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_of_moved_memory_costs_its_tensor_at_a_drain(start_daemon, tt, harm):
    daemon = start_daemon("--host-memory", "64MiB", "--disk-memory", "1GiB", *KEEPS)
    data = np.random.default_rng(4).random((2, 2 * MIB), np.float32)
    with tt.connect(daemon.unix, name="exp") as s:
        with s.as_current():
            bad, good = tt.tensor(data[0]), tt.tensor(data[1])
            grown = good * 2
            s.keep("good", good)
            s.synchronize()
        with tt.connect(daemon.unix) as other, other.as_current():
            full = [tt.ones(2 * MIB) for _ in range(7)]
            other.synchronize()
            paths = sorted((p for p in (daemon.state.parent / "spill").glob("teletensor-spill-*/*")
                            if p.suffix != ".new"), key=lambda p: int(p.name))
            assert len(paths) == 3
            if harm == "remove":
                paths[0].unlink()
            else:
                with open(paths[0], "r+b") as file:
                    file.seek(3 * MIB)
                    file.truncate() if harm == "cut" else file.write(b"\x55" * 64)
            del full
        daemon.drain()
        assert "event=tensors_lost" in daemon.log and "event=session_lost" not in daemon.log, daemon.log
        daemon.restart()
        with s.as_current():
            with pytest.raises(RuntimeError, match="was moved to the disk and cannot be read again") as raised:
                (bad + 1).sum().item()
            assert "test_full_disk.py" in str(raised.value) and "spill" not in str(raised.value)
            np.testing.assert_array_equal(good.numpy(), data[1])
            np.testing.assert_array_equal(grown.numpy(), data[1] * 2)
            bad = tt.tensor(data[0])
            np.testing.assert_array_equal(bad.numpy(), data[0])
        s.close()


def test_tokens_on_a_full_disk(start_daemon, tt, disk):
    daemon = start_daemon(env=disk.environment)

    def cli(*arguments):
        return subprocess.run([sys.executable, "-m", "teletensor.cli", "token", *arguments, "--address",
                               daemon.unix], capture_output=True, text=True, timeout=60)
    first = cli("create", "alice").stdout.strip()
    disk.full("tokens")
    refused = cli("create", "bob")
    assert refused.returncode == 1 and "full" in refused.stderr, refused.stderr
    with tt.connect(daemon.tcp, token=first):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    disk.good()
    second = cli("create", "bob").stdout.strip()
    for token in (first, second):
        with tt.connect(daemon.tcp, token=token):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    assert cli("list").stdout.count("\n") == 3


def test_kernels_that_cannot_be_kept_are_compiled_again(start_daemon, tt, disk):
    arguments, environment = fake()
    daemon = start_daemon(*arguments, env={**environment, **disk.environment})

    def compute():
        with tt.connect(daemon.unix):
            x = tt.arange(64.0, device="cuda:0")
            return (x * 2 + 1).tolist()
    disk.full("kernels/", after=20)
    wanted = [2.0 * i + 1 for i in range(64)]
    assert compute() == wanted
    kernels = daemon.state.parent / "kernels"
    assert not list(kernels.glob("*.kernel"))
    disk.good()
    daemon.drain()
    daemon.restart()
    assert compute() == wanted
    wait_until(lambda: list(kernels.glob("*.kernel")), what="kernels on the disk")


def test_a_state_directory_that_cannot_be_written(start_daemon, tt, tmp_path):
    """The daemon starts, says that it keeps no sessions, and computes. Snapshots and tokens are refused with
    the reason."""
    state = tmp_path / "state"
    state.mkdir(mode=0o500)
    # without these rights the modes of files apply to root as well
    under = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()
    daemon = start_daemon("--state-dir", str(state), "--restart", "60", under=under)
    assert "event=no_snapshots" in daemon.log and "Permission denied" in daemon.log
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        x = tt.arange(1000)
        s.keep("x", x)
        assert x.sum().item() == 499_500
        with pytest.raises(RuntimeError, match="no state directory of its own that it can write"):
            s.snapshot()
        made = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", "alice", "--address",
                               daemon.unix], capture_output=True, text=True, timeout=60)
        assert made.returncode == 1 and "Permission denied" in made.stderr, made.stderr
        assert (x + 1).sum().item() == 500_500
        s.close()
    assert not list(state.iterdir())
