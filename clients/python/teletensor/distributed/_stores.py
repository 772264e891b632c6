"""Stores: what the processes of a program tell each other by keys, as torch.distributed's stores do."""

from __future__ import annotations

import abc
import contextlib
import datetime
import fcntl
import os
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, BinaryIO

from ._group import _seconds

__all__ = ["DistError", "DistStoreError", "FileStore", "HashStore", "PrefixStore", "Store"]

_FIVE_MINUTES = datetime.timedelta(minutes=5)
_LOOK = 0.01  # seconds between two looks at the file of a FileStore
_MAGIC = b"teletensor store\n"
_HEAD = len(_MAGIC) + 16  # bytes before the first record
_RECORD = struct.Struct("<QQB")  # bytes of the key, bytes of the value, 1 where the key is deleted
_LEFT = "left"  # how many processes have left a FileStore; the keys of programs begin with "/"


class DistError(RuntimeError):
    """An error of tt.distributed."""


class DistStoreError(DistError):
    """A store cannot do what it is asked: a key did not come in time, or the file is no store."""


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of a store is a str, not {type(key).__name__}")
    return key


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"a value of a store is bytes or str, not {type(value).__name__}")
    return bytes(value)


def _several(what: str, given: Any) -> list[Any]:
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{what} is a list, not {type(given).__name__}")
    return list(given)


class _Part(MutableMapping[str, bytes]):
    """The keys of a mapping that begin with a prefix, without it."""

    def __init__(self, prefix: str, whole: MutableMapping[str, bytes]) -> None:
        self._prefix, self._whole = prefix, whole

    def __getitem__(self, key: str) -> bytes:
        return self._whole[self._prefix + key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._whole[self._prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self._whole[self._prefix + key]

    def __iter__(self) -> Iterator[str]:
        return (key[len(self._prefix):] for key in self._whole if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Store(abc.ABC):
    """Values (bytes) by keys (str), which processes or threads share. A str is stored as UTF-8.

    `get`, `multi_get` and `wait` wait until all keys are there, and raise DistStoreError after the timeout:
    300 s, or what set_timeout has set.
    """

    def __init__(self) -> None:
        self._timeout = _FIVE_MINUTES

    @property
    def timeout(self) -> datetime.timedelta:
        """How long a key is waited for."""
        return self._timeout

    def set_timeout(self, timeout: Any) -> None:
        """Sets how long a key is waited for: a timedelta, or seconds, more than 0 (ValueError)."""
        self._timeout = datetime.timedelta(seconds=_seconds(timeout))

    @abc.abstractmethod
    def _locked(self) -> contextlib.AbstractContextManager[MutableMapping[str, bytes]]:
        """All values, which no other process or thread sees or changes meanwhile."""

    @abc.abstractmethod
    def _when_there(self, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        """The values of the keys as soon as all are there; None: not within that time."""

    def _await(self, keys: Sequence[str], timeout: Any = None) -> list[bytes]:
        seconds = self.timeout.total_seconds() if timeout is None else _seconds(timeout)
        names = [_key(key) for key in _several("keys", keys)]
        found = self._when_there(names, seconds)
        if found is None:
            raise DistStoreError(f"wait timeout after {seconds * 1000:.0f}ms, keys: {', '.join(names)}")
        return found

    def set(self, key: str, value: str | bytes) -> None:
        """Stores the value."""
        with self._locked() as values:
            values[_key(key)] = _bytes(value)

    def get(self, key: str) -> bytes:
        """The value. Waits for the key."""
        return self._await([key])[0]

    def add(self, key: str, amount: int) -> int:
        """Adds to the number that is stored as decimal digits, 0 where there is none; returns the sum.
        DistStoreError where the value is no number."""
        with self._locked() as values:
            stored = values.get(_key(key), b"0")
            try:
                total = int(stored) + int(amount)
            except ValueError:
                raise DistStoreError(f"add: the value of {key!r} is no number: {stored[:40]!r}") from None
            values[key] = str(total).encode()
            return total

    def append(self, key: str, value: str | bytes) -> None:
        """Adds the value at the end of the one that is stored, or stores it."""
        with self._locked() as values:
            values[key] = values.get(_key(key), b"") + _bytes(value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Stores `desired_value` where `expected_value` is stored, or where nothing is and it is empty.
        Returns what is stored then; `expected_value` where nothing is."""
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        with self._locked() as values:
            stored = values.get(_key(key))
            if expected != (stored or b""):
                return expected if stored is None else stored
            values[key] = desired
            return desired

    def check(self, keys: Sequence[str]) -> bool:
        """Are all keys there? Does not wait."""
        names = [_key(key) for key in _several("keys", keys)]
        with self._locked() as values:
            return all(name in values for name in names)

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """Waits until all keys are there; timeout: a timedelta or seconds, instead of the store's own."""
        self._await(keys, timeout)

    def delete_key(self, key: str) -> bool:
        """Deletes the key; False: it was not there."""
        with self._locked() as values:
            return values.pop(_key(key), None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        with self._locked() as values:
            return len(values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of the keys. Waits for all of them."""
        return self._await(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Stores a value for each key. ValueError where there are not as many."""
        names = [_key(key) for key in _several("keys", keys)]
        given = [_bytes(value) for value in _several("values", values)]
        if len(names) != len(given):
            raise ValueError(f"multi_set: {len(names)} keys and {len(given)} values")
        with self._locked() as stored:
            stored.update(zip(names, given))

    def has_extended_api(self) -> bool:
        """True: there are append, multi_get and multi_set."""
        return True


class HashStore(Store):
    """A store of the threads of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, bytes]]:
        with self._changed:
            yield self._values
            self._changed.notify_all()

    def _when_there(self, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        with self._changed:
            there = self._changed.wait_for(lambda: all(key in self._values for key in keys), seconds)
            return [self._values[key] for key in keys] if there else None


class _Log(MutableMapping[str, bytes]):
    """The values of a FileStore. Each change is a record at the end of the file, so that a process reads
    only what others have written since it read last. Used under the file's lock."""

    def __init__(self, path: str) -> None:
        self._path, self._values = path, dict[str, bytes]()
        self._end = 0  # bytes of the file that have been read
        self._mark = b""  # of the file: one that was removed and made again has another
        self._file: BinaryIO | None = None  # while the lock is held

    def begin(self, file: BinaryIO) -> None:
        """Takes over what other processes have written. A record that a killed process has left unfinished
        is removed. DistStoreError: the file is not a FileStore's."""
        self._file = file
        file.seek(0)
        head = file.read(_HEAD)
        if not head.startswith(_MAGIC[:len(head)]):
            raise DistStoreError(f"{self._path} is not the file of a FileStore")
        if len(head) < _HEAD:
            head = _MAGIC + secrets.token_bytes(_HEAD - len(_MAGIC))
            file.seek(0)
            file.write(head)
        if head != self._mark:
            self._mark, self._end = head, _HEAD
            self._values.clear()
        file.seek(self._end)
        while self._read_record(file):
            self._end = file.tell()
        file.truncate(self._end)

    def _read_record(self, file: BinaryIO) -> bool:
        """Takes over the next record; False: there is no whole one."""
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return False
        key_bytes, value_bytes, deleted = _RECORD.unpack(head)
        if key_bytes + value_bytes > os.fstat(file.fileno()).st_size - file.tell():
            return False
        key, value = file.read(key_bytes).decode(), file.read(value_bytes)
        if deleted:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        return True

    def _append(self, key: str, value: bytes, deleted: bool) -> None:
        assert self._file is not None
        name = key.encode()
        self._file.seek(self._end)
        self._file.write(_RECORD.pack(len(name), len(value), deleted) + name + value)
        self._file.flush()  # OSError: the disk is full, and the next process removes the record
        self._end = self._file.tell()

    def __getitem__(self, key: str) -> bytes:
        return self._values[key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._append(key, value, False)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        if key in self._values:
            self._append(key, b"", True)
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class FileStore(Store):
    """A store of the processes of this machine that name the same file, or of several machines where the
    file system's locks hold between them. The file is removed when `world_size` processes have ended or
    dropped the store; it stays where `world_size` is not given. DistStoreError: the file is another's."""

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__()
        self._path, self._mutex = os.fspath(file_name), threading.Lock()
        self._log = _Log(self._path)
        with self._locked():
            pass  # what is wrong with the file is said here
        if world_size > 0:
            weakref.finalize(self, _leave, self._path, world_size)

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Part]:
        with self._mutex, _locked_file(self._path) as file:
            self._log.begin(file)
            yield _Part("/", self._log)

    def _when_there(self, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        deadline = time.monotonic() + seconds
        while True:
            with self._locked() as values:
                if all(key in values for key in keys):
                    return [values[key] for key in keys]
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK)


@contextlib.contextmanager
def _locked_file(path: str) -> Iterator[BinaryIO]:
    """The file, made where there is none, which no other process has at the same time."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                removed = not os.path.samestat(os.stat(path), os.fstat(file.fileno()))
            except FileNotFoundError:
                removed = True  # while this process waited for the lock
            if not removed:
                yield file
                return


def _leave(path: str, world_size: int) -> None:
    """Counts a process that has ended or dropped the store. The last one removes the file."""
    if not os.path.exists(path):
        return
    with _locked_file(path) as file:
        log = _Log(path)
        log.begin(file)
        left = int(log.get(_LEFT, b"0")) + 1
        if left < world_size:
            log[_LEFT] = str(left).encode()
        else:
            os.unlink(path)


class PrefixStore(Store):
    """The keys of another store that begin with "prefix/", without that. Its timeout is the other store's,
    and num_keys counts all keys of the other store."""

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"PrefixStore: store is a Store, not {type(store).__name__}")
        self._prefix, self._store = _key(prefix) + "/", store

    @property
    def underlying_store(self) -> Store:
        """The other store."""
        return self._store

    @property
    def timeout(self) -> datetime.timedelta:
        """How long a key is waited for."""
        return self._store.timeout

    def set_timeout(self, timeout: Any) -> None:
        """Sets the timeout of the other store."""
        self._store.set_timeout(timeout)

    def num_keys(self) -> int:
        """The number of keys of the other store."""
        return self._store.num_keys()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Part]:
        with self._store._locked() as values:
            yield _Part(self._prefix, values)

    def _when_there(self, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        return self._store._when_there([self._prefix + key for key in keys], seconds)
