"""Peers that abuse HTTP/2: gRPC 1.51 has had no security update since 2022. SECURITY.md has the cost of each
attack on a daemon without a proxy; with the shipped nginx in front the cost is negligible. Meanwhile another
session continues: it reads a value after every batch of frames."""

import os
import socket

import pytest
from support import http2
from support.daemon import HANG, SANITIZED, Daemon, wait_until
from support.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    field,
    integer,
    message,
    request,
)
from support.nginx import in_front
from support.raw import Raw, authorization

MIB = 1 << 20
RUN, HELLO = "/teletensor.v1.Compute/Run", "/teletensor.v1.Compute/Hello"
# Bounds of resident memory at any moment of an attack. Without a proxy the bound is twice the measured
# maximum of gRPC (200 MiB), which bounds partial messages by its quota of 256 MiB.
ALONE, BEHIND = 512 * MIB, 48 * MIB
CHUNK = 16384


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# Each function takes a Peer and yields after every batch.

def rapid_reset(path):
    def attack(peer):
        block = request(path)
        for batch in range(30):
            for stream in range(200 * batch + 1, 200 * batch + 201, 2):
                peer.write(peer.frame(HEADERS, END_HEADERS, stream, block) +
                           peer.frame(RST_STREAM, 0, stream, b"\0\0\0\x08"))
            yield
    return attack


def open_streams(path):
    """Calls that never send their message, many more than the server's settings allow."""
    def attack(peer):
        block = request(path)
        for batch in range(40):
            for stream in range(200 * batch + 1, 200 * batch + 201, 2):
                peer.call(stream, block)
            yield
    return attack


def continuation_flood(peer):
    """6 MB of small headers that never end."""
    peer.call(1, request(RUN), flags=0)
    for _ in range(20):
        for _ in range(20):
            peer.send(CONTINUATION, 0, 1, field("a", "b") * (CHUNK // 5))
        yield


def empty_continuations(peer):
    peer.call(1, request(RUN), flags=0)
    for _ in range(50):
        peer.write(peer.frame(CONTINUATION, 0, 1) * 400)
        yield


def endless_string(peer):
    """One header of 2 MB: HPACK decoders that start again with every frame take quadratic time."""
    peer.call(1, request(RUN) + b"\x00" + integer(1, 7) + b"a" + integer(2 * MIB, 7), flags=0)
    for _ in range(16):
        for _ in range(8):
            peer.send(CONTINUATION, 0, 1, b"x" * CHUNK)
        yield


def hpack_bomb(peer):
    """A byte that expands to 3,900, sent a million times."""
    peer.call(1, request(RUN) + field("x-bomb", "y" * 3900, indexed=True), flags=0)
    for _ in range(16):
        for _ in range(4):
            peer.send(CONTINUATION, 0, 1, b"\xbe" * CHUNK)
        yield


def huge_headers(peer):
    """A megabyte of one header, twenty times."""
    block = request(RUN) + field("x-big", "y" * 1_000_000)
    for call in range(20):
        stream = 2 * call + 1
        peer.call(stream, block[:CHUNK], flags=0)
        for at in range(CHUNK, len(block), CHUNK):
            last = at + CHUNK >= len(block)
            peer.send(CONTINUATION, END_HEADERS if last else 0, stream, block[at:at + CHUNK])
        yield


def flood(kind, payload, flags=0, stream=0):
    def attack(peer):
        for _ in range(50):
            peer.write(peer.frame(kind, flags, stream, payload) * 400)
            yield
    return attack


def half_a_message(peer):
    """A message is declared as 512 MiB; 40 MiB are sent, whatever the window allows."""
    peer.call(1, request(HELLO))
    peer.send(DATA, 0, 1, message(b"", declared=512 * MIB))
    for _ in range(40):
        for _ in range(64):
            peer.send(DATA, 0, 1, b"z" * CHUNK)
        yield


def empty_data(peer):
    peer.call(1, request(HELLO))
    for _ in range(50):
        peer.write(peer.frame(DATA, 0, 1) * 400)
        yield


def odd_headers(peer):
    """The headers of CVE-2023-1428, which made later versions of gRPC abort()."""
    odd = [request(RUN, te="x" * 100), request(RUN, scheme="xyz"), request(RUN, [("grpclb_client_stats", "x")]),
           request(RUN, [("te", "")]), request(RUN, [("grpc-timeout", "9" * 100)]),
           request(RUN, [("grpc-encoding", "?")]),
           request(RUN, [("x-long", "y" * 9000)], te="x"), request(RUN, [("x-long", "y" * 9000)], scheme="xyz"),
           request(RUN, [("x-bin", "%%%")]), field("te", "x")]
    for stream, block in enumerate(odd * 3):
        peer.call(2 * stream + 1, block)
        yield


ATTACKS = {
    "rapid reset": rapid_reset(RUN), "rapid reset, no such method": rapid_reset("/nothing"),
    "open streams": open_streams(RUN), "calls without their message": open_streams(HELLO),
    "CONTINUATION flood": continuation_flood, "empty CONTINUATIONs": empty_continuations,
    "endless header": endless_string, "HPACK bomb": hpack_bomb, "huge headers": huge_headers,
    "PING flood": flood(PING, b"12345678"), "SETTINGS flood": flood(SETTINGS, b""),
    "SETTINGS of a table": flood(SETTINGS, b"\0\1\0\0\x10\0\0\1\0\0\0\0"),
    "ACKs of nothing": flood(SETTINGS, b"", ACK),
    "WINDOW_UPDATE flood": flood(WINDOW_UPDATE, b"\0\0\0\1"),
    "PRIORITY flood": flood(PRIORITY, b"\0\0\0\0\1", stream=1), "empty DATA": empty_data,
    "half a message": half_a_message, "odd headers": odd_headers,
}


def endure(daemon, session, tt, peers, attack, bound, spare=0):
    """Attacks with each of `peers`, made one after the other, while the session computes. `spare`: how many
    connections a proxy may keep for later."""
    before, alive = resident(daemon.pid), tt.arange(8, dtype=tt.float32)
    open_before, most, rounds = descriptors(daemon.pid), 0, 0
    for make in peers:
        with make() as peer:
            peer.read(HANG)  # the server's settings: what is not acknowledged before is not in force
            for _ in attack(peer):
                rounds += 1
                assert (alive * rounds).sum().item() == 28.0 * rounds
                most = max(most, resident(daemon.pid) - before)
                if peer.closed:
                    break
            peer.read(0.2)
    assert rounds > 0 and daemon.alive()
    assert session._transport._keeper.attach == 1, "the neighbour's connection was lost"
    if not SANITIZED:
        assert most < bound, f"{most / MIB:.0f} MiB"
    wait_until(lambda: descriptors(daemon.pid) <= open_before + spare, what="their connections are gone")


@pytest.fixture(scope="module")
def daemons():
    """Like start_daemon, but for all tests of this file."""
    running = []

    def start(*flags):
        running.append(Daemon(*flags))
        return running[-1]
    yield start
    problems = [p for d in running if (p := d.stop())]
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def daemon(daemons):
    return daemons()


@pytest.fixture(scope="module")
def front(daemons, tmp_path_factory):
    with in_front(daemons, tmp_path_factory.mktemp("nginx")) as front:
        yield front


@pytest.mark.parametrize("name", ATTACKS)
def test_alone(daemon, tt, name):
    """Two peers: one that never acknowledges our settings, for which gRPC applies none of our limits, and
    one that does."""
    with tt.connect(daemon.unix) as session:
        endure(daemon, session, tt, [lambda: Peer(daemon.tcp, acks=False), lambda: Peer(daemon.tcp)],
               ATTACKS[name], ALONE)


@pytest.mark.parametrize("name", ATTACKS)
def test_behind_nginx(front, tt, name):
    """The same attack by a peer with a certificate, from its own address."""
    context = http2.tls(front.authority, front.authority.issue("mallory"))

    def peer(**how):
        return Peer(front.address, context, source="127.0.0.2", **how)
    with tt.connect(front.address, token=front.token, ca=front.authority.ca,
                    cert=front.authority.issue("alice")) as session:
        endure(front.daemon, session, tt, [lambda: peer(acks=False), peer], ATTACKS[name], BEHIND,
               spare=32 * os.cpu_count())  # nginx.conf: `keepalive` of each worker


def test_without_a_certificate_nothing_comes_through(front):
    """nginx answers such calls without the daemon."""
    context = http2.tls(front.authority)
    before = descriptors(front.daemon.pid)
    for stream in range(1, 21, 2):
        with Peer(front.address, context, source="127.0.0.3") as peer:
            peer.call(stream, request(HELLO))
            wait_until(lambda peer=peer: peer.read(0.1) or peer.closed or peer.seen[HEADERS], what="nginx answers")
            assert descriptors(front.daemon.pid) <= before


def test_a_reader_that_does_not_read(daemons, tt):
    """The peer's HTTP/2 window is closed: its requested values wait in their storage, and no other session
    waits for them."""
    daemon = daemons()  # whose memory still moves after no attack
    with tt.connect(daemon.unix), Raw(daemon.tcp, token=daemon.token) as raw:
        slow = raw.session()
        slow.run(slow.constant([1.0] * 4096), slow.fetch(1, bulk=True))
        while not slow.progress().completed_upto:
            pass
        before = resident(daemon.pid)
        with Peer(daemon.tcp, settings=b"\0\4\0\0\0\0") as peer:  # INITIAL_WINDOW_SIZE 0
            block = request("/teletensor.v1.Compute/Download", [("teletensor-token", slow.token),
                                                                *authorization(daemon.token)])
            asked = raw.session_pb.DownloadRequest(seq=2).SerializeToString()
            peer.call(1, block)
            peer.send(DATA, 1, 1, message(asked))
            for i in range(50):
                peer.read(0.01)
                assert (tt.arange(8) * i).sum().item() == 28 * i
            assert peer.seen[DATA] == 0 and resident(daemon.pid) - before < 32 * MIB
        slow.end()


def test_connections_that_say_nothing_are_closed(daemon, tt):
    before = descriptors(daemon.pid)
    host, port = daemon.tcp.split(":")
    silent = []
    try:
        for at in range(200):
            silent.append(socket.create_connection((host, int(port)), HANG))
            if at % 2:
                silent[-1].sendall(http2.PREFACE[:10])
        wait_until(lambda: descriptors(daemon.pid) > before + 100, what="they are connected")
        with tt.connect(daemon.unix):
            assert (tt.ones(3) * 1).tolist() == [1.0] * 3
        wait_until(lambda: descriptors(daemon.pid) <= before, what="all are closed")
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, http2.PREFACE + b"\xff" * 1000,
                                     http2.PREFACE + Peer.frame(DATA, 0, 0, b"x"),
                                     http2.PREFACE + Peer.frame(HEADERS, END_HEADERS, 2, request(RUN)),
                                     http2.PREFACE + Peer.frame(250, 255, 77, b"x" * 100),
                                     http2.PREFACE + Peer.frame(SETTINGS, 0, 0, b"x" * 7)],
                         ids=["http1", "zeros", "ones", "data on 0", "even stream", "no such kind", "settings"])
def test_what_is_not_http2(daemon, tt, garbage):
    before = descriptors(daemon.pid)
    with tt.connect(daemon.unix), socket.create_connection(daemon.tcp.split(":"), HANG) as peer:
        peer.sendall(garbage)
        assert (tt.ones(3) * 1).tolist() == [1.0] * 3
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    wait_until(lambda: descriptors(daemon.pid) <= before, what="all are closed")
