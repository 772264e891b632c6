"""A relay between a client and a daemon's socket that can cut the connection at chosen points."""

import contextlib
import os
import socket
import tempfile
import threading


class Boundaries:
    """Finds the frame boundaries in one direction of an HTTP/2 connection, from its first byte on."""

    def __init__(self, preface):
        self.left, self.header = preface, b""

    def ends(self, data):
        """The positions in `data` at which frames end."""
        at, found = 0, []
        while at < len(data):
            if self.left == 0:
                part = data[at:at + 9 - len(self.header)]
                self.header += part
                at += len(part)
                if len(self.header) < 9:
                    break
                self.left, self.header = int.from_bytes(self.header[:3], "big"), b""
                if self.left == 0:
                    found.append(at)
                    continue
            step = min(self.left, len(data) - at)
            self.left -= step
            at += step
            if self.left == 0:
                found.append(at)
        return found


class Proxy:
    """Relays to `target` (the path of a UNIX socket, or "127.0.0.1:PORT"). `cut_after(n)`: the connection is
    cut when the client has sent n bytes; `sent` counts them. The cut may be within an HTTP/2 frame.
    `cut_after_frames(n)`: it is cut after the n-th HTTP/2 frame, counted in both directions (`frames`).
    `cut_each(draw)`: every connection is cut after draw() bytes of the client, or of both sides. `pause()`
    holds all bytes back. `held` counts the pieces that a pause has held back, and `refused` the connections
    that were closed at once. `swallow()`: a network that drops all packets without notifying either side,
    until `restore()`; connections that were open then stay dead. `tcp`: clients connect by TCP. `path`: where
    the socket of the relay is."""

    def __init__(self, target, tcp=False, path=None):
        self.target, self.limit, self.sent = target, None, 0
        self.frame_limit, self.frames = None, 0
        self.held = self.refused = 0
        self.connections, self._draw, self._both, self._refusing = 0, None, False, False
        self._going = threading.Event()
        self._going.set()
        # how often swallow() was called; a connection that is older than the last call is dead
        self._holes = 0
        self._whole = threading.Event()
        self._whole.set()
        if tcp:
            self.path, self._listener = None, socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self.path = path or tempfile.mktemp(prefix="ttp-", suffix=".sock")
            self.address = "unix:" + self.path
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.path)
            self._listener.listen()
        self._open, self._lock = [], threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._whole.wait()
            if self._refusing:
                self.refused += 1
                client.close()
                continue
            self.connections += 1
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._relay, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, False), daemon=True).start()

    def _connect(self):
        if self.target.startswith("127.0.0.1:"):
            return socket.create_connection(("127.0.0.1", int(self.target.rpartition(":")[2])))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:
            server.close()
            raise
        return server

    def _relay(self, source, sink, from_client):
        boundaries = Boundaries(24 if from_client else 0)
        passed, most, draw, holes = 0, None, None, self._holes
        try:
            while data := source.recv(1 << 16):
                if not self._going.is_set():
                    with self._lock:
                        self.held += 1
                    self._going.wait()
                if holes != self._holes:
                    continue
                if draw is not self._draw:
                    draw, passed = self._draw, 0
                    most = draw() if draw and (from_client or self._both) else None
                passed += len(data)
                if most is not None and passed >= most:
                    sink.sendall(data[:len(data) - (passed - most)])
                    return
                with self._lock:
                    ends = boundaries.ends(data)
                    left = None if self.frame_limit is None else self.frame_limit - self.frames
                    self.frames += len(ends)
                if left is not None and len(ends) >= left:
                    sink.sendall(data[:ends[left - 1]] if left > 0 else b"")
                    self.frame_limit = None
                    self.cut()
                    return
                if from_client:
                    if self.limit is not None and self.sent + len(data) >= self.limit:
                        sink.sendall(data[:max(self.limit - self.sent, 0)])
                        self.sent, self.limit = self.limit, None
                        self.cut()
                        return
                    self.sent += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            self._end(source, *([sink] if holes == self._holes else []))
            source.close()  # the other thread closes the sink

    def _end(self, *sockets):
        for s in sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def cut_each(self, draw, both=False):
        self._draw, self._both = draw, both

    def pause(self):
        self._going.clear()

    def go_on(self):
        self._going.set()

    def swallow(self):
        self._holes += 1
        self._whole.clear()

    def restore(self):
        self._whole.set()

    def refuse(self):
        """Closes new connections at once."""
        self._refusing = True

    def accept(self):
        self._refusing = False

    def cut_after(self, count):
        """Counts bytes from now on."""
        self.sent, self.limit = 0, count

    def cut_after_frames(self, count):
        """Counts frames from now on."""
        with self._lock:
            self.frames, self.frame_limit = 0, count

    def cut(self):
        with self._lock:
            gone, self._open = self._open, []
        for s in gone:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up accept()
        self._listener.close()
        self.cut()
        self.go_on()
        self.restore()
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
