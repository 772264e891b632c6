"""HTTP/2 implemented by hand, for peers that break its rules, because libraries do not send invalid data."""

import contextlib
import select
import socket
import ssl
import struct
from collections import Counter

from support.daemon import HANG

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 7, 8, 9)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def integer(value, bits, first=0):
    """Encodes an integer of HPACK; `first` has the bits above the prefix."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(name, value, indexed=False):
    """Encodes a literal header; with `indexed` the peer adds it to its table."""
    name, value = (x if isinstance(x, bytes) else x.encode() for x in (name, value))
    return b"".join((b"\x40" if indexed else b"\x00", integer(len(name), 7), name,
                     integer(len(value), 7), value))


def request(path, more=(), te="trailers", scheme="http"):
    """The header block of a gRPC call."""
    fields = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", "localhost"), ("te", te),
              ("content-type", "application/grpc"), *more]
    return b"".join(field(*f) for f in fields)


def message(body, declared=None, compressed=False):
    """A gRPC message frame; `declared` is a wrong length."""
    return struct.pack(">BI", compressed, len(body) if declared is None else declared) + body


class Peer:
    """A connection. `seen` counts the types of the frames that were received, and `codes` contains the error
    codes of streams and of the connection. A write to a connection that the peer has closed does nothing:
    check `closed`. `source`: its own address, or the path of its own UNIX socket."""

    def __init__(self, address, context=None, settings=b"", acks=True, source=None):
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            if source:
                self.socket.bind(source)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, port = address.removeprefix("tls://").rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), HANG, (source, 0) if source else None)
        self.socket.settimeout(HANG)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.acks, self.closed = acks, False
        self.seen, self.codes, self._input = Counter(), Counter(), b""
        with self._closing():  # not by write(), which might acknowledge the settings of the other side first
            self.socket.sendall(PREFACE + self.frame(SETTINGS, 0, 0, settings))

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def write(self, data):
        """Also reads received data, so that the two sides do not wait for each other for ever."""
        view = memoryview(data)
        for at in range(0, len(view), 1 << 16):
            self.read()
            if self.closed:
                return
            with self._closing():
                self.socket.sendall(view[at:at + (1 << 16)])

    def send(self, *frame):
        self.write(self.frame(*frame))

    def call(self, stream, block, flags=END_HEADERS):
        self.send(HEADERS, flags, stream, block)

    @contextlib.contextmanager
    def _closing(self):
        try:
            yield
        except (OSError, ssl.SSLError):
            self.closed = True

    def read(self, wait=0.0):
        """Reads received data; waits up to `wait` seconds for the first byte."""
        while not self.closed:
            pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
            if not pending and not select.select([self.socket], [], [], wait)[0]:
                return
            wait = 0.0
            data = b""
            with self._closing():
                data = self.socket.recv(1 << 16)
            if not data:
                self.closed = True
            self._parse(data)

    def _parse(self, data):
        self._input += data
        while len(self._input) >= 9:
            length = int.from_bytes(self._input[:3], "big")
            if len(self._input) < 9 + length:
                return
            kind, flags = self._input[3], self._input[4]
            payload, self._input = self._input[9:9 + length], self._input[9 + length:]
            self.seen[kind] += 1
            if kind == RST_STREAM:
                self.codes[int.from_bytes(payload, "big")] += 1
            elif kind == GOAWAY:
                self.codes[f"goaway {int.from_bytes(payload[4:8], 'big')}"] += 1
            elif kind == SETTINGS and not flags & ACK and self.acks:
                with self._closing():
                    self.socket.sendall(self.frame(SETTINGS, ACK, 0))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def tls(authority, certificate=None):
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    return context
