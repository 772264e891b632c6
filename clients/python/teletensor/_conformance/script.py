"""A transcript from the daemon's side: what a client has to send next, and what it is answered."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runner import fnv1a, ids_of
from .schema import Schema
from .transcript import Parser, Part, Step, complete, difference, filled, steps

__all__ = ["EPOCH", "LIMITS", "UNREADABLE", "Placed", "Script", "Track", "declarations"]

_HERE = Path(__file__).resolve()
# In the package, or in the checkout whose sources are imported.
_OPS = _HERE.parent / "ops.json"
if not _OPS.is_file():
    _OPS = _HERE.parents[4] / "docs/ops.json"
EPOCH = 1
LIMITS = {"credit_upto": 1 << 14, "credit_bytes": 1 << 23, "max_frame_bytes": 1 << 20,
          "max_frame_commands": 4096, "max_frame_items": 1 << 16, "inline_bytes": 1 << 16,
          "max_chunk_bytes": 1 << 20, "programs": 1024, "program_steps": 1 << 17, "program_bytes": 1 << 26,
          "kept": 10000}
# Steps that wait for the client; all others are done as soon as they are reached.
CLIENT = ("hello", "hello_at_last", "call", "until", "run", "frame", "bytes", "upload", "cut_upload",
          "rest", "download", "cut_download")
# The fields that name commands by their numbers, and how Progress names the command of an entry.
NUMBERS = {"taken": "fetch", "saved": "node", "forget": "node", "raise": "root"}
KEYS = {"fetched": "seq", "errors": "root", "raised": "seq"}
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, AssertionError)


def declarations() -> list[dict[str, Any]]:
    """The ops of docs/ops.json."""
    found: list[dict[str, Any]] = json.loads(_OPS.read_text(encoding="utf-8"))["ops"]
    return found


class Difference(Exception):
    """The client has not done what the transcript says."""


@dataclass
class Placed(Step):
    """A step and the name of the session that it belongs to."""

    session: str


class Track:
    """The commands of one session: their numbers in the transcript and as the client sends them.

    They differ after a command that a client may send although the transcript lacks it.
    """

    def __init__(self, table: list[str]) -> None:
        self.table = table  # the client's ops
        self.received, self.next_id, self.bytes = 0, 1, 0
        self.expected = 0  # number of the last command of the transcript that has come
        self.numbers: dict[int, int] = {}  # from the transcript's to the client's


class Script:
    """A transcript that is being played. All methods are called with `moved` held, except `fail`."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema
        self.declared = {op["name"]: op for op in declarations()}
        self.steps: list[Placed] = []
        session = ""
        for step in steps(path):
            if step.word == "session":
                session = step.rest
            self.steps.append(Placed(step.line, step.text, step.golden, session))
        self.at = self.inside = 0  # the next step, and the next command in it
        self.names: dict[str, Any] = {}
        self.table: list[str] = []
        self.limits = dict(LIMITS)
        self.answered: dict[str, Any] = {}  # the last reply
        self.said: tuple[dict[str, Any], bytes] = {}, b""  # the transcript's part of it, and that as bytes
        self.tracks: dict[str, Track] = {}  # by the name of the session
        self.moved = threading.Condition()
        self.failure = ""
        # The server's part of a session: ends its stream with a status.
        self.end: Callable[[str, str, str, str], None] = lambda *_: None

    def fail(self, text: str) -> Difference:
        """Notes the first difference, at the present step."""
        step = self.steps[min(self.at, len(self.steps) - 1)]
        if not self.failure:
            place = f", command {self.inside + 1}" if step.word == "frame" else ""
            self.failure = f"{self.path.name}:{step.line}: {step.text}{place}\n    {text}"
        with self.moved:
            self.moved.notify_all()
        return Difference(self.failure)

    @property
    def over(self) -> bool:
        """Whether every step is done, or the client has failed."""
        return bool(self.failure) or self.at == len(self.steps)

    def parser(self, text: str) -> Parser:
        return Parser(text, self.names)

    def current(self) -> Placed | None:
        """The step that waits for the client."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    def wait_for(self, *words: str, session: str | None, patience: float) -> Placed:
        """Returns the present step when it is one of these."""
        def ready() -> bool:
            step = self.current()
            return self.over or (step is not None and step.text.startswith(words)
                                 and session in (None, step.session))
        self.moved.wait_for(ready, patience)
        step = self.current()
        if self.failure or step is None or not ready():
            raise self.fail(f"expected this step, got: {words[0]}")
        return step

    def advance(self) -> None:
        """Goes to the next step, and does those that need no client."""
        self.at, self.inside = self.at + 1, 0
        self.settle()

    def settle(self) -> None:
        """Does the steps that need no client."""
        while (step := self.current()) is not None:
            if step.word not in CLIENT:
                self.perform(step)
            elif step.word != "frame" or not self.has_come(step):
                break
            self.at += 1
        self.moved.notify_all()

    def has_come(self, step: Placed) -> bool:
        """Whether a frame is one that is sent again, and had arrived before."""
        frame, track = self.parser(step.rest).message(), self.tracks.get(step.session)
        last = frame.get("first_seq", 0) + len(self.commands(step)) - 1
        return "first_seq" in frame and track is not None and last <= track.expected

    def perform(self, step: Placed) -> None:
        if step.word == "operator":
            return  # the answers that follow are those of a daemon after it
        parser = self.parser(step.rest)
        if step.word == "ops":
            self.table = step.rest.split()
            self.names |= {f"@{name}": number for number, name in enumerate(self.table, 1)}
        elif step.word == "limits":
            self.limits |= parser.message()
        elif step.word == "save":
            name, key = parser.take(), parser.take()
            self.names[f"${name}"] = saved(self.answered, key.split("."))
        elif step.word == "program":
            name = parser.take()
            self.names[f"${name}"] = self.program(parser.message())
        elif step.word == "ended":
            self.end(step.session, *status(parser))
        elif step.word == "cut":
            self.end(step.session, "UNAVAILABLE", "", "the transcript cuts the connection here")

    def program(self, fields: dict[str, Any]) -> bytes:
        fields = filled(fields)
        fields["ops"] = [{"name": op, "revision": self.declared[op]["revision"]} for op in fields["ops"]]
        data = self.schema.encode("Program", fields)
        return data + self.schema.encode("Program", {"checksum": fnv1a(data)})

    def answer(self) -> tuple[dict[str, Any], tuple[str, str, str] | None]:
        """The reply to the present step, as far as the transcript has it; or code, word and text."""
        self.said = {}, b""
        for step in self.steps[self.at + 1:]:
            if step.word in CLIENT:
                break
            parser = self.parser(step.rest)
            if step.word == "reply":
                fields = spoken(parser.message())
                self.said = fields, step.golden[0][1] if step.golden else b""
                return dict(fields), None
            if step.word == "refused":
                return {}, status(parser)
        return {}, None

    def encoded(self, message: str, values: dict[str, Any]) -> bytes:
        """A reply in bytes: those that the transcript has, and the fields that it lacks."""
        (fields, golden), self.said = self.said, ({}, b"")
        rest = {key: value for key, value in values.items() if key not in fields}
        same = all(values.get(key) == value for key, value in fields.items())
        if golden and same:
            return golden + self.schema.encode(message, rest)
        return self.schema.encode(message, values)

    # ---- commands

    def commands(self, step: Placed) -> list[dict[str, Any]]:
        """The commands of a frame."""
        found = filled(self.parser(step.rest).message()).get("commands", [])
        return found if isinstance(found, list) else [found]

    def is_extra(self, session: str, command: dict[str, Any]) -> bool:
        """Whether the transcript lacks a command by which a client says that it needs something no more."""
        step = self.current()
        if set(command) not in ({"release"}, {"taken"}):
            return False
        expected = step is not None and step.word == "frame" and step.session == session
        return not (step is not None and expected and set(self.commands(step)[self.inside]) == set(command))

    def take_command(self, track: Track, command: dict[str, Any], step: Placed) -> dict[str, Any] | None:
        """Compares the client's next command. Raises Difference.

        Returns None if it is the transcript's next command, and an answer if it is a Fetch with `describe`
        before the transcript's Fetch of the same tensor.
        """
        wanted = self.commands(step)[self.inside]
        asked, fetch = command.get("fetch", {}), wanted.get("fetch", {})
        if (asked.get("describe") and fetch and not fetch.get("describe")
                and asked.get("handle") == fetch["handle"]):
            seq = track.expected + 1
            if fetch.get("bulk"):
                answer = self.downloaded(seq)
            else:
                answer, _ = self.told(step.session, "fetched", seq)
            if not answer.get("code"):
                shape = several(answer.get("shape"))
                return {"dtype": answer.get("dtype", 0), "shape": shape,
                        "description": {"device": "cpu", "strides": strides(shape)}}
            # Its client is told of the failure now, and does not fetch.
        elif told := different(self.plain(wanted, self.table, track), self.plain(command, track.table)):
            raise self.fail(f"command {track.received + 1} of the client: {told}")
        track.expected += 1
        track.numbers[track.expected] = track.received + 1
        self.inside += 1
        return None

    def downloaded(self, seq: int) -> dict[str, Any]:
        """The reply to the Download of this Fetch."""
        for place, step in enumerate(self.steps):
            if step.word in ("download", "cut_download"):
                fields = self.parser(step.rest[step.rest.index("{"):]).message()
                reply = self.steps[place + 1]
                if fields.get("seq") == seq and reply.word == "reply":
                    answer: dict[str, Any] = spoken(self.parser(reply.rest).message())
                    return answer
        return {}

    def told(self, session: str, key: str, number: int) -> tuple[dict[str, Any], bytes]:
        """What Progress says of a command of the transcript, also as bytes of a Progress; or nothing."""
        for step in self.steps:
            if step.session == session and step.word == "told" and step.rest.startswith(f"{key} {{"):
                try:
                    entry = self.parser(step.rest[len(key):]).message()
                except KeyError:  # of a variable that a later step saves
                    continue
                if entry.get(KEYS[key], 0) == number:
                    return spoken(complete(entry)), step.golden[0][1] if step.golden else b""
        return {}, b""

    def number(self, track: Track, number: int) -> int:
        """The client's number of a command of the transcript."""
        return track.numbers.get(number, number)

    def entries(self, session: str, track: Track) -> bytes:
        """A Progress with what is said of the last command that has come, in the client's numbers."""
        found = b""
        for key in KEYS:
            entry, golden = self.told(session, key, track.expected)
            renumbered = dict(entry)
            for field in ("seq", "root", "rebinds"):
                if field in entry:
                    numbers = [self.number(track, each) for each in several(entry[field])]
                    renumbered[field] = numbers if isinstance(entry[field], list) else numbers[0]
            if golden and renumbered == entry:
                found += golden
            elif entry:
                found += self.schema.encode("Progress", {key: [renumbered]})
        return found

    def plain(self, command: dict[str, Any], table: list[str],
              track: Track | None = None) -> dict[str, Any]:
        """A command in the form in which equal ones are equal: the op by its name, and values for codes.

        `track`: the command is the transcript's, whose numbers of commands become the client's.
        """
        found: dict[str, Any]
        if "op" not in command:
            found = {kind: fields for kind, fields in command.items() if isinstance(fields, dict)}
            for kind, field in NUMBERS.items():
                if track is not None and field in found.get(kind, {}):
                    found[kind] = {**found[kind], field: self.number(track, found[kind][field])}
            return found
        number = int(command["op"])
        if not 1 <= number <= len(table):
            return {"op": number}
        name = table[number - 1]
        found = {"op": name, "inplace": bool(command.get("inplace")), "made": ids_of(command)}
        if command.get("default_dtype", 9) != 9:
            found["default_dtype"] = command["default_dtype"]
        if track is None or command.get("record"):
            found["record"] = bool(command.get("record"))
        pools = {kind: several(command.get(kind)) for kind in ("integers", "reals", "texts")}
        found["arguments"] = [argument(code, pools) for code in several(command.get("arguments"))]
        found["counts"] = several(command.get("counts"))
        values = [attribute(code, pools) for code in several(command.get("attributes"))]
        declared = self.declared.get(name, {}).get("attributes", [])
        for place, each in enumerate(declared[:len(values)]):
            if each["type"] == "float" and isinstance(values[place], int):
                values[place] = float(values[place])
        while values and len(values) <= len(declared) and default(declared[len(values) - 1]) == values[-1]:
            values.pop()  # which a thin client may leave out
        found["attributes"] = values
        return found


def status(parser: Parser) -> tuple[str, str, str]:
    """Code, word and text of a refusal."""
    code, word = parser.take(), parser.take()
    return code, "" if word == "-" else word, parser.value() if parser.more() else ""


def saved(reply: dict[str, Any], path: list[str]) -> Any:
    """A field of a reply of this fake daemon. A number that the transcript does not give is 1."""
    value: Any = reply
    for part, after in zip(path, [*path[1:], ""], strict=True):
        if part.isdigit():
            value = value[int(part)]
            continue
        if after.isdigit():
            value[part] = several(value.get(part))
        value = value.setdefault(part, 1)
    return value


def several(value: Any) -> list[Any]:
    """The list of a repeated field, of which a transcript may have a single entry."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def argument(code: int, pools: dict[str, list[Any]]) -> Any:
    """The operand of a code: a distance as a text, a number, or None."""
    if code % 2 == 0:
        return f"distance {code // 2}" if code else None
    if code in (1, 3):
        return code == 3
    if code == 9:
        return complex(pools["reals"].pop(0), pools["reals"].pop(0))
    return float(pools["reals"].pop(0)) if code == 7 else pools["integers"].pop(0)


def attribute(code: int, pools: dict[str, list[Any]]) -> Any:
    """The value of an attribute's code; of dtypes and devices a text."""
    kind, extra = code % 8, code // 8
    if kind in (2, 3, 5):
        return pools[{2: "integers", 3: "reals", 5: "texts"}[kind]].pop(0)
    if kind == 4:
        return [pools["integers"].pop(0) for _ in range(extra)]
    return {0: None, 1: bool(extra), 6: f"dtype {extra}", 7: f"device {extra}"}[kind]


def default(declared: dict[str, Any]) -> Any:
    """The default of an attribute, in the form of `attribute`."""
    value = declared.get("default", ...)
    return float(value) if declared["type"] == "float" and value not in (None, ...) else value


def strides(shape: list[int]) -> list[int]:
    """Those of a contiguous tensor."""
    return [math.prod(shape[place + 1:]) for place in range(len(shape))]


def spoken(value: Any) -> Any:
    """An answer of the transcript as values: Data as bytes, texts for their parts."""
    if isinstance(value, dict):
        return {name: spoken(each) for name, each in value.items()}
    if isinstance(value, list):
        return [spoken(each) for each in value]
    return str(value) if isinstance(value, Part) else filled(value)


def different(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """How two commands in the form of `Script.plain` differ."""
    kinds = ["op" if "op" in each else ", ".join(each) for each in (expected, found)]
    return exact(expected, found) if kinds[0] == kinds[1] else f"{kinds[0]} expected, {kinds[1]} found"


def exact(expected: Any, found: Any, place: str = "") -> str:
    """As `difference`; and a field of `found` that is not zero must be expected."""
    told = difference(expected, found, place)
    if told or not isinstance(expected, dict):
        return told
    for name, value in (found or {}).items():
        here = f"{place}.{name}" if place else name
        if name not in expected and value and name != "record":
            return f"{here}: nothing expected, {value!r} found"
        each = value[0] if isinstance(value, list) and value else value  # one may be a list of one
        if isinstance(expected.get(name), dict) and (told := exact(expected[name], each, here)):
            return told
    return ""
