"""Silent uploads: a user opens Upload calls on many connections and sends nothing.

    TELETENSOR_TOKEN=... python -m attacks.streams ADDRESS        (in the folder tests)
"""

import asyncio
import os
import sys
import threading
import time

import grpc
from support.raw import SERVICE, Raw, authorization, metadata

EACH = 100  # the maximum number of calls on a connection


def nothing(data):
    return data


class SilentUploads:
    """Context manager that keeps `connections` times EACH calls of the token's user open, each connection with
    a session of its own. `refusals` has the status of each call that the daemon has ended, as (code, details)."""

    def __init__(self, address, token, connections=11):
        self.address, self.token, self.connections = address, token, connections
        self.refusals = []
        self._raw = []

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        tokens = []
        for _ in range(self.connections):
            raw = Raw(self.address, token=self.token)
            self._raw.append(raw)
            tokens.append(raw.session())
        self._sessions = tokens
        asyncio.run_coroutine_threadsafe(self._open([s.token for s in tokens]), self._loop).result()
        return self

    def __exit__(self, *exception):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for session in self._sessions:
            session.close()
        for raw in self._raw:
            raw.close()

    @property
    def calls(self):
        return self.connections * EACH

    async def _open(self, tokens):
        self._channels, self._tasks = [], []
        for token in tokens:
            channel = grpc.aio.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1)])
            self._channels.append(channel)
            upload = channel.stream_unary(SERVICE + "Upload", nothing, nothing)
            own = metadata(token) + authorization(self.token)
            for _ in range(EACH):
                self._tasks.append(asyncio.ensure_future(self._watch(upload(metadata=own))))

    async def _watch(self, call):
        code = await call.code()
        self.refusals.append((code, await call.details()))

    async def _close(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()


def main():
    with SilentUploads(sys.argv[1], os.environ["TELETENSOR_TOKEN"]) as attack:
        while True:
            print(f"{attack.calls - len(attack.refusals)} of {attack.calls} calls are open", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main()
