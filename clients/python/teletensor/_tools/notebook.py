"""`%load_ext teletensor` in IPython and Jupyter: shows the notebook's memory on the daemon, and profiles
cells.

`%teletensor` shows the session's memory in bytes, its quota and its position in the queue; `%teletensor
watch` keeps that display up to date below the cell until `%teletensor unwatch`. `%teletensor memory` lists
the largest tensors with the lines that made them. `%%teletensor profile [file]` profiles a cell, and writes
a trace to `file`.
"""

from __future__ import annotations

import html
import threading
import weakref
from typing import TYPE_CHECKING, Any

from .admin import bytes_text

if TYPE_CHECKING:
    from .._sessions.session import Session

__all__ = ["load_ipython_extension", "session_html", "unload_ipython_extension"]

_SECONDS = 2.0
_USAGE = ("%teletensor [status | watch | unwatch | memory [how many]], or "
          "%%teletensor profile [file] over a cell")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{html.escape(text)}</th>' for text in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def session_html(session: Session) -> str:
    """HTML with the session's name and address, its bytes on each device with the quota, and its position
    in the queue."""
    title = f"teletensor session <b>{html.escape(session.name)}</b> at {html.escape(session.address)}"
    if session.closed:
        return f"<div>{title}: closed</div>"
    try:
        status = session.status()
    except Exception as error:
        return f"<div>{title}: {html.escape(str(error))}</div>"
    bars = "".join(
        f"<div>{html.escape(m['device'])}: <progress max='{m['quota'] or m['device_total'] or 1}' "
        f"value='{m['used']}'></progress> {bytes_text(m['used'])} of "
        f"{bytes_text(m['quota'] or m['device_total'])}; all sessions: {bytes_text(m['device_used'])} of "
        f"{bytes_text(m['device_total'])}</div>" for m in status["memory"])
    queue = "nothing queued"
    if status["queued"]:
        queue = (f"{status['queued']} commands queued, {status['ahead']} sessions ahead, "
                 f"about {status['wait_seconds']:.1f} s")
    return f"<div>{title}{bars}<div>{queue}</div></div>"


def _plain(session: Session) -> str:
    status = session.status()
    parts = [f"{m['device']} {bytes_text(m['used'])} of {bytes_text(m['quota'] or m['device_total'])}"
             for m in status["memory"]]
    return (f"session {session.name}: {', '.join(parts)}; {status['queued']} queued, "
            f"{status['ahead']} ahead")


class _Shown:
    """An object that is shown as HTML if the frontend supports it, and as text otherwise."""

    def __init__(self, rich: str, plain: str) -> None:
        self._rich, self._plain = rich, plain

    def _repr_html_(self) -> str:
        return self._rich

    def __repr__(self) -> str:
        return self._plain


def _shown(session: Session) -> _Shown:
    return _Shown(session_html(session), repr(session) if session.closed else _plain(session))


class _Watch(threading.Thread):
    """Updates a display until stop(), or until the session is closed or lost."""

    def __init__(self, session: Session, handle: Any) -> None:
        super().__init__(name="teletensor-watch", daemon=True)
        self._session = weakref.ref(session)
        self._handle = handle
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(_SECONDS):
            session = self._session()
            if session is None:
                return
            try:
                self._handle.update(_shown(session))
            # if the daemon or the frontend cannot be reached any more, the last state stays on display
            except Exception:
                return
            if session.closed:
                return
            del session


class _Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._watch: _Watch | None = None

    def __call__(self, line: str, cell: str | None = None) -> Any:
        from IPython.core.error import UsageError

        from .._sessions.session import current_session

        word, *rest = line.split() or ["status"]
        if cell is not None:
            if word != "profile" or len(rest) > 1:
                raise UsageError(_USAGE)
            with current_session().profile() as profile:
                result = self._shell.run_cell(cell)
            print(profile.table())
            if rest:
                profile.save(rest[0])
            result.raise_error()
            return None
        if word == "memory" and len(rest) <= 1 and all(text.isdigit() for text in rest):
            return self._memory(current_session(), int(rest[0]) if rest else 20)
        if rest or word not in ("status", "watch", "unwatch"):
            raise UsageError(_USAGE)
        self.unwatch()
        if word == "unwatch":
            return None
        if word == "watch":
            from IPython import display

            session = current_session()
            show: Any = display.display
            self._watch = _Watch(session, show(_shown(session), display_id=True))
            self._watch.start()
            return None
        return _shown(current_session())

    def unwatch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    @staticmethod
    def _memory(session: Session, most: int) -> _Shown:
        rows = [[bytes_text(t["bytes"]), device["device"], t["site"] or "(unknown)"]
                for device in session.memory(most) for t in device["tensors"]]
        text = "\n".join("  ".join(row) for row in rows) or "no tensors"
        return _Shown(_table(["bytes", "device", "made at"], rows), text)


_magics: _Magics | None = None


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext teletensor`."""
    global _magics
    unload_ipython_extension(shell)
    _magics = _Magics(shell)
    shell.register_magic_function(_magics, "line_cell", "teletensor")


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext teletensor`."""
    global _magics
    if _magics is not None:
        _magics.unwatch()
        _magics = None
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("teletensor", None)
