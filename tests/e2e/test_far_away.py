"""A slow network: lines do not wait, and a bad network costs only time."""

import contextlib
import threading

import numpy as np
import pytest
from support.daemon import HANG
from support.far import Far
from support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("invariants", "each_transport")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60")


def train(tt, steps, read=lambda step, loss: None):
    """The parameters of a model after `steps` training steps."""
    tt.manual_seed(3)
    x = tt.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4))
    net = tt.nn.Sequential(tt.nn.Linear(4, 16), tt.nn.Tanh(), tt.nn.Dropout(0.1), tt.nn.Linear(16, 2))
    optimizer = tt.optim.Adam(net.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        read(step, loss)
    return list(net.parameters())


def values(parameters):
    return [p.detach().numpy().tobytes() for p in parameters]


def test_training_over_a_bad_network(daemon, tt):
    """A round trip of 200 ms, 2 % of the packets lost, and repeated cuts: the same bits."""
    def run(cut):
        losses = []

        def read(step, loss):
            if step % 30 == 25:
                cut()
            if step % 10 == 0:
                losses.append(loss.item())
        weights = train(tt, 120, read)
        return losses, values(weights)

    with tt.connect(daemon.unix):
        wanted = run(lambda: None)
    far = Far(daemon.socket, trip=0.2, jitter=0.02, loss=0.02)
    with contextlib.closing(far):
        with tt.connect(far.address):
            assert run(far.cut) == wanted
        assert far.connections > 4


def test_lines_wait_for_nobody(daemon, tt):
    """A hundred training steps are issued while no byte gets through."""
    with tt.connect(daemon.unix):
        wanted = values(train(tt, 100))
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(proxy.address):
        tt.synchronize()
        proxy.pause()
        late = threading.Timer(HANG, proxy.go_on)
        late.start()
        parameters = train(tt, 100)
        assert late.is_alive(), "something waited for the daemon"
        late.cancel()
        proxy.go_on()
        assert values(parameters) == wanted
