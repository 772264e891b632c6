"""Keeps a session attached: runs its stream, and attaches again if the connection is lost.

One thread reads the stream to its end. If the daemon gave a reason for the end, or the session has a lease
of 0, the session is lost. Otherwise the connection has failed: the thread calls Attach again, with growing
pauses, until the lease expires; frames that had not arrived are then sent again, and nothing runs twice
(docs/sessions.md).
"""

from __future__ import annotations

import functools
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .. import _core
from .._sessions.interrupt import later
from .notices import log, tell

if TYPE_CHECKING:
    from .transport import Transport

__all__ = ["GONE", "AttachError", "Attached", "End", "Keeper"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
# Seconds: if connections are refused for that long, the daemon has ended. A daemon that keeps its sessions
# over a restart says how long to wait.
GONE = 1.5
_LONG = 1.0  # seconds without a connection from which on the user is told
_FUTILE = 50  # the maximum number of consecutive streams that end without progress
_MARGIN = 10  # seconds beyond the lease, because the daemon counts from the time at which it noticed
_PAUSE = 0.02  # seconds between two checks whether there is a connection again
# Status codes that mean the end of a connection, not of a session.
_CUT = (1, 2, 4, 13, 14)
_LOST = 14


class End(NamedTuple):
    """How a stream ended: a code of google.rpc.Code, a text, and the daemon's word for the reason, if
    any."""

    code: int
    text: str
    word: str = ""

    @property
    def cut(self) -> bool:
        """Returns whether only the connection has ended, not the session."""
        # The daemon has kept the session for its successor, has moved it to a peer, is receiving it from a
        # peer, or is about to move it; or it refuses one more stream for now.
        if self.word in ("restart", "moved", "arriving", "resting", "streams"):
            return True
        return self.word in ("", "fenced", "slow") and self.code in (0, *_CUT)

    @property
    def refused(self) -> bool:
        """Returns whether nothing listens at the address."""
        return "refused" in self.text or "No such file" in self.text


class Attached(NamedTuple):
    """The answer to Attach."""

    received_upto: int
    epoch: int
    # Only from a daemon that has restored an earlier state of the session: credit_upto, credit_bytes,
    # bytes_received.
    replay: tuple[int, int, int] | None = None
    # the address of the daemon that has the session now; if it is set, the other fields are meaningless
    moved_to: str = ""


class AttachError(Exception):
    """Attach has failed; `end` says how."""

    def __init__(self, end: End) -> None:
        super().__init__(end.text)
        self.end = end


class Keeper:
    """Runs the streams of one session. Refers to the native session weakly."""

    def __init__(self, transport: Transport, core: _core.Session, lease: int,
                 restart: float) -> None:
        self._transport, self._lease, self._restart = transport, lease, restart
        self._core = weakref.ref(core)
        self.attach = 1
        self.ended: End | None = None  # how the session was lost
        # the time.monotonic() at which the connection was lost; None while connected
        self.away_since: float | None = None
        # This field is not an Event: a finalizer that runs while the lock of an Event is held would wait
        # for this class's thread, and that thread for the lock.
        self.attached = False
        self._stopped = threading.Event()
        self._stream = core.take_up(1, 0)
        self._call = transport.open_stream(self._core, 1, self._stream)
        self.attached = True
        self._thread = threading.Thread(target=self._serve, name="teletensor-reader", daemon=True)
        self._thread.start()

    @property
    def keeps(self) -> bool:
        """Returns whether the session survives a lost connection."""
        return self._lease > 0

    def stop(self) -> None:
        """Stops all further attempts to attach."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread, unless it is the calling thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def wait(self, seconds: float) -> bool:
        """Waits for the next attach; returns False if the session is over."""
        if self._thread is threading.current_thread():  # called by a finalizer on this thread
            return False
        until = time.monotonic() + seconds
        while not self.attached and time.monotonic() < until:
            time.sleep(_PAUSE)
        core = self._core()
        return core is not None and not core.over

    def _serve(self) -> None:
        # _core identifies the thread by the module of its target, which is this one.
        _core.makes_calls()
        futile = 0
        while True:
            core = self._core()
            before = core.progress_upto if core is not None else 0
            del core
            end = self._transport.read_stream(self._call, self._core)
            self.attached = False
            core = self._core()
            if core is None:
                break
            if core.over or not self.keeps or not end.cut:
                self._lose(core, end)
                break
            futile = futile + 1 if core.progress_upto == before else 0
            if futile > _FUTILE:
                self._lose(core, end)
                break
            del core
            if not self._again(end):
                break
        self.attached = True

    def _lose(self, core: _core.Session, end: End) -> None:
        """Marks the session as lost, and tells the user why unless the program has closed it."""
        told = not core.over
        self.ended = end
        core.lost(_LOST, _sentence(end))
        if told:
            tell("session %r at %s is lost: %s%s", self._transport.session_name, self._transport.address,
                 _why(end), "" if end.word == "rollback" else "; teletensor.connect() opens another one")

    def _again(self, end: End) -> bool:
        pause, refused_since = _FIRST_PAUSE, 0.0
        self.away_since = began = time.monotonic()
        patience = max(GONE, self._restart)
        while not self._stopped.wait(pause * random.uniform(0.5, 1.0)):
            core = self._core()
            if core is None:
                return False
            try:
                attached = self._transport.attach(self.attach + 1, core)
            except AttachError as error:
                now = time.monotonic()
                refused = error.end.refused
                refused_since = (refused_since or now) if refused else 0.0
                if "restart" in (end.word, error.end.word):
                    patience = self._lease  # the daemon announced that it will restart
                gone = refused and now - refused_since > patience
                self.attach += 1
                if gone or not error.end.cut or now - began > self._lease + _MARGIN:
                    self._lose(core, error.end._replace(word="daemon") if gone else error.end)
                    return False
                if now - began > 5 > now - began - pause:
                    _note(tell, "the connection to %s is lost (%s); trying again for %d s",
                          self._transport.address, end.text, self._lease)
                del core
                if error.end.code == _LOST and not error.end.word:
                    self._transport.connect_again()
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self.attach += 1
            if attached.moved_to:
                if (refusal := self._follow(attached.moved_to)) is not None:
                    self._lose(core, refusal)
                    return False
                del core
                # the pause grows, in case two daemons refer the client to each other
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if attached.replay is None:
                self._stream = core.take_up(self.attach, attached.received_upto)
            else:
                _note(log.info, "the daemon is back as of command %d; what ran since goes again",
                      attached.received_upto)
                self._stream = core.replay(self.attach, attached.received_upto, *attached.replay)
            self._call = self._transport.open_stream(self._core, self.attach, self._stream)
            away, self.away_since = time.monotonic() - began, None
            _note(tell if away >= _LONG else log.info,
                  "session %r at %s: reconnected after %.1f s, nothing is lost",
                  self._transport.session_name, self._transport.address, away)
            self.attached = True
            return True
        if (core := self._core()) is not None:
            self._lose(core, end)
        return False


    def _follow(self, address: str) -> End | None:
        """Connects to the daemon that has the session now; returns why that is not possible, or None."""
        before = self._transport.address
        try:
            self._transport.follow(address)
        except ValueError as error:
            return End(_LOST, f"it has moved to {address}, where this program does not go: {error}",
                       "moved")
        _note(tell, "session %r has moved from %s to %s", self._transport.session_name, before, address)
        return None


def _note(say: Callable[..., None], text: str, *values: object) -> None:
    """Writes a log message on another thread: logging takes locks, and a finalizer that runs while one of
    them is held would wait for the thread that attaches."""
    later(functools.partial(say, text, *values))


def _why(end: End) -> str:
    return end.text or "the daemon ended it"


def _sentence(end: End) -> str:
    """The message of SessionLostError; it ends with the reason word in brackets."""
    return f"the session is lost: {_why(end)} [{end.word or 'connection'}]"
