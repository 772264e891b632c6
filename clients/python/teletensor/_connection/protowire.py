"""Protobuf's wire format for the few infrequent messages (Hello, Describe, admin) and for ONNX files: maps
field numbers to values.

The client does not need the protobuf package at run time: frames are encoded in C++, and these messages by
the functions below.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["decode", "encode", "integers", "signed"]

Data = bytes | memoryview  # parts of a memoryview are memoryviews of it: nothing is copied


def _varint(value: int) -> bytes:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"expected a whole number from 0 to 2^64 - 1, not {value}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields: Sequence[tuple[int, Any]]) -> bytes:
    """Encodes a message with these (field number, value) pairs; zero and empty values are left out."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            if value:
                out += _varint(number << 3) + _varint(value)
        elif value:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _read_varint(data: Data, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise ValueError("an encoded number has more than 64 bits")


def _fields(data: Data) -> Iterator[tuple[int, int | Data]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
        elif kind == 2:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if at + size > len(data):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"unknown wire type {kind}")


class Message:
    """A decoded message: integers, texts, bytes and nested messages by field number."""

    def __init__(self, data: Data) -> None:
        self._values: dict[int, list[int | Data]] = {}
        for number, value in _fields(data):
            self._values.setdefault(number, []).append(value)

    def integer(self, number: int) -> int:
        value = self._values.get(number, [0])[-1]
        return value if isinstance(value, int) else 0

    def real(self, number: int) -> float:
        """The value of a double field; 0.0 if the field is missing."""
        value = self.data(number)
        return float(struct.unpack("<d", value)[0]) if len(value) == 8 else 0.0

    def data(self, number: int) -> bytes:
        return bytes(self.view(number))

    def view(self, number: int) -> Data:
        """As `data`, without a copy if the message was decoded from a memoryview."""
        value = self._values.get(number, [b""])[-1]
        return b"" if isinstance(value, int) else value

    def text(self, number: int) -> str:
        return self.data(number).decode(errors="replace")

    def values(self, number: int) -> list[int | Data]:
        """All values of a field, in the order of the message."""
        return self._values.get(number, [])

    def parts(self, number: int) -> list[bytes]:
        """All values of a repeated field of bytes."""
        return [bytes(v) for v in self.values(number) if not isinstance(v, int)]

    def texts(self, number: int) -> list[str]:
        return [v.decode() for v in self.parts(number)]

    def message(self, number: int) -> Message:
        """The message in a field; as protobuf's parsers do, all its occurrences are merged."""
        parts = [v for v in self.values(number) if not isinstance(v, int)]
        return Message(parts[0] if len(parts) == 1 else b"".join(parts))

    def messages(self, number: int) -> list[Message]:
        return [Message(v) for v in self.values(number) if not isinstance(v, int)]


def decode(data: Data) -> Message:
    """Decodes a message; ValueError or IndexError if it is not valid."""
    return Message(data)


def signed(value: int) -> int:
    """Converts the unsigned number of the wire format to an int64."""
    number: int = struct.unpack("<q", struct.pack("<Q", value))[0]
    return number


def integers(message: Message, number: int) -> list[int]:
    """The values of a repeated field of int64, packed or not. ValueError or IndexError if it is cut off."""
    values = []
    for data in message.values(number):
        if isinstance(data, int):
            values.append(signed(data))
            continue
        at = 0
        while at < len(data):
            value, at = _read_varint(data, at)
            values.append(signed(value))
    return values
