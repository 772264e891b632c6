"""The forms of HTTP requests that RFC 9110 and RFC 9112 define, as bytes on a connection."""

import contextlib
import re
import socket
import ssl
import subprocess

import pytest
from support.daemon import Daemon, binary
from support.tls import Authority

HANG = 60  # seconds
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--http-name", "box.example")
    yield running
    problem = running.stop()
    assert not problem, problem


class Answer:
    """The answer to one request: its status, headers (names in lower case) and body."""

    def __init__(self, data):
        head, _, self.body = data.partition(b"\r\n\r\n")
        line, *headers = head.decode().split("\r\n")
        self.version, status, _ = line.split(" ", 2)
        self.status = int(status)
        self.headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in headers)}


def answers(address, request, tls=None, count=1):
    """Sends bytes, ends the client's direction, and returns the answers to `count` requests."""
    host, port = address.split(":")
    received = b""
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(socket.create_connection((host, int(port)), HANG))
        if tls is not None:
            peer = stack.enter_context(tls.wrap_socket(peer, server_hostname="localhost"))
        peer.sendall(request)
        if tls is None:
            peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while piece := peer.recv(1 << 16):
                received += piece
    parts = re.split(rb"(?=HTTP/1\.[01] \d{3} )", received)[1:]
    assert len(parts) == count, received[:2000]
    found = [Answer(part) for part in parts]
    for each in found:
        assert each.version == "HTTP/1.1" and each.headers["date"].endswith(" GMT"), each.headers
    return found


def answer(daemon, line, headers=HOST, more=b""):
    """The answer to a request with this line."""
    return answers(daemon.http, line + b"\r\n" + headers + b"Connection: close\r\n\r\n" + more)[0]


SERVED = {
    "origin form": b"GET /healthz HTTP/1.1",
    "absolute form": b"GET http://localhost/healthz HTTP/1.1",
    "absolute form with a port": b"GET http://127.0.0.1:7421/healthz HTTP/1.1",
    "absolute form with an empty port": b"GET http://localhost:/healthz HTTP/1.1",
    "absolute form in capitals": b"GET HTTP://LOCALHOST/healthz HTTP/1.1",
    "absolute form of an IPv6 address": b"GET http://[::1]:7421/healthz HTTP/1.1",
    "absolute form of another name": b"GET http://box.example/healthz HTTP/1.1",
    "absolute form with a query": b"GET http://localhost/healthz?a=1&b=c/d?e HTTP/1.1",
    "a query": b"GET /healthz?x HTTP/1.1",
    "two question marks in a query": b"GET /healthz?a?b?c HTTP/1.1",
    "an empty query": b"GET /healthz? HTTP/1.1",
    "encoded letters": b"GET /%68ealth%7A HTTP/1.1",
    "encoded letters in lower case": b"GET /health%7a HTTP/1.1",
    "a later minor version": b"GET /healthz HTTP/1.9",
}


@pytest.mark.parametrize("line", SERVED.values(), ids=SERVED)
def test_served(daemon, line):
    found = answer(daemon, line)
    assert (found.status, found.body) == (200, b"ok\n")
    head = answer(daemon, line.replace(b"GET ", b"HEAD "))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == found.headers["content-length"] == "3"


@pytest.mark.parametrize("target", [b"http://localhost", b"http://localhost/", b"http://localhost?x=1", b"/"])
def test_an_empty_path_is_the_root(daemon, target):
    found = answer(daemon, b"GET " + target + b" HTTP/1.1")
    assert found.status == 200 and b"<!doctype html>" in found.body[:200].lower()


def authorization(daemon):
    return b"Authorization: Bearer " + daemon.token.encode() + b"\r\n"


def test_a_parameter_of_an_absolute_target(daemon):
    headers = HOST + authorization(daemon)
    for target in (b"/api/session", b"http://localhost/api/session"):
        assert answer(daemon, b"GET " + target + b"?id=none HTTP/1.1", headers).status == 400
        assert answer(daemon, b"GET " + target + b"?id=%31 HTTP/1.1", headers).status == 404


REFUSED = {
    "a foreign host in the target": (b"GET http://evil.example/healthz HTTP/1.1", 421),
    "a foreign scheme": (b"GET ftp://localhost/healthz HTTP/1.1", 421),
    "https without TLS": (b"GET https://localhost/healthz HTTP/1.1", 421),
    "no host in the target": (b"GET http:///healthz HTTP/1.1", 400),
    "a port without a host": (b"GET http://:80/healthz HTTP/1.1", 400),
    "a user in the target": (b"GET http://root@localhost/healthz HTTP/1.1", 400),
    "a port that is no number": (b"GET http://localhost:80x/healthz HTTP/1.1", 400),
    "an open bracket": (b"GET http://[::1/healthz HTTP/1.1", 400),
    "no scheme": (b"GET ://localhost/healthz HTTP/1.1", 400),
    "a relative path": (b"GET healthz HTTP/1.1", 400),
    "authority form": (b"GET localhost:80 HTTP/1.1", 400),
    "asterisk form": (b"GET * HTTP/1.1", 400),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1", 501),
    "CONNECT to a path": (b"CONNECT /healthz HTTP/1.1", 501),
    "a method in lower case": (b"get /healthz HTTP/1.1", 501),
    "an unknown method": (b"BREW /healthz HTTP/1.1", 501),
    "a method that is no word": (b"GE(T /healthz HTTP/1.1", 400),
    "TRACE": (b"TRACE /healthz HTTP/1.1", 405),
    "OPTIONS of a path": (b"OPTIONS /healthz HTTP/1.1", 405),
    "two slashes": (b"GET //healthz HTTP/1.1", 404),
    "two slashes inside": (b"GET /api//state HTTP/1.1", 404),
    "a slash at the end": (b"GET /healthz/ HTTP/1.1", 404),
    "an encoded slash": (b"GET /api%2fstate HTTP/1.1", 404),
    "an encoded first slash": (b"GET /%2Fhealthz HTTP/1.1", 404),
    "an encoding twice": (b"GET /%2568ealthz HTTP/1.1", 404),
    "an encoded zero": (b"GET /healthz%00 HTTP/1.1", 404),
    "dots": (b"GET /./healthz HTTP/1.1", 404),
    "encoded dots": (b"GET /x/%2E%2e/healthz HTTP/1.1", 404),
    "an encoding without digits": (b"GET /healthz%zz HTTP/1.1", 400),
    "an encoding that is cut off": (b"GET /healthz%6 HTTP/1.1", 400),
    "an encoding of another kind": (b"GET /%u0068ealthz HTTP/1.1", 400),
    "a fragment": (b"GET /healthz#top HTTP/1.1", 400),
    "bytes above 127": (b"GET /health\xc3\xa9 HTTP/1.1", 400),
    "a backslash": (b"GET /api\\state HTTP/1.1", 400),
    "a space in the target": (b"GET /health z HTTP/1.1", 400),
    "two spaces": (b"GET  /healthz HTTP/1.1", 400),
    "a tab": (b"GET\t/healthz HTTP/1.1", 400),
    "no target": (b"GET HTTP/1.1", 400),
    "no version": (b"GET /healthz", 400),
    "a version in lower case": (b"GET /healthz http/1.1", 400),
    "a longer version": (b"GET /healthz HTTP/1.10", 400),
    "the greeting of HTTP/2": (b"PRI * HTTP/2.0", 505),
    "HTTP/0.9": (b"GET /healthz HTTP/0.9", 505),
}


@pytest.mark.parametrize("line,status", REFUSED.values(), ids=REFUSED)
def test_refused(daemon, line, status):
    found = answer(daemon, line)
    assert found.status == status
    if status == 405:
        assert found.headers["allow"] == "GET, HEAD"
    assert answer(daemon, SERVED["origin form"]).status == 200


HOSTS = {
    "none": (b"", 400),
    "twice": (HOST + HOST, 400),
    "twice, of which one is foreign": (HOST + b"Host: evil.example\r\n", 400),
    "empty": (b"Host:\r\n", 400),
    "spaces": (b"Host:  \r\n", 400),
    "twice, of which one is empty": (HOST + b"Host:\r\n", 400),
    "an empty length": (HOST + b"Content-Length:\r\n", 400),
    "an empty coding": (HOST + b"Transfer-Encoding: \r\n", 400),
    "another header without a value": (HOST + b"X-Empty:\r\n", 200),
    "foreign": (b"Host: evil.example\r\n", 421),
    "in capitals": (b"hOST: LocalHost:80\r\n", 200),
    "another name": (b"Host: BOX.example\r\n", 200),
    "IPv6": (b"Host: [::1]:7421\r\n", 200),
    "a path": (b"Host: localhost/x\r\n", 400),
    "a user": (b"Host: me@localhost\r\n", 400),
    "two ports": (b"Host: localhost:1:2\r\n", 400),
    "a port alone": (b"Host: :80\r\n", 400),
    "two names": (b"Host: localhost, evil.example\r\n", 400),
    "a space before the colon": (b"Host : localhost\r\n", 400),
    "a folded line": (b"Host: localhost\r\n evil.example\r\n", 400),
    "a name that is no word": (HOST + b"X(y): 1\r\n", 400),
    "no name": (HOST + b": 1\r\n", 400),
}


@pytest.mark.parametrize("headers,status", HOSTS.values(), ids=HOSTS)
def test_host(daemon, headers, status):
    assert answer(daemon, SERVED["origin form"], headers).status == status


@pytest.mark.parametrize("headers,status", [
    (b"Host: evil.example\r\n", 200),  # the target's host replaces it
    (HOST + b"Host: evil.example\r\n", 400), (b"", 400)], ids=["foreign", "twice", "none"])
def test_the_host_of_an_absolute_target_counts(daemon, headers, status):
    assert answer(daemon, SERVED["absolute form"], headers).status == status
    assert answer(daemon, REFUSED["a foreign host in the target"][0], headers).status in (421, 400)


def test_the_origin_is_compared_with_the_host_that_counts(daemon):
    """A page of another origin cannot make its own host count by an absolute target, nor by a Host beside it."""
    more = b'{"session": 999}'
    headers = authorization(daemon)
    headers += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(more)
    for line, host, origin, status in (
            (b"POST /api/kill HTTP/1.1", b"localhost", b"http://localhost", 404),
            (b"POST /api/kill HTTP/1.1", b"localhost", b"http://evil.example", 403),
            (b"POST http://localhost/api/kill HTTP/1.1", b"evil.example", b"http://evil.example", 403),
            (b"POST http://localhost/api/kill HTTP/1.1", b"evil.example", b"http://localhost", 404)):
        given = headers + b"Host: %s\r\nOrigin: %s\r\n" % (host, origin)
        assert answer(daemon, line, given, more).status == status, (line, host, origin)


@pytest.mark.parametrize("target", [b"*", b"http://localhost"])
def test_options_of_the_server(daemon, target):
    found = answer(daemon, b"OPTIONS " + target + b" HTTP/1.1")
    assert (found.status, found.headers["allow"]) == (200, "GET, HEAD, POST, OPTIONS")
    assert answer(daemon, b"OPTIONS " + target + b" HTTP/1.1", b"Host: evil.example\r\n").status == (
        421 if target == b"*" else 200)


def test_http_1_0(daemon):
    """A Host is not needed, and the connection ends with the answer."""
    for line in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET http://localhost/healthz HTTP/1.0\r\n\r\n",
                 b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\n"):
        assert answers(daemon.http, line)[0].status == 200
    assert answers(daemon.http, b"GET http://evil.example/ HTTP/1.0\r\n\r\n")[0].status == 421
    assert answers(daemon.http, b"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n")[0].status == 421


def test_requests_on_one_connection(daemon):
    """An absolute target counts for its own request alone. An empty line may precede a request."""
    own, foreign = (b"GET http://%s/healthz HTTP/1.1\r\n" % host for host in (b"localhost", b"evil.example"))
    found = answers(daemon.http, own + b"Host: evil.example\r\n\r\n" + foreign + HOST + b"\r\n"
                    b"\r\nGET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n"
                    b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", count=4)
    assert [each.status for each in found] == [200, 421, 421, 200]


def test_absolute_targets_over_tls(start_daemon, tmp_path):
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    # This spelling of the loopback address does not count as loopback, so HTTP uses TLS there.
    state = ("--state-dir", str(tmp_path / "state"))
    subprocess.run([binary(), *state, "--create-token", "alice:user"], capture_output=True, check=True, timeout=60)
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key), *state, "--http", "127.1:0")
    tls = ssl.create_default_context(cafile=str(authority.ca))
    address = f"127.0.0.1:{daemon.http.rsplit(':', 1)[1]}"
    for scheme, status in ((b"https", 200), (b"HTTPS", 200), (b"http", 421)):
        line = b"GET %s://localhost/healthz HTTP/1.1\r\n" % scheme
        assert answers(address, line + HOST + b"Connection: close\r\n\r\n", tls)[0].status == status
