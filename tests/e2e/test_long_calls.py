"""Calls of LAPACK that take long and cannot be interrupted do not keep the lanes from other sessions."""

import signal

import numpy as np
import pytest
from support.daemon import wait_until
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")

N = 4000  # A decomposition takes at least several seconds.


@pytest.mark.parametrize("lanes, busy, batch", [(1, 1, 1), (2, 3, 1), (2, 1, 3)])
def test_a_neighbour_works_while_every_lane_could_be_inside_lapack(start_daemon, tt, lanes, busy, batch):
    """More sessions than lanes, or more matrices than lanes, are inside LAPACK. Another session connects, computes
    and reads; all decompositions still run afterwards."""
    daemon = start_daemon("--lanes", str(lanes), "--drain", "1")
    sessions = [tt.connect(daemon.unix, name=f"busy{i}") for i in range(busy)]
    results = []
    for session in sessions:
        with session.as_current():  # a captured function does not wait for its result
            results.append(tt.compile(tt.linalg.svd)(tt.rand(batch, N, N)))

    def inside(raw):
        """The sessions whose results and workspace are in use: LAPACK has been called and has not returned."""
        return {s.name for s in raw.sessions() if s.memory[0].used > 6 * batch * N * N * 4}

    everyone = {session.name for session in sessions}
    with Raw(daemon.unix) as raw:
        wait_until(lambda: inside(raw) >= everyone, what="all of them are inside LAPACK")
        with tt.connect(daemon.unix).as_current() as neighbour:
            host = np.arange(10_000, dtype=np.float32)
            for i in range(20):
                x = tt.tensor(host)
                assert ((x * 2 + i).numpy() == host * 2 + i).all()
            assert tt.linalg.det(tt.eye(3)).item() == 1
            neighbour.close()
        assert inside(raw) >= everyone
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0  # does not wait for the decompositions
    daemon.restart()
    del results


def test_the_result_of_a_long_call(start_daemon, tt):
    """A decomposition that leaves its lane has the bits of one that does not, and its session continues."""
    daemon = start_daemon("--lanes", "2")
    generator = np.random.default_rng(1)
    matrices = generator.standard_normal((3, 700, 700)).astype(np.float32)
    with tt.connect(daemon.unix).as_current() as s:
        a = tt.tensor(matrices)
        u, values, v = tt.linalg.svd(a)
        single = tt.linalg.svd(a[1])
        assert (values[1] == single[1]).all() and (u[1] == single[0]).all()
        np.testing.assert_allclose(values.numpy(), np.linalg.svd(matrices, compute_uv=False), rtol=1e-4, atol=1e-3)
        again = (u * values[:, None, :]) @ v
        np.testing.assert_allclose(again.numpy(), matrices, atol=2e-3)
        s.close()
