"""The daemon's resident memory: bounded by --host-memory and a constant, and returned to the system when it
is free. The client's resident memory of a session."""

import gc
import time

import grpc
import numpy as np
import pytest
from support.clients import client, finish
from support.daemon import SANITIZED, resident
from support.invariants import BESIDE
from support.raw import Raw

MIB = 1 << 20
OVERDRAFT = 256 * MIB  # Overdraft::kTotal

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps freed memory")


def fill(tt, total, each):
    """Tensors of `each` bytes, `total` bytes together, all written."""
    tensors = [tt.full((each // 4,), float(i)) for i in range(total // each)]
    assert tensors[-1][-1].item() == len(tensors) - 1
    return tensors


def add_names(session, commands):
    """Makes names that are never released, and reads no error. Returns False if the session has ended."""
    first = session.command(op=1, arguments=[2])  # neg of the last result
    sent = session.seq
    try:
        while session.seq - sent < commands:
            session.run(*[first] * 2048)
            while session.progress().completed_upto < session.seq - 1:
                pass
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        return False
    return True


def test_sessions_beyond_their_quota_are_bounded_together(start_daemon):
    """Clients that ignore out-of-memory errors and go on making names: what all their sessions use beyond their
    quotas is bounded, and a session of a client that makes a few more names continues."""
    daemon = start_daemon()
    with Raw(daemon.unix) as raw:
        good = raw.session(memory_quota=8 * MIB)
        good.run(good.constant([1.0]))
        assert add_names(good, 40_000)  # 22 MB of names
        sessions = [raw.session(memory_quota=8 * MIB) for _ in range(5)]
        for session in sessions:
            session.run(session.constant([1.0]))
        most = 0
        for _ in range(4):
            sessions = [session for session in sessions if add_names(session, 100_000)]
            most = max(most, resident(daemon.pid) - sum(raw.used().values()))
        assert most < BESIDE + OVERDRAFT, (most // MIB, len(sessions))
        good.run(good.fetch(1))
        assert np.frombuffer(good.fetched().data, np.float32).tolist() == [1.0]


def test_bounded_whatever_the_sizes(start_daemon, tt):
    """Free memory of one size is used for allocations of another size."""
    daemon = start_daemon("--host-memory", "640MiB")
    with tt.connect(daemon.unix) as s:
        for each in (64 * 1024, 15 * MIB, 8 * MIB, 5 * MIB, 3 * MIB, 5 * MIB // 4):
            tensors = fill(tt, 600 * MIB, each)
            assert resident(daemon.pid) < 640 * MIB + BESIDE, each
            del tensors
            gc.collect()
        s.close()


def test_free_memory_goes_back_to_the_system(start_daemon, tt):
    daemon = start_daemon("--host-memory", "2GiB")
    before = resident(daemon.pid)
    stays = tt.connect(daemon.unix)
    sessions = [tt.connect(daemon.unix) for _ in range(3)]
    for session in sessions:
        with session.as_current():
            session.tensors = [*fill(tt, 200 * MIB, 10 * MIB), *fill(tt, 50 * MIB, 50 * 1024)]
    assert resident(daemon.pid) > before + 700 * MIB
    for session in sessions:
        del session.tensors
        session.close()
    deadline = time.monotonic() + 120
    while resident(daemon.pid) > before + 100 * MIB:
        assert time.monotonic() < deadline, (resident(daemon.pid) - before) // MIB
        time.sleep(0.2)
    with stays:
        assert tt.ones(3).sum().item() == 3.0


def test_a_session_without_commands_is_small_in_its_client(start_daemon):
    """The table of the source lines of commands has 3 MiB, of which only the used part is resident."""
    daemon = start_daemon("--max-sessions", "100", "--user-sessions", "100")
    status, out, err = finish(client("""
        from support.daemon import resident
        first = tt.connect(os.environ["TT_TEST_ADDRESS"])
        before = resident(os.getpid())
        sessions = [tt.connect(os.environ["TT_TEST_ADDRESS"]) for _ in range(60)]
        print((resident(os.getpid()) - before) // len(sessions))
        """, daemon.unix))
    assert status == 0, err
    assert int(out) < MIB, out
