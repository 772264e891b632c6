"""How the launchers on several machines agree on their node ranks, through a store of a daemon.

A round is a list of launchers. Each launcher appends itself; when the list is full, all of them confirm
that they are running. If one does not (because it was killed while it waited), the round is void, and the
launchers that have confirmed enter the next round.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ._daemon_store import DaemonStore, Place, Way
from ._stores import DistStoreError, Store

__all__ = ["Seat", "take_seat"]

_LOOK = 0.5  # seconds between two checks for signals
_HERE_SECONDS = 10.0  # seconds within which each launcher of a full round must confirm


class Seat(NamedTuple):
    """The node rank of a machine, and the address that identifies the world of all machines."""

    node: int
    address: str
    port: int


def take_seat(place: Place, run: str, nodes: int, address: str, port: int, seconds: float,
              interrupted: Callable[[], bool]) -> Seat | None:
    """Waits for the other launchers of the run. `address` and `port` become those of the world if this
    machine becomes the first one. Returns None if interrupted. DistStoreError if the other launchers do not
    arrive in time, or if their `nodes` differs."""
    store = DaemonStore(place, f"rendezvous {run}", Way.SHARE)
    deadline = time.monotonic() + seconds
    while True:
        own = secrets.token_hex(8)
        key = _enter(store, own, nodes)
        members: list[str] | None = None
        try:
            members = _full(store, key, nodes, deadline, interrupted)
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
            return Seat(members.index(own), host, int(number))


def _members(store: Store, key: str) -> tuple[bytes, list[str]]:
    """The list as it is stored, and the entries in it."""
    stored = store.get(key) if store.check([key]) else b""
    return stored, [each for each in stored.decode().split(",") if each]


def _named(members: Sequence[str], nodes: int) -> list[str]:
    """The launchers in a list, whose entries have the form "launcher/nodes"."""
    for each in members:
        if each.partition("/")[2] != str(nodes):
            raise DistStoreError(f"rendezvous: this launcher says --nnodes {nodes}, and one that waits for "
                                 f"others says {each.partition('/')[2]}")
    return [each.partition("/")[0] for each in members]


def _enter(store: Store, own: str, nodes: int) -> str:
    """Appends this launcher to the round that is open; returns the key of the round."""
    while True:
        number = store.add("round", 0)
        key = f"round {number}"
        stored, members = _members(store, key)
        # the round is full, perhaps that of an earlier run
        if members and len(members) >= int(members[0].partition("/")[2]):
            store.compare_set("round", str(number), str(number + 1))
            continue
        _named(members, nodes)
        longer = ",".join([*members, f"{own}/{nodes}"]).encode()
        if store.compare_set(key, stored, longer) == longer:
            if len(members) + 1 == nodes:
                store.set(f"{key} full", "")
            return key


def _full(store: Store, key: str, nodes: int, deadline: float,
          interrupted: Callable[[], bool]) -> list[str] | None:
    """The launchers of the round when it is full; None if interrupted."""
    while True:
        store._when_there([f"{key} full"], _LOOK, False)
        members = _named(_members(store, key)[1], nodes)
        if len(members) == nodes:
            return members
        if interrupted():
            return None
        if time.monotonic() > deadline:
            raise DistStoreError(f"rendezvous: {len(members)} of {nodes} machines have joined in time")


def _leave(store: Store, key: str, own: str) -> None:
    """Removes this launcher from a round that is not full."""
    while True:
        stored, members = _members(store, key)
        rest = ",".join(each for each in members if each.partition("/")[0] != own).encode()
        if rest == stored or store.check([f"{key} full"]) or store.compare_set(key, stored, rest) == rest:
            return
