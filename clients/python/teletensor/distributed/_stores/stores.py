"""Stores: key-value stores through which the processes of a program exchange information, as in
torch.distributed."""

from __future__ import annotations

import abc
import contextlib
import datetime
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from .._group import _seconds

__all__ = ["DistError", "DistStoreError", "HashStore", "LockedStore", "PrefixStore", "Store", "StorePart"]

_FIVE_MINUTES = datetime.timedelta(minutes=5)


class DistError(RuntimeError):
    """Base class of the errors of tt.distributed."""


class DistStoreError(DistError):
    """A store operation has failed: a key was not set in time, or the file is not a store."""


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of a store must be a str, not {type(key).__name__}")
    return key


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"a value of a store must be bytes or str, not {type(value).__name__}")
    return bytes(value)


def _several(what: str, given: Any) -> list[Any]:
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{what} must be a list, not {type(given).__name__}")
    return list(given)


class Store(abc.ABC):
    """A mapping from keys (str) to values (bytes) that processes or threads share. A str value is stored as
    UTF-8.

    `get`, `multi_get` and `wait` wait until all keys exist, and raise DistStoreError after the timeout: 300
    s, or the value given to set_timeout.
    """

    def __init__(self) -> None:
        self._timeout = _FIVE_MINUTES

    # Each type of store implements these methods. Keys and values have been checked.

    @abc.abstractmethod
    def _set(self, values: Mapping[str, bytes]) -> None: ...

    @abc.abstractmethod
    def _add(self, key: str, amount: int) -> int: ...

    @abc.abstractmethod
    def _append(self, key: str, value: bytes) -> None: ...

    @abc.abstractmethod
    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes: ...

    @abc.abstractmethod
    def _check(self, keys: Sequence[str]) -> bool: ...

    @abc.abstractmethod
    def _delete(self, key: str) -> bool: ...

    @abc.abstractmethod
    def num_keys(self) -> int:
        """The number of keys."""

    @abc.abstractmethod
    def _when_there(self, keys: Sequence[str], seconds: float, values: bool) -> list[bytes] | None:
        """The values of the keys (an empty list unless `values`) as soon as all keys exist; None if they do
        not in time."""

    # The following methods are common to all stores.

    @property
    def timeout(self) -> datetime.timedelta:
        """The maximum time to wait for a key."""
        return self._timeout

    def set_timeout(self, timeout: Any) -> None:
        """Sets the maximum time to wait for a key: a timedelta, or seconds, more than 0 (ValueError)."""
        self._timeout = datetime.timedelta(seconds=_seconds(timeout))

    def _await(self, keys: Sequence[str], timeout: Any = None, values: bool = True) -> list[bytes]:
        seconds = self.timeout.total_seconds() if timeout is None else _seconds(timeout)
        names = [_key(key) for key in _several("keys", keys)]
        found = self._when_there(names, seconds, values)
        if found is None:
            raise DistStoreError(f"wait timeout after {seconds * 1000:.0f}ms, keys: {', '.join(names)}")
        return found

    def set(self, key: str, value: str | bytes) -> None:
        """Sets the value of the key."""
        self._set({_key(key): _bytes(value)})

    def get(self, key: str) -> bytes:
        """Returns the value of the key; waits for the key."""
        return self._await([key])[0]

    def add(self, key: str, amount: int) -> int:
        """Adds amount to the number that is stored as decimal digits (0 if the key does not exist); returns
        the sum. DistStoreError if the stored value is not a number."""
        return self._add(_key(key), int(amount))

    def append(self, key: str, value: str | bytes) -> None:
        """Appends the value to the stored one, or stores it if the key does not exist."""
        self._append(_key(key), _bytes(value))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Stores `desired_value` if the stored value is `expected_value`, or if the key does not exist and
        `expected_value` is empty. Returns the value that is stored afterwards, or `expected_value` if the
        key does not exist."""
        return self._compare_set(_key(key), _bytes(expected_value), _bytes(desired_value))

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys exist. Does not wait."""
        return self._check([_key(key) for key in _several("keys", keys)])

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """Waits until all keys exist; timeout is a timedelta or seconds, and replaces the store's own."""
        self._await(keys, timeout, values=False)

    def delete_key(self, key: str) -> bool:
        """Deletes the key; returns False if it did not exist."""
        return self._delete(_key(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of the keys; waits for all of them."""
        return self._await(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Sets a value for each key. ValueError if their numbers differ."""
        names = [_key(key) for key in _several("keys", keys)]
        given = [_bytes(value) for value in _several("values", values)]
        if len(names) != len(given):
            raise ValueError(f"multi_set: {len(names)} keys and {len(given)} values")
        self._set(dict(zip(names, given)))

    def has_extended_api(self) -> bool:
        """Returns True: the store has append, multi_get and multi_set."""
        return True


class LockedStore(Store):
    """A store whose values are a mapping that is protected by a lock."""

    @abc.abstractmethod
    def _locked(self) -> contextlib.AbstractContextManager[MutableMapping[str, bytes]]:
        """A context with all values, which no other process or thread reads or changes during it."""

    def _set(self, values: Mapping[str, bytes]) -> None:
        with self._locked() as stored:
            stored.update(values)

    def _add(self, key: str, amount: int) -> int:
        with self._locked() as values:
            stored = values.get(key, b"0")
            try:
                total = int(stored) + amount
            except ValueError:
                text = f"add: the value of {key!r} is not a number: {stored[:40]!r}"
                raise DistStoreError(text) from None
            values[key] = str(total).encode()
            return total

    def _append(self, key: str, value: bytes) -> None:
        with self._locked() as values:
            values[key] = values.get(key, b"") + value

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._locked() as values:
            stored = values.get(key)
            if expected != (stored or b""):
                return expected if stored is None else stored
            values[key] = desired
            return desired

    def _check(self, keys: Sequence[str]) -> bool:
        with self._locked() as values:
            return all(key in values for key in keys)

    def _delete(self, key: str) -> bool:
        with self._locked() as values:
            return values.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        with self._locked() as values:
            return len(values)


class HashStore(LockedStore):
    """A store for the threads of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, bytes]]:
        with self._changed:
            yield self._values
            self._changed.notify_all()

    def _when_there(self, keys: Sequence[str], seconds: float, values: bool) -> list[bytes] | None:
        with self._changed:
            there = self._changed.wait_for(lambda: all(key in self._values for key in keys), seconds)
            return [self._values[key] for key in keys] if there else None


class StorePart(Store):
    """A view of the keys of another store that begin with a prefix, without the prefix. Its timeout is that
    of the other store, and num_keys counts all keys of the other store."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    @property
    def timeout(self) -> datetime.timedelta:
        """The maximum time to wait for a key."""
        return self._store.timeout

    def set_timeout(self, timeout: Any) -> None:
        """Sets the maximum time to wait for a key: a timedelta, or seconds, more than 0 (ValueError). This
        also changes the timeout of the other store."""
        self._store.set_timeout(timeout)

    def num_keys(self) -> int:
        """The number of keys of the other store."""
        return self._store.num_keys()

    def _set(self, values: Mapping[str, bytes]) -> None:
        self._store._set({self._prefix + key: value for key, value in values.items()})

    def _add(self, key: str, amount: int) -> int:
        return self._store._add(self._prefix + key, amount)

    def _append(self, key: str, value: bytes) -> None:
        self._store._append(self._prefix + key, value)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self._store._compare_set(self._prefix + key, expected, desired)

    def _check(self, keys: Sequence[str]) -> bool:
        return self._store._check([self._prefix + key for key in keys])

    def _delete(self, key: str) -> bool:
        return self._store._delete(self._prefix + key)

    def _when_there(self, keys: Sequence[str], seconds: float, values: bool) -> list[bytes] | None:
        return self._store._when_there([self._prefix + key for key in keys], seconds, values)


class PrefixStore(StorePart):
    """A view of the keys of another store that begin with "prefix/", without that prefix. Its timeout is
    that of the other store, and num_keys counts all keys of the other store."""

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"PrefixStore: store must be a Store, not {type(store).__name__}")
        super().__init__(_key(prefix) + "/", store)

    @property
    def underlying_store(self) -> Store:
        """The other store."""
        return self._store
