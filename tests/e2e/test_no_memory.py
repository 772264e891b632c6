"""Each allocation of what a stream brings fails, one after the other: an error or the right value, never a wrong
one, and nobody waits for ever. Where nothing can be said any more the process ends, and the next one has what was
written down."""

import threading

import numpy as np
import pytest
from support.daemon import wait_until
from support.faults import Memory

MOST = 25  # allocations of each request


def compute(tt, session):
    return (tt.tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]


def train(tt, session):
    w = tt.ones(4, requires_grad=True)
    (w * w).sum().backward()
    return w.grad.tolist() == [2.0] * 4


def move(tt, session):
    values = np.arange(1 << 17, dtype=np.float32)
    return bool(((tt.tensor(values) * 2).numpy() == values * 2).all())


def call(tt, session):
    f = tt.compile(lambda a: (a * 2 + 1).sum())
    x = tt.ones(3)
    return [f(x).item(), f(x).item()] == [9.0, 9.0]


def goes_on(tt, daemon):
    """Who is new computes; else the daemon has ended."""
    try:
        with tt.connect(daemon.unix) as other:
            return compute(tt, other)
    except tt.TeletensorError:
        wait_until(lambda: not daemon.alive(), 60, "the daemon has ended, or answers")
        return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("request_of", [compute, train, move, call])
def test_every_allocation(start_daemon, tt, tmp_path, request_of):
    memory = Memory(tmp_path)
    daemon = start_daemon("--lease", "60", "--restart", "60", env=memory.environment)
    with tt.connect(daemon.unix, name="written") as first:
        first.keep("mark", tt.tensor([7.0]))
        first.snapshot()
        first.detach()
    failed = ended = 0
    for n in range(1, MOST + 1):
        session = tt.connect(daemon.unix)
        with session.as_current():
            assert request_of(tt, session)
        told = []

        def act(session=session, told=told):
            try:
                with session.as_current():
                    told.append(request_of(tt, session))
            except (tt.TeletensorError, RuntimeError, MemoryError) as error:
                told.append(error)
        memory.fail(n)
        thread = threading.Thread(target=act)
        thread.start()
        wait_until(lambda thread=thread: not thread.is_alive() or not daemon.alive(), 60, f"an answer to {n}")
        failed += memory.end()
        if not goes_on(tt, daemon):
            ended += 1
            assert "bad_alloc" in daemon.log, daemon.log[-4000:]
            daemon.restart()
            with tt.connect(daemon.unix, name="written") as again:
                assert again.kept()["mark"].tolist() == [7.0]
                again.snapshot()
                again.detach()
        thread.join(60)
        assert not thread.is_alive() and told[0] is not False, (n, told)
        assert goes_on(tt, daemon)
        session.close()
    print(f"{request_of.__name__}: {failed} allocations failed, {ended} of them ended the daemon")
    assert failed > 3 and ended < failed
