"""Golden transcripts: steps with messages as text, and how what a daemon says is compared with them.

A file of transcripts/ has one step a line, or several lines between braces; `#` begins a comment. Lines
with `=` have the messages of the step before them in hex, as protoc's classes write them (1 for each
variable that a daemon chooses); `python tests/conformance/golden.py` makes them.

    ops NAME ...                  the client's table; @NAME is the op's number in it
    session NAME                  the steps that follow are of this session
    hello {FIELDS}                Compute.Hello; version, instance and table are filled in
    hello_at_last {FIELDS}        the same again and again, while there is no place for the session
    call NAME {FIELDS}            a unary call of the session (of Admin: call Admin.NAME)
    until NAME {FIELDS}           the same call again and again, until it is refused
    token "TEXT"                  calls of the session have this token of a session from now on
    bearer "TEXT"                 calls of the session have this token of a user from now on
    reply {FIELDS}                what the last call has answered, or the part of it that is given
    refused CODE WORD "TEXT"      or: how it was refused; WORD "-" where no reason is told
    save NAME FIELD               $NAME is that field of the last reply, $NAME+3 that and 3
    program NAME {FIELDS}         $NAME is this Program; `ops` are names
    run [ATTACH]                  opens Run, of this attach
    frame {FIELDS}                sends a frame; first_seq and first_id are filled in where left out
    bytes HEX                     sends these bytes as a frame
    told FIELD {FIELDS}           Progress has brought this (fetched, errors, raised), sooner or later
    told FIELD NUMBER             a number of Progress reaches this
    forget                        what has been told so far counts no more
    never FIELD {FIELDS}          what has been brought so far has no such entry
    ended CODE WORD "TEXT"        the server ends Run
    cut                           the client's connection is lost
    upload KEY [{FIELDS} ...]     Upload of these chunks, with the client's own number for it
    cut_upload KEY [{FIELDS} ...] the same, which is cancelled behind these chunks
    rest KEY {FIELDS}             Staged, and an upload of what is missing of this data
    download {FIELDS}             Download; the answer is one chunk with the whole data
    cut_download COUNT {FIELDS}   the same, which is cancelled when this number of bytes has come
    hold_uploads COUNT            opens up to so many calls of Upload, until one is refused; they stay open
    operator WORDS                what the operator of the daemon does; the tests of the project do it
    limits {FIELDS}               limits of the fake daemon that are not its usual ones; for `--serve` alone

The player sends a frame in hex if it has one without variables, and the fake daemon such answers.

Values are numbers, true, false, "texts", ~"parts of texts", lists, messages, and data: f32[1, 2],
f64[...], i64[...], u8[...], bool[...]. A field that an answer leaves out counts as zero, but for dtype and
shape of a fetched value: without them it has one dimension, and the dtype of its data.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Data", "Parser", "Part", "Step", "complete", "difference", "filled", "steps"]

FOLDER = Path(__file__).parent / "transcripts"
DTYPES = {"f32": 9, "f64": 10, "i64": 6, "u8": 2, "bool": 1}
DATA = {"f32": "f", "f64": "d", "i64": "q", "u8": "B", "bool": "?"}
TOKEN = re.compile(r"""\s*(?:(~?"(?:[^"\\]|\\.)*")|(f32|f64|i64|u8|bool)(?=\[)
                       |([@$]?[A-Za-z_][\w.]*(?:\+\d+)?)
                       |(-?\d+(?:\.\d+)?(?:e-?\d+)?)|([{}\[\]:,-]))""", re.X)


class Part(str):
    """A part of a text that an answer is to hold."""


@dataclass
class Data:
    """Elements of a tensor."""

    kind: str
    elements: list[Any]

    def packed(self) -> bytes:
        """The bytes of the elements."""
        return struct.pack(f"<{len(self.elements)}{DATA[self.kind]}", *self.elements)

    def equals(self, data: bytes) -> bool:
        """Whether these bytes are of about the same elements."""
        size = struct.calcsize(DATA[self.kind])
        if len(data) != size * len(self.elements):
            return False
        found = struct.unpack(f"<{len(self.elements)}{DATA[self.kind]}", data)
        return all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in zip(found, self.elements,
                                                                                  strict=True))


class Parser:
    def __init__(self, text: str, names: dict[str, Any]) -> None:
        self.names = names  # of ops and variables to values
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"not understood: {text[at:].strip()}")
            self.tokens.append(match.group().strip())
            at = match.end()
        self.at = 0

    def more(self) -> bool:
        return self.at < len(self.tokens)

    def peek(self) -> str:
        return self.tokens[self.at] if self.more() else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if expected not in (None, token):
            raise ValueError(f"{expected!r} expected, {token!r} found")
        self.at += 1
        return token

    def message(self) -> dict[str, Any]:
        """FIELD: VALUE ...; a field that is given twice is a list."""
        fields: dict[str, Any] = {}
        self.take("{")
        while self.peek() != "}":
            name = self.take()
            if self.peek() == ":":
                self.take()
            value = self.value()
            if name in fields:
                before = fields[name] if isinstance(fields[name], list) else [fields[name]]
                value = [*before, value]
            fields[name] = value
        self.take("}")
        return fields

    def items(self) -> list[Any]:
        values = []
        self.take("[")
        while self.peek() != "]":
            values.append(self.value())
            if self.peek() == ",":
                self.take()
        self.take("]")
        return values

    def value(self) -> Any:
        token = self.peek()
        if token == "{":
            return self.message()
        if token == "[":
            return self.items()
        self.take()
        if token in DATA:
            return Data(token, self.items())
        if token.startswith(("~", '"')):
            text = token.lstrip("~")[1:-1].replace('\\"', '"')
            return Part(text) if token.startswith("~") else text
        if token.startswith(("@", "$")):
            name, _, more = token.partition("+")
            return self.names[name] + int(more) if more else self.names[name]
        if token in ("true", "false"):
            return token == "true"
        if re.fullmatch(r"-?\d+", token):
            return int(token)
        return float(token) if token[0] in "-0123456789" else token


@dataclass
class Step:
    """One step of a transcript; `golden` has its messages as bytes, with the names of their types."""

    line: int
    text: str
    golden: list[tuple[str, bytes]]

    @property
    def word(self) -> str:
        """The first word of the step."""
        return self.text.partition(" ")[0]

    @property
    def rest(self) -> str:
        """What follows the first word."""
        return self.text.partition(" ")[2]


def steps(path: Path) -> list[Step]:
    """The steps of a transcript."""
    found: list[Step] = []
    open_braces = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        if text.startswith("="):
            message, begins, digits = text[1:].rpartition(":")
            data = b"" if begins else found[-1].golden[-1][1]
            if not begins:
                message, _ = found[-1].golden.pop()
            found[-1].golden.append((message.strip(), data + bytes.fromhex(digits)))
            continue
        if open_braces > 0:
            found[-1].text += f" {text}"
        else:
            found.append(Step(number, text, []))
        outside = re.sub(r'"[^"]*"', "", text)
        open_braces += sum({"{": 1, "[": 1, "}": -1, "]": -1}.get(c, 0) for c in outside)
    return found


def difference(expected: Any, found: Any, place: str = "") -> str:
    """Where `found` is not what is expected, as text; "" where it is."""
    if isinstance(expected, dict) and not isinstance(found, list):
        for name, value in expected.items():
            told = difference(value, (found or {}).get(name), f"{place}.{name}" if place else name)
            if told:
                return told
        return ""
    if isinstance(expected, Data):
        same = expected.equals(found or b"")
        shown = (found or b"").hex()
        return "" if same else f"{place}: {expected.kind}{expected.elements} expected, {shown} (hex) found"
    if isinstance(expected, Part):
        if expected in (found or ""):
            return ""
        return f"{place}: a text with {expected!r} expected, {found!r} found"
    if isinstance(found, list) and not isinstance(expected, list):
        expected = [expected]
    if isinstance(expected, list):
        found = found or []
        if len(found) != len(expected):
            return f"{place}: {expected} expected, {found} found"
        pairs = zip(expected, found, strict=True)
        return next(filter(None, (difference(a, b, place) for a, b in pairs)), "")
    zero = type(expected)() if expected is not None else None
    found = zero if found is None else found
    return "" if found == expected else f"{place}: {expected!r} expected, {found!r} found"


def complete(fetched: dict[str, Any]) -> dict[str, Any]:
    """What Progress says of a Fetch: a dtype and a shape that are left out are those of its elements."""
    data = fetched.get("data")
    if not isinstance(data, Data):
        return fetched
    return {"dtype": DTYPES[data.kind], "shape": [len(data.elements)], **fetched}


def filled(value: Any) -> Any:
    """A message without Data, ready to be encoded."""
    if isinstance(value, dict):
        return {name: filled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    return value.packed() if isinstance(value, Data) else value
