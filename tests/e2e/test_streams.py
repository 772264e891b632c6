"""A user with many open streams does not keep other users from opening streams (server/session/stream_shares.h)."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from attacks.streams import SilentUploads
from support.daemon import wait_until
from support.http import samples, scrape
from support.proxy import Proxy

STREAMS = 1024
SHARE = STREAMS // 4  # the maximum number of transfers of a single user
VALUES = np.arange(500_000, dtype=np.float32)


def transfers(tt):
    """Uploads and downloads a tensor that is too large for a frame."""
    return bool((tt.tensor(VALUES).numpy() == VALUES).all())


def test_silent_uploads_leave_streams_to_others(start_daemon, tt, each_transport, monkeypatch):
    """While a user holds all the streams it can get, another user connects, transfers, and comes back after
    a lost connection."""
    monkeypatch.setenv("TELETENSOR_SHARED_MEMORY", "0")
    daemon = start_daemon()
    proxy = Proxy(daemon.socket)
    with tt.connect(proxy.address) as old:
        held = tt.tensor(VALUES)
        with SilentUploads(daemon.tcp, daemon.token) as attack:
            wait_until(lambda: len(attack.refusals) >= attack.calls - STREAMS, what="all calls have arrived")
            with tt.connect(daemon.unix):
                assert transfers(tt)
            with old.as_current():
                proxy.cut()
                assert transfers(tt)
                assert (held.numpy() == VALUES).all()
            wait_until(lambda: len(attack.refusals) >= attack.calls - SHARE, what="the user has its share")
            code, details = attack.refusals[-1]
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details.startswith("too many streams: user tester")
            counted = samples(scrape(daemon))[
                "teletensor_refused_connections_total", (("by", "grpc"), ("reason", "streams"))]
            assert counted >= attack.calls - SHARE
    proxy.close()


def test_a_user_with_too_many_streams_waits_for_one(start_daemon, tt, each_transport, monkeypatch):
    """A transfer for which its user has no stream left waits for one, and then fails with an error that is
    not about tensor memory. The session is kept."""
    daemon = start_daemon()
    with tt.connect(daemon.tcp, token=daemon.token) as session, ThreadPoolExecutor() as pool:
        with SilentUploads(daemon.tcp, daemon.token) as attack:
            wait_until(lambda: len(attack.refusals) >= attack.calls - SHARE, what="the user has its share")
            with monkeypatch.context() as patch:
                patch.setattr("teletensor._connection.transport._TRIES", 1)
                with pytest.raises(RuntimeError, match="too many streams: user tester") as refused:
                    transfers(tt)
                assert not isinstance(refused.value, (tt.OutOfMemoryError, tt.SessionLostError))

            def transfer():
                with session.as_current():
                    return transfers(tt)

            waiting = pool.submit(transfer)
        assert waiting.result()
