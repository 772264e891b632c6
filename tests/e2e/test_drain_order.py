"""The order in which a shutdown writes sessions, when the disk or the time does not suffice for all of them:
large sessions of one user do not cost another user a small one."""

import re

import numpy as np
import pytest
from support.faults import Disk

pytestmark = pytest.mark.usefixtures("invariants")

MIB = 1 << 20
KEEPS = ("--lease", "120", "--restart", "60")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def filled(tt, session, bytes, seed):
    """A tensor of random bytes in the session, and its contents."""
    data = np.random.default_rng(seed).integers(0, 255, bytes, np.uint8)
    with session.as_current():
        tensor = tt.tensor(data)
        session.synchronize()
    return tensor, data


def incomplete(log):
    """The numbers of the sessions that the shutdown lost, or kept without some of their tensors."""
    found = re.findall(r"event=(?:session_lost|session_goes_back|tensors_lost) .*?\bid=(\d+)", log)
    return {int(number) for number in found}


def test_a_disk_with_room_for_a_part_keeps_small_sessions_and_some_of_each_user(
        start_daemon, tt, new_token, disk):
    """64 sessions of four users. One user has sixteen large ones with names, which have worked last."""
    daemon = start_daemon(*KEEPS, "--drain", "60", env=disk.environment)
    tokens = {user: new_token(daemon, user) for user in ("alice", "bob", "carol", "mallory")}
    held = []  # (user, session, tensor, contents)

    def work(user, bytes, **how):
        session = tt.connect(daemon.unix, token=tokens[user], **how)
        held.append((user, session, *filled(tt, session, bytes, len(held))))

    for user, largest in (("alice", MIB), ("bob", 2 * MIB), ("carol", 8000)):
        work(user, largest)
        for i in range(15):
            work(user, 1000 * (i + 1))
    for i in range(16):
        work("mallory", MIB, name=f"large{i}")
    disk.room("sessions/", 8 * MIB)
    daemon.drain()
    lost = incomplete(daemon.log)
    assert {user for user, session, *_ in held if session.id in lost} == {"mallory"}, daemon.log
    complete = [session.id for user, session, *_ in held if user == "mallory" and session.id not in lost]
    assert 3 <= len(complete) < 16, daemon.log
    disk.good()
    daemon.restart()
    for user, session, tensor, data in held:
        if session.id not in lost:
            with session.as_current():
                np.testing.assert_array_equal(tensor.numpy(), data, err_msg=user)
        session.close()


def test_large_sessions_do_not_use_the_time_of_a_small_one(start_daemon, tt, new_token, disk):
    """The disk is so slow that the time does not suffice for the large sessions of the other user, which have
    names and have worked last."""
    daemon = start_daemon(*KEEPS, "--drain", "6", env=disk.environment)
    alice, mallory = new_token(daemon, "alice"), new_token(daemon, "mallory")
    small = tt.connect(daemon.unix, token=alice)
    tensor, data = filled(tt, small, 8192, 1)
    large = [tt.connect(daemon.unix, token=mallory, name=f"large{i}") for i in range(2)]
    tensors = [filled(tt, session, 64 * MIB, 2) for session in large]
    disk.slow("sessions/", 150)
    daemon.drain()
    lost = incomplete(daemon.log)
    assert lost and lost <= {session.id for session in large}, daemon.log
    disk.good()
    daemon.restart()
    with small.as_current():
        np.testing.assert_array_equal(tensor.numpy(), data)
    small.close()
    for session in large:
        session.close()
    del tensors
