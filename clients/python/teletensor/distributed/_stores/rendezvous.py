"""How the launchers on several machines agree on their node ranks, through a store of a daemon.

A round is a list of launchers. Each launcher appends itself. The list is closed when it has the maximum of
launchers, or some time after it has the minimum. Then all of them confirm that they are running. If one
does not (because it was killed while it waited), the round is void, and the launchers that have confirmed
enter the next round.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .daemon_store import DaemonStore, Place, Way
from .stores import DistStoreError, Store

__all__ = ["Nodes", "Patience", "Seat", "take_seat"]

_LOOK = 0.5  # seconds between two checks for signals
_HERE_SECONDS = 10.0  # seconds within which each launcher of a closed round must confirm
_CLOSED = "closed"  # the last entry of a list that has been closed with fewer than the maximum of launchers


class Nodes(NamedTuple):
    """The number of machines of a world: `least` to `most`."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


class Patience(NamedTuple):
    """The seconds to wait for `least` machines, and then for further ones."""

    join: float
    last_call: float


class Seat(NamedTuple):
    """The node rank of a machine, the number of machines, and the address that identifies the world of all
    of them."""

    node: int
    nodes: int
    address: str
    port: int
    # Returns True if launchers wait for a place in a larger world.
    newcomers: Callable[[], bool] = lambda: False


def take_seat(place: Place, run: str, nodes: Nodes, address: str, port: int, patience: Patience,
              interrupted: Callable[[], bool]) -> Seat | None:
    """Waits for the other launchers of the run. `address` and `port` become those of the world if this
    machine becomes the first one. Returns None if interrupted. DistStoreError if the other launchers do not
    arrive in time, or if their `nodes` differs."""
    store = DaemonStore(place, f"rendezvous {run}", Way.SHARE)
    deadline = time.monotonic() + patience.join
    while True:
        own = secrets.token_hex(8)
        key = _enter(store, own, nodes)
        members: list[str] | None = None
        try:
            members = _full(store, key, nodes, deadline, patience.last_call, interrupted)
        finally:
            if members is None:
                _leave(store, key, own)
        if members is None:
            return None
        if members[0] == own:
            store.set(f"{key} address", f"{address}:{port}")
        store.set(f"{key} {own}", "")
        there = [f"{key} address", *(f"{key} {each}" for each in members)]
        verdict = "go" if store._when_there(there, _HERE_SECONDS, False) is not None else "void"
        if store.compare_set(f"{key} verdict", "", verdict) == b"go":
            host, _, number = store.get(f"{key} address").decode().rpartition(":")
            seat = Seat(members.index(own), len(members), host, int(number))
            if len(members) == nodes.most:
                return seat
            return seat._replace(newcomers=functools.partial(_others_wait, store, key))


def _others_wait(store: Store, key: str) -> bool:
    """Returns whether launchers have entered a round after the one with this key."""
    newest = f"round {store.add('round', 0)}"
    return newest != key and bool(_members(store, newest)[1])


def _members(store: Store, key: str) -> tuple[bytes, list[str]]:
    """The list as it is stored, and the entries in it."""
    stored = store.get(key) if store.check([key]) else b""
    return stored, [each for each in stored.decode().split(",") if each]


def _closed(members: Sequence[str]) -> bool:
    """Returns whether the list accepts no further launcher."""
    if not members:
        return False
    most = members[0].partition("/")[2].rpartition(":")[2]
    return members[-1] == _CLOSED or len(members) >= int(most)


def _named(members: Sequence[str], nodes: Nodes) -> list[str]:
    """The launchers in a list, whose entries have the form "launcher/nodes"."""
    members = [each for each in members if each != _CLOSED]
    for each in members:
        if each.partition("/")[2] != str(nodes):
            raise DistStoreError(f"rendezvous: this launcher says --nnodes {nodes}, and one that waits for "
                                 f"others says {each.partition('/')[2]}")
    return [each.partition("/")[0] for each in members]


def _enter(store: Store, own: str, nodes: Nodes) -> str:
    """Appends this launcher to the round that is open; returns the key of the round."""
    while True:
        number = store.add("round", 0)
        key = f"round {number}"
        stored, members = _members(store, key)
        if _closed(members):  # perhaps that of an earlier run
            store.compare_set("round", str(number), str(number + 1))
            continue
        _named(members, nodes)
        longer = ",".join([*members, f"{own}/{nodes}"]).encode()
        if store.compare_set(key, stored, longer) == longer:
            if len(members) + 1 == nodes.most:
                store.set(f"{key} full", "")
            return key


def _full(store: Store, key: str, nodes: Nodes, deadline: float, last_call: float,
          interrupted: Callable[[], bool]) -> list[str] | None:
    """The launchers of the round when it is closed; None if interrupted."""
    closing: float | None = None  # when the round is closed with fewer than the maximum of launchers
    while True:
        store._when_there([f"{key} full"], _LOOK, False)
        stored, entries = _members(store, key)
        members = _named(entries, nodes)
        if _closed(entries):
            return members
        if interrupted():
            return None
        now = time.monotonic()
        if len(members) < nodes.least:
            closing = None
            if now > deadline:
                raise DistStoreError(f"rendezvous: {len(members)} of {nodes.least} machines have joined in "
                                     "time")
        elif closing is None:
            closing = now + last_call
        elif now > closing:
            longer = stored + f",{_CLOSED}".encode()
            if store.compare_set(key, stored, longer) == longer:
                store.set(f"{key} full", "")


def _leave(store: Store, key: str, own: str) -> None:
    """Removes this launcher from a round that is not closed."""
    while True:
        stored, members = _members(store, key)
        rest = ",".join(each for each in members if each.partition("/")[0] != own).encode()
        if rest == stored or _closed(members) or store.compare_set(key, stored, rest) == rest:
            return
