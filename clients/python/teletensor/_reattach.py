"""Keeps a session attached: runs its stream, and when the connection is lost attaches again.

One thread reads the stream to its end. If the daemon says why it ended, or the session has a lease
of 0, the session is lost. Else the connection is to blame: Attach again, with growing pauses, until the
lease is over; frames that had not come then go again, and nothing runs twice (docs/sessions.md).
"""

from __future__ import annotations

import functools
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import _core
from ._interrupt import later
from ._notices import log, tell

if TYPE_CHECKING:
    from ._transport import Transport

__all__ = ["GONE", "AttachError", "Attached", "End", "Keeper"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
# Seconds: nobody listens for so long, so the daemon is not there any more. One that keeps its sessions
# over a restart says for how long to wait.
GONE = 1.5
_LONG = 1.0  # seconds without a connection that a person is told of
_FUTILE = 50  # streams in a row that end without a word
_MARGIN = 10  # seconds beyond the lease: the daemon counts from when it noticed
_PAUSE = 0.02  # seconds between two looks at whether there is a connection again
# Codes with which a connection ends, rather than a session.
_CUT = (1, 2, 4, 13, 14)
_LOST = 14


class End(NamedTuple):
    """How a stream ended: a code of google.rpc.Code, a text, and the daemon's word for why, if any."""

    code: int
    text: str
    word: str = ""

    @property
    def cut(self) -> bool:
        """The connection's end, not the session's."""
        # The daemon has kept the session for the next one, has moved it to a peer, gets it from one, or
        # is about to give it away.
        if self.word in ("restart", "moved", "arriving", "resting"):
            return True
        return self.word in ("", "fenced", "slow") and self.code in (0, *_CUT)

    @property
    def refused(self) -> bool:
        """Nobody listens there."""
        return "refused" in self.text or "No such file" in self.text


class Attached(NamedTuple):
    """What Attach answered."""

    received_upto: int
    epoch: int
    # Of a daemon that is older than this client: credit_upto, credit_bytes, bytes_received.
    replay: tuple[int, int, int] | None = None
    moved_to: str = ""  # the address of the daemon that has the session now; the rest means nothing then


class AttachError(Exception):
    """Attach failed, as `end` says."""

    def __init__(self, end: End) -> None:
        super().__init__(end.text)
        self.end = end


class Keeper:
    """The life of one session's streams. Holds the native session weakly."""

    def __init__(self, transport: Transport, core: _core.Session, lease: int,
                 restart: float) -> None:
        self._transport, self._lease, self._restart = transport, lease, restart
        self._core = weakref.ref(core)
        self.attach = 1
        self.ended: End | None = None  # why the session is lost
        self.away_since: float | None = None  # of time.monotonic(): there is no connection
        # No Event: a finalizer that came to run under its lock would wait for this class's thread, which
        # would wait for the lock.
        self.attached = False
        self._stopped = threading.Event()
        self._stream = core.take_up(1, 0)
        self._call = transport.open_stream(self._core, 1, self._stream)
        self.attached = True
        self._thread = threading.Thread(target=self._serve, name="teletensor-reader", daemon=True)
        self._thread.start()

    @property
    def keeps(self) -> bool:
        """A lost connection is not the end."""
        return self._lease > 0

    def stop(self) -> None:
        """No more attempts."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Waits for the thread's end, unless this is it."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def wait(self, seconds: float) -> bool:
        """Waits for the next attach; False when the session is over."""
        if self._thread is threading.current_thread():  # a finalizer on it
            return False
        until = time.monotonic() + seconds
        while not self.attached and time.monotonic() < until:
            time.sleep(_PAUSE)
        core = self._core()
        return core is not None and not core.over

    def _serve(self) -> None:
        # _core knows the thread by this module, of which its target is.
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
        """The session is over; unless the program has closed it, a person is told why."""
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
                    patience = self._lease  # it said that it comes back
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
                pause = min(2 * pause, _LONGEST_PAUSE)  # where two daemons name each other
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
        """To the daemon that has the session now; or why not."""
        before = self._transport.address
        try:
            self._transport.follow(address)
        except ValueError as error:
            return End(_LOST, f"it has moved to {address}, where this program does not go: {error}",
                       "moved")
        _note(tell, "session %r has moved from %s to %s", self._transport.session_name, before, address)
        return None


def _note(say: Callable[..., None], text: str, *values: object) -> None:
    """Has a line said by another thread: logging takes locks, and a finalizer that came to run under one of
    them would wait for the thread that attaches."""
    later(functools.partial(say, text, *values))


def _why(end: End) -> str:
    return end.text or "the daemon ended it"


def _sentence(end: End) -> str:
    """Ends with the word in brackets, which SessionLostError takes for its reason."""
    return f"the session is lost: {_why(end)} [{end.word or 'connection'}]"
