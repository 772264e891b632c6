"""Tells the daemon which lines of the program issued the commands that it shows in `teletensor memory`,
`teletensor slowlog` and on the dashboard: those of a session's largest tensors, of slow instructions and
of failures. A thread per session that sleeps; nothing is sent while nothing has run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence

from . import _core
from ._protowire import decode, encode, integers
from ._transport import CallError, Transport

__all__ = ["SiteReporter"]

_MOST = 200  # lines in one report, and bytes of one line, as the daemon takes them
_LAST = 2.0  # seconds for a call of the last report
_QUEUED = 3 * _MOST  # lines of commands that have not run, in the last report


class SiteReporter:
    """Reports every `seconds`, from start() to stop(), and before the session forgets lines, which it does
    after many commands."""

    def __init__(self, transport: Transport, core: _core.Session, seconds: float) -> None:
        self._transport = transport
        self._core = weakref.ref(core)
        self._seconds = seconds
        self._stopped = False
        # What had run at the last report, and the daemon that it was made to.
        self._seen = core.completed_upto, transport.epoch
        self._thread = threading.Thread(target=self._run, name="teletensor-sites", daemon=True)
        # Free when the thread is to wake up before its time. The session calls release() while it issues a
        # command: a lock's runs no Python code. It fails, to no effect, where the lock is free already.
        self._wake = threading.Lock()
        self._wake.acquire()
        core.on_lap = self._wake.release

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, core: _core.Session | None = None) -> None:
        """Ends the thread; waits a moment for a call in progress. Then reports a last time, where the
        session is given."""
        self._stopped = True
        with contextlib.suppress(RuntimeError):  # free already
            self._wake.release()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout=2)
        if core is not None and self._transport.ended is None and not self._transport.away:
            with contextlib.suppress(CallError):
                self.report(core, _LAST)
                queued = range(core.completed_upto + 1, core.last_seq + 1)  # of a session that stays
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
        """Tells all lines that the daemon lacks, if anything has run since it was asked."""
        now = core.completed_upto, self._transport.epoch
        if now != self._seen:
            self._tell(core, self._wanted(core.last_seq, timeout), timeout)
            self._seen = now

    def _wanted(self, upto: int, timeout: float = 0.0) -> list[int]:
        """The commands up to this one whose lines the daemon lacks."""
        return integers(decode(self._call([(2, upto)], timeout)), 1)

    def _tell(self, core: _core.Session, commands: Iterable[int], timeout: float = 0.0) -> None:
        known = [(seq, site) for seq in commands if (site := core.site_of(seq))]
        sites = [(1, encode([(1, seq), (2, _shortened(site))])) for seq, site in known]
        for first in range(0, len(sites), _MOST):
            self._call(sites[first:first + _MOST], timeout)

    def _call(self, report: Sequence[tuple[int, bytes | int]], timeout: float) -> bytes:
        return self._transport.unary("Compute", "ReportSites", encode(report), timeout, wait=False)


def _shortened(site: str) -> str:
    """The end of a long path says more than its beginning."""
    data = site.encode(errors="replace")
    return site if len(data) <= _MOST else "..." + data[3 - _MOST:].decode(errors="ignore")
