"""A cut of the connection at any place costs only time: the same process attaches again by itself."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.cut import program
from support.daemon import HANG, wait_until
from support.proxy import Proxy
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60")


def run(tt, address, train=program):
    log = []
    with tt.connect(address):
        train(tt, log)
    return log


def nothing_left(daemon):
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()), what="memory back")
        assert not raw.sessions()


def test_cut_once_at_every_frame(daemon, tt):
    """A cut after the n-th HTTP/2 frame of either direction, for every n."""
    wanted = run(tt, daemon.unix)
    n, cuts = 1, 0
    while True:
        proxy, log = Proxy(daemon.socket), []
        with contextlib.closing(proxy), tt.connect(proxy.address):
            proxy.cut_after_frames(n)
            program(tt, log)
            done = proxy.connections == 1
        assert log == wanted, n
        if done:
            break
        cuts += 1
        n += 1
    assert cuts > 20
    nothing_left(daemon)


@pytest.mark.usefixtures("each_transport")
def test_closed_while_nobody_can_be_reached(daemon, tt):
    """The daemon learns of the end once it can be reached, and does not wait for the lease."""
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy):
        session = tt.connect(proxy.address)
        proxy.refuse()
        proxy.cut()

        def is_tried():
            wait_until(lambda: proxy.refused >= 3, what="it tries to come back")
            proxy.accept()
        network = threading.Thread(target=is_tried)
        network.start()
        session.close()
        network.join()
        nothing_left(daemon)


def small(tt, log):
    """Training whose frames are small enough to pass between two cuts."""
    x = tt.tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4))
    net = tt.nn.Linear(4, 3)
    with tt.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(tt.linspace(-1, 1, p.numel()).reshape(p.shape) + i)
    opt = tt.optim.Adam(net.parameters(), lr=0.05)
    for i in range(40):
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        opt.step()
        if i % 4 == 0:
            log.append(loss.item())
    log += [p.tolist() for p in net.parameters()]


def test_cut_at_random_bytes_again_and_again(daemon, tt):
    wanted = run(tt, daemon.unix, small)
    numbers = random.Random(7)
    cuts = 0
    for _ in range(8):
        proxy, log = Proxy(daemon.socket), []
        with contextlib.closing(proxy), tt.connect(proxy.address):
            proxy.cut_each(lambda: numbers.randrange(1500, 6000))
            small(tt, log)
            cuts += proxy.connections - 1
            proxy.cut_each(None)
        assert log == wanted
    assert cuts > 8
    nothing_left(daemon)


def test_a_question_is_cut(daemon, tt):
    """published() makes a separate call, whose answer never arrives; the client repeats it."""
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(daemon.unix) as one, tt.connect(proxy.address) as two:
        with one.as_current():
            x = tt.arange(4)
            tt.publish("w", x, writable=True)
        for n in range(5):
            proxy.pause()
            held = proxy.held
            with ThreadPoolExecutor(1) as pool:
                seen = pool.submit(two.published, "w")
                wait_until(lambda held=held: proxy.held > held, what="it has asked")
                assert not seen.done()
                proxy.cut()
                proxy.go_on()
                seen = seen.result(HANG)
            with two.as_current():
                seen.add_(1)
                assert seen.tolist() == [n + 1, n + 2, n + 3, n + 4]
        one.publish("w", None)
    nothing_left(daemon)


def bulk(tt, log):
    x = tt.tensor(np.arange(600_000, dtype=np.float32))  # 2.4 MB up
    x[3] = -1.0
    first = x.numpy()  # and down
    x += 1.0
    y = tt.tensor(np.full(300_000, 2.0, np.float32))
    log += [first.sum(dtype=np.float64), x.numpy()[:5].tolist(), float((x[:300_000] * y).sum())]


def test_uploads_and_downloads_are_cut(daemon, tt):
    wanted = run(tt, daemon.unix, bulk)
    numbers = random.Random(11)
    cuts = 0
    for _ in range(5):
        proxy, log = Proxy(daemon.socket), []
        with contextlib.closing(proxy), tt.connect(proxy.address) as s:
            proxy.cut_each(lambda: numbers.randrange(1_000_000, 4_000_000), both=True)
            bulk(tt, log)
            cuts += proxy.connections - 1
            proxy.cut_each(None)
            s.synchronize()
            with Raw(daemon.unix) as raw:
                wait_until(lambda: raw.sessions()[-1].handles == 0, what="no handle left")
                # No download or upload remains, so the memory in use is small.
                wait_until(lambda: sum(raw.used().values()) < 1 << 16, what="bulk memory back")
        assert log == wanted
    assert cuts >= 3
    nothing_left(daemon)


def test_late_errors_survive_a_cut(daemon, tt):
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(proxy.address) as s:
        w = tt.ones(3)
        proxy.pause()
        w += 1.0
        with tt.no_grad():
            w[tt.tensor([7])] = 0.0  # out of range, found by the daemon
        w += 5.0
        proxy.cut()
        proxy.go_on()
        with pytest.raises(IndexError):
            w.tolist()
        assert w.tolist() == [2.0, 2.0, 2.0]
        s.synchronize()
    nothing_left(daemon)


def test_work_goes_on_while_nobody_is_there(daemon, tt):
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(proxy.address), Raw(daemon.unix) as raw:
        x = tt.ones(1000)
        for _ in range(500):
            x = x * 1.0 + 1.0
        value = []
        reader = threading.Thread(target=lambda: value.append(float(x[0])))
        wait_until(lambda: raw.sessions()[0].completed_upto > 900)
        proxy.refuse()
        proxy.cut()
        reader.start()
        wait_until(lambda: not raw.sessions()[0].attached)
        proxy.accept()
        reader.join(HANG)
        assert value == [501.0]


def test_a_daemon_that_is_gone_is_said_soon(start_daemon, tt):
    daemon = start_daemon("--lease", "60")
    s = tt.connect(daemon.unix)
    with s:
        x = tt.ones(3)
        s.synchronize()
        daemon.process.kill()
        daemon.process.wait()
        with pytest.raises(tt.SessionLostError) as lost:
            (x + 1).tolist()
        assert lost.value.reason == "daemon"
    with contextlib.suppress(tt.SessionLostError):
        s.close()
    daemon.process.returncode = 0
    daemon.stop = lambda: ""


def test_a_session_that_was_ended_says_why(start_daemon, tt):
    daemon = start_daemon("--lease", "1")
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy):
        s = tt.connect(proxy.address)
        with s, Raw(daemon.unix) as raw:
            x = tt.ones(3).exp()  # the client does not know its value
            s.synchronize()
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: not raw.sessions())
            proxy.accept()
            with pytest.raises(tt.SessionLostError, match="no client returned") as lost:
                x.tolist()
            assert lost.value.reason == "expired"
        with contextlib.suppress(tt.SessionLostError):
            s.close()


def test_interrupt_then_cut(daemon, tt):
    """Cancelled commands stay dropped after a cut."""
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(proxy.address) as s:
        w = tt.zeros(4)
        s.synchronize()
        from teletensor._sessions.interrupt import request
        for _ in range(3000):
            w += 1.0
        request(s)
        proxy.cut()
        value = w.tolist()
        assert value == [value[0]] * 4 and 0 <= value[0] <= 3000
        w += 1.0
        assert w.tolist() == [value[0] + 1] * 4
