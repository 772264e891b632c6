"""The messages of proto/teletensor/v1 to bytes and back, without protoc.

The kit reads the .proto files itself, so that neither the project's encoders nor protoc's classes have
a part in what it sends and understands. It supports what those files use: proto3 scalars, enums, nested
messages, `repeated`, `optional` and `oneof`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Schema"]

_HERE = Path(__file__).resolve()
# In the package, or in the checkout whose sources are imported.
PROTO = _HERE.parent / "proto"
if not PROTO.is_dir():
    PROTO = _HERE.parents[4] / "proto/teletensor/v1"
Values = dict[str, Any]  # a message
VARINTS = ("uint32", "uint64", "int32", "int64", "bool", "sint32", "sint64")
FIXED = {"double": "<d", "fixed64": "<Q", "float": "<f", "fixed32": "<I"}
WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 0, 1, 2, 5


@dataclass
class Field:
    name: str
    number: int
    type: str
    repeated: bool


@dataclass
class Message:
    name: str
    fields: dict[str, Field] = field(default_factory=dict)  # by name
    numbers: dict[int, Field] = field(default_factory=dict)  # by number

    def add(self, entry: Field) -> None:
        """Adds a field."""
        self.fields[entry.name] = self.numbers[entry.number] = entry


class Schema:
    """All messages and enums, by their full name behind the package: "HelloReply", "Inventory.Tensor".

    `strict`: a field that no message has is an error.
    """

    def __init__(self, folder: Path = PROTO, strict: bool = False) -> None:
        self.strict = strict
        self.messages: dict[str, Message] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.calls: dict[str, tuple[str, str]] = {}  # request and reply of "/teletensor.v1.Compute/Hello"
        for path in sorted(folder.glob("*.proto")):
            text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
            for service, body in re.findall(r"service (\w+) {(.*?)^}", text, re.S | re.M):
                for name, *messages in re.findall(r"rpc (\w+)\(([^)]*)\)\s*returns \(([^)]*)\)", body):
                    request, reply = (each.split()[-1] for each in messages)
                    self.calls[f"/teletensor.v1.{service}/{name}"] = (request, reply)
            self.tokens: list[str] = re.findall(r"[\w.]+|\"[^\"]*\"|[^\s\w]", text)
            self.at = 0
            while self.at < len(self.tokens):
                self.read_top()

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at]
        assert expected in (None, token), f"{expected!r} expected, {token!r} found"
        self.at += 1
        return token

    def skip_block(self) -> None:
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(token := self.take(), 0)
            if token in ";}" and depth == 0:
                return

    def read_top(self) -> None:
        if self.tokens[self.at] == "message":
            self.read_message("")
        elif self.tokens[self.at] == "enum":
            self.read_enum("")
        else:
            self.skip_block()

    def read_enum(self, scope: str) -> None:
        self.take("enum")
        values = self.enums[scope + self.take()] = {}
        self.take("{")
        while self.tokens[self.at] != "}":
            if self.tokens[self.at] == "reserved":
                self.skip_block()
                continue
            name = self.take()
            self.take("=")
            values[name] = int(self.take())
            self.take(";")
        self.take("}")

    def read_message(self, scope: str) -> None:
        self.take("message")
        message = Message(scope + self.take())
        self.messages[message.name] = message
        self.take("{")
        while self.tokens[self.at] != "}":
            self.read_member(message)
        self.take("}")

    def read_member(self, message: Message) -> None:
        word = self.tokens[self.at]
        if word == "message":
            self.read_message(message.name + ".")
        elif word == "enum":
            self.read_enum(message.name + ".")
        elif word in ("reserved", "option", ";"):
            self.skip_block()
        elif word == "oneof":
            self.at += 3
            while self.tokens[self.at] != "}":
                self.read_field(message)
            self.take("}")
        else:
            self.read_field(message)

    def read_field(self, message: Message) -> None:
        word = self.take()
        repeated = word == "repeated"
        kind = self.take() if word in ("repeated", "optional") else word
        name = self.take()
        self.take("=")
        message.add(Field(name, int(self.take()), kind, repeated))
        self.skip_block()

    def resolve(self, kind: str, scope: str) -> str:
        """The full name of a message or an enum that a field of the message `scope` names."""
        parts = scope.split(".")
        for size in range(len(parts), -1, -1):
            name = ".".join([*parts[:size], kind])
            if name in self.messages or name in self.enums:
                return name
        raise KeyError(f"{scope}: no type {kind}")

    # ---- bytes

    def encode(self, name: str, values: Values) -> bytes:
        """The bytes of a message; `values` is a dictionary by field, lists for repeated fields.

        Fields stand in the order of their numbers and repeated numbers are packed, as the daemon asks of
        frames. A field that is given is written, zero or not.
        """
        message, out = self.messages[name], bytearray()
        for entry in sorted((message.fields[key] for key in values), key=lambda each: each.number):
            value = values[entry.name]
            if entry.repeated and not isinstance(value, list):
                value = [value]
            scalar = entry.type in VARINTS or entry.type in FIXED or self.is_enum(entry, name)
            if entry.repeated and scalar:
                body = b"".join(self.scalar(entry, name, each)[1] for each in value)
                if body:
                    out += varint(entry.number << 3 | WIRE_BYTES) + varint(len(body)) + body
                continue
            for each in value if entry.repeated else [value]:
                if scalar:
                    wire, body = self.scalar(entry, name, each)
                else:
                    wire, body = WIRE_BYTES, self.body(entry, name, each)
                    body = varint(len(body)) + body
                out += varint(entry.number << 3 | wire) + body
        return bytes(out)

    def is_enum(self, entry: Field, scope: str) -> bool:
        known = entry.type in VARINTS or entry.type in FIXED or entry.type in ("string", "bytes")
        return not known and self.resolve(entry.type, scope) in self.enums

    def body(self, entry: Field, scope: str, value: Any) -> bytes:
        if entry.type == "string":
            return str(value).encode()
        if entry.type == "bytes":
            return bytes(value)
        return self.encode(self.resolve(entry.type, scope), value)

    def scalar(self, entry: Field, scope: str, value: Any) -> tuple[int, bytes]:
        if entry.type in FIXED:
            wire = WIRE_FIXED64 if entry.type in ("double", "fixed64") else WIRE_FIXED32
            return wire, struct.pack(FIXED[entry.type], value)
        if isinstance(value, str):
            value = self.enums[self.resolve(entry.type, scope)][value]
        if entry.type.startswith("sint"):
            value = value << 1 if value >= 0 else (-value << 1) - 1
        return WIRE_VARINT, varint(int(value) & (1 << 64) - 1)

    def decode(self, name: str, data: bytes) -> Values:
        """Returns a dictionary of the fields in the message, without fields that the schema lacks."""
        message, at = self.messages[name], 0
        values: Values = {}
        parts: dict[str, bytes] = {}  # all occurrences of a message, which are merged
        while at < len(data):
            tag, at = read_varint(data, at)
            wire, entry = tag & 7, message.numbers.get(tag >> 3)
            raw, at = read_raw(data, at, wire)
            if entry is None:
                if self.strict:
                    raise ValueError(f"{name} has no field {tag >> 3}")
                continue
            if entry.repeated:
                values.setdefault(entry.name, []).extend(self.several(entry, name, wire, raw))
            else:
                if wire == WIRE_BYTES and entry.type not in ("string", "bytes"):
                    raw = parts[entry.name] = parts.get(entry.name, b"") + raw
                values[entry.name] = self.value(entry, name, raw)
        return values

    def several(self, entry: Field, scope: str, wire: int, raw: Any) -> list[Any]:
        if wire != WIRE_BYTES or not (entry.type in VARINTS or entry.type in FIXED
                                      or self.is_enum(entry, scope)):
            return [self.value(entry, scope, raw)]
        values, at = [], 0
        item = {"double": WIRE_FIXED64, "fixed64": WIRE_FIXED64, "float": WIRE_FIXED32,
                "fixed32": WIRE_FIXED32}.get(entry.type, WIRE_VARINT)
        while at < len(raw):
            each, at = read_raw(raw, at, item)
            values.append(self.value(entry, scope, each))
        return values

    def value(self, entry: Field, scope: str, raw: Any) -> Any:
        if entry.type in FIXED:
            return struct.unpack(FIXED[entry.type], raw)[0]
        if entry.type == "bytes":
            return raw
        if entry.type == "string":
            return raw.decode()
        if entry.type == "bool":
            return bool(raw)
        if entry.type.startswith("sint"):
            return raw >> 1 if raw & 1 == 0 else -(raw + 1 >> 1)
        if entry.type.startswith("int") and raw >> 63:
            return raw - (1 << 64)
        if entry.type in VARINTS or self.is_enum(entry, scope):
            return raw
        return self.decode(self.resolve(entry.type, scope), raw)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def read_raw(data: bytes, at: int, wire: int) -> tuple[Any, int]:
    """A number, or the bytes of a field with a length or a fixed size; and where the next one begins."""
    if wire == WIRE_VARINT:
        return read_varint(data, at)
    if wire == WIRE_BYTES:
        size, at = read_varint(data, at)
    else:
        size = {WIRE_FIXED64: 8, WIRE_FIXED32: 4}[wire]
    if at + size > len(data):
        raise ValueError("a message that is cut off")
    return data[at:at + size], at + size
