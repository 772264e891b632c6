"""The groups of a mesh: records which rank has issued which collectives, so that no read waits for lines of
the program that have not run yet."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

from ..._sessions.session import Session
from .._group import ProcessGroup, meet

__all__ = ["Groups"]


class Groups:
    """The groups of all ranks of a mesh, by name and by rank in the group.

    One thread issues the ranks one after the other, except within `during_threads`. This class refuses a
    wait in a session whose rank has issued a collective that another rank of the group has not: the lines
    of the other rank run later, and the wait would never end."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[int, ProcessGroup]] = {}
        self._threads = 0

    def add(self, group: ProcessGroup) -> None:
        """Registers a rank of the mesh as a member of this group."""
        group._mesh = self
        self._ranks.setdefault(group._name, {})[group.rank()] = group

    def remove(self, group: ProcessGroup) -> None:
        """Unregisters a rank that has left the group."""
        ranks = self._ranks.get(group._name, {})
        ranks.pop(group.rank(), None)
        if not ranks:
            self._ranks.pop(group._name, None)

    def meet(self, group: ProcessGroup) -> None:
        """The barrier of one rank: it waits only if other threads issue the other ranks."""
        if self._threads or group._session is None:
            meet(group)
            return
        with group._session.as_current():
            group.issue("all_reduce", group._zero, False)

    def watch(self, session: Session) -> None:
        """Makes waits in this session that would never end raise an error."""
        groups, core = weakref.ref(self), weakref.ref(session)

        def before_wait() -> None:
            own, waiting = groups(), core()
            if own is not None and waiting is not None and not own._threads:
                own._check(waiting)

        session._core.before_wait = before_wait

    @contextlib.contextmanager
    def during_threads(self) -> Iterator[None]:
        """A context in which waits are not refused."""
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1

    def even(self) -> bool:
        """Returns whether all ranks have issued the same collectives."""
        return not any(
            _missing(group, ranks)
            for ranks in list(self._ranks.values())
            for group in list(ranks.values())
        )

    def begin_again(self) -> None:
        """Ends the groups, with all collectives that wait in them, and creates them again; the group
        objects stay the same."""
        self.leave()
        for group in self._all():
            group.join()

    def leave(self) -> None:
        """Ends the groups, with all collectives that wait in them, until begin_again()."""
        # A rank that has issued more collectives may have no room for a command until other ranks have
        # left.
        for group in sorted(self._all(), key=lambda group: group.calls):
            group.leave()

    def _all(self) -> list[ProcessGroup]:
        return [group for ranks in self._ranks.values() for group in ranks.values()]

    def finish(self) -> None:
        """Makes a later synchronize() also wait until everything sent has been received."""
        for group in self._all():
            group._finish()

    def received(self) -> bool:
        """Returns whether receives have been issued for all sends."""
        return all(
            sum(other.sent_to[group.rank()] for other in ranks.values())
            <= sum(group.received_from.values())
            for ranks in self._ranks.values()
            for group in ranks.values()
        )

    def end(self) -> None:
        """Makes all ranks leave all groups."""
        for group in self._all():
            group._sent = False
            group._leave()

    def _check(self, session: Session) -> None:
        for ranks in self._ranks.values():
            for group in ranks.values():
                if group._session is session and (reason := _missing(group, ranks)):
                    raise RuntimeError(
                        f"this line waits for a value of rank {group._ranks[group.rank()]}, and "
                        f"{reason}. One "
                        "thread issues the ranks of a mesh one after the other: read when all of them have "
                        "been issued (after mesh.run), or use mesh.spawn, which has a thread for each rank"
                    )


def _missing(group: ProcessGroup, ranks: dict[int, ProcessGroup]) -> str:
    """Describes the calls that another rank has yet to issue for the collectives and receives of this rank;
    "" if there are none."""
    own = group.rank()
    for rank in range(group.size()):
        other = ranks.get(rank)
        if rank == own:
            continue
        calls = 0 if other is None else other.calls
        if calls < group.calls:
            return (
                f"this rank has issued {group.calls} collectives of {group._name!r}, rank "
                f"{group._ranks[rank]} only {calls}"
            )
        sent = 0 if other is None else other.sent_to[own]
        if sent < group.received_from[rank]:
            return (
                f"this rank has issued {group.received_from[rank]} receives from rank "
                f"{group._ranks[rank]}, which has issued only {sent} sends to it"
            )
    received = sum(group.received_from.values())
    sent = sum(other.sent_to[own] for other in ranks.values())
    return (
        f"this rank has issued {received} receives, the others {sent} sends to it"
        if sent < received
        else ""
    )
