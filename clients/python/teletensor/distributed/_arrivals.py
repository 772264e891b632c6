"""The signals that a launcher waits for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Set

__all__ = ["Arrivals", "arrivals"]


class Arrivals:
    """The signals that have arrived, in a pipe into which Python's handler writes them.

    The handler runs in any thread of the process. Libraries start threads that do not block signals, and a
    signal without a handler that such a thread receives is lost to sigwait in the main thread."""

    def __init__(self, ends: Set[signal.Signals], pipe: int) -> None:
        self._ends, self._pipe = ends, pipe
        self._waiting: list[int] = []
        self.end: int | None = None  # the first signal that has arrived and ends the launcher

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for a signal and returns its number; one that ends the launcher goes before SIGCHLD.
        Returns None if none arrives within `seconds`."""
        if not self._waiting and not self._read(seconds):
            return None
        return self._waiting.pop(0) if self._waiting else int(signal.SIGCHLD)

    def ended(self) -> bool:
        """Returns whether a signal that ends the launcher has arrived; does not wait."""
        self._read(0)
        return self.end is not None

    def _read(self, seconds: float | None) -> bool:
        """Reads what the pipe holds, for at most `seconds` until it holds anything."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        self._waiting += [each for each in os.read(self._pipe, select.PIPE_BUF) if each in self._ends]
        if self.end is None and self._waiting:
            self.end = self._waiting[0]
        return True


@contextlib.contextmanager
def arrivals(ends: Set[signal.Signals]) -> Iterator[Arrivals]:
    """Handles SIGCHLD and the signals `ends`, which end the launcher. Only in the main thread."""
    out, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = {each: signal.signal(each, lambda number, _: None) for each in (*ends, signal.SIGCHLD)}
    outer = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    try:
        yield Arrivals(ends, out)
    finally:
        signal.set_wakeup_fd(outer)
        for each, handler in before.items():  # None stands for a handler that is not Python's
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        os.close(out)
        os.close(into)
