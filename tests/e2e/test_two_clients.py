"""Two clients at once: one floods its queue, and the other gets right results meanwhile."""

import numpy as np
import pytest
from support.clients import client, finish, wait_line
from support.daemon import SANITIZED, wait_until
from support.raw import Raw

FLOODS = {
    "small ops": "x = (x * 1.0001 + 0.5).tanh()",
    "large ops": "x = x.expand(2000, 500) * 1.5; x = (x + 1).mean(0)",
    "products": "x = (y @ y).tanh().mean(0) + x",
    "uploads": "x = tt.tensor(np.ones(500_000, np.float32))[:500]",
    "reads": "x = x + 1; x.numpy()",
    "tape": "z = (x * w).sin(); x = z.detach()",
}

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.mark.parametrize("kind", FLOODS)
def test_reads_are_right_while_another_client_floods(start_daemon, tt, kind):
    daemon = start_daemon()
    flood = client(f"""
        x, y = tt.ones(500), tt.ones(500, 500) / 500
        w = tt.ones(500, requires_grad=True)
        print("flooding", flush=True)
        count = 0
        while not os.path.exists({daemon.folder + "/stop"!r}):
            {FLOODS[kind]}
            count += 1
        print("issued", count, x.shape, float(x.sum().item()), flush=True)
    """, daemon.unix)
    wait_line(flood, "flooding")
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.sessions()[0].completed_upto > 50, what="the flood")
    rng = np.random.default_rng(3)
    with tt.connect(daemon.unix) as s:
        base = rng.standard_normal((40, 40)).astype(np.float32)
        x = tt.tensor(base)
        for i in range(100):  # while the other client's work does not end
            got = (x * i + x.t()).numpy()
            assert np.array_equal(got, base * np.float32(i) + base.T)
        assert flood.poll() is None, "the flood ended before the reads did"
        s.close()
    with open(daemon.folder + "/stop", "w", encoding="ascii"):
        pass
    if SANITIZED:  # such a daemon needs minutes for the flood's commands
        flood.kill()
        flood.communicate()
        return
    status, out, err = finish(flood)  # it waits for all that it has issued
    assert status == 0 and "issued" in out, (out, err)


def test_sessions_share_nothing(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix) as a, tt.connect(daemon.unix) as b:
        with a:
            x = tt.ones(3)
        with b:
            y = tt.ones(3) * 2
            with pytest.raises(RuntimeError, match="session"):
                x + y
            with pytest.raises(RuntimeError, match="session"):
                tt.cat([x, y])
            with pytest.raises(RuntimeError, match="session"):
                y.add_(x)
            with pytest.raises(RuntimeError, match="session"):
                y[0] = x[0]
            assert y.tolist() == [2.0] * 3
        assert x.tolist() == [1.0] * 3
        a.close()
        with b:
            assert (y + 1).tolist() == [3.0] * 3
        with pytest.raises(RuntimeError):
            x.numpy()
