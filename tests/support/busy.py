"""Keeps a daemon busy until the test ends the work, so that tests depend on the order of events and not on
speed."""

import contextlib


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
