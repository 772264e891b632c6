"""The daemon's resident memory: bounded by --host-memory and a constant, and returned to the system when it
is free."""

import gc
import time
from pathlib import Path

import pytest
from support.daemon import SANITIZED

MIB = 1 << 20

# The memory beyond --host-memory that docs/operating.md states for the process, for one small session.
BESIDE = 400 * MIB

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps freed memory")


def resident(daemon):
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def fill(tt, total, each):
    """Tensors of `each` bytes, `total` bytes together, all written."""
    tensors = [tt.full((each // 4,), float(i)) for i in range(total // each)]
    assert tensors[-1][-1].item() == len(tensors) - 1
    return tensors


def test_bounded_whatever_the_sizes(start_daemon, tt):
    """Free memory of one size is used for allocations of another size."""
    daemon = start_daemon("--host-memory", "640MiB")
    with tt.connect(daemon.unix) as s:
        for each in (64 * 1024, 15 * MIB, 8 * MIB, 5 * MIB, 3 * MIB, 5 * MIB // 4):
            tensors = fill(tt, 600 * MIB, each)
            assert resident(daemon) < 640 * MIB + BESIDE, each
            del tensors
            gc.collect()
        s.close()


def test_free_memory_goes_back_to_the_system(start_daemon, tt):
    daemon = start_daemon("--host-memory", "2GiB")
    before = resident(daemon)
    stays = tt.connect(daemon.unix)
    sessions = [tt.connect(daemon.unix) for _ in range(3)]
    for session in sessions:
        with session.as_current():
            session.tensors = [*fill(tt, 200 * MIB, 10 * MIB), *fill(tt, 50 * MIB, 50 * 1024)]
    assert resident(daemon) > before + 700 * MIB
    for session in sessions:
        del session.tensors
        session.close()
    deadline = time.monotonic() + 120
    while resident(daemon) > before + 100 * MIB:
        assert time.monotonic() < deadline, (resident(daemon) - before) // MIB
        time.sleep(0.2)
    with stays:
        assert tt.ones(3).sum().item() == 3.0
