"""Networks that drop all packets silently, and clients whose pings violate the rules."""

import concurrent.futures
import contextlib
import time

import grpc
import pytest
from support.daemon import HANG, wait_until
from support.http2 import PING, Peer
from support.proxy import Proxy
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")


class Way:
    """A client with its own proxy to the daemon, which waits for a value that the proxy has dropped."""

    def __init__(self, tt, daemon, transport):
        self.daemon, self.proxy = daemon, Proxy(daemon.socket, tcp=True)
        self.session = tt.connect(self.proxy.address)
        assert self.session.transport == transport
        with self.session.as_current():
            self.x = tt.full((1000,), 2.0)
            self.session.synchronize()
        self.proxy.swallow()
        with self.session.as_current():
            self.y = self.x.mul_(3).sum()

    @property
    def attached(self):
        """The state of the session as the pair (client, daemon) sees it; None if the daemon has no
        session."""
        with Raw(self.daemon.unix) as raw:
            daemon = [s.attached for s in raw.sessions()]
        return self.session._transport._keeper.attached, daemon[0] if daemon else None


def test_a_network_that_swallows_everything(start_daemon, tt, monkeypatch):
    """Both sides notice the loss by themselves. If the network works again before the lease ends, the client
    continues, and no command runs twice. Otherwise the session ends and its memory is freed; the client gets
    an error and can open a new session."""
    back, gone = [], []
    with contextlib.ExitStack() as end, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for transport in ("native", "grpcio"):
            monkeypatch.setenv("TELETENSOR_TRANSPORT", transport)
            for ways, lease in ((back, "300"), (gone, "1")):
                ways.append(Way(tt, start_daemon("--lease", lease), transport))
                end.callback(ways[-1].proxy.close)
        waiting = {way: pool.submit(way.y.item) for way in back + gone}
        for way in back:
            wait_until(lambda way=way: way.attached == (False, False), what="both sides notice")
        for way in gone:
            wait_until(lambda way=way: way.attached == (False, None), what="the lease is over")
            with Raw(way.daemon.unix) as raw:
                wait_until(lambda raw=raw: not any(raw.used().values()), what="memory back")
        assert not any(value.done() for value in waiting.values())
        for way in back + gone:
            way.proxy.restore()
        for way in back:
            assert waiting[way].result(HANG) == 6000.0
            way.session.close()
        for way in gone:
            with pytest.raises(tt.SessionLostError, match="no client returned"):
                waiting[way].result(HANG)
            with tt.connect(way.proxy.address):
                assert tt.ones(3).sum().item() == 3.0
            way.session.close()


def pings(peer, pause, most):
    """Sends pings until the other side refuses them, at most the given number, each the given time after the
    previous one was acknowledged, so that the interval at the other side is never shorter."""
    for _ in range(most):
        before = peer.seen[PING]
        peer.send(PING, 0, 0, b"12345678")
        wait_until(lambda before=before: peer.read(0.1) or peer.closed or peer.seen[PING] > before, what="a reply")
        if peer.closed:
            break
        time.sleep(pause)
    return [code for code in peer.codes if str(code).startswith("goaway")]


def test_pings_that_are_too_many(start_daemon, tt):
    """The connection ends with GOAWAY (11: ENHANCE_YOUR_CALM); another session is not affected. One ping in
    2 s is allowed, and the client sends one in 10 s."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as session, Peer(daemon.tcp) as rude, Peer(daemon.tcp) as polite:
        x = tt.arange(4)
        for peer in (rude, polite):
            peer.read(HANG)
        assert pings(rude, 0, 100) == ["goaway 11"]
        assert pings(polite, 2.2, 4) == [] and not polite.closed
        assert x.sum().item() == 6 and session._transport._keeper.attach == 1


def test_a_client_whose_keepalive_is_too_short_is_told(start_daemon):
    daemon = start_daemon("--lease", "0")
    with Raw(daemon.tcp, ("grpc.keepalive_time_ms", 100), ("grpc.http2.max_pings_without_data", 0),
             token=daemon.token) as rude:
        code, text = rude.session().refusal()
        assert code == grpc.StatusCode.UNAVAILABLE and "ping" in text.lower(), (code, text)
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not raw.sessions(), what="its session is gone")
