"""Simulates a slow network between a client and a daemon's socket."""

import asyncio
import random
import threading
import time

RESENT = 0.2  # seconds, in addition to a round trip, until TCP sends lost data again


class Far:
    """Relays TCP to `target` (the path of a UNIX socket), in order in each direction: with a round-trip time
    of `trip` seconds plus up to `jitter` seconds, and at most `rate` bytes per second. The first copy of a
    fraction `loss` of the pieces is lost: they, and all later pieces, are delayed by a round trip and
    RESENT. `cut()` ends all connections and drops the data in transit; `connections` counts them."""

    def __init__(self, target, trip, jitter=0.0, loss=0.0, rate=125e6, seed=0):
        self.target, self.trip, self.jitter, self.loss, self.rate = target, trip, jitter, loss, rate
        self.connections, self._random, self._writers = 0, random.Random(seed), set()
        self._loop, listening = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()
        listening.wait()

    def _run(self, listening):
        async def listen():
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._loop.run_until_complete(listen())
        listening.set()
        self._loop.run_forever()
        self._loop.close()

    async def _accept(self, reader, writer):
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.close()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        await asyncio.gather(self._relay(reader, far_writer, ends), self._relay(far_reader, writer, ends))

    async def _relay(self, reader, writer, ends):
        under_way = asyncio.Queue()
        arriving = asyncio.ensure_future(self._arrive(under_way, writer, ends))
        arrives = 0.0
        try:
            while piece := await reader.read(1 << 16):
                late = self.trip / 2 + self._random.random() * self.jitter
                if self._random.random() < self.loss:
                    late += self.trip + RESENT
                arrives = max(arrives, time.monotonic() + late) + len(piece) / self.rate
                under_way.put_nowait((arrives, piece))
        except OSError:
            pass
        under_way.put_nowait((arrives, b""))
        await arriving

    async def _arrive(self, under_way, writer, ends):
        while True:
            at, piece = await under_way.get()
            await asyncio.sleep(max(at - time.monotonic(), 0))
            if not piece or writer not in self._writers:
                break
            writer.write(piece)
        self._end(ends)

    def _end(self, writers):
        for writer in writers & self._writers:
            self._writers.discard(writer)
            writer.transport.abort()

    def cut(self):
        self._loop.call_soon_threadsafe(lambda: self._end(set(self._writers)))

    def close(self):
        def end():
            self._server.close()
            self._end(set(self._writers))
            self._loop.call_later(0.1, self._loop.stop)
        self._loop.call_soon_threadsafe(end)
        self._thread.join()
