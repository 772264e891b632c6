"""Sessions on one GPU, over the fake driver: each has a stream, and streams wait for each other only if
memory passes from one session to another.
"""

import subprocess
import sys
import threading

import numpy as np
from support.cuda import fake
from support.daemon import wait_until
from support.http import ask, samples, scrape


def test_sessions_that_share_a_gpu_get_the_bits_of_one_alone(start_daemon):
    import teletensor as tt

    flags, environment = fake("--device-memory", "24MiB", memory=48)
    daemon = start_daemon(*flags, env=environment)

    def work(seed, rounds=5):
        """A sum over tensors of changing sizes, whose memory belonged to other sessions a moment ago."""
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
        wait_until(lambda: session.status()["lane_seconds"] > 0, what="what the lane had is told when it is given back")


def test_what_a_gpu_does_is_told(start_daemon):
    """The GPU's figures appear in /metrics, in `teletensor memory` and `top`, and in the dashboard."""
    import teletensor as tt

    flags, environment = fake()
    daemon = start_daemon(*flags, env=environment)

    def told(name, **labels):
        found = samples(scrape(daemon))
        return found.get((f"teletensor_device_{name}", tuple(sorted({"device": "cuda:0", **labels}.items()))))
    with tt.connect(daemon.unix):
        assert told("host_calls_total", op="geqrf") is None
        x = tt.ones(1 << 18, device="cuda")
        (x + 1).sum().item()
        tt.geqrf(x[:16].reshape(4, 4))[0].sum().item()
        used, held = told("memory_bytes", kind="used"), told("memory_bytes", kind="held")
        assert 1 << 20 <= used <= held <= told("memory_bytes", kind="total")
        assert told("host_calls_total", op="geqrf") == 1
        assert told("work_total", kind="instruction") >= 3 and told("launches_total") >= 3
        assert told("work_total", kind="loop") is not None
        made = [told("kernels_made_total", how=how) for how in ("compiled", "read", "refused")]
        assert made[0] + made[1] == told("kernels") >= 2 and made[2] == 0
        # A batch is counted when the next status query finds that it has ended.
        wait_until(lambda: x.sum().item() == 1 << 18 and told("busy_seconds_total") > 0, what="a batch that has ended")
        wait_until(lambda: told("batches_in_flight") <= 4, what="few batches")

        text = command(daemon, "memory")
        gpu = next(line for line in text.splitlines() if line.startswith("cuda:0") and line.endswith(" 1"))
        assert "KERNELS" in text and " s " in gpu
        top = command(daemon, "top", "--interval", "0.1", "--count", "1")
        assert "batches in flight" in next(line for line in top.splitlines() if line.startswith("cuda:0: "))
        token = command(daemon, "token", "create", "root", "--role", "admin").strip()
        state = ask(daemon.http, "/api/state", token=token).json
        assert state["gpus"][0]["device"] == "cuda:0" and state["gpus"][0]["on_host"] == 1
        assert next(d["held"] for d in state["devices"] if d["device"] == "cuda:0") == held


def command(daemon, *words):
    """Returns the output of a command of the CLI."""
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", *words, "--address", daemon.unix],
                          capture_output=True, text=True, timeout=60, check=True)
    return done.stdout
