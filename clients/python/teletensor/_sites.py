"""Tells the daemon where in the program a session's largest tensors were made, for `teletensor top`,
the dashboard and the slow log. A thread per session that sleeps; nothing is sent while nothing new was
issued."""

from __future__ import annotations

import os
import threading
import weakref

from . import _core
from ._admin import Admin
from ._protowire import encode
from ._transport import CallError, Transport

__all__ = ["SiteReporter"]

_MOST = 50


class SiteReporter:
    """Reports every `seconds`, from start() to stop()."""

    def __init__(self, transport: Transport, core: _core.Session, seconds: float) -> None:
        self._transport = transport
        self._core = weakref.ref(core)
        self._seconds = seconds
        self._stop = threading.Event()
        self._seen = 0
        self._thread = threading.Thread(target=self._run, name="teletensor-sites", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; waits a moment for a call in progress."""
        self._stop.set()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        pid = os.getpid()
        while not self._stop.wait(self._seconds) and os.getpid() == pid:
            core = self._core()
            if core is None:
                return
            try:
                self.report(core)
            except CallError as error:
                if not error.unreachable:
                    return
            del core

    def report(self, core: _core.Session) -> None:
        """One report, if commands were issued since the last one."""
        last = core.last_seq
        if last == self._seen:
            return
        self._seen = last
        tensors = Admin(self._transport).holdings(most=_MOST)["tensors"]
        known = [(t["command"], core.site_of(t["command"])) for t in tensors if not t["site"]]
        sites = [(1, encode([(1, seq), (2, site)])) for seq, site in known if site]
        if sites:
            self._transport.unary("Compute", "ReportSites", encode(sites), wait=False)
