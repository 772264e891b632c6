"""Late errors that a client neither raises nor reads are charged to its session (engine/runtime/failures.h), and
their texts are bounded (server/session/late_errors.h)."""

import grpc
import pytest
from attacks.errors import ErrorFlood
from support.daemon import wait_until
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")

MIB = 1 << 20
PER_ERROR = 320  # Failures::kPerFailure


def test_errors_that_nobody_raises_are_charged(start_daemon, tt):
    """The memory of a session has the errors beside the names of the failed results, and another session
    computes."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s, s.as_current(), Raw(daemon.unix) as raw:
        good = tt.ones(3)
        s.synchronize()  # its memory is charged before the flood's
        before = raw.used()["cpu"]
        with ErrorFlood(daemon.unix) as attack:
            attack.flood(40_000)
            wait_until(lambda: raw.used()["cpu"] - before > attack.sent * PER_ERROR, 60, "the errors are charged")
            assert good.tolist() == [1.0] * 3


def test_a_flood_runs_out_of_its_quota(start_daemon, tt):
    """A session of 16 MiB does not get more than that, and loses nothing else than its own commands."""
    daemon = start_daemon("--session-memory", "16MiB")
    with tt.connect(daemon.unix) as s, s.as_current(), Raw(daemon.unix) as raw:
        good = tt.ones(3)
        s.synchronize()  # its memory is charged before the flood's
        before = raw.used()["cpu"]
        with ErrorFlood(daemon.unix) as attack:
            attack.flood(60_000)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] in attack.codes
            assert raw.used()["cpu"] - before <= 16 * MIB
            assert good.tolist() == [1.0] * 3


def test_each_unread_error_is_reported(start_daemon):
    daemon = start_daemon()
    with ErrorFlood(daemon.unix) as attack:
        attack.flood_unread(10_000)
        attack.read()
        assert attack.errors == attack.sent
        assert attack.codes == {grpc.StatusCode.INVALID_ARGUMENT.value[0]}
