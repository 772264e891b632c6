"""Each allocation for a stream or a call fails, one after the other, or several in a row: the result is an
error or the right value, never a wrong one, no caller waits forever, and the daemon does not end."""

import contextlib
import http.client
import threading

import numpy as np
import pytest
from support.daemon import HANG, wait_until
from support.faults import Memory
from support.http import ask
from support.proxy import Proxy
from teletensor._tools.admin import Admin

MOST = 40  # tested allocations of each request that does not compute, in even steps
# How many allocations fail in a row: also those of the error's own path.
ROWS = (1, 4)


def compute(tt, session, daemon):
    return (tt.tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]


def train(tt, session, daemon):
    w = tt.ones(4, requires_grad=True)
    (w * w).sum().backward()
    return w.grad.tolist() == [2.0] * 4


def move(tt, session, daemon):
    values = np.arange(1 << 17, dtype=np.float32)
    return bool(((tt.tensor(values) * 2).numpy() == values * 2).all())


def call(tt, session, daemon):
    f = tt.compile(lambda a: (a * 2 + 1).sum())
    x = tt.ones(3)
    return [f(x).item(), f(x).item()] == [9.0, 9.0]


def snapshot(tt, session, daemon):
    x = tt.ones(3)
    return session.snapshot()["command"] > 0 and x.shape == (3,)


def transfer(tt, session, daemon):
    """An upload and a download in streams of their own."""
    values = np.arange(1 << 18, dtype=np.float32)
    with tt.connect(daemon.tcp, token=daemon.token):
        return bool(((tt.tensor(values) * 2).numpy() == values * 2).all())


def begin(tt, session, daemon):
    with tt.connect(session.address) as other:
        return compute(tt, other, daemon)


def end(tt, session, daemon):
    other = tt.connect(session.address)
    with other.as_current():
        x = tt.ones(3) + 1
    other.close()
    return x is not None


def take_over(tt, session, daemon):
    """The session is restored with its kept tensors; if it was lost during the test it is a new one."""
    other = tt.connect(session.address, name="taken")
    kept = other.kept()
    right = not kept or kept["x"].tolist() == [1.0] * 3
    with other.as_current():
        other.keep("x", tt.ones(3))
    other.synchronize()
    other.detach()
    return right


def resume(tt, session, daemon):
    """The connection is cut while values wait."""
    with contextlib.closing(Proxy(daemon.socket)) as proxy, tt.connect(proxy.address):
        x = tt.ones(3) + 1
        x.tolist()
        proxy.cut()
        return (x + 1).tolist() == [3.0] * 3


def publish(tt, session, daemon):
    x = tt.ones(3)
    session.publish("shown", x)
    right = session.published("shown").tolist() == [1.0] * 3
    session.publish("shown", None)
    return right


def look(tt, session, daemon):
    with session.profile() as profile:
        right = compute(tt, session, daemon)
    return right and session.memory()[0]["used"] >= 0 and "limits" in session.status() and bool(profile.table())


def administer(tt, session, daemon):
    admin = Admin(session._transport)
    made = admin.create_token("someone", "user")
    right = made["id"] in [each["id"] for each in admin.tokens()]
    admin.revoke_token(made["id"])
    admin.slow_log(), admin.publications(), admin.groups()
    return right and bool(admin.memory()) and bool(admin.sessions()[0])


def browse(tt, session, daemon):
    """HTTP: a request without memory is answered with an error, or its connection ends."""
    pages = [ask(daemon.http, path, token=daemon.monitor) for path in ("/metrics", "/readyz")]
    return all(page.status in (200, 500) for page in pages)


COMPUTING = [compute, train, move, call]  # all allocations
REQUESTS = [*COMPUTING, transfer, snapshot, begin, end, take_over, resume, publish, look, administer, browse]
# What a client raises for a request or a session that has ended.
ERRORS = (RuntimeError, MemoryError, KeyError, OSError, http.client.HTTPException)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("request_of", REQUESTS)
def test_every_allocation(start_daemon, tt, tmp_path, request_of):
    memory = Memory(tmp_path)
    daemon = start_daemon("--lease", "60", "--restart", "60", env=memory.environment)

    def act(session, told):
        try:
            with session.as_current():
                told.append(request_of(tt, session, daemon))
        except (tt.TeletensorError, *ERRORS) as error:
            told.append(error)

    with tt.connect(daemon.unix) as first:
        told = []
        act(first, told)
        count = memory.count(lambda: act(first, told))
        assert told == [True, True]
    memory.end()
    failed = ended = 0
    most = count if request_of in COMPUTING else MOST
    for step, n in enumerate(sorted({1 + i * count // most for i in range(most)})):
        session = tt.connect(daemon.unix)
        admin = Admin(session._transport)
        wait_until(lambda admin=admin: not admin.publications(), what="nothing of the session before is published")
        with session.as_current():
            assert request_of(tt, session, daemon)
        told = []
        memory.fail(n, ROWS[step % len(ROWS)])
        thread = threading.Thread(target=act, args=(session, told))
        thread.start()
        wait_until(lambda thread=thread: not thread.is_alive() or not daemon.alive(), what=f"an answer to {n}")
        failed += memory.end()
        if not daemon.alive():
            ended += 1
            where = daemon.log[-8000:]
            print(f"{request_of.__name__}: allocation {n} ended the daemon:\n{where}")
            daemon.restart()
            thread.join(HANG)
            session.close()
            continue
        assert told[0] is not False, n
        assert not isinstance(told[0], Exception) or "of another version" not in str(told[0]), told
        with tt.connect(daemon.unix) as other:
            assert compute(tt, other, daemon)
        session.close()
    print(f"{request_of.__name__}: {failed} of {count} allocations failed, {ended} of them ended the daemon")
    # No allocation is known that does; of those that were not tested, a few may be inside of gRPC (docs/faults.md).
    assert ended <= (0 if request_of in COMPUTING else failed // 20)
    assert failed > min(count, most) // 3
