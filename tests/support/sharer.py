"""The protocol of the shared-memory socket, by hand (proto/wire/share.h)."""

import array
import socket
import struct

from support.raw import Raw

MAGIC = 0x31535454


def request(kind, session=0, ticket=b"0" * 32, number=0, offset=0, size=0, start=0, total=0, device=0):
    return struct.pack("=IIQ32sQQQQQQ", MAGIC, kind, session, ticket, number, offset, size, start, total,
                       device)


class Sharer:
    """A client of the shared-memory socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path + ".share")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def ask(self, *args, **kwargs):
        """Sends a request; returns (code, number, offset, bytes, descriptor or None)."""
        self.socket.sendall(request(*args, **kwargs))
        data, control, _, _ = self.socket.recvmsg(32, socket.CMSG_SPACE(4))
        if len(data) < 32:
            return None
        magic, code, number, offset, size = struct.unpack("=IIQQQ", data)
        assert magic == MAGIC
        passed = array.array("i")
        for level, kind, value in control:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            passed.frombytes(value)
        return code, number, offset, size, passed[0] if passed else None

    def answer(self):
        """(code, number) of the next reply."""
        data = self.socket.recv(32, socket.MSG_WAITALL)
        magic, code, number, _, _ = struct.unpack("=IIQQQ", data)
        assert magic == MAGIC
        return code, number

    def over(self):
        """Returns whether the daemon has closed the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:  # if it has not read all that was sent
            return True


def ticket_of(path, name):
    """The (session id, ticket) of a new session, and its channel."""
    raw = Raw("unix:" + path)
    reply = raw.hello(session_name=name)
    return raw, reply.session_id, reply.share_ticket.encode()
