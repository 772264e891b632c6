"""The daemon is started again between the answer to Attach and the Run call that follows it, which the
model of the protocol has found (docs/model)."""

import pytest
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("invariants")

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


def between(session, monkeypatch, act):
    """Calls act() once, behind the next Attach."""
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
    """The file may have the attach counter of before that Attach, or its own."""
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
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
        s._core.detach()
        assert (x + 1).tolist() == [2.0, 3.0]
        s.close()
