"""A lost session: its replacement, its state, and the messages to the user."""

import contextlib
import logging
import subprocess
import sys
import threading

import pytest
from support.clients import client, finish, wait_line
from support.daemon import wait_until
from support.proxy import Proxy
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture
def daemon(start_daemon, monkeypatch):
    """A daemon that TELETENSOR_ADDRESS names; no default session at the start and the end."""
    import teletensor as tt
    from teletensor._sessions import session as _session

    def forget():
        while _session._default is not None:
            with contextlib.suppress(tt.TeletensorError):
                _session._default.close()
    forget()
    daemon = start_daemon("--lease", "60")
    monkeypatch.setenv("TELETENSOR_ADDRESS", daemon.unix)
    yield daemon
    forget()


@pytest.fixture
def tt():
    import teletensor

    return teletensor


def kill(daemon, session, reason="maintenance"):
    with Raw(daemon.unix) as raw:
        raw.unary("/teletensor.v1.Admin/Kill",
                  raw.admin_pb.KillRequest(session=session.id, reason=reason), raw.admin_pb.KillReply)
    wait_until(lambda: session.state != "open", what="the session has heard of it")


def test_connect_replaces_a_lost_default(daemon, tt):
    first = tt.connect()
    x = tt.ones(3)
    assert x.sum().item() == 3.0 and tt.current_session() is first
    kill(daemon, first)
    with pytest.raises(tt.SessionLostError, match="maintenance"):
        (tt.ones(3) * 1).tolist()
    assert tt.current_session() is first, "the program has tensors in it"
    second = tt.connect()
    assert tt.current_session() is second and (tt.ones(3) * 1).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(tt.SessionLostError, match="maintenance"):
        x.tolist()
    third = tt.connect()
    assert tt.current_session() is second, "one that is open stays"
    third.close()


def test_a_daemon_that_is_gone_and_comes_back(daemon, tt):
    first = tt.connect()
    x = tt.ones(3)
    assert x.sum().item() == 3.0
    daemon.crash()
    with pytest.raises(tt.SessionLostError):
        x.sum().item()
    assert tt.connect() is not first
    assert tt.ones(3).sum().item() == 3.0


def test_a_default_without_tensors_gives_way_by_itself(daemon, tt):
    first = tt.current_session()
    assert tt.ones(3).sum().item() == 3.0
    kill(daemon, first)
    assert tt.ones(3).sum().item() == 3.0
    assert tt.current_session() is not first


def test_a_default_with_a_name_does_not(daemon, tt):
    first = tt.connect(name="exp")
    assert tt.ones(3).sum().item() == 3.0
    kill(daemon, first)
    with pytest.raises(tt.SessionLostError):
        tt.ones(3).sum().item()
    assert tt.current_session() is first


def test_the_block_of_a_lost_session_keeps_it(daemon, tt):
    default = tt.connect()
    with tt.connect() as inner:
        kill(daemon, inner)
        tt.connect().close()
        assert tt.current_session() is inner
        with pytest.raises(tt.SessionLostError):
            (tt.ones(3) * 1).tolist()
    assert tt.current_session() is default


def test_a_session_tells_its_state(daemon, tt):
    s = tt.connect()
    assert s.state == "open" and repr(s).endswith(f"{daemon.unix}, open>")
    kill(daemon, s, "noon")
    assert s.state.startswith("lost: ") and "noon" in s.state and "noon" in repr(s)
    s.close()
    assert s.state == "closed" and repr(s).endswith("closed>")


def test_reconnecting(daemon, tt, caplog):
    """The state while there is no connection, and one log line when it is restored after more than a
    second."""
    with contextlib.closing(Proxy(daemon.socket)) as proxy:
        s = tt.connect(proxy.address)
        with s.as_current():
            x = tt.ones(3)
            assert x.sum().item() == 3.0
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: s.state.startswith("reconnecting for 1 s"))
            assert "reconnecting" in repr(s)
            proxy.accept()
            assert x.sum().item() == 3.0
            wait_until(lambda: caplog.records)
            assert s.state == "open"
            s.close()
        [told] = [r.getMessage() for r in caplog.records]
        assert "reconnected after" in told and s.name in told and "nothing is lost" in told


LOST = """
    print("id", s.id, flush=True)
    try:
        x = tt.ones(3)
        while True:
            x.sum().item()
    except tt.SessionLostError as lost:
        print("raised", lost, flush=True)
"""


def test_a_lost_session_is_told_once(daemon, tt):
    """The message is on stderr if the program has set up no logging."""
    for silence in ("", "import logging; logging.getLogger('teletensor').setLevel(logging.ERROR)\n"):
        program = client(silence + "if True:" + LOST, daemon.unix)
        number = int(wait_line(program, "id").split()[1])
        with Raw(daemon.unix) as raw:
            raw.unary("/teletensor.v1.Admin/Kill",
                      raw.admin_pb.KillRequest(session=number, reason="noon"), raw.admin_pb.KillReply)
        status, out, err = finish(program)
        assert status == 0 and "raised" in out, err
        lines = [line for line in err.splitlines() if "is lost" in line]
        if silence:
            assert not err
        else:
            assert len(lines) == 1 and lines[0].startswith("teletensor: session 'session-")
            assert "noon" in lines[0] and "teletensor.connect()" in lines[0]


def test_what_a_program_closes_itself_is_not_told(daemon, tt, caplog):
    with caplog.at_level(logging.WARNING, "teletensor"):
        with tt.connect() as s:
            tt.ones(3).sum().item()
        other = tt.connect(name="left")
        other.detach()
    assert s.closed and not caplog.records
    done = subprocess.run([sys.executable, "-c", "import teletensor as tt; tt.ones(3).sum().item()"],
                          capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr


def test_close_does_not_wait_for_a_daemon_that_has_stopped(daemon, tt):
    session = tt.connect(name="left")
    with session.as_current():
        x = tt.ones(3)
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    session.synchronize()
    daemon.drain()
    wait_until(lambda: session._transport.away > 0, what="the client has noticed")
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    closing.join(timeout=45)  # less than the lease, for which the client would wait for a daemon
    assert not closing.is_alive() and session.closed
    daemon.restart()
