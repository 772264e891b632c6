"""Reports to the daemon which source lines issued the commands that it shows in `teletensor memory`,
`teletensor slowlog` and on the dashboard: those of a session's largest tensors, of slow instructions and of
failures. Each session has one thread for this, which sleeps most of the time; nothing is sent while nothing
has run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence

from .. import _core
from .._connection.protowire import decode, encode, integers
from .._connection.transport import CallError, Transport

__all__ = ["SiteReporter"]

# The maximum number of lines in one report, and of bytes in one line, as the daemon accepts them.
_MOST = 200
_LAST = 2.0  # seconds for a call of the last report
_QUEUED = 3 * _MOST  # the number of lines of commands that have not run, in the last report


class SiteReporter:
    """Reports every `seconds` between start() and stop(), and before the session forgets lines, which it
    does after many commands."""

    def __init__(self, transport: Transport, core: _core.Session, seconds: float) -> None:
        self._transport = transport
        self._core = weakref.ref(core)
        self._seconds = seconds
        self._stopped = False
        # The last command that had run at the last report, and the daemon instance to which it was made.
        self._seen = core.completed_upto, transport.epoch
        self._thread = threading.Thread(target=self._run, name="teletensor-sites", daemon=True)
        # Released when the thread should wake up early. The session calls release() while it issues a
        # command: a Lock's release runs no Python code. If the lock is already free, the call fails without
        # effect.
        self._wake = threading.Lock()
        self._wake.acquire()
        core.on_lap = self._wake.release

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, core: _core.Session | None = None) -> None:
        """Ends the thread; waits a moment for a call in progress. If the session is given, makes a last
        report."""
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # already released
            self._wake.release()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout=2)
        if core is not None and self._transport.ended is None and not self._transport.away:
            with contextlib.suppress(CallError):
                self.report(core, _LAST)
                # commands that have not run yet, but will if the session stays on the daemon
                queued = range(core.completed_upto + 1, core.last_seq + 1)
                self._tell(core, queued[-_QUEUED:], _LAST)

    def _run(self) -> None:
        pid, due = os.getpid(), time.monotonic() + self._seconds
        while True:
            self._wake.acquire(timeout=max(due - time.monotonic(), 0))
            core = self._core()
            if self._stopped or core is None or os.getpid() != pid:
                return
            try:
                if time.monotonic() < due:
                    self._tell(core, self._wanted(core.fading_upto))
                else:
                    due = time.monotonic() + self._seconds
                    self.report(core)
            except CallError as error:
                if not error.unreachable:
                    return
            del core

    def report(self, core: _core.Session, timeout: float = 0.0) -> None:
        """Reports all lines that the daemon does not have, if anything has run since it was last asked."""
        now = core.completed_upto, self._transport.epoch
        if now != self._seen:
            self._tell(core, self._wanted(core.last_seq, timeout), timeout)
            self._seen = now

    def _wanted(self, upto: int, timeout: float = 0.0) -> list[int]:
        """The commands up to this one whose lines the daemon does not have."""
        return integers(decode(self._call([(2, upto)], timeout)), 1)

    def _tell(self, core: _core.Session, commands: Iterable[int], timeout: float = 0.0) -> None:
        known = [(seq, site) for seq in commands if (site := core.site_of(seq))]
        sites = [(1, encode([(1, seq), (2, _shortened(site))])) for seq, site in known]
        for first in range(0, len(sites), _MOST):
            self._call(sites[first:first + _MOST], timeout)

    def _call(self, report: Sequence[tuple[int, bytes | int]], timeout: float) -> bytes:
        return self._transport.unary("Compute", "ReportSites", encode(report), timeout, wait=False)


def _shortened(site: str) -> str:
    """Shortens a long path at its beginning, because its end says more."""
    data = site.encode(errors="replace")
    return site if len(data) <= _MOST else "..." + data[3 - _MOST:].decode(errors="ignore")
