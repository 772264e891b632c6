"""HTTP requests of callers without a token that are meant to cost the daemon more than the caller, or to
keep other callers out. server/net/http_stream.h and server/net/http_connections.h have the bounds."""

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import threading

import pytest
from attacks.http import ATTACKS, CHUNKED, GET, HOST, PIECE, POST, AttackOfAnotherProcess
from support.daemon import SANITIZED, binary, wait_until
from support.http import ask, samples
from support.tls import Authority

MIB = 1 << 20
SHARE, PENDING = 16, 48  # the connections of one address, and those that wait for a place
MEMORY = 64 * MIB  # more than the connections of all peers without a token may take
DEADLINE = 60  # seconds, for what the daemon does within 10


def resident_bytes(daemon):
    with open(f"/proc/{daemon.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def connected(daemon):
    host, port = daemon.http.split(":")
    return socket.create_connection((host, int(port)), DEADLINE)


def status_of(peer):
    """The status of the answer, or None if the connection ends without one."""
    answer = b""
    while b"\r\n" not in answer:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            piece = peer.recv(100)
            if piece:
                answer += piece
                continue
        return None
    return int(answer.split()[1])


def ends(peer):
    """Reads until the daemon ends the connection; returns the number of bytes."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := peer.recv(PIECE):
            count += len(piece)
    return count


def token_of(daemon):
    return daemon.url.split("#token=")[1]


@pytest.mark.parametrize("path", ["/chart.js", "/healthz", "/not-there"])
@pytest.mark.parametrize("ranges", ["0-," * 2000 + "0-", "0-1"], ids=["overlapping", "one"])
def test_ranges_do_not_enlarge_an_answer(start_daemon, path, ranges):
    """Each range would otherwise be sent for itself: 6 KB of request made 400 MB of answer."""
    daemon = start_daemon()
    whole = ask(daemon.http, path)
    reply = ask(daemon.http, path, headers={"Range": f"bytes={ranges}"})
    assert (reply.status, reply.text) == (whole.status, whole.text)
    assert ask(daemon.http, "/healthz").status == 200


def test_no_answer_is_compressed_with_brotli(start_daemon):
    """A request of 64 bytes for the largest file would otherwise take a second of CPU time."""
    daemon = start_daemon()
    for accepted in ("br", "gzip, deflate, br"):
        connection = http.client.HTTPConnection(daemon.http, timeout=DEADLINE)
        with contextlib.closing(connection):
            connection.request("GET", "/chart.js", headers={"Accept-Encoding": accepted})
            assert connection.getresponse().getheader("Content-Encoding") in (None, "gzip")


@pytest.mark.parametrize("name", list(ATTACKS))
def test_other_peers_are_served_during_an_attack(start_daemon, name):
    """Peers of the same address hold all connections that they can get. Monitors are served, memory is
    bounded, and the daemon ends when it is told to."""
    daemon = start_daemon()
    memory, most = resident_bytes(daemon), 0
    assert ask(daemon.http, "/readyz").status == 200

    def under_way():
        nonlocal most
        most = max(most, resident_bytes(daemon) - memory)
        return attack.ended > 40 or attack.pieces > 1000 or attack.sent > 128 * MIB

    with AttackOfAnotherProcess(daemon.http, name, "127.0.0.1") as attack:
        wait_until(under_way, what="the attack is under way")
        for path in ["/readyz", "/metrics"] * 5:
            assert ask(daemon.http, path, token=daemon.monitor).status == 200
            under_way()
        daemon.drain()
    daemon.restart()
    print(f"{name}: {attack.sent / MIB:.1f} MiB sent, {attack.ended} connections ended, {most / MIB:.1f} MiB taken")
    assert SANITIZED or most < MEMORY


def test_an_idle_crowd_leaves_places(start_daemon):
    """An address has a share of the connections; its oldest silent ones end for its new ones."""
    daemon = start_daemon()
    before = descriptors(daemon)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(daemon)) for _ in range(200)]
        assert ask(daemon.http, "/readyz").status == 200
        assert descriptors(daemon) <= before + 2 * SHARE + PENDING  # SHARE of them may be those that end just now
        assert ends(crowd[0]) == 0
        daemon.drain()
    daemon.restart()


TOO_MUCH = {
    "request_line": (b"GET /" + b"x" * (8 << 10) + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "header_line": (GET + b"X-Long: " + b"x" * (8 << 10) + b"\r\n\r\n", 431),
    "head": (GET + (b"X-Long: " + b"x" * 6000 + b"\r\n") * 3 + b"\r\n", 431),
    "headers": (GET + b"X-More: 1\r\n" * 101 + b"\r\n", 431),
    "body_of_get": (GET + b"Content-Length: 5\r\n\r\nhello", 413),
    "chunks_of_get": (GET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413),
    "no_such_path": (POST.replace(b"kill", b"none") + b"Transfer-Encoding: chunked\r\n\r\n", 404),
    "no_token": (CHUNKED, 401),
    "line_feed": (b"GET /healthz HTTP/1.1\n" + HOST + b"\r\n", 400),
    "two_lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    "length_and_chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "space_in_name": (GET + b"Content-Length : 5\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", list(TOO_MUCH))
def test_too_much_is_refused_before_it_is_read(start_daemon, name):
    request, expected = TOO_MUCH[name]
    daemon = start_daemon()
    with connected(daemon) as peer:
        peer.sendall(request)
        assert status_of(peer) == expected
        ends(peer)
    assert ask(daemon.http, "/healthz").status == 200


def test_refusals_are_counted_by_reason(start_daemon):
    """Nothing else shows an administrator that an attack is under way."""
    daemon = start_daemon()

    def refused(reason):
        return samples(ask(daemon.http, "/metrics", token=token_of(daemon)).text)[
            "teletensor_refused_connections_total", (("by", "http"), ("reason", reason))]

    for reason, names in (("head", ("request_line", "header_line", "head")), ("body", ("body_of_get",))):
        for count, name in enumerate(names, 1):
            with connected(daemon) as peer:
                peer.sendall(TOO_MUCH[name][0])
                status_of(peer)
                ends(peer)
            wait_until(lambda reason=reason, count=count: refused(reason) == count, what=f"{reason} is counted")
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(daemon)) for _ in range(200)]
        wait_until(lambda: refused("replaced") > 0, what="an old connection has given way")
        assert ends(crowd[0]) == 0


BODIES = {
    "length": (b"Content-Length: %d\r\n\r\n" % ((64 << 10) + 1), b"", 413),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % PIECE + b" " * PIECE + b"\r\n", 413),
    "small_chunks": (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 11_000, 413),
    "no_length": (b"\r\n", b"", 411),
    "other_length": (b"Content-Length: 0x5\r\n\r\n", b"", 400),
    "other_coding": (b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"", 400),
    "gzip": (b"Content-Encoding: gzip\r\nContent-Length: 20\r\n\r\n", b"", 415),
    "one_chunk": (b"Transfer-Encoding: chunked\r\n\r\n", b"d\r\n{\"session\":1}\r\n0\r\n\r\n", 404),
}


@pytest.mark.parametrize("name", list(BODIES))
def test_bodies_of_a_token_holder_are_bounded(start_daemon, name):
    """The last one is a whole request: there is no such session."""
    head, body, expected = BODIES[name]
    daemon = start_daemon()
    with connected(daemon) as peer:
        peer.sendall(POST + b"Authorization: Bearer %s\r\n" % token_of(daemon).encode() + head)
        with contextlib.suppress(ConnectionError):
            peer.sendall(body)
        assert status_of(peer) == expected
    assert ask(daemon.http, "/healthz").status == 200


@pytest.mark.parametrize("piece", [b"x", b"X-More: 1\r\n"], ids=["bytes", "lines"])
def test_a_request_has_a_time(start_daemon, piece):
    """Each piece comes in time, but not the whole request."""
    daemon = start_daemon()
    with connected(daemon) as peer:
        peer.sendall(GET + (b"X-Long: " if piece == b"x" else b""))
        stop = threading.Event()

        def trickle():
            with contextlib.suppress(OSError):
                while not stop.wait(0.5):
                    peer.sendall(piece)

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert status_of(peer) == 408
        finally:
            stop.set()
            thread.join()


def test_an_answer_that_is_read_slowly_ends_the_connection(start_daemon):
    daemon = start_daemon()
    host, port = daemon.http.split(":")
    before = descriptors(daemon)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(DEADLINE)
        peer.connect((host, int(port)))
        peer.sendall(b"GET /chart.js HTTP/1.1\r\n" + HOST + b"\r\n")
        stop, seen = threading.Event(), []

        def read():
            with contextlib.suppress(OSError):
                while not stop.wait(0.5):
                    seen.append(peer.recv(100))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            wait_until(lambda: len(seen) > 1, what="the answer is under way")
            wait_until(lambda: descriptors(daemon) <= before, what="the connection has ended")
        finally:
            stop.set()
            thread.join()
    assert 0 < sum(map(len, seen)) < 100_000


def test_a_silent_connection_ends(start_daemon):
    """Before the first request and behind an answer."""
    daemon = start_daemon()
    with connected(daemon) as peer, connected(daemon) as other:
        other.sendall(GET + b"\r\n")
        assert ends(peer) == 0
        assert ends(other) > 0


@pytest.mark.parametrize("name", ["half_greeting", "slow_headers", "headers", "unread"])
def test_other_peers_are_served_over_tls(start_daemon, tmp_path, name):
    """The same with TLS: peers of another address that do not complete a handshake, or attack behind it."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    state = ("--state-dir", str(tmp_path / "state"))
    subprocess.run([binary(), *state, "--create-token", "alice:user"], capture_output=True, check=True, timeout=60)
    # This spelling of the loopback address does not count as loopback, so HTTP uses TLS there.
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key), *state, "--http", "127.1:0")
    context = ssl.create_default_context(cafile=str(authority.ca))

    def status(path):
        port = int(daemon.http.rsplit(":", 1)[1])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=context)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    memory = resident_bytes(daemon)
    assert status("/readyz") == 200
    ca = None if name == "half_greeting" else authority.ca
    with AttackOfAnotherProcess(daemon.http, name, "127.0.0.2", ca) as attack:
        wait_until(lambda: attack.ended > 40, what="the attack is under way")
        for _ in range(5):
            assert status("/readyz") == 200
            assert status("/metrics") == 401
        most = resident_bytes(daemon) - memory
        daemon.drain()
    daemon.restart()
    assert SANITIZED or most < MEMORY
