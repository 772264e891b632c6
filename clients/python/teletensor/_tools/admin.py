"""Calls of the daemon's Admin service; the answers are plain dictionaries."""

from __future__ import annotations

from typing import Any

from .._connection.protowire import Message, decode, encode, integers
from .._connection.transport import Transport
from .._sessions.published import publication_of

__all__ = ["Admin", "bytes_text", "memory_of"]

_LONG = 24 * 3600.0  # seconds: the deadline of calls that may take very long


def bytes_text(count: float) -> str:
    """Formats a number of bytes, such as "1.5 GiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def memory_of(m: Message) -> dict[str, Any]:
    """The fields of a MemoryUse message as a dictionary."""
    return {"device": m.text(1), "used": m.integer(2), "peak": m.integer(3), "quota": m.integer(4),
            "device_used": m.integer(5), "device_total": m.integer(6),
            "away": m.integer(7), "disk_used": m.integer(8), "disk_quota": m.integer(9),
            "device_held": m.integer(10)}


def _session_of(s: Message) -> dict[str, Any]:
    return {"id": s.integer(9), "user": s.text(10), "name": s.text(1),
            "age_seconds": round(s.real(2), 1), "handles": s.integer(3), "queued": s.integer(4),
            "completed_upto": s.integer(5), "attached": bool(s.integer(7)),
            "detached_seconds": round(s.real(16), 1),
            "client_version": s.text(8), "lane_seconds": round(s.real(11), 6), "peer": s.text(12),
            "ahead": s.integer(13), "wait_seconds": round(s.real(14), 3),
            "not_saved": s.text(17), "repeated": s.integer(18),
            "limits": {a.text(1): {"used": a.integer(2), "limit": a.integer(3)} for a in s.messages(15)},
            "memory": [memory_of(m) for m in s.messages(6)]}


class Admin:
    """Calls of the Admin service over a transport. CallError is passed on to the caller."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _ask(self, method: str, fields: list[tuple[int, Any]] | None = None,
             timeout: float = 0.0) -> Message:
        return decode(self._transport.unary("Admin", method, encode(fields or []), timeout, wait=False))

    def sessions(self) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """The sessions that the caller may see, and the totals of all sessions that it may not see (None if
        it may see all)."""
        reply = self._ask("Sessions")
        found = [_session_of(s) for s in reply.messages(1)]
        if not reply.integer(3):
            return found, None
        return found, {**_session_of(reply.message(2)), "sessions": reply.integer(3)}

    def memory(self) -> list[dict[str, Any]]:
        """Memory use by device, summed over all sessions."""
        return self.devices()[0]

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """The result of memory(), and for each GPU, by name, its counters since the daemon started."""
        reply = self._ask("Memory")
        activity = {a.text(1): {"busy_seconds": a.real(2), "in_flight": a.integer(3),
                                "instructions": a.integer(4), "loops": a.integer(5),
                                "on_host": a.integer(6), "kernels": a.integer(7)}
                    for a in reply.messages(2)}
        return [memory_of(m) for m in reply.messages(1)], activity

    def holdings(self, session: int = 0, most: int = 0, reset_peaks: bool = False) -> dict[str, Any]:
        """The largest tensors and the state of a session. Session 0 is the session of this transport; only
        for that session, `reset_peaks` restarts the peaks of memory use."""
        reply = self._ask("Holdings", [(1, session), (2, most), (3, int(reset_peaks))])
        return {"session": _session_of(reply.message(3)),
                "tensors": [{"device": h.text(1), "bytes": h.integer(2), "command": h.integer(3),
                             "site": h.text(4), "away": bool(h.integer(5)), "dtype": h.text(6),
                             "shape": integers(h, 7)} for h in reply.messages(1)]}

    def publications(self) -> list[dict[str, Any]]:
        """The shared tensors that the caller may use."""
        return [publication_of(p) for p in self._ask("Publications").messages(1)]

    def groups(self) -> list[dict[str, Any]]:
        """The groups of sessions that run collectives together, as far as the caller owns a session in
        them."""
        return [{"user": g.text(1), "name": g.text(2), "ranks": g.integer(3), "state": g.text(4),
                 "why": g.text(5), "collectives": g.integer(6),
                 "members": [{"rank": m.integer(1), "daemon": m.text(2), "who": m.text(3),
                              "waits": bool(m.integer(4))} for m in g.messages(7)]}
                for g in self._ask("Groups").messages(1)]

    def slow_log(self, most: int = 0) -> list[dict[str, Any]]:
        """The slow-operation log, newest entry first."""
        return [{"age_seconds": round(e.real(1), 1), "session": e.integer(2), "user": e.text(3),
                 "op": e.text(4), "seconds": round(e.real(5), 4), "command": e.integer(6),
                 "site": e.text(7), "name": e.text(8)}
                for e in self._ask("SlowLog", [(1, most)]).messages(1)]

    def kill(self, session: int, reason: str = "") -> None:
        """Ends a session."""
        self._ask("Kill", [(1, session), (2, reason)])

    def interrupt(self, session: int) -> None:
        """Cancels the commands that a session has queued."""
        self._ask("InterruptSession", [(1, session)])

    def snapshot(self, session: int = 0) -> dict[str, Any]:
        """Makes the daemon write a snapshot of a session; session 0 is the session of this transport."""
        reply = self._ask("Snapshot", [(1, session)], timeout=_LONG)
        return {"command": reply.integer(1), "bytes": reply.integer(2),
                "seconds": round(reply.real(3), 6)}

    def drain(self, seconds: float = 0.0) -> dict[str, Any]:
        """Makes the daemon write snapshots of its sessions and exit; returns how many sessions were `kept`
        and which ones were `lost`."""
        reply = self._ask("Drain", [(1, round(seconds * 1000))], timeout=_LONG)
        return {"kept": reply.integer(1),
                "lost": [{"id": s.integer(1), "name": s.text(2), "user": s.text(3),
                          "reason": s.text(4), "goes_back": bool(s.integer(5))}
                         for s in reply.messages(2)]}

    def move(self, session: int, to: str, timeout: float = 0.0) -> dict[str, Any]:
        """Moves a session to the peer daemon with this name. Returns the `address` at which the session is
        now, the `bytes` of tensors that were moved, and the `seconds` for which the session was paused. If
        the daemon has no connection to the peer, it waits up to `timeout` seconds for one."""
        reply = self._ask("Move", [(1, session), (2, to), (3, round(timeout * 1000))], timeout=_LONG)
        return {"address": reply.text(1), "bytes": reply.integer(2), "seconds": round(reply.real(3), 6)}

    def admit(self, new: bool, why: str = "", to: str = "") -> None:
        """Sets whether the daemon accepts new sessions; if not, clients that ask for one get the reason
        `why`. With `to`, raises CallError and changes nothing if the daemon knows no such peer."""
        self._ask("Admit", [(1, int(not new)), (2, why), (3, to)])

    def create_token(self, user: str, role: str, lifetime_seconds: int = 0) -> dict[str, str]:
        """Creates a token; returns its id and its secret. The secret cannot be read again later."""
        reply = self._ask("CreateToken", [(1, user), (2, role), (3, lifetime_seconds)])
        return {"id": reply.text(1), "secret": reply.text(2)}

    def tokens(self) -> list[dict[str, Any]]:
        """All tokens, without their secrets."""
        return [{"id": t.text(1), "user": t.text(2), "role": t.text(3), "created": t.integer(4),
                 "expires": t.integer(5), "revoked": bool(t.integer(6))}
                for t in self._ask("ListTokens").messages(1)]

    def revoke_token(self, token: str) -> None:
        """Revokes the token with this id: every later call with it is refused."""
        self._ask("RevokeToken", [(1, token)])
