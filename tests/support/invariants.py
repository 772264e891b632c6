"""What holds on a daemon after any fault that a test has put upon it (docs/faults.md)."""

import contextlib
import os
import re

import grpc
import numpy as np

from support.daemon import wait_until
from support.raw import Raw

PATIENCE = 60
# Opened once and kept: the state directory, tokens, files of moved memory, event loops.
KEPT_OPEN = 24
SECRET = re.compile(r"tt_[0-9a-f]{16}|token[\"'=: ]+[0-9a-f]{32}")
SERVING = b"\x08\x01"  # HealthCheckResponse


def serves(raw):
    """gRPC's health check, which follows the canary: it has computed right just now."""
    call = raw.channel.unary_unary("/grpc.health.v1.Health/Check")
    with contextlib.suppress(grpc.RpcError):
        return call(b"", timeout=60) == SERVING
    return False


def adds_up(raw):
    """What sessions have been charged for is what is in use, on each device."""
    charged = dict.fromkeys(raw.used(), 0)
    for session in raw.sessions():
        for memory in session.memory:
            charged[memory.device] += memory.used
    return charged == raw.used()


def computes(raw):
    session = raw.session()
    session.run(session.constant([1.5, 2.0]), session.command(op=1, arguments=[2]), session.fetch(2))
    right = np.frombuffer(session.fetched().data, np.float32).tolist() == [-1.5, -2.0]
    session.end()
    session.close()
    return right


def hold(daemon):
    """The process lives and the canary sings; charges add up; who is new computes; nobody's secret is in the log,
    and no line of it says that something of ours is wrong. Then ends every session that is left: their bytes and
    descriptors come back, their files go."""
    assert daemon.alive(), daemon.log[-4000:]
    with Raw(daemon.unix) as raw:
        wait_until(lambda: serves(raw), PATIENCE, "the canary sings")
        wait_until(lambda: adds_up(raw), PATIENCE, "what sessions hold is what is in use")
        assert computes(raw)
        for session in raw.sessions():
            with contextlib.suppress(grpc.RpcError):  # it ended just now
                raw.kill(session.id)
        wait_until(lambda: not raw.sessions() and not any(raw.used().values()), PATIENCE, "every byte is back")
    wait_until(lambda: not list(daemon.state.glob("*.session")), PATIENCE, "no file is left")
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) <= daemon.descriptors + KEPT_OPEN, PATIENCE,
               "connections are closed")
    assert not SECRET.search(daemon.log), SECRET.search(daemon.log)
    wrong = [line for line in daemon.lines if re.search(r"level=(error|critical)", line)]
    surprises = [line for line in wrong if not any(word in line for word in daemon.may_say)]
    assert not surprises, "".join(surprises)
