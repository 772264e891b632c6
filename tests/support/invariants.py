"""Conditions that must hold on a daemon after any fault that a test has caused (docs/faults.md)."""

import contextlib
import os
import re

import grpc
import numpy as np

from support.daemon import SANITIZED, resident, wait_until
from support.raw import Raw

PATIENCE = 60
# The maximum number of descriptors that the daemon opens once and keeps: for the state directory, tokens,
# files of moved memory and event loops.
KEPT_OPEN = 24
# The maximum resident memory of the daemon that is not charged to sessions, in bytes (docs/operating.md,
# "Budgets"). The first number is for the whole daemon: its program, free memory of the heap, and blocks that
# are larger than their tensors. The second number is added for each session.
BESIDE, BESIDE_EACH = 420 << 20, 16 << 20
SECRET = re.compile(r"tt_[0-9a-f]{16}|token[\"'=: ]+[0-9a-f]{32}")
SERVING = b"\x08\x01"  # HealthCheckResponse with the status SERVING


def serves(raw):
    """gRPC's health check, which depends on the health probe: the daemon has just computed a right
    result."""
    call = raw.channel.unary_unary("/grpc.health.v1.Health/Check")
    with contextlib.suppress(grpc.RpcError):
        return call(b"", timeout=60) == SERVING
    return False


def adds_up(raw):
    """Checks that the memory charged to sessions adds up to the memory in use, on each device."""
    charged = dict.fromkeys(raw.used(), 0)
    for session in raw.sessions():
        for memory in session.memory:
            charged[memory.device] += memory.used
    return charged == raw.used()


def in_bounds(daemon, raw):
    """Checks that the resident memory is at most the charged memory and the stated constant. Free blocks are
    returned to the system after five to ten seconds."""
    charged = sum(raw.used().values()) + BESIDE_EACH * len(raw.sessions())
    return SANITIZED or resident(daemon.pid) <= charged + BESIDE


def computes(raw):
    session = raw.session()
    session.run(session.constant([1.5, 2.0]), session.command(op=1, arguments=[2]), session.fetch(2))
    right = np.frombuffer(session.fetched().data, np.float32).tolist() == [-1.5, -2.0]
    session.end()
    session.close()
    return right


def hold(daemon):
    """Checks that the process lives and its health probe succeeds; that the charges add up, and resident
    memory is bounded by them; that a new client can compute; that no secret is in the log, and no line of it
    reports a fault of the daemon itself. Then ends all remaining sessions, and checks that their memory and
    descriptors are released and their files removed."""
    assert daemon.alive(), daemon.log[-4000:]
    with Raw(daemon.unix) as raw:
        wait_until(lambda: serves(raw), PATIENCE, "the canary sings")
        wait_until(lambda: adds_up(raw), PATIENCE, "what sessions hold is what is in use")
        wait_until(lambda: in_bounds(daemon, raw), PATIENCE, "resident memory is charged")
        assert computes(raw)
        for session in raw.sessions():
            with contextlib.suppress(grpc.RpcError):  # the session has ended in the meantime
                raw.kill(session.id)
        wait_until(lambda: not raw.sessions() and not any(raw.used().values()), PATIENCE, "every byte is back")
        wait_until(lambda: in_bounds(daemon, raw), PATIENCE, "resident memory is given back")
    wait_until(lambda: not list(daemon.state.glob("*.session")), PATIENCE, "no file is left")
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) <= daemon.descriptors + KEPT_OPEN, PATIENCE,
               "connections are closed")
    assert not SECRET.search(daemon.log), SECRET.search(daemon.log)
    wrong = [line for line in daemon.lines if re.search(r"level=(error|critical)", line)]
    surprises = [line for line in wrong if not any(word in line for word in daemon.may_say)]
    assert not surprises, "".join(surprises)
