"""A restart of the daemon, and calls that reach the new daemon in an unusual order.

The daemon is restarted between the answer to Attach and the Run call that follows it, a fault that the model
of the protocol has found (docs/model). Or an upload reaches the new daemon before Attach."""

import grpc
import numpy as np
import pytest
from support.daemon import wait_until
from support.proxy import Proxy
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


def between(session, monkeypatch, act):
    """Calls act() once, after the next Attach."""
    transport, acts = session._transport, [act]
    attach = transport.attach

    def attach_and_act(counter, core):
        answer = attach(counter, core)
        if acts:
            acts.pop()()
        return answer

    monkeypatch.setattr(transport, "attach", attach_and_act)


@pytest.mark.parametrize("written_before", [True, False])
def test_the_client_attaches_again(start_daemon, tt, monkeypatch, written_before):
    """The session file was written earlier than that Attach, or later, so its attach counter is smaller than
    the client's, or the same."""
    daemon = start_daemon(*FLAGS)
    proxy = Proxy(daemon.socket)
    with tt.connect(proxy.address, name="exp").as_current() as s:
        x = tt.tensor([1.0, 2.0])
        if written_before:
            s.snapshot()
        s.synchronize()

        def start_again():
            if not written_before:
                with Raw(daemon.unix) as raw:
                    raw.unary("/teletensor.v1.Admin/Snapshot", raw.admin_pb.SnapshotRequest(session=s.id),
                              raw.admin_pb.SnapshotReply)
            daemon.crash()

        between(s, monkeypatch, start_again)
        proxy.cut()
        assert (x + 1).tolist() == [2.0, 3.0]
        assert s._transport._keeper.attach > 2
        s.close()
    proxy.close()


def test_values_of_before_are_told_again(start_daemon):
    """Also if the file has the counter of that Attach: a Run call without another Attach would not get the
    values."""
    daemon = start_daemon(*FLAGS)
    with Raw(daemon.unix) as raw:
        s = raw.session()
        s.run(s.constant([2.0]), s.fetch(1))
        wait_until(lambda: raw.sessions()[0].completed_upto == 2)
        s.cut()
        s.attach()
        raw.unary("/teletensor.v1.Admin/Snapshot", raw.admin_pb.SnapshotRequest(session=raw.sessions()[0].id),
                  raw.admin_pb.SnapshotReply)
    daemon.crash()
    with Raw(daemon.unix) as s.raw:
        s.stream(s.attaches)
        code, text = s.refusal()
        assert code == grpc.StatusCode.UNAVAILABLE and "call Attach before Run and Upload" in text
        s.resume()
        assert s.fetched().data == b"\0\0\0@"  # 2.0
        s.end()


@pytest.mark.parametrize("drained", [True, False])
def test_uploads_wait_for_attach(start_daemon, tt, monkeypatch, drained):
    """An upload has a higher number at the new daemon than at the old one. If it was accepted before Attach,
    Attach would take its number for that of an upload that the snapshot lacks."""
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        x = tt.tensor(np.full(1 << 20, 2, np.float32))
        s.snapshot()
        attach, early = s._transport.attach, []

        def upload_before(counter, core):
            early.append(s._shared.upload(core, np.full(1 << 20, 3, np.float32), tt.float32, tt.device("cpu"),
                                          [1 << 20]))
            return attach(counter, core)

        monkeypatch.setattr(s._transport, "attach", upload_before)
        if drained:
            daemon.drain()
            daemon.restart()
        else:
            daemon.crash()
        y = tt.tensor(np.full(1 << 20, 4, np.float32))
        assert (x + y).sum().item() == 6 << 20
        assert early[0] is None
        s.close()


def test_a_raw_upload_waits_for_attach(start_daemon):
    daemon = start_daemon(*FLAGS)
    with Raw(daemon.unix) as raw:
        s = raw.session()
        s.run(s.constant([2.0]), s.fetch(1))
        wait_until(lambda: raw.sessions()[0].completed_upto == 2)
        raw.unary("/teletensor.v1.Admin/Snapshot", raw.admin_pb.SnapshotRequest(session=raw.sessions()[0].id),
                  raw.admin_pb.SnapshotReply)
    daemon.crash()
    with Raw(daemon.unix) as s.raw:
        with pytest.raises(grpc.RpcError, match="call Attach before Run and Upload") as refused:
            s.raw.upload(s.token, [{"bytes": 4, "data": b"abcd"}])
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        s.resume()
        assert s.raw.upload(s.token, [{"bytes": 4, "data": b"abcd"}]).upload > 0
        s.end()
