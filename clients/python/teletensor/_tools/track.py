"""A progress bar for a loop that shows the progress of the daemon rather than that of the program, which is
ahead of the daemon."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from .. import _core
from .._connection.progress_bar import _display, _Notebook, _Terminal

__all__ = ["track"]

_PAUSE = 0.1  # seconds between two updates
_T = TypeVar("_T")


class _Bar(Protocol):
    def show(self, done: int, issued: int) -> None:
        """Shows that `done` steps have run, of `issued` that the program has completed."""

    def close(self) -> None:
        """Removes the bar."""


class _Tqdm:
    def __init__(self, module: Any, description: str, total: int | None) -> None:
        self._bar = module.tqdm(total=total, desc=description or None, unit="step")

    def show(self, done: int, issued: int) -> None:
        self._bar.set_postfix_str(f"{issued - done} queued" if issued > done else "", refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Rich:
    def __init__(self, module: Any, description: str, total: int | None) -> None:
        self._bar = module.Progress()
        self._task = self._bar.add_task(description or "steps", total=total)
        self._bar.start()

    def show(self, done: int, issued: int) -> None:
        self._bar.update(self._task, completed=done)

    def close(self) -> None:
        self._bar.stop()


class _Own:
    def __init__(self, shown: _Terminal | _Notebook, description: str, total: int | None) -> None:
        self._shown, self._what, self._total = shown, description or "steps", total
        self._began = time.monotonic()

    def show(self, done: int, issued: int) -> None:
        seconds = time.monotonic() - self._began
        total = self._total or max(issued, 1)
        text = f"{done} of {self._total or 'unknown'}, {done / seconds:.1f}/s" if seconds > 0 else ""
        if issued > done:
            text += f", {issued - done} queued"
        self._shown.draw(self._what, min(done, total), total, text)

    def close(self) -> None:
        self._shown.end()


def _bar(description: str, total: int | None) -> _Bar | None:
    shown = _display()
    if shown is None:
        return None
    for name, kind in (("tqdm.auto", _Tqdm), ("rich.progress", _Rich)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return kind(module, description, total)
    return _Own(shown, description, total)


class _Follower:
    """Determines from the numbers of commands which steps have run."""

    def __init__(self, core: _core.Session) -> None:
        self._core = core
        self._steps: deque[int] = deque()  # for each step that has not run, the number of its last command
        self.issued = self.done = 0

    def step(self) -> None:
        """Records that the program has come to the end of a step."""
        self.issued += 1
        self._steps.append(self._core.last_seq)

    def look(self) -> int:
        """Returns how many steps have run."""
        upto = self._core.completed_upto
        while self._steps and self._steps[0] <= upto:
            self._steps.popleft()
            self.done += 1
        return self.done

    @property
    def over(self) -> bool:
        """Returns whether all steps have run."""
        return not self._steps or self._core.over


class _Drawer(threading.Thread):
    def __init__(self, bar: _Bar, follower: _Follower) -> None:
        super().__init__(name="teletensor-track", daemon=True)
        self._bar, self._follower = bar, follower
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stops the updates; returns when the final state is shown."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        # errors of the bar (a closed terminal or notebook frontend) must not abort the loop
        with contextlib.suppress(Exception):
            while not self._stopped.wait(_PAUSE):
                self._bar.show(self._follower.look(), self._follower.issued)
            self._bar.show(self._follower.look(), self._follower.issued)
            self._bar.close()


def track(iterable: Iterable[_T], description: str = "", total: int | None = None) -> Iterator[_T]:
    """Iterates over `iterable` with a progress bar of the steps that the daemon has finished: `for x in
    track(iterable):`.

    A program is ahead of the daemon, so a bar of the program's own steps would be full long before the work
    is done. This bar counts a step when the last command that it issued in the current session has run. It
    also shows how many steps are queued, and waits for them at the end of `iterable`. `total` is the number
    of steps if `iterable` has no len().

    The bar is drawn by tqdm or rich if one of them is installed, on a terminal (stderr) or in a notebook.
    There is no bar in pipes, or with `TELETENSOR_PROGRESS=0`.
    """
    from .._sessions.session import current_session

    if total is None:
        with contextlib.suppress(TypeError):
            total = len(iterable)  # type: ignore[arg-type]
    bar = _bar(description, total)
    if bar is None:
        yield from iterable
        return
    follower = _Follower(current_session()._core)
    drawer = _Drawer(bar, follower)
    drawer.start()
    try:
        for each in iterable:
            yield each
            follower.step()
        while not follower.over:
            time.sleep(_PAUSE / 5)
    finally:
        drawer.stop()
