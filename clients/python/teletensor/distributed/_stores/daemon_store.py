"""Stores that are kept by a daemon: TCPStore. Each user has separate stores there."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..._connection.credentials import Credentials, credentials_of
from ..._connection.protowire import Message, decode, encode, signed
from ..._connection.transport import CallError, Transport, open_transport
from ..._sessions.session import current_session
from .stores import _FIVE_MINUTES, DistStoreError, Store, StorePart

__all__ = ["DaemonStore", "Place", "TCPStore", "Way", "own_place", "place_of"]

_PORT = 7420  # the default port of a daemon
_LOOK = 10.0  # seconds to wait for the answer to the question whether a daemon is there; it may be busy
# the minimum of seconds to wait for a busy daemon to answer a call that does not wait for keys
_ANSWER = 60.0
_PAUSE = 0.05  # seconds between two attempts
_LAST = 2.0  # seconds for the last call of a program that ends
_MAX_KEY_BYTES, _MAX_VALUE_BYTES, _MAX_ASKED_BYTES = 4096, 1 << 20, 1 << 19  # bytes
_SERVICE = "teletensor.v1.Store"
_INIT, _ALL = "init/", "all/"  # keys of TCPStore itself; those of programs begin with "/"
# Codes of google.rpc.Code.
_CANCELLED, _DEADLINE, _EXISTS, _UNAVAILABLE = 1, 4, 6, 14
_T = TypeVar("_T")


class Way(enum.IntEnum):
    """How a store is opened (StoreOpenRequest.Way)."""

    JOIN = 0
    SHARE = 1
    BEGIN = 2
    NEW = 3


@dataclasses.dataclass(frozen=True)
class Place:
    """The address and credentials of a daemon."""

    address: str
    credentials: Credentials


def place_of(host: str, port: int, otherwise: Callable[[], Place]) -> Place:
    """The daemon for a store named host:port: the one that TELETENSOR_STORE names, or else the one that
    answers at host:port, or else the one that answers at port 7420 of MASTER_ADDR, or else otherwise()."""
    if given := os.environ.get("TELETENSOR_STORE"):
        return Place(given, credentials_of(given))
    master = os.environ.get("MASTER_ADDR")
    for address in dict.fromkeys([f"{host}:{port}", *([f"{master}:{_PORT}"] if master else [])]):
        try:
            credentials = credentials_of(address)
        except ValueError:  # not the address of a daemon, for example port 0
            continue
        if _serves(address, credentials):
            return Place(address, credentials)
    return otherwise()


def _serves(address: str, credentials: Credentials) -> bool:
    """Returns whether a daemon with stores answers at the address. The token is not sent."""
    transport = open_transport(address, dataclasses.replace(credentials, token=None))
    try:
        request = encode([(1, _SERVICE)])
        reply = decode(transport.call("/grpc.health.v1.Health/Check", request, _LOOK, False))
        return reply.integer(1) == 1
    except CallError:
        return False
    finally:
        transport.close()


def own_place() -> Place:
    """The daemon of the current session."""
    session = current_session()
    return Place(session.address, session._transport.credentials)


class DaemonStore(Store):
    """The store with this name on a daemon. A call whose connection is cut is repeated until the daemon
    answers or the timeout has passed, but for at least a minute if it waits for no key and no master; a
    change that is sent twice is made only once."""

    def __init__(self, place: Place, name: str, way: Way, timeout: Any = _FIVE_MINUTES) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._name, self._place = name, place
        self._transport = open_transport(place.address, place.credentials)
        self._client, self._calls = secrets.randbits(63) | 1, itertools.count(1)
        # held during a change, because the daemon remembers only the last change of a client
        self._changing = threading.Lock()
        self._generation = 0
        seconds = self._seconds if way is Way.JOIN else self._patience
        opened = self._asked("Open", [(1, name), (2, int(way)), (3, self._client)], seconds)
        if opened is None and way is not Way.JOIN:
            raise self._silent("Open")
        if opened is None:
            raise DistStoreError(
                f"wait timeout after {self._seconds * 1000:.0f}ms: no process has made the store {name} "
                f"with is_master=True on the daemon at {place.address}")
        self._generation = opened.integer(1)
        self._closing = weakref.finalize(self, _close, self._transport)

    @property
    def _seconds(self) -> float:
        return self.timeout.total_seconds()

    @property
    def _patience(self) -> float:
        """The timeout of calls that do not wait for keys."""
        return max(self._seconds, _ANSWER)

    def _asked(self, method: str, fields: list[tuple[int, Any]], seconds: float) -> Message | None:
        """The daemon's answer, or None if there is none in time. DistStoreError if the daemon refuses the
        call."""
        deadline, request = time.monotonic() + seconds, encode(fields)
        while (left := deadline - time.monotonic()) > 0:
            try:
                return decode(self._transport.unary("Store", method, request, left, wait=False))
            except CallError as error:
                if error.code == _DEADLINE:
                    return None
                if error.code not in (_CANCELLED, _UNAVAILABLE):
                    raise DistStoreError(f"{method.lower()}: {error}") from error
            time.sleep(min(_PAUSE, left))
            self._transport.connect_again()
        return None

    def _ask(self, method: str, fields: list[tuple[int, Any]]) -> Message:
        """The answer to a call that does not wait for keys."""
        reply = self._asked(method, [(1, self._ref()), *fields], self._patience)
        if reply is None:
            raise self._silent(method)
        return reply

    def _silent(self, method: str) -> DistStoreError:
        return DistStoreError(f"{method.lower()}: the daemon at {self._place.address} has not answered "
                              f"within {self._patience * 1000:.0f}ms")

    def _ref(self) -> bytes:
        return encode([(1, self._name), (2, self._generation)])

    def _change(self, method: str, key: str, fields: list[tuple[int, Any]]) -> Message:
        with self._changing:
            call = encode([(1, self._client), (2, next(self._calls))])
            return self._ask(method, [(2, call), (3, _key_bytes(key)), *fields])

    def _set(self, values: Mapping[str, bytes]) -> None:
        entries = [encode([(1, _key_bytes(key)), (2, _fitting(key, value))])
                   for key, value in values.items()]
        for part in _parts(entries, len):
            self._ask("Set", [(2, entry) for entry in part])

    def _add(self, key: str, amount: int) -> int:
        if not -1 << 63 <= amount < 1 << 63:
            raise DistStoreError(f"add: {amount} does not fit 64 bits")
        return signed(self._change("Add", key, [(4, amount & (1 << 64) - 1)]).integer(1))

    def _append(self, key: str, value: bytes) -> None:
        self._change("Append", key, [(4, _fitting(key, value))])

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if len(expected) + len(desired) > _MAX_VALUE_BYTES:
            raise DistStoreError(f"compare_set: the two values have at most {_MAX_VALUE_BYTES} bytes "
                                 f"together, not {len(expected) + len(desired)} (key {key[:64]!r})")
        return self._change("CompareSet", key, [(4, expected), (5, desired)]).data(1)

    def _check(self, keys: Sequence[str]) -> bool:
        return all(self._ask("Get", [(2, key) for key in part]).integer(1)
                   for part in _parts([_key_bytes(key) for key in keys], len))

    def _delete(self, key: str) -> bool:
        return bool(self._change("Delete", key, []).integer(1))

    def num_keys(self) -> int:
        """The number of keys."""
        return self._ask("Count", []).integer(1)

    def _when_there(self, keys: Sequence[str], seconds: float, values: bool) -> list[bytes] | None:
        deadline = time.monotonic() + seconds
        found: list[bytes] = []
        for part in _parts([_key_bytes(key) for key in keys], len):
            while part:
                fields = [(1, self._ref()), *[(2, key) for key in part], (3, 1), (4, int(values))]
                reply = self._asked("Get", fields, deadline - time.monotonic())
                if reply is None:
                    return None
                some = reply.parts(2)
                found += some
                part = part[len(some):] if values else []
        return found


def _close(transport: Transport) -> None:
    transport.close()


def _key_bytes(key: str) -> bytes:
    data = key.encode()
    if not 0 < len(data) <= _MAX_KEY_BYTES:
        raise DistStoreError(f"a key of a store has 1 to {_MAX_KEY_BYTES} bytes, not {len(data)}")
    return data


def _fitting(key: str, value: bytes) -> bytes:
    if len(value) > _MAX_VALUE_BYTES:
        raise DistStoreError(f"a value of a store has at most {_MAX_VALUE_BYTES} bytes, not {len(value)} "
                             f"(key {key[:64]!r})")
    return value


def _parts(items: Sequence[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Splits the items into lists that fit in one message."""
    part: list[_T] = []
    total = 0
    for item in items:
        if part and total + size(item) > _MAX_ASKED_BYTES:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


class TCPStore(StorePart):
    """The store host_name:port of a daemon. No port is opened: the address is only the store's name on the
    daemon, and every process with the same user, daemon and address uses the same store.

    The daemon is the one that the variable TELETENSOR_STORE names, or else the one that answers at
    host_name:port, or else the one that answers at port 7420 of MASTER_ADDR, or else that of the session.

    is_master: this process creates the store without keys, and the store is deleted when this process drops
    it; the remaining processes wait until it exists. With `world_size` the master waits until that number
    of processes has opened the store, unless wait_for_workers is False. multi_tenant: a master uses a store
    that exists already. Port 0 of a master means any port that no store has. timeout applies to every wait;
    it is a timedelta or seconds. use_libuv has no effect; master_listen_fd raises NotImplementedError.

    DistStoreError if no master arrives in time, if a key is longer than 4 KiB or a value than 1 MiB, or if
    the user's stores are full (64 MiB)."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: Any = _FIVE_MINUTES,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        if not isinstance(host_name, str):
            raise TypeError(f"TCPStore: host_name must be a str, not {type(host_name).__name__}")
        if master_listen_fd is not None:
            raise NotImplementedError("TCPStore: no port is opened, so master_listen_fd has no meaning")
        if not 0 <= port <= 65535 or port == 0 and not is_master:
            raise ValueError(f"TCPStore: port must be from 1 to 65535, or 0 for a master, not {port}")
        if world_size is not None and world_size < 1:
            world_size = None
        way = Way.JOIN if not is_master else Way.SHARE if multi_tenant else Way.BEGIN
        place = place_of(host_name, port, own_place)
        self._host, self._port, self._master = host_name, port, is_master
        self._daemon = (DaemonStore(place, f"{host_name}:{port}", way, timeout) if port
                        else self._of_any_port(place, timeout))
        super().__init__("/", self._daemon)
        if is_master and not multi_tenant:
            self._dropping = weakref.finalize(self, _drop, self._daemon)
        if world_size is not None and wait_for_workers:
            self._meet(world_size)

    def _of_any_port(self, place: Place, timeout: Any) -> DaemonStore:
        while True:
            self._port = 49152 + secrets.randbelow(16384)
            try:
                return DaemonStore(place, f"{self._host}:{self._port}", Way.NEW, timeout)
            except DistStoreError as error:
                if not isinstance(error.__cause__, CallError) or error.__cause__.code != _EXISTS:
                    raise

    def _meet(self, world_size: int) -> None:
        """Counts this process; the master waits for all processes."""
        if self._daemon._add(_INIT, 1) == world_size:
            self._daemon._set({_ALL: b"1"})
        if not self._master:
            return
        seconds = self.timeout.total_seconds()
        if self._daemon._when_there([_ALL], seconds, False) is None:
            raise DistStoreError(f"Timed out after {seconds:g} seconds waiting for clients. "
                                 f"{self._daemon._add(_INIT, 0)}/{world_size} clients joined.")
        self._daemon._delete(_ALL)

    @property
    def host(self) -> str:
        """The given host_name."""
        return self._host

    @property
    def port(self) -> int:
        """The port, which is part of the store's name."""
        return self._port

    @property
    def libuvBackend(self) -> bool:  # PyTorch's name
        """Returns True, the default in PyTorch."""
        return True


def _drop(store: DaemonStore) -> None:
    """Deletes the master's store. If the daemon cannot be reached, the store expires an hour later."""
    try:
        store._asked("Drop", [(1, store._ref())], _LAST)
    except DistStoreError:
        pass  # another master has created the store again since
