"""Session.profile(): records what the daemon's lanes, the stream and the program did, as a trace and a
table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from .._connection.protowire import Message, decode, encode

if TYPE_CHECKING:
    from .._sessions.session import Session

__all__ = ["Profile", "Span", "Wait"]

_WAITS_SHOWN = 3
_CLIENT, _DAEMON = 1, 2  # the processes of the trace


@dataclasses.dataclass(frozen=True)
class Span:
    """Work of one lane of the daemon. Times are seconds since the start of the profile."""

    begin: float
    seconds: float  # without the time in which the lane ran work of other sessions
    op: str  # "transfer" for a constant, an upload or a fetch
    command: int  # the number of the command in the session
    # if more than 1, the number of commands in one loop; `op` and `command` are those of the first
    steps: int
    lane: int
    line: str  # the source line of the program; "" if it is no longer known
    # The shapes of the command's arguments in order, [] for one that is not a tensor. Empty unless shapes
    # are recorded, and for a command that is not an op, such as a backward.
    shapes: list[list[int]]


@dataclasses.dataclass(frozen=True)
class Wait:
    """A wait of the program for the daemon."""

    begin: float
    seconds: float
    line: str


@dataclasses.dataclass(frozen=True)
class Frame:
    """The transmission of the commands `first` to `last`."""

    sent: float
    arrived: float
    first: int
    last: int
    bytes: int


def _summed(parts: Iterable[tuple[str, float]]) -> list[tuple[str, tuple[int, float]]]:
    """For each name the number of parts and the sum of their seconds, largest first."""
    sums: dict[str, tuple[int, float]] = {}
    for name, seconds in parts:
        count, before = sums.get(name, (0, 0.0))
        sums[name] = count + 1, before + seconds
    return sorted(sums.items(), key=lambda item: -item[1][1])


class Profile(_core.Scope):
    """The record of a block `with session.profile() as p:`; complete after the block.

    `spans`, `waits` and `frames` contain the record, `table()` summarises it, and `save(path)` writes a
    trace that Perfetto (ui.perfetto.dev) and chrome://tracing can open. The daemon's clock is compared with
    this program's clock by the fastest of a few calls: times of the one relative to the other are accurate
    to half the duration of that call. With record_shapes, spans also have the shapes of the arguments.
    """

    def __init__(self, session: Session, record_shapes: bool = False) -> None:
        super().__init__()
        self._session = session
        self._shapes = record_shapes
        self.spans: list[Span] = []
        self.waits: list[Wait] = []
        self.frames: list[Frame] = []
        self.seconds = 0.0  # the duration of the block
        self.dropped = 0  # events that exceeded the limit of 131,072 of each kind
        self._begin = 0
        self._offset = 0  # the daemon's clock minus this one's, in ns
        self._trip: int | None = None

    # Called by Scope when the `with` block is entered.
    def _save(self) -> None:
        if self._begin:
            raise RuntimeError("a profile records only one block; session.profile() creates another")
        self._session.synchronize()

    def _apply(self) -> Profile:
        self._call(True)
        core = self._session._core
        core.take_record()
        core.take_shapes()
        core.record(True, self._shapes)
        self._begin = time.monotonic_ns()
        return self

    def _restore(self, state: None, kind: Any) -> None:
        if not self._begin:
            return
        core = self._session._core
        try:
            if not self.seconds:
                self._session.synchronize()
        except Exception:
            if kind is None:
                raise
        finally:
            self.seconds = self.seconds or (time.monotonic_ns() - self._begin) / 1e9
            core.record(False)
            with contextlib.suppress(Exception) if kind is not None else contextlib.nullcontext():
                self._collect(core.take_record(), core.take_shapes())

    def _call(self, record: bool) -> Message:
        began = time.monotonic_ns()
        reply = decode(self._session._transport.unary(
            "Compute", "Profile", encode([(1, int(record))]), wait=False))
        trip = time.monotonic_ns() - began
        if self._trip is None or trip < self._trip:
            self._trip, self._offset = trip, reply.integer(1) - (began + trip // 2)
        return reply

    def _collect(self, record: tuple[list[tuple[int, int, int]], list[tuple[int, int, int, str]]],
                 shapes: dict[int, list[list[int]]]) -> None:
        sent, waited = record
        raw: list[Message] = []
        arrivals: list[Message] = []
        more = True
        while more:
            reply = self._call(False)
            raw += reply.messages(2)
            arrivals += reply.messages(3)
            self.dropped = reply.integer(4)
            more = bool(reply.integer(5))
        for _ in range(3):  # the last calls were large, so these calls only compare the clocks
            self._call(False)
        line = self._session._core.site_of
        for s in raw:
            seq = s.integer(3)
            self.spans.append(Span(
                self._seconds(s.integer(1) - self._offset), s.integer(2) / 1e9,
                s.text(4) or "transfer", seq, max(s.integer(5), 1), s.integer(6), line(seq),
                shapes.get(seq, [])))
        self.spans.sort(key=lambda span: span.begin)
        self.waits = [Wait(self._seconds(at), ns / 1e9, site) for at, ns, _, site in waited]
        sent_at = {last: (at, size) for at, last, size in sent}
        for a in arrivals:
            first = a.integer(2)
            last = first + a.integer(3) - 1
            if last in sent_at:
                at, size = sent_at[last]
                self.frames.append(Frame(
                    self._seconds(at), self._seconds(a.integer(1) - self._offset), first, last, size))

    def _seconds(self, at: int) -> float:
        return (at - self._begin) / 1e9

    def table(self, by: str = "op", most: int = 20) -> str:
        """Lane time by "op" or by "line", or the program's waits by source line ("wait"), largest first.

        The last lines give totals, and the source lines that waited longest.
        """
        if by not in ("op", "line", "wait"):
            raise ValueError(f'by must be "op", "line" or "wait", not {by!r}')
        waits = _summed((wait.line or "(unknown)", wait.seconds) for wait in self.waits)
        rows = waits if by == "wait" else _summed(
            (self._name(span, by), span.seconds) for span in self.spans)
        total = sum(seconds for _, (_, seconds) in rows)
        worked, waited = (sum(each.seconds for each in some) for some in (self.spans, self.waits))
        width = max([len(name) for name, _ in rows[:most]] + [len(by)])
        lines = [f"{by:<{width}}  {'times':>7}  {'ms':>10}  {'share':>6}  {'us each':>9}"]
        for name, (count, seconds) in rows[:most]:
            lines.append(f"{name:<{width}}  {count:>7}  {seconds * 1e3:>10.3f}  "
                         f"{seconds / total if total else 0:>6.1%}  {seconds / count * 1e6:>9.1f}")
        if len(rows) > most:
            lines.append(f"... and {len(rows) - most} more")
        lines.append(f"{self.seconds * 1e3:.1f} ms in all; lanes worked {worked * 1e3:.1f} ms, "
                     f"the program waited {waited * 1e3:.1f} ms")
        if by != "wait":
            lines += [f"waited {seconds * 1e3:.1f} ms in {count} waits at {name}"
                      for name, (count, seconds) in waits[:_WAITS_SHOWN]]
        if self.dropped:
            lines.append(f"{self.dropped} events found no room and are missing")
        return "\n".join(lines)

    @staticmethod
    def _name(span: Span, by: str) -> str:
        if by == "line":
            return span.line or "(unknown)"
        return f"{span.op} + {span.steps - 1} more in one loop" if span.steps > 1 else span.op

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace: the program's waits, frames on the network and in the queue, and the lanes."""
        with open(path, "w") as file:
            json.dump({"displayTimeUnit": "ns", "traceEvents": list(self._events())}, file)

    def _events(self) -> Iterator[dict[str, Any]]:
        def us(seconds: float) -> float:
            return round(seconds * 1e6, 3)

        name = self._session.name
        names = {(_CLIENT, 0): f"program (session {name})", (_DAEMON, 0): "teletensord"}
        names[_CLIENT, 1] = "waits"
        for lane in {span.lane for span in self.spans}:
            names[_DAEMON, lane] = f"lane {lane}"
        for (process, thread), text in names.items():
            yield {"ph": "M", "pid": process, "tid": thread, "args": {"name": text},
                   "name": "thread_name" if thread else "process_name"}
        yield {"ph": "X", "pid": _CLIENT, "tid": 2, "ts": 0.0, "dur": us(self.seconds),
               "name": "profile"}
        for wait in self.waits:
            yield {"ph": "X", "pid": _CLIENT, "tid": 1, "ts": us(wait.begin),
                   "dur": us(wait.seconds), "name": "wait", "args": {"line": wait.line}}
        begins = {span.command: span.begin for span in reversed(self.spans)}
        commands = sorted(begins)
        at = 0
        for frame in self.frames:
            args = {"first": frame.first, "last": frame.last, "bytes": frame.bytes}
            yield from self._async("network", frame.first, frame.sent, frame.arrived, args)
            while at < len(commands) and commands[at] < frame.first:
                at += 1
            if at < len(commands) and commands[at] <= frame.last:
                yield from self._async("queue", frame.first, frame.arrived, begins[commands[at]], args)
        for span in self.spans:
            yield {"ph": "X", "pid": _DAEMON, "tid": span.lane, "ts": us(span.begin),
                   "dur": us(span.seconds), "name": span.op,
                   "args": {"command": span.command, "steps": span.steps, "line": span.line,
                            **({"Input Dims": span.shapes} if span.shapes else {})}}

    @staticmethod
    def _async(what: str, number: int, begin: float, end: float,
               args: dict[str, int]) -> Iterator[dict[str, Any]]:
        # Slices of one track must not overlap but frames in transit do, so they are written as asynchronous
        # events.
        common = {"pid": _DAEMON, "tid": 0, "cat": what, "id": number, "name": what}
        yield {**common, "ph": "b", "ts": round(begin * 1e6, 3), "args": args}
        yield {**common, "ph": "e", "ts": round(max(begin, end) * 1e6, 3)}
