"""Published tensors over a restart, a crash, a full disk: shared again, with their names, rights and bits."""

import threading

import numpy as np
import pytest
from support.clients import client, finish, wait_line
from support.daemon import wait_until
from support.faults import Disk

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(*FLAGS)


def drained(daemon):
    daemon.drain()
    assert "event=session_lost" not in daemon.log and "event=tensors_lost" not in daemon.log, daemon.log
    daemon.restart()


def files(daemon):
    return sorted(f.suffix for f in daemon.state.iterdir() if f.suffix in (".session", ".common"))


def both_see(tt, a, w, b, v):
    """Each session reads the writes of the other one."""
    before = w.numpy().copy()
    with a.as_current():
        w.add_(1)
        a.synchronize()
    np.testing.assert_array_equal(v.numpy(), before + 1)
    with b.as_current():
        v.sub_(1)
        b.synchronize()
    np.testing.assert_array_equal(w.numpy(), before)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_shared_again_after_a_drain(start_daemon, tt, device):
    """A restart keeps one memory, the names, the rights and the publisher; the tensor is charged once and
    freed with its last user."""
    daemon = start_daemon(*FLAGS, "--sim-devices", "1")
    data = np.random.default_rng(1).integers(-9999, 9999, (300, 400)).astype(np.float32)
    with tt.connect(daemon.unix) as a, tt.connect(daemon.unix) as b:
        with a.as_current():
            w = tt.tensor(data, device=device)
            tt.publish("w", w, writable=True)
            fixed = tt.ones(3, device=device)
            tt.publish("fixed", fixed, users=["bob"])
        with b.as_current():
            v, again, read = tt.published("w"), tt.published("w"), tt.published("fixed")
            row = v[1]
        for _ in range(2):
            drained(daemon)
            np.testing.assert_array_equal(w.numpy(), data)
            both_see(tt, a, w, b, v)
            both_see(tt, a, w, b, again)
            np.testing.assert_array_equal(row.numpy(), data[1])
            with b.as_current(), pytest.raises(RuntimeError, match="read-only"):
                read.add_(1)
        used = sum(m["device_used"] for m in a.memory())
        assert used < 2 * data.nbytes, "one storage, not one for each session"
        with tt.connect(daemon.unix) as c, c.as_current():  # found by name, by a later session
            x = tt.published("w")
            both_see(tt, a, w, c, x)
            with pytest.raises(RuntimeError, match="another session"):
                tt.publish("w", tt.ones(1))
        with a.as_current():  # the name still belongs to its publisher, who replaces and withdraws it
            other = tt.zeros(2)
            tt.publish("w", other)
            tt.publish("fixed", None)
            tt.publish("w", None)
        np.testing.assert_array_equal(v.numpy(), data)
        drained(daemon)
        with b.as_current(), pytest.raises(KeyError):
            tt.published("w")
        both_see(tt, a, w, b, v)
        assert files(daemon) == [".common"] * 3 + [".session"] * 2 and other.tolist() == [0.0, 0.0]
    wait_until(lambda: not files(daemon), what="no file is left")
    with tt.connect(daemon.unix) as probe:
        assert all(m["device_used"] == 0 for m in probe.memory())


def test_writers_that_never_wait_count_to_the_sum(daemon):
    """The daemon is restarted repeatedly under two processes that add to one tensor: each addition happens
    once."""
    n = 3000
    owner = client("""
        w = tt.zeros(1000)
        tt.publish("count", w, writable=True)
        print("begun", flush=True)
        sys.stdin.readline()
        s.synchronize()
        x = w.numpy()
        assert (x == x[0]).all()
        print("total", int(x[0]), flush=True)
    """, daemon.unix, stdin=-1)
    wait_line(owner, "begun")
    adders = [client(f"""
        w = tt.published("count")
        print("begun", flush=True)
        for i in range({n}):
            w += 1
            if i % 100 == 0: w[0].item()
        s.synchronize()
        print("done", flush=True)
    """, daemon.unix) for _ in range(2)]
    for adder in adders:
        wait_line(adder, "begun")
    for _ in range(3):
        if all(adder.poll() is not None for adder in adders):
            break
        drained(daemon)
        assert "event=session_not_restored" not in daemon.log, daemon.log
    for adder in adders:
        status, out, err = finish(adder, 120)
        assert status == 0 and "done" in out, err
    owner.stdin.write("\n")
    owner.stdin.flush()
    status, out, err = finish(owner, 120)
    assert status == 0 and f"total {2 * n}" in out, (out, err)


@pytest.mark.parametrize("ends", ["closed", "gone"])
def test_a_holder_whose_publisher_is_not_there(daemon, tt, ends):
    """If the publisher has ended, or its session's file is missing, a session that has the tensor keeps
    it."""
    with tt.connect(daemon.unix) as b:
        a = tt.connect(daemon.unix)
        with a.as_current():
            w = tt.arange(1000.0)
            tt.publish("w", w, writable=True)
        with b.as_current():
            v = tt.published("w")
            v += 1
            b.synchronize()
        if ends == "closed":
            a.close()
            drained(daemon)
        else:
            a.snapshot()
            (file,) = daemon.state.glob("*.session")
            daemon.drain()
            file.unlink()
            daemon.restart()
        assert v.tolist() == [i + 1.0 for i in range(1000)]
        with tt.connect(daemon.unix) as c, c.as_current():
            both_see(tt, b, v, c, tt.published("w"))
        with b.as_current():
            del v
            b.synchronize()
            with pytest.raises(KeyError):
                tt.published("w")
            tt.publish("w", tt.ones(2))  # the name is free
    if ends == "gone":
        with pytest.raises(tt.SessionLostError):
            w.tolist()


def test_after_a_crash_all_holders_have_one_state(daemon, tt):
    """After a crash all sessions have the last written state. A session that has done nothing since
    continues; a session that has done something is told how far it was rolled back."""
    with tt.connect(daemon.unix, name="a") as a, tt.connect(daemon.unix, name="b") as b, \
            tt.connect(daemon.unix, name="c") as c:
        with a.as_current():
            w = tt.zeros(1000)
            tt.publish("w", w, writable=True)
            a.keep("w", w)
            a.snapshot()
        with b.as_current():
            v = tt.published("w")
            b.keep("v", v)
            v += 1
            b.snapshot()
        with c.as_current():  # c has the tensor, and was never written
            x = tt.published("w")
            x += 10
            c.synchronize()
        daemon.crash()
        assert w.tolist() == v.tolist() == [1.0] * 1000  # c's work is in no snapshot
        with pytest.raises(tt.SessionLostError):
            x.tolist()
        both_see(tt, a, w, b, v)
        with a.as_current():
            w += 5
            assert w[0].item() == 6.0
        daemon.crash()
        with pytest.raises(tt.SessionLostError) as lost:
            w.tolist()
        assert lost.value.reason == "rollback"
        a.accept_rollback()
        with pytest.raises(tt.SessionLostError):
            v.tolist()
        b.accept_rollback()
        w, v = a.kept()["w"], b.kept()["v"]
        assert w.tolist() == v.tolist() == [1.0] * 1000
        both_see(tt, a, w, b, v)


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_a_snapshot_is_one_state_of_a_tensor_that_is_written(daemon, tt, pause):
    """A tensor of several pieces is written to, without a pause or with short ones, while it is copied."""
    stop = threading.Event()
    with tt.connect(daemon.unix, name="a") as a, tt.connect(daemon.unix, name="b") as b:
        with a.as_current():
            w = tt.zeros(40_000_000)
            tt.publish("w", w, writable=True)
            a.keep("w", w)
        with b.as_current():
            v = tt.published("w")

        def write():
            with b.as_current():
                while not stop.wait(pause):
                    v.add_(1)
                    b.synchronize()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            a.snapshot()
        finally:
            stop.set()
            writer.join()
        daemon.crash()
        state = w.numpy()
        assert state.min() == state.max()


def test_a_snapshot_of_one_has_what_others_wrote(daemon, tt):
    """The tensor is written with each session that has it, and the newest state is read back."""
    with tt.connect(daemon.unix, name="a") as a, tt.connect(daemon.unix, name="b") as b:
        with a.as_current():
            w = tt.zeros(70_000)
            tt.publish("w", w, writable=True)
            a.snapshot()
        with b.as_current():
            v = tt.published("w")
            for _ in range(3):
                v += 1
                b.snapshot()
        daemon.crash()
        assert w.sum().item() == 3 * 70_000 and v[0].item() == 3.0
        both_see(tt, a, w, b, v)
        b.snapshot()  # before a withdraws the name: the last names count
        with a.as_current():
            tt.publish("w", None)
            a.snapshot()
        daemon.crash()
        with b.as_current(), pytest.raises(KeyError):
            tt.published("w")
        both_see(tt, a, w, b, v)


def test_a_snapshot_beside_writers_is_one_state(daemon, tt):
    """The tensor is written while another session writes to it: the file has the contents after a whole
    instruction."""
    owner = tt.connect(daemon.unix, name="owner")
    with owner.as_current():
        w = tt.zeros(1_000_000)
        owner.keep("w", w)
        tt.publish("w", w, writable=True)
    writer = client("""
        w = tt.published("w")
        print("begun", flush=True)
        while True:
            w += 1
            s.synchronize()
    """, daemon.unix)
    try:
        wait_line(writer, "begun")
        for _ in range(5):
            owner.snapshot()
    finally:
        writer.kill()
        writer.communicate()
    daemon.crash()
    x = owner.kept()["w"].numpy()
    assert x[0] > 0 and (x == x[0]).all()
    owner.close()


def test_no_room_on_the_disk_at_a_drain(start_daemon, tt, tmp_path):
    """A published tensor cannot be written: its users get an error with its line; the rest of their sessions
    is complete."""
    disk = Disk(tmp_path)
    daemon = start_daemon(*FLAGS, env=disk.environment)
    with tt.connect(daemon.unix, name="a") as a, tt.connect(daemon.unix, name="b") as b:
        with a.as_current():
            w = tt.tensor(np.random.default_rng(1).random(300_000))
            tt.publish("w", w, writable=True)
            a.keep("own", tt.arange(5))
        with b.as_current():
            v = tt.published("w")
            own = tt.arange(7)
            b.synchronize()
        disk.full(".common")
        daemon.drain()
        assert "event=tensors_lost" in daemon.log and "event=session_lost" not in daemon.log, daemon.log
        disk.good()
        daemon.restart()
        for session, tensor in ((a, w), (b, v)):
            with session.as_current(), pytest.raises(RuntimeError, match="published.*was not kept.*No space"):
                tensor.sum().item()
        assert a.kept()["own"].tolist() == [0, 1, 2, 3, 4] and own.tolist() == list(range(7))
        with a.as_current():
            w = tt.ones(3)
            tt.publish("w", w)
        with b.as_current():
            assert tt.published("w").tolist() == [1.0] * 3


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_costs_its_tensor(daemon, tt, harm):
    with tt.connect(daemon.unix, name="a") as a, tt.connect(daemon.unix, name="b") as b:
        with a.as_current():
            w = tt.tensor(np.random.default_rng(1).random(300_000))
            tt.publish("w", w, writable=True)
            good = tt.arange(1000)
            tt.publish("good", good)
        with b.as_current():
            v, fine = tt.published("w"), tt.published("good")
        daemon.drain()
        (path,) = (f for f in daemon.state.glob("*.common") if f.stat().st_size > 100_000)
        assert path.stat().st_mode & 0o777 == 0o600
        if harm == "remove":
            path.unlink()
        else:
            with open(path, "r+b") as file:
                file.seek(90_000)
                file.truncate() if harm == "cut" else file.write(b"\x55" * 64)
        daemon.restart()
        for session, tensor in ((a, w), (b, v)):
            with session.as_current(), pytest.raises(RuntimeError, match="published.*was not kept"):
                tensor.sum().item()
        assert good.tolist() == fine.tolist() == list(range(1000))
        with b.as_current(), pytest.raises(KeyError):
            tt.published("w")
