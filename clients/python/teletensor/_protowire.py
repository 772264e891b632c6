"""Protobuf's encoding for the few cold messages (Hello, Describe, admin): field numbers to values.

The run time needs no protobuf package: hot frames are written in C++, these by the lines below.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["decode", "encode", "integers", "signed"]

Value = int | bytes | str


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
    """The message with these (field number, value) pairs; zero and empty values are left out."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            if value:
                out += _varint(number << 3) + _varint(value)
        elif value:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
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
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"unknown wire type {kind}")


class Message:
    """A decoded message: integers, texts, bytes and nested messages by field number."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._values.setdefault(number, []).append(value)

    def integer(self, number: int) -> int:
        value = self._values.get(number, [0])[-1]
        return value if isinstance(value, int) else 0

    def real(self, number: int) -> float:
        """A double; 0.0 where there is none."""
        value = self.data(number)
        return float(struct.unpack("<d", value)[0]) if len(value) == 8 else 0.0

    def data(self, number: int) -> bytes:
        value = self._values.get(number, [b""])[-1]
        return value if isinstance(value, bytes) else b""

    def text(self, number: int) -> str:
        return self.data(number).decode(errors="replace")

    def parts(self, number: int) -> list[bytes]:
        """All values of a repeated field of bytes."""
        return [v for v in self._values.get(number, []) if isinstance(v, bytes)]

    def texts(self, number: int) -> list[str]:
        return [v.decode() for v in self._values.get(number, []) if isinstance(v, bytes)]

    def message(self, number: int) -> Message:
        return Message(self.data(number))

    def messages(self, number: int) -> list[Message]:
        return [Message(v) for v in self._values.get(number, []) if isinstance(v, bytes)]


def decode(data: bytes) -> Message:
    """Reads a message; ValueError or IndexError where it is not one."""
    return Message(data)


def signed(value: int) -> int:
    """An int64, from the unsigned number that travels."""
    number: int = struct.unpack("<q", struct.pack("<Q", value))[0]
    return number


def integers(message: Message, number: int) -> list[int]:
    """A packed list of int64."""
    data, values, value, shift = message.data(number), [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(signed(value))
            value = shift = 0
    return values
