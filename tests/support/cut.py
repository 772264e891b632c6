"""Training runs whose connection is cut: used by the quick test and by `make chaos`."""

import numpy as np

from support.daemon import wait_until
from support.proxy import Proxy
from support.raw import Raw


def program(tt, log):
    """A short training; appends every value that was read, and its expected value, to `log`."""
    x = tt.tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4))
    w = tt.ones(4, 3, requires_grad=True)
    big = tt.tensor(np.arange(40_000, dtype=np.float32))
    for i in range(12):
        loss = ((x @ w) ** 2).mean()
        loss.backward()
        with tt.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
        big[i] = -1.0
        if i % 3 == 0:
            log.append(loss.item())
    log.append(float(big.numpy()[:14].sum()))
    log.append(w.detach().numpy().tolist())


def whole_run(tt, daemon):
    """Runs without a cut; returns (the values read, the bytes that the client sends, the HTTP/2 frames in
    both directions)."""
    proxy, log = Proxy(daemon.socket), []
    try:
        with tt.connect(proxy.address):
            proxy.cut_after(1 << 60)
            proxy.cut_after_frames(1 << 60)
            program(tt, log)
            sent, frames = proxy.sent, proxy.frames
        return log, sent, frames
    finally:
        proxy.close()


def cut_run(tt, daemon, at, wanted, frames=False):
    """One run whose connection is cut after `at` bytes or frames. Checks that every value read earlier is
    right, that the loss of the session is one clear error, and that nothing remains on the daemon. Returns
    whether the connection was cut."""
    proxy, log, lost = Proxy(daemon.socket), [], False
    try:
        with tt.connect(proxy.address) as s:
            (proxy.cut_after_frames if frames else proxy.cut_after)(at)
            try:
                program(tt, log)
            except tt.SessionLostError as error:
                assert len(str(error)) > 10
                lost = True
            s.close()
    except tt.SessionLostError:
        lost = True
    finally:
        proxy.close()
    assert log == wanted[:len(log)], (at, log)
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()), what=f"memory back after a cut at {at}")
    return lost
