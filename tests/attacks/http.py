"""HTTP peers without a token that hold connections, memory and threads of a daemon.

    python -m attacks.http HOST:PORT ATTACK SOURCE [CA]        (in the folder tests)
"""

import contextlib
import itertools
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

HOST = b"Host: localhost\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /api/kill HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = 64 << 10
PAUSE = 0.2  # seconds between the pieces of a slow peer


def with_pauses(first, pieces):
    yield first, PAUSE
    for piece in pieces:
        yield piece, PAUSE


def at_once(first, pieces):
    yield first, 0
    for piece in pieces:
        yield piece, 0


def half_a_greeting():
    """The first bytes of a TLS client, without the last ones."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()[:-10]


# What each connection of an attack sends: (bytes, pause afterwards) without end.
ATTACKS = {
    "chunks": lambda: at_once(CHUNKED, itertools.repeat(b"%x\r\n" % PIECE + bytes(PIECE) + b"\r\n")),
    "headers": lambda: at_once(GET, itertools.repeat(b"X-More: 1\r\n" * 1000)),
    "header_line": lambda: at_once(GET + b"X-Long: ", itertools.repeat(b"x" * PIECE)),
    "request_line": lambda: at_once(b"GET /", itertools.repeat(b"x" * PIECE)),
    "slow_headers": lambda: with_pauses(GET, itertools.repeat(b"X-More: 1\r\n")),
    "slow_line": lambda: with_pauses(GET + b"X-Long: ", itertools.repeat(b"x")),
    "slow_chunks": lambda: with_pauses(CHUNKED, itertools.repeat(b"1\r\n{\r\n")),
    "silent": lambda: with_pauses(b"", itertools.repeat(b"")),
    "half_greeting": lambda: with_pauses(half_a_greeting(), itertools.repeat(b"")),
    "unread": lambda: at_once(b"", itertools.repeat(b"GET /chart.js HTTP/1.1\r\n" + HOST + b"\r\n")),
    "small_chunks": lambda: at_once(CHUNKED, itertools.repeat(b"1\r\n{\r\n" * 1000)),
}


class Attack:
    """Context manager: `count` peers that run the attack, and connect again when the daemon ends their
    connection. `source` is their own address. `pieces` counts what they have sent, `sent` the bytes,
    `ended` the ended connections. With `tls`, a client's context, they complete a TLS handshake first."""

    def __init__(self, address, name, count=40, tls=None, source="127.0.0.1"):
        host, port = address.rsplit(":", 1)
        self.address, self.name, self.count = (host, int(port)), name, count
        self.tls, self.source = tls, source
        self.pieces = self.sent = self.ended = 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._sockets = [None] * count

    def __enter__(self):
        self._threads = [threading.Thread(target=self._peer, args=(n,)) for n in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        for each in list(self._sockets):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _peer(self, n):
        while not self._stop.is_set():
            with contextlib.suppress(OSError), socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.settimeout(60)
                self._sockets[n] = peer
                if not self._stop.is_set():
                    peer.bind((self.source, 0))
                    peer.connect(self.address)
                    self._run(n, peer)
            self._sockets[n] = None
            with self._lock:
                self.ended += 1

    def _run(self, n, peer):
        if self.tls is None:
            self._send(peer)
            return
        with self.tls.wrap_socket(peer, server_hostname="localhost") as wrapped:
            self._sockets[n] = wrapped
            self._send(wrapped)

    def _send(self, peer):
        for data, pause in ATTACKS[self.name]():
            if data:
                peer.sendall(data)
            with self._lock:
                self.pieces += 1
                self.sent += len(data)
            if pause and (self._stop.wait(pause) or self._has_ended(peer)):
                return

    @staticmethod
    def _has_ended(peer):
        peer.setblocking(False)
        try:
            return peer.recv(4096) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            peer.settimeout(60)


class AttackOfAnotherProcess:
    """The same in a process of its own, so that a test in this one is as fast as any other client. `ca` is the
    file of the authority with TLS, otherwise None."""

    def __init__(self, address, name, source, ca=None):
        self.command = [sys.executable, "-u", "-m", "attacks.http", address, name, source,
                        *([str(ca)] if ca else [])]
        self.pieces = self.sent = self.ended = 0

    def __enter__(self):
        self._process = subprocess.Popen(self.command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *exception):
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()
        assert self._process.wait() == 0

    def _read(self):
        for line in self._process.stdout:
            self.pieces, self.sent, self.ended = map(int, line.split())


def main():
    """Attacks until the end of standard input; writes the pieces, bytes and ended connections."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    tls = ssl.create_default_context(cafile=sys.argv[4]) if len(sys.argv) > 4 else None
    with Attack(sys.argv[1], sys.argv[2], tls=tls, source=sys.argv[3]) as attack:
        while not stop.wait(PAUSE):
            print(attack.pieces, attack.sent, attack.ended, flush=True)


if __name__ == "__main__":
    main()
