"""Keeps a daemon busy until the test ends the work, so that tests depend on the order of events and not on
speed."""

import contextlib

from support.daemon import wait_until


def endless(x):
    while x.sum() > 0:
        x = x * 1.0
    return x


def until(x, gate):
    while gate.sum() > 0:
        x = x * 1.0
    return x


def occupy(tt):
    """A tensor whose computation continues until an interrupt or the end of the session. Later commands of
    the current session stay in the queue until then."""
    return tt.jit.script(endless)(tt.ones(1))


@contextlib.contextmanager
def held(tt, session):
    """Commands that `session` issues inside the block are queued, and run together at its end. Requires a
    UNIX socket."""
    with tt.connect(session.address) as opener:
        with opener.as_current():
            gate, name = tt.ones(1), f"gate {opener.id}"
            tt.publish(name, gate, writable=True)
            opener.synchronize()
        with session.as_current():
            running = tt.jit.script(until)(tt.ones(1), tt.published(name))
        try:
            with session.as_current():
                yield
        finally:
            with opener.as_current():
                gate.zero_()
                tt.publish(name, None)
                opener.synchronize()
            del running


def factorize_published(tt, busy, others, n):
    """Publishes a matrix of n x n numbers as "w" in the session `busy` and factorizes it there, which holds a
    lane and the tensor for seconds and cannot be interrupted. Returns when the kernel runs: the tensor "w" of
    each of the other sessions, and what must be kept until the end of the test."""
    with busy.as_current():
        w = tt.rand(n, n)
        tt.publish("w", w, writable=True)
        busy.synchronize()
    views = []
    for session in others:
        with session.as_current():
            views.append(tt.published("w"))
            session.synchronize()
    with busy.as_current():
        factors = tt.compile(tt.linalg.svd)(w)  # a captured function does not wait for its factorization
    # The memory of the results and of LAPACK's workspace is in use.
    wait_until(lambda: busy.status()["memory"][0]["used"] > 7 * n * n * 4, what="a lane is inside LAPACK")
    return views, (w, factors)
