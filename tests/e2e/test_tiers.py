"""Short memory is spilled to the disk, and tensors are read back before they are used."""

import contextlib
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.daemon import HANG, wait_until
from support.http import scrape
from support.raw import Raw
from teletensor._tools.admin import Admin

MIB = 1 << 20
EIGHT = 2 * MIB  # elements of 8 MiB


def flags(memory="64MiB", disk="1GiB"):
    return ("--host-memory", memory, "--disk-memory", disk)


def files(daemon):
    return sorted(p for p in (daemon.state.parent / "spill").glob("teletensor-spill-*/*") if p.suffix != ".new")


def line_of(text):
    return re.search(r"test_tiers\.py:\d+", text)


def use(session):
    return session.memory()[0]


def empty(daemon):
    """Checks that nothing remains in memory or on the disk."""
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.used()["cpu"] < MIB // 4, what="the memory is back")
    wait_until(lambda: not files(daemon), what="the files are gone")


def test_sessions_holding_four_times_the_memory_finish(start_daemon, tt):
    """Eight sessions of 32 MiB each in 64 MiB: they take turns, and every value is right."""
    daemon = start_daemon(*flags())
    random = np.random.default_rng(7)
    with contextlib.ExitStack() as stack:
        sessions, tensors, expected = [], [], []
        for i in range(8):
            s = stack.enter_context(tt.connect(daemon.unix))
            data = [random.random(EIGHT, np.float32), np.full(EIGHT, i + 1, np.float32)]
            held = [tt.tensor(data[0]), tt.tensor(data[1])]
            held += [held[0] * 2, held[1] - 0.5]  # made there
            data += [data[0] * np.float32(2), data[1] - np.float32(0.5)]
            s.synchronize()
            sessions.append(s), tensors.append(held), expected.append(data)
        assert use(sessions[-1])["device_used"] <= 64 * MIB
        assert sum(use(s)["used"] + use(s)["away"] for s in sessions) >= 256 * MIB
        for turn in range(2):
            for s, held, data in zip(sessions, tensors, expected, strict=True):
                with s.as_current():
                    for k in range(4):
                        held[k] += turn + 1
                        data[k] += np.float32(turn + 1)
                    assert (held[0] + held[3]).sum().item() == pytest.approx(
                        float((data[0] + data[3]).sum(dtype=np.float64)), rel=1e-5)
        for s, held, data in zip(sessions, tensors, expected, strict=True):
            with s.as_current():
                for k in range(4):
                    np.testing.assert_array_equal(held[k].numpy(), data[k])
        del held, tensors
        for s in sessions:
            s.synchronize()
            wait_until(lambda s=s: use(s)["away"] == 0 and use(s)["disk_used"] == 0,
                       what="nothing of it is left on the disk")
    empty(daemon)


def test_uploads_and_calls_find_room(start_daemon, tt):
    """Memory that idle sessions hold is no reason to refuse a tensor, large or small."""
    daemon = start_daemon(*flags())
    with tt.connect(daemon.unix) as idle, tt.connect(daemon.tcp, token=daemon.token) as busy:
        with idle.as_current():
            held = [tt.full((EIGHT,), float(k)) for k in range(7)]
            idle.synchronize()
        with busy.as_current():
            data = np.arange(EIGHT, dtype=np.float32)
            x = tt.tensor(data)  # over TCP: no shared memory

            @tt.compile
            def step(a, b):
                return (a * 2 + b).sum(), a + b
            total, y = step(x, tt.tensor(data))
            np.testing.assert_array_equal(y.numpy(), data * 2)
            assert total.item() == pytest.approx(float((data * 3).sum(dtype=np.float64)), rel=1e-5)
        assert use(idle)["away"] > 0
        with idle.as_current():
            assert [t[-1].item() for t in held] == [float(k) for k in range(7)]


def test_a_session_larger_than_the_memory(start_daemon, tt):
    """A session spills its own tensors, the least recently used first."""
    daemon = start_daemon(*flags("32MiB"))
    with tt.connect(daemon.unix) as s:
        rows = [tt.full((EIGHT // 2,), float(k)) for k in range(24)]  # 96 MiB
        s.synchronize()
        assert use(s)["away"] >= 64 * MIB
        total = rows[0] * 0
        for row in rows:
            total += row
        assert total[5].item() == sum(range(24))
        del rows, total
        s.synchronize()
        wait_until(lambda: use(s)["away"] == 0, what="the files are gone")


def test_a_damaged_file_costs_its_tensor(start_daemon, tt):
    daemon = start_daemon(*flags())
    random = np.random.default_rng(1)
    data = [random.random(EIGHT, np.float32) for _ in range(2)]
    with tt.connect(daemon.unix) as s, tt.connect(daemon.unix) as other:
        with s.as_current():
            lost, fine = tt.tensor(data[0]), tt.tensor(data[1])  # the line
            s.synchronize()
        with other.as_current():
            full = [tt.ones(EIGHT) for _ in range(7)]
            other.synchronize()
        assert use(s)["away"] == 16 * MIB
        paths = files(daemon)
        assert len(paths) == 2 and all(p.stat().st_mode & 0o777 == 0o600 for p in paths)
        assert paths[0].parent.stat().st_mode & 0o777 == 0o700
        with open(min(paths, key=lambda p: int(p.name)), "r+b") as file:
            file.seek(3 * MIB)
            byte = file.read(1)
            file.seek(3 * MIB)
            file.write(bytes([byte[0] ^ 1]))
        del full
        with s.as_current():
            with pytest.raises(RuntimeError) as raised:
                (lost + 1).sum().item()
            text = str(raised.value)
            assert "was moved to the disk and cannot be read again" in text and "wrong checksum" in text
            assert text.count("test_tiers.py") == 2, text  # who made it, who used it
            with pytest.raises(RuntimeError, match="cannot be read again"):
                lost.numpy()
            np.testing.assert_array_equal(fine.numpy(), data[1])
            lost = tt.tensor(data[0])
            np.testing.assert_array_equal(lost.numpy(), data[0])
            del lost, fine
    empty(daemon)


def test_a_full_disk_is_out_of_memory(start_daemon, tt):
    daemon = start_daemon(*flags(disk="20MiB"))
    random = np.random.default_rng(2)
    data = [random.random(EIGHT, np.float32) for _ in range(6)]
    with tt.connect(daemon.unix) as idle, tt.connect(daemon.unix) as s:
        with idle.as_current():
            held = [tt.tensor(each) for each in data]
            idle.synchronize()
        with s.as_current():
            mine = [tt.full((EIGHT,), float(k)) for k in range(3)]
            with pytest.raises(tt.OutOfMemoryError) as refused:
                mine.append(tt.full((EIGHT,), 9.0))
                s.synchronize()
            text = str(refused.value)
            assert re.search(r"on disk: .* all users 1\d\.\d MiB of 20\.0 MiB", text), text
            assert "requested 8.0 MiB" in text and line_of(text)
            assert [t[7].item() for t in mine[:3]] == [0.0, 1.0, 2.0]
        del mine  # both are full, so nothing could be moved
        s.synchronize()
        with idle.as_current():
            for tensor, each in zip(held, data, strict=True):
                assert tensor[11].item() == each[11]
        del held
    empty(daemon)


def test_kept_tensors_move_last(start_daemon, tt):
    daemon = start_daemon(*flags())
    with tt.connect(daemon.unix, name="exp") as s, tt.connect(daemon.unix) as other:
        with s.as_current():
            kept = tt.full((EIGHT,), 1.0)  # the oldest
            s.keep("model", kept)
            loose = [tt.full((EIGHT,), 2.0) for _ in range(3)]
            s.synchronize()
        with other.as_current():
            full = [tt.full((EIGHT,), 3.0) for _ in range(5)]
            other.synchronize()

        def away(session):
            return [t["away"] for t in session.memory()[0]["tensors"] if t["bytes"] >= 8 * MIB]
        assert sorted(away(s)) == [False, False, True, True]
        first = min((t for t in s.memory()[0]["tensors"] if t["bytes"] >= 8 * MIB),
                    key=lambda t: t["command"])
        assert not first["away"]
        with s.as_current():
            assert kept[3].item() == 1.0 and [t[0].item() for t in loose] == [2.0] * 3
        del full


def test_two_large_jobs_alternate(start_daemon, tt):
    """Each job needs 70 % of the memory: they take turns, and tensors do not move back and forth all the
    time."""
    daemon = start_daemon(*flags())
    rounds, results = 60, {}

    def job(name, start):
        with tt.connect(daemon.unix):
            x = [tt.full((EIGHT,), start) for _ in range(5)]  # 40 MiB
            for _ in range(rounds):
                for k in range(5):
                    x[k] += 1
            results[name] = [t[1].item() for t in x]
    threads = [threading.Thread(target=job, args=(k, 1000.0 * k)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert results == {k: [1000.0 * k + rounds] * 5 for k in range(2)}
    moved = re.search(r'moved_bytes_total\{direction="out"\} (\S+)', scrape(daemon))
    assert float(moved[1]) < 2 * rounds * 40 * MIB / 2  # not moved once in each round
    empty(daemon)


def test_sessions_that_wait_can_be_interrupted_and_closed(start_daemon, tt):
    daemon = start_daemon(*flags())
    with tt.connect(daemon.unix) as first, tt.connect(daemon.unix) as second:
        with first.as_current():
            x = [tt.full((EIGHT,), 1.0) for _ in range(7)]
            first.synchronize()
        with second.as_current():
            y = [tt.full((EIGHT,), 1.0) for _ in range(7)]
            for _ in range(20):
                y = [t + 1 for t in y]
            Admin(second._transport).interrupt(second.id)
            with contextlib.suppress(tt.InterruptedOpError):  # the interrupt may be too late
                y[-1][0].item()
            z = [tt.full((EIGHT,), 5.0) for _ in range(7)]
        told = False
        while not told:  # the error of each root is raised once
            with contextlib.suppress(tt.InterruptedOpError):
                second.synchronize()
                told = True
        second.close()
        with first.as_current():
            assert x[0][0].item() == 1.0
        del x, y, z
    empty(daemon)


def test_sessions_whose_tensors_are_on_the_disk_survive_a_restart(start_daemon, tt):
    """A session with more tensors than memory is written from the disk, and its tensors are spilled again
    after the restart."""
    daemon = start_daemon(*flags(), "--lease", "120", "--restart", "60", "--drain", "60")
    random = np.random.default_rng(3)
    data = [[random.random(EIGHT, np.float32) for _ in range(3)] for _ in range(4)]
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(tt.connect(daemon.unix, name=f"job{i}")) for i in range(4)]
        held = []
        for s, each in zip(sessions, data, strict=True):
            with s.as_current():
                held.append([tt.tensor(a) for a in each])
                s.synchronize()
        assert sum(use(s)["away"] for s in sessions) >= 32 * MIB
        daemon.drain()
        assert not files(daemon)
        daemon.restart()
        for s, tensors, each in zip(sessions, held, data, strict=True):
            with s.as_current():
                for tensor, expected in zip(tensors, each, strict=True):
                    np.testing.assert_array_equal(tensor.numpy(), expected)
        del held, tensors, tensor


def test_what_a_killed_daemon_leaves_is_removed(start_daemon, tt):
    daemon = start_daemon(*flags("16MiB"), "--restart", "0")
    s = tt.connect(daemon.unix)
    with s.as_current():
        x = [tt.ones(EIGHT // 2) for _ in range(8)]
        s.synchronize()
    left = files(daemon)
    assert left
    daemon.kill()
    assert all(path.exists() for path in left)
    daemon.restart()
    assert not any(path.parent.exists() for path in left)
    del x
    with contextlib.suppress(Exception):
        s.close()


def test_the_numbers(start_daemon, tt):
    daemon = start_daemon(*flags())
    with tt.connect(daemon.unix) as s, tt.connect(daemon.unix) as other:
        with s.as_current():
            x = [tt.ones(EIGHT) for _ in range(4)]
            s.synchronize()
        with other.as_current():
            y = [tt.ones(EIGHT) for _ in range(7)]
            other.synchronize()
        report = use(s)
        assert report["away"] == 32 * MIB and report["disk_quota"] == 1 << 30
        assert 0 < report["disk_used"] < MIB and report["used"] < MIB  # ones compress
        text = scrape(daemon)
        assert f'teletensor_disk_bytes{{kind="tensors"}} {32 * MIB}' in text
        assert f'teletensor_moved_bytes_total{{direction="out"}} {32 * MIB}' in text
        table = subprocess.run([sys.executable, "-m", "teletensor.cli", "memory", "--address", daemon.unix],
                               capture_output=True, text=True, timeout=60).stdout
        assert re.search(r"^disk .*holds 32\.0 MiB .*1\.0 GiB", table, re.M), table
        table = subprocess.run([sys.executable, "-m", "teletensor.cli", "memory", "--address", daemon.unix,
                                "--json"], capture_output=True, text=True, timeout=60).stdout
        assert json.loads(table)[0]["away"] == 32 * MIB
        del x, y


def test_without_a_disk_nothing_moves(start_daemon, tt):
    daemon = start_daemon("--host-memory", "64MiB")
    with tt.connect(daemon.unix) as s, tt.connect(daemon.unix) as other:
        with s.as_current():
            x = [tt.ones(EIGHT) for _ in range(5)]
            s.synchronize()
        with other.as_current(), pytest.raises(tt.OutOfMemoryError) as refused:
            tt.ones(EIGHT * 4).sum().item()
        assert "on disk" not in str(refused.value)
        assert use(s)["disk_quota"] == 0 and use(s)["away"] == 0
        assert not (daemon.state.parent / "spill").exists()
        del x


def test_results_that_fit_one_by_one_but_not_together(start_daemon, tt):
    """The results of one fused loop need room at the same time: other tensors of the session are spilled for
    them."""
    daemon = start_daemon("--session-memory", "4MiB", "--host-memory", "6MiB", "--disk-memory", "64MiB")
    numbers = np.arange(1 << 16)
    with tt.connect(daemon.unix) as s, s.as_current():
        held = [tt.tensor(numbers + i) for i in range(7)]  # half a MiB each
        s.synchronize()
        x = held[0] * 3
        y = x + held[0]
        np.testing.assert_array_equal(y.numpy(), numbers * 4)
        np.testing.assert_array_equal(x.numpy(), numbers * 3)
        for i, each in enumerate(held):
            np.testing.assert_array_equal(each.numpy(), numbers + i)
