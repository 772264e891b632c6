"""Faults of the box that take long, or a daemon of their own (docs/faults.md)."""

import contextlib
import os
import resource

import grpc
import numpy as np
from support.daemon import wait_until
from support.raw import Raw


def test_guessed_handles(start_daemon, tt):
    """Sequential ones, random ones, those of another session: none resolves, each ends its guesser alone."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s, s.as_current():
        held = [tt.full((4,), float(i)) for i in range(100)]
        s.synchronize()
        random = np.random.default_rng(1)
        guesses = [int(g) for g in random.integers(-(1 << 63), 1 << 63, 40)] + list(range(-60, 0))
        guesses += [int(g) for g in random.integers(1, 1 << 20, 100)]
        with Raw(daemon.unix) as raw:
            for guess in guesses:
                session = raw.session()
                program = raw.program_pb
                with contextlib.suppress(ValueError):
                    session.run(session.command(fetch=program.Fetch(handle=guess % (1 << 64))))
                    code, text = session.refusal()
                    assert code != grpc.StatusCode.OK and "full" not in text, (guess, code, text)
                session.close()
        assert [h[0].item() for h in held] == [float(i) for i in range(100)]


def test_no_more_descriptors(start_daemon, tt):
    """Who is there works on; who comes gets an error or waits, and comes in once there is room."""
    daemon = start_daemon("--lease", "0")
    with tt.connect(daemon.unix) as s, s.as_current():
        x = tt.ones(10)
        assert x.sum().item() == 10.0
        used = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
        crowd = [Raw(daemon.unix) for _ in range(20)]
        came = 0
        for raw in crowd:
            call = raw.channel.unary_unary("/teletensor.v1.Compute/Describe")
            with contextlib.suppress(grpc.RpcError):
                call(b"", timeout=0.5)
                came += 1
        assert came < 20
        assert (x + 1).sum().item() == 20.0
        for raw in crowd:
            raw.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)

        def comes():
            with Raw(daemon.unix) as raw, contextlib.suppress(grpc.RpcError):
                return bool(raw.describe().server_version)
        wait_until(comes, 60, "room for another")
        assert (x + 2).sum().item() == 30.0
