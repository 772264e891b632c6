"""A progress bar for transfers that take seconds, on a terminal (stderr) or in a notebook; none is shown in
pipes.

Small transfers have no overhead; large ones start a thread that wakes up after a second.
`TELETENSOR_PROGRESS=0` disables the bars.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, TextIO

from .. import _core
from .._tools.admin import bytes_text

__all__ = ["watched"]

LEAST = 4 << 20  # bytes; smaller transfers take seconds only if everything is slow
PATIENCE = 1.0  # seconds before a bar is shown
_PAUSE = 0.2
_WIDTH = 30


class _Terminal:
    """A bar on one line of a terminal, which is drawn repeatedly."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._length = out, 0

    def draw(self, what: str, done: int, size: int, text: str) -> None:
        filled = _WIDTH * done // size
        line = f"{what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {text}"
        self._out.write(f"\r{line.ljust(self._length)}")
        self._length = len(line)
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


class _Notebook:
    """A progress element below a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, what: str, done: int, size: int, text: str) -> None:
        from IPython import display as frontend

        show: Any = frontend.display
        html: Any = frontend.HTML
        shown = html(f"<div>{what} <progress max='{size}' value='{done}'></progress> {text}</div>")
        if self._handle is None:
            self._handle = show(shown, display_id=True)
        else:
            self._handle.update(shown)

    def end(self) -> None:
        pass


def _display() -> _Terminal | _Notebook | None:
    if os.environ.get("TELETENSOR_PROGRESS") == "0":
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        return _Notebook()
    out = sys.stderr
    return _Terminal(out) if out is not None and out.isatty() else None


class _Bar(threading.Thread):
    """Draws the bar if a transfer takes longer than PATIENCE, until stop()."""

    def __init__(self, display: _Terminal | _Notebook, what: str, size: int, moved: _core.Moved) -> None:
        super().__init__(name="teletensor-progress", daemon=True)
        self._display, self._what, self._size, self._moved = display, what, size, moved
        self._began = time.monotonic()
        self._over = threading.Event()

    def stop(self) -> None:
        """Stops the bar; returns when nothing will be drawn any more."""
        self._over.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        if self._over.wait(PATIENCE):
            return
        # errors of the bar (a closed terminal or notebook frontend) must not abort a transfer
        with suppress(Exception):
            self._draw()
            while not self._over.wait(_PAUSE):
                self._draw()
            self._draw()
            self._display.end()

    def _draw(self) -> None:
        done = min(self._moved.bytes, self._size)
        if done == 0:
            text = f"waits for the daemon, {bytes_text(self._size)}"
            return self._display.draw(self._what, 0, self._size, text)
        speed = done / (time.monotonic() - self._began)
        left = f", {(self._size - done) / speed:.0f} s left" if done < self._size else ""
        self._display.draw(self._what, done, self._size,
                           f"{bytes_text(done)} of {bytes_text(self._size)}, {bytes_text(speed)}/s{left}")


class watched(_core.Scope):
    """A context that shows a bar if the output is one in which it can be seen; the block updates the
    counter that it gets."""

    def __init__(self, what: str, size: int) -> None:
        super().__init__()
        self._what, self._size = what, size
        self._bar: _Bar | None = None

    def _save(self) -> None:
        pass

    def _apply(self) -> _core.Moved:
        moved = _core.Moved()
        display = _display() if self._size >= LEAST else None
        if display is not None:
            self._bar = _Bar(display, self._what, self._size, moved)
            self._bar.start()
        return moved

    def _restore(self, state: None, kind: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
