"""Streams and events. A session has one stream on each GPU: its instructions run there in the order in
which they were issued."""

from __future__ import annotations

import time
from typing import Any

from .. import _core
from .._sessions.session import current_session
from ._device import index_of, synchronize

__all__ = ["Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream"]


class Event:
    """A point in the sequence of instructions that the session has issued.

    With `enable_timing`, record() waits until everything issued earlier has been computed: the times of
    elapsed_time() are then those of the device, with an error of about a round trip to the daemon.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                 external: bool = False) -> None:
        if interprocess or external:
            raise RuntimeError("Event: events of other processes are not supported")
        self._timing = enable_timing
        self._session: Any = None
        self._command = 0
        self._at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Records the present point in the sequence of instructions."""
        session = current_session()
        if self._timing:
            synchronize(None if stream is None else stream.device)
            self._at = time.perf_counter()
        self._session, self._command = session, session._core.last_seq

    def wait(self, stream: Stream | None = None) -> None:
        """Does nothing: instructions that are issued later always run later."""

    def query(self) -> bool:
        """Returns whether everything issued before the event has been given to its device; True if nothing
        was recorded."""
        return self._session is None or bool(self._session._core.completed_upto >= self._command)

    def synchronize(self) -> None:
        """Waits until everything issued before the event has been computed."""
        if self._session is not None and self._at is None:
            with self._session.as_current():
                synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """The milliseconds from this event to the other one."""
        if not self._timing or not end_event._timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def __repr__(self) -> str:
        return f"<teletensor.cuda.Event {'uninitialized' if self._session is None else self._command}>"


class Stream:
    """The only stream of a session on a GPU: all objects for one device are equal, and have no effect on
    the order."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = _core.device("cuda", index_of(device))
        self.device_index = self.device.index
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """Returns an event that is recorded now."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Does nothing: instructions that are issued later always run later."""

    def wait_stream(self, stream: Stream) -> None:
        """Does nothing: instructions that are issued later always run later."""

    def query(self) -> bool:
        """Returns whether everything issued has been given to its device."""
        core = current_session()._core
        return bool(core.completed_upto >= core.last_seq)

    def synchronize(self) -> None:
        """Waits until everything issued has been computed."""
        synchronize(self.device)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return f"<teletensor.cuda.Stream device={self.device}>"


class StreamContext:
    """The result of stream(): a context without effect."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        return None


def stream(stream: Stream | None) -> StreamContext:
    """`with cuda.stream(s):` has no effect: a session has one stream on each GPU."""
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Does nothing: a session has one stream on each GPU."""


def current_stream(device: Any = None) -> Stream:
    """The session's stream on a GPU."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """The session's stream on a GPU."""
    return Stream(device)
