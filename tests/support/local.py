"""Streams of sessions over the socket beside the daemon's own, without gRPC (proto/wire/share.h)."""

import contextlib
import struct

from support.proxy import Proxy
from support.sharer import Sharer

RUN = 6
MESSAGE, END = 0, 1


class LocalStream(Sharer):
    """A Run stream of a RawSession by hand. `code` is the daemon's answer; 0 if it accepts the stream."""

    def __init__(self, path, session, attach=1, ticket=None):
        super().__init__(path)
        self.session = session
        reply = self.ask(RUN, session.reply.session_id,
                         session.reply.share_ticket.encode() if ticket is None else ticket, attach)
        self.code = None if reply is None else reply[0]

    def send(self, frame, kind=MESSAGE, size=None):
        self.socket.sendall(struct.pack("=II", kind, len(frame) if size is None else size) + frame)

    def receive(self):
        """The next message: (kind, bytes)."""
        kind, size = struct.unpack("=II", self._bytes(8))
        return kind, self._bytes(size)

    def progress(self):
        kind, data = self.receive()
        assert kind == MESSAGE
        return self.session.raw.session_pb.Progress.FromString(data)

    def fetched(self):
        while True:
            if (message := self.progress()).fetched:
                return message.fetched[0]

    def refusal(self):
        """(code, word, text) of the end of the stream."""
        while True:
            kind, data = self.receive()
            if kind == END:
                code, word = struct.unpack("=II", data[:8])
                return code, data[8:8 + word].decode(), data[8 + word:].decode()

    def _bytes(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the daemon has closed the connection")
            data += part
        return data


@contextlib.contextmanager
def relayed(daemon):
    """Relays to the two sockets of the daemon: (the relay of gRPC, the relay of shared memory and local
    streams). Clients connect to the address of the first."""
    grpc = Proxy(daemon.socket)
    local = Proxy(daemon.socket + ".share", path=grpc.path + ".share")
    try:
        yield grpc, local
    finally:
        grpc.close()
        local.close()
