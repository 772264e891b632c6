"""Run streams without gRPC between processes of one machine: that clients use them, cuts, restarts, and clients
that break the rules."""

import os
import random
import socket
import struct

import pytest
from support.cut import program
from support.daemon import wait_until
from support.local import LocalStream, relayed
from support.raw import OPS, Raw, RawSession

pytestmark = pytest.mark.usefixtures("invariants")

NOT_FOUND, ALREADY_EXISTS, INVALID_ARGUMENT, FAILED_PRECONDITION = 5, 6, 3, 9


def opened(raw, **hello):
    """A session whose Run stream is still to be opened."""
    return RawSession(raw, raw.hello(**hello), stream=False)


# ---------------------------------------------------------------- the project's clients


def run(tt, address):
    log = []
    with tt.connect(address):
        program(tt, log)
    return log


def test_a_client_on_the_machine_uses_it(start_daemon, monkeypatch):
    import teletensor as tt

    daemon = start_daemon()
    with relayed(daemon) as (grpc, local):
        wanted = run(tt, grpc.address)
        assert local.connections == 1
        monkeypatch.setenv("TELETENSOR_LOCAL_STREAM", "0")
        assert run(tt, grpc.address) == wanted
        monkeypatch.setenv("TELETENSOR_LOCAL_STREAM", "1")
        monkeypatch.setenv("TELETENSOR_TRANSPORT", "grpcio")
        assert run(tt, grpc.address) == wanted
        assert local.connections == 1


def test_without_the_socket_it_is_grpc(start_daemon):
    import teletensor as tt

    daemon = start_daemon()
    with relayed(daemon) as (grpc, local):
        wanted = run(tt, grpc.address)
        local.refuse()
        assert run(tt, grpc.address) == wanted
        assert local.refused == 1
        local.close()
        assert run(tt, grpc.address) == wanted


def test_cuts_lose_nothing(start_daemon):
    """The connection is cut at many places, within headers and frames; the session continues."""
    import teletensor as tt

    daemon = start_daemon()
    with relayed(daemon) as (grpc, local):
        local.cut_after(1 << 60)
        wanted = run(tt, grpc.address)
        sent, cuts = local.sent, 0
        assert sent > 1000
        for at in [97, 99, 104, 105, 150, *range(sent // 15, sent, sent // 15)]:
            local.cut_after(at)
            before = local.connections
            assert run(tt, grpc.address) == wanted
            cuts += local.connections > before + 1
        assert cuts >= 5  # a busy machine sends fewer frames and bytes: later cuts may miss it


def test_both_directions_are_cut_again_and_again(start_daemon):
    import teletensor as tt

    daemon = start_daemon()
    with relayed(daemon) as (grpc, local):
        wanted = run(tt, grpc.address)
        draw = random.Random(7)
        local.cut_each(lambda: draw.randrange(200, 3_000), both=True)
        for _ in range(5):
            assert run(tt, grpc.address) == wanted
        assert local.connections > 6


def test_a_restarted_daemon_takes_it_again(start_daemon):
    """The secret of a session is part of its snapshot."""
    import teletensor as tt

    daemon = start_daemon("--restart", "60")
    with relayed(daemon) as (grpc, local), tt.connect(grpc.address):
        x = tt.ones(3)
        assert (x + 1).sum().item() == 6
        before = local.connections
        daemon.drain()
        daemon.restart()
        assert (x + 2).sum().item() == 9
        assert local.connections > before


def test_large_frames_and_values(start_daemon):
    """A frame of many constants, and values that exceed the buffer of the socket."""
    import numpy as np
    import teletensor as tt

    daemon = start_daemon()
    with relayed(daemon) as (grpc, _), tt.connect(grpc.address):
        parts = [tt.tensor(np.full(12_000, i, np.float32)) for i in range(64)]
        values = [(part + 1).numpy() for part in parts]
        assert [float(v[-1]) for v in values] == [i + 1.0 for i in range(64)]
        sums = [part.sum() for part in parts]
        assert [s.item() for s in sums] == [12_000.0 * i for i in range(64)]


# ---------------------------------------------------------------- clients by hand


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60")


@pytest.fixture
def raw(daemon):
    with Raw(daemon.unix) as raw:
        yield raw


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def computes(stream):
    session = stream.session
    stream.send(session.frame(session.constant([1.5]), session.command(
        op=OPS.index("neg") + 1, arguments=[2]), session.fetch(2)))
    return struct.unpack("<f", stream.fetched().data) == (-1.5,)


def test_by_hand(daemon, raw):
    with LocalStream(daemon.socket, opened(raw)) as stream:
        assert stream.code == 0 and computes(stream)
        stream.socket.shutdown(socket.SHUT_WR)
        assert stream.refusal() == (0, "", "")
        assert stream.over()
    wait_until(lambda: [s.attached for s in raw.sessions()] == [False], what="detached")


def test_byte_by_byte(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as stream:
        frame = session.frame(session.constant([2.0]), session.fetch(1))
        for byte in struct.pack("=II", 0, len(frame)) + frame:
            stream.socket.sendall(bytes([byte]))
        assert struct.unpack("<f", stream.fetched().data) == (2.0,)


def test_several_frames_in_one_piece(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as stream:
        frames = [session.frame(session.constant([float(i)])) for i in range(200)]
        frames.append(session.frame(session.fetch(200)))
        stream.socket.sendall(b"".join(struct.pack("=II", 0, len(f)) + f for f in frames))
        assert struct.unpack("<f", stream.fetched().data) == (199.0,)


@pytest.mark.parametrize("ticket", [b"0" * 32, b"", b"\0" * 32])
def test_a_wrong_ticket(daemon, raw, ticket):
    session = opened(raw)
    with LocalStream(daemon.socket, session, ticket=ticket) as stream:
        assert stream.code == NOT_FOUND
    with LocalStream(daemon.socket, session) as stream:
        assert computes(stream)


def test_the_ticket_of_another_session(daemon, raw):
    mine, other = opened(raw), opened(raw)
    with LocalStream(daemon.socket, mine, ticket=other.reply.share_ticket.encode()) as stream:
        assert stream.code == NOT_FOUND


def test_another_attach(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session, attach=2) as stream:
        code, word, text = stream.refusal()
        assert (code, word) == (FAILED_PRECONDITION, "") and "attach 2" in text
    with LocalStream(daemon.socket, session) as stream:
        assert computes(stream)


def test_a_second_stream(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as first:
        with LocalStream(daemon.socket, session) as second:
            assert second.refusal()[0] == ALREADY_EXISTS
        assert computes(first)


def test_a_later_attach_replaces_it(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as first:
        assert computes(first)
        session.attach()
        assert first.refusal()[1] == "fenced"
        with LocalStream(daemon.socket, session, attach=2) as second:
            assert computes(second)


@pytest.mark.parametrize("bad", [
    {"frame": b"x" * 8, "kind": 7}, {"frame": b"", "size": 0xffffffff}, {"frame": b"", "size": 2 << 20},
    {"frame": b"\xff" * 100}, {"frame": b"abc"}, {"frame": b"", "kind": 1}])
def test_what_is_no_frame_ends_the_session(daemon, raw, bad):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as stream:
        stream.send(bad.pop("frame"), **bad)
        code, word, _ = stream.refusal()
        assert (code, word) == (INVALID_ARGUMENT, "protocol")
    wait_until(lambda: not raw.sessions(), what="no session")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20])
def test_a_client_that_leaves_within_a_frame(daemon, raw, size):
    session = opened(raw)
    frame = session.frame(session.constant([1.0]))
    with LocalStream(daemon.socket, session) as stream:
        stream.socket.sendall((struct.pack("=II", 0, len(frame)) + frame)[:size])
    wait_until(lambda: [s.attached for s in raw.sessions()] == [False], what="detached")
    session.attach()
    with LocalStream(daemon.socket, session, attach=2) as stream:
        stream.send(frame)
        stream.send(session.frame(session.fetch(1)))
        assert struct.unpack("<f", stream.fetched().data) == (1.0,)


def test_a_client_that_does_not_read(start_daemon):
    """The values that it left unread stay until it returns; another session is served meanwhile."""
    daemon = start_daemon("--lease", "60", "--stall", "1")
    with Raw(daemon.unix) as raw:
        session = opened(raw)
        with LocalStream(daemon.socket, session) as stream:
            big = session.constant([0.0] * 16_000)
            stream.send(session.frame(big, *[session.fetch(1)] * 40))
            wait_until(lambda: [s.attached for s in raw.sessions()] == [False], what="detached")
            with LocalStream(daemon.socket, opened(raw)) as other:
                assert computes(other)
        session.attach()
        with LocalStream(daemon.socket, session, attach=2) as stream:
            seen = 0
            while seen < 40:
                seen += len(stream.progress().fetched)


def test_a_killed_session_tells_its_client(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as stream:
        assert computes(stream)
        raw.kill(session.reply.session_id)
        assert stream.refusal()[1] == "killed"
        assert stream.over()


def test_many_connections_leave_nothing(daemon, raw):
    session = opened(raw)
    with LocalStream(daemon.socket, session) as stream:
        before = descriptors(daemon)
        for _ in range(100):
            with LocalStream(daemon.socket, session) as second:
                assert second.refusal()[0] == ALREADY_EXISTS
        wait_until(lambda: descriptors(daemon) <= before + 2, what="descriptors are back")
        assert computes(stream)
