"""The thread that writes snapshots takes turns by user: calls of one user cost another user no snapshots."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
from support.busy import factorize_published
from support.daemon import wait_until
from support.faults import Disk

pytestmark = pytest.mark.usefixtures("invariants")

KEEPS = ("--lease", "120", "--restart", "60", "--drain", "60")
GREEDY = 8  # sessions of the user who always asks


def written(daemon):
    """The names of the sessions that were written, in order."""
    return re.findall(r'event=snapshot session="(\w+)"', daemon.log)


def newest(daemon):
    """The last command that the newest snapshot of alice contains."""
    return max(map(int, re.findall(r'event=snapshot session="alice" id=\d+ upto=(\d+)', daemon.log)), default=0)


@contextmanager
def greedy(tt, daemon, token):
    """GREEDY sessions of a user, each of which asks for a snapshot whenever it has the last one. Begins when
    all of them have been written once."""
    stop = threading.Event()

    def ask(session):
        while not stop.is_set():
            session.snapshot()

    with ExitStack() as sessions:
        threads = []
        for i in range(GREEDY):
            session = sessions.enter_context(closing(tt.connect(daemon.unix, token=token, name=f"greedy{i}")))
            threads.append(threading.Thread(target=ask, args=(session,)))
            threads[-1].start()
        wait_until(lambda: len(set(written(daemon))) == GREEDY)
        yield
        stop.set()
        for thread in threads:
            thread.join()


def test_calls_of_users_take_turns(start_daemon, tt, new_token, tmp_path):
    """Without turns, all sessions of the other user are written between two snapshots of this one."""
    disk = Disk(tmp_path)
    daemon = start_daemon(*KEEPS, env=disk.environment)
    alice, mallory = new_token(daemon, "alice"), new_token(daemon, "mallory")
    disk.slow("sessions/", 20)
    with tt.connect(daemon.unix, token=alice, name="alice") as s, greedy(tt, daemon, mallory):
        first = len(written(daemon))
        for _ in range(6):
            s.snapshot()
        between = written(daemon)[first:]
        # One of them is being written when a call arrives, and another one may begin before the next call.
        assert between.count("alice") == 6 and len(between) - 6 <= 6 * GREEDY // 2, between
    disk.good()


def test_calls_do_not_prevent_periodic_snapshots_of_others(start_daemon, tt, new_token):
    daemon = start_daemon(*KEEPS, "--snapshot-every", "0.1")
    alice, mallory = new_token(daemon, "alice"), new_token(daemon, "mallory")
    with tt.connect(daemon.unix, token=alice, name="alice").as_current() as s, greedy(tt, daemon, mallory):
        w = tt.zeros(3)
        for _ in range(3):
            last = newest(daemon)
            w += 1.0
            s.synchronize()
            wait_until(lambda last=last: newest(daemon) > last, what="a periodic snapshot")
        s.close()


def test_a_snapshot_takes_no_lane(start_daemon, tt, tmp_path):
    """While a session is written, which takes minutes on this disk, another one computes on the only lane."""
    disk = Disk(tmp_path)
    daemon = start_daemon(*KEEPS, "--lanes", "1", env=disk.environment)
    with closing(tt.connect(daemon.unix)) as large, tt.connect(daemon.unix).as_current(), ThreadPoolExecutor() as pool:
        with large.as_current():
            held = tt.rand(8 << 20)
            large.synchronize()
        disk.slow("sessions/", 5000)
        writing = pool.submit(large.snapshot)
        wait_until(lambda: any(path.name != "lock" for path in daemon.state.iterdir()), what="a file is written")
        x = tt.ones(3)
        for i in range(200):
            assert (x + i).sum().item() == 3.0 * (1 + i)
        assert not writing.done()
        disk.good()
        assert writing.result()["bytes"] >= 32 << 20
        del held


def test_a_snapshot_that_waits_for_a_kernel_gives_way(start_daemon, tt, new_token):
    """One session factorizes a published tensor, another one waits to write it, and the snapshot of a third one,
    which uses the tensor, waits for both of them. The snapshots of another user are written meanwhile."""
    daemon = start_daemon(*KEEPS, "--lanes", "3")
    alice, mallory = new_token(daemon, "alice"), new_token(daemon, "mallory")
    n = 4000
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        busy, writer, waiter = (stack.enter_context(tt.connect(daemon.unix, token=mallory, name=name))
                                for name in ("busy", "writer", "waiter"))
        s = stack.enter_context(tt.connect(daemon.unix, token=alice, name="alice"))
        views, held = factorize_published(tt, busy, (writer, waiter), n)
        with writer.as_current():
            views[0].mul_(2.0)
        waiting = pool.submit(waiter.snapshot)
        for _ in range(2):
            s.snapshot()
        assert not waiting.done(), waiting
        assert waiting.result()["bytes"] >= n * n * 4
        assert "snapshot_failed" not in daemon.log
        del held
