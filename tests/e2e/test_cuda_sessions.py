"""Sessions on one GPU, behind the fake driver: a stream each, which wait for each other where memory goes from
one to the other, and nowhere else. The fake driver runs streams late and in any order that events allow.
"""

import threading

import numpy as np
from support.cuda import fake


def test_sessions_that_share_a_gpu_get_the_bits_of_one_alone(start_daemon):
    import teletensor as tt

    flags, environment = fake("--device-memory", "24MiB", memory=48)
    daemon = start_daemon(*flags, env=environment)

    def work(seed, rounds=5):
        """A sum over tensors of changing sizes, whose memory other sessions had a moment ago."""
        random, total = np.random.default_rng(seed), 0.0
        for _ in range(rounds):
            size = int(random.integers(1, 4)) << 17
            x = tt.tensor(random.integers(0, 9, size).astype(np.float32)).to("cuda")
            y = x * 2 + tt.full((size,), 3.0, device="cuda")
            total += y.sum().item()
            del x, y
        return total

    with tt.connect(daemon.unix):
        wanted = [work(seed) for seed in range(3)]
    found = {}

    def session(seed):
        with tt.connect(daemon.unix):
            found[seed] = work(seed)
    threads = [threading.Thread(target=session, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(seed) for seed in range(3)] == wanted


def test_a_published_tensor_on_a_gpu_is_written_in_turns(start_daemon):
    import teletensor as tt

    flags, environment = fake()
    daemon = start_daemon(*flags, env=environment)
    owner = tt.connect(daemon.unix)
    other = tt.connect(daemon.unix)
    with owner.as_current():
        x = tt.zeros(1000, device="cuda")
        tt.publish("x", x, writable=True)
        owner.synchronize()
    with other.as_current():
        y = tt.published("x")
    for i in range(1, 30):
        with owner.as_current():
            x.add_(1.0)
            x.mul_(2.0)
            owner.synchronize()
        with other.as_current():
            y.sub_(float(i))
            assert y[0].item() == y[999].item()
            other.synchronize()
    value = 0.0
    for i in range(1, 30):
        value = (value + 1.0) * 2.0 - i
    with owner.as_current():
        assert x[500].item() == value
    other.close()
    owner.close()


def test_time_of_the_device_is_charged(start_daemon):
    import teletensor as tt

    flags, environment = fake()
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix) as session:
        x = tt.ones(1 << 16, device="cuda")
        for _ in range(300):
            x = x + 1.0
        tt.cuda.synchronize()
        assert x[0].item() == 301.0
        assert session.status()["lane_seconds"] > 0
