"""FileStore: a store for processes that use the same file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from typing import BinaryIO

from .stores import DistStoreError, LockedStore

__all__ = ["FileStore"]

_LOOK = 0.01  # seconds between two checks of the file
_MAGIC = b"teletensor store\n"
_HEAD = len(_MAGIC) + 16  # the length in bytes of the header before the first record
_RECORD = struct.Struct("<QQB")  # bytes of the key, bytes of the value, 1 if the key is deleted
# key for the number of processes that have left the store; the keys of programs begin with "/"
_LEFT = "left"


class _Part(MutableMapping[str, bytes]):
    """A view of the keys of a mapping that begin with a prefix, without the prefix."""

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


class _Log(MutableMapping[str, bytes]):
    """The values of a FileStore. Each change appends a record to the file, so a process reads only the
    records that other processes have written since its last read. Must be used while the file is locked."""

    def __init__(self, path: str) -> None:
        self._path, self._values = path, dict[str, bytes]()
        self._end = 0  # the number of bytes of the file that have been read
        # identifies the file: a file that is removed and created again has a different mark
        self._mark = b""
        self._file: BinaryIO | None = None  # set while the lock is held

    def begin(self, file: BinaryIO) -> None:
        """Reads the records that other processes have written. A record that a killed process has left
        incomplete is removed. DistStoreError if the file does not belong to a FileStore."""
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
        """Reads the next record; returns False if there is no complete one."""
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


class FileStore(LockedStore):
    """A store for the processes on this machine that use the same file, or for several machines if the file
    system's locks work between them. The file is removed when `world_size` processes have ended or dropped
    the store; without `world_size` it stays. DistStoreError if the file does not belong to a FileStore."""

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__()
        self._path, self._mutex = os.fspath(file_name), threading.Lock()
        self._log = _Log(self._path)
        with self._locked():
            pass  # reports any fault of the file now
        if world_size > 0:
            weakref.finalize(self, _leave, self._path, world_size)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Part]:
        with self._mutex, _locked_file(self._path) as file:
            self._log.begin(file)
            yield _Part("/", self._log)

    def _when_there(self, keys: Sequence[str], seconds: float, values: bool) -> list[bytes] | None:
        deadline = time.monotonic() + seconds
        while True:
            with self._locked() as stored:
                if all(key in stored for key in keys):
                    return [stored[key] for key in keys]
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK)


@contextlib.contextmanager
def _locked_file(path: str) -> Iterator[BinaryIO]:
    """The locked file, which is created if it is missing. No other process can lock it at the same time."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                removed = not os.path.samestat(os.stat(path), os.fstat(file.fileno()))
            except FileNotFoundError:
                removed = True  # removed while this process waited for the lock
            if not removed:
                yield file
                return


def _leave(path: str, world_size: int) -> None:
    """Counts a process that has ended or dropped the store. The last process removes the file."""
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
