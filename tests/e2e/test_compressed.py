"""A small message must not become a large one: compressed messages are refused without decompression."""

import gzip
import os
import zlib

import grpc
import pytest
from support.http2 import DATA, END_STREAM, HEADERS, Peer, message, request
from support.raw import SERVICE, Raw, metadata, nothing

MIB = 1 << 20
BOMB = 64 * MIB
ZEROS = bytes(BOMB)


@pytest.fixture(scope="module")
def daemon():
    from support.daemon import Daemon
    running = Daemon()
    yield running
    problem = running.stop()
    assert not problem, problem


def most_resident(daemon):
    """The maximum resident memory of the process so far."""
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10


def forget_the_most(daemon):
    with open(f"/proc/{daemon.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


@pytest.fixture
def bounded(daemon, tt):
    """The test costs the daemon no memory and none of its sessions."""
    with tt.connect(daemon.unix) as session:
        x = tt.arange(1000)
        assert x.sum().item() == 499_500
        if not os.access(f"/proc/{daemon.pid}/clear_refs", os.W_OK):
            pytest.skip("another user's daemon")
        forget_the_most(daemon)
        before = most_resident(daemon)
        yield
        assert most_resident(daemon) - before < 16 * MIB
        assert (x + 1).sum().item() == 500_500 and session._transport._keeper.attach == 1


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("method", ["Hello", "Run", "Upload", "Interrupt"])
def test_a_right_client_that_compresses(daemon, bounded, method, kind):
    with Raw(daemon.unix) as raw:
        session = raw.session()
        to, of = ("stream" if method in streams else "unary" for streams in (("Run", "Upload"), ("Run",)))
        call = getattr(raw.channel, f"{to}_{of}")(SERVICE + method, nothing, nothing)
        if method == "Run":
            session.attach()
            sent = (*metadata(session.token), ("teletensor-attach", "2"))
        else:
            sent = metadata(session.token)
        with pytest.raises(grpc.RpcError) as raised:
            reply = call(iter([ZEROS]) if to == "stream" else ZEROS, metadata=sent, compression=kind, timeout=60)
            list(reply)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED, raised.value
        session.end()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", "zstd", "stream/gzip", None])
def test_compressed_by_hand(daemon, bounded, encoding):
    """The compression flag of a message, with each encoding in the headers, or none."""
    packed = zlib.compress(ZEROS) if encoding == "deflate" else gzip.compress(ZEROS)
    headers = [("grpc-encoding", encoding)] if encoding else []
    with Peer(daemon.tcp) as peer:
        peer.read(10)
        peer.call(1, request("/teletensor.v1.Compute/Hello", headers))
        body = message(packed, compressed=True)
        for at in range(0, len(body), 16384):
            peer.send(DATA, END_STREAM if at + 16384 >= len(body) else 0, 1, body[at:at + 16384])
        for _ in range(100):
            peer.read(0.1)
            if peer.seen[HEADERS] or peer.codes or peer.closed:
                break
        assert peer.seen[HEADERS] or peer.codes or peer.closed, "it waits for ever"
