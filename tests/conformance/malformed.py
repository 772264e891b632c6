"""Malformed commands, drawn at random over all kinds of commands and all their fields.

`draw(random)` returns one: what is wrong with it, its bytes, and whether a thin session may end by it. The
commands are about the session of SETUP, whose next handle has the id NEXT_ID.
"""

import struct

from teletensor._conformance.schema import FIXED, VARINTS, Schema, varint

OPS = ("neg", "sum", "add", "cat", "select", "all_reduce")
# Ids: 1 float32 [2, 3] of which gradients are wanted, 2 int64 [3], 3 and 4 recorded results.
SETUP = [
    {"constant": {"dtype": 9, "shape": [2, 3], "data": struct.pack("<6f", *range(6))}},
    {"set_flag": {"what": 0, "handle": 1, "on": True}},
    {"constant": {"dtype": 6, "shape": [3], "data": struct.pack("<3q", 1, 0, 2)}},
    {"op": 1, "record": True, "arguments": [4]},
    {"op": 2, "record": True, "arguments": [2], "attributes": [0, 1, 0]},
]
NEXT_ID = 5
VALID = [
    {"op": 1, "record": True, "arguments": [8]},
    {"op": 1, "inplace": True, "arguments": [4], "made": 0},
    {"op": 2, "record": True, "arguments": [8], "attributes": [12, 1, 0], "integers": [1]},
    {"op": 3, "record": True, "default_dtype": 9, "arguments": [8, 7], "attributes": [3], "reals": [2.5, 1.0]},
    {"op": 4, "record": True, "arguments": [8, 4], "attributes": [2], "integers": [0], "counts": [2]},
    {"op": 5, "arguments": [8], "attributes": [2, 2], "integers": [0, 1]},
    {"op": 6, "arguments": [8], "attributes": [2, 1, 5], "integers": [1], "texts": ["here"]},
    {"constant": {"dtype": 9, "device": 0, "shape": [2], "data": struct.pack("<2f", 1, 2)}},
    {"uploaded": {"dtype": 9, "device": 0, "shape": [2], "upload": 1}},
    {"fetch": {"handle": 4, "bulk": False, "describe": False}},
    {"fetch": {"handle": 1, "bulk": True}},
    {"backward": {"roots": [1], "seeds": [0], "inputs": [4], "has_inputs": True, "retain_graph": True, "made": 1}},
    {"backward": {"roots": [1], "seeds": [0], "allow_unused": True, "expanded": False, "made": 1}},
    {"release": {"handles": [2, 1]}},
    {"saved": {"node": 4, "slot": 0}},
    {"set_flag": {"what": 1, "handle": 2, "on": True}},
    {"set_grad": {"handle": 4, "grad": 4}},
    {"set_data": {"handle": 2, "other": 4}},
    {"raise": {"root": 3}},
    {"forget": {"node": 4}},
    {"define": {"program": 1, "contents": b"\x08\x01"}},
    {"call": {"program": 1, "inputs": [4], "numbers": b"\x01\x05\x07", "integers": [3], "reals": [0.5], "seed": 1,
              "ordinal": 2, "made": 1, "times": 1, "sliced": [0]}},
    {"undefine": {"program": 1}},
    {"taken": {"fetch": 1}},
    {"keep": {"name": "k", "handle": 4}},
    {"publish": {"name": "p", "handle": 4, "writable": True, "users": "*"}},
    {"published": {"dtype": 9, "device": 0, "shape": [2], "publication": 1, "writable": True}},
    {"join": {"group": 1, "name": "g", "rank": 0, "ranks": 2, "timeout_ms": 50}},
    {"leave": {"group": 1}},
]
NUMBERS = [0, 1, 2, 3, 6, 7, 9, 12, 13, 15, 16, 99, 127, 128, 255, 256, 4096, (1 << 16) - 1, 1 << 20, (1 << 31) - 1,
           1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
TEXTS = [b"", b" ", b"\0", b"\n", b"x" * 200, b"x" * 201, b"x" * 4097, "\u00e9".encode(), b"\xff", b"a/b", b"../x",
         b'"\\']
WIRES = (0, 1, 2, 3, 4, 5, 6, 7)  # of which protobuf has no 6 and 7, and proto3 neither 3 nor 4
MAX_IDS = 60_000  # the ids that a frame declares count as its items, of which it has at most 65,536
SCHEMA = Schema()


def number(random):
    return random.choice(NUMBERS) if random.random() < 0.8 else random.getrandbits(random.randrange(1, 65))


def field(entry, scope, value):
    """The bytes of one field."""
    return SCHEMA.encode(scope, {entry.name: value})


def is_message(entry, scope):
    return not (entry.type in VARINTS or entry.type in FIXED or entry.type in ("string", "bytes")
                or SCHEMA.is_enum(entry, scope))


def raw_number(entry, value):
    """A field of numbers with this one."""
    fixed = entry.type in FIXED
    body = struct.pack("<Q", value) if fixed else varint(value)
    if entry.repeated:
        return varint(entry.number << 3 | 2) + varint(len(body)) + body
    return varint(entry.number << 3 | int(fixed)) + body


def range_of(entry):
    """The largest number that the field may have for a thin session to continue in any case, as a varint."""
    if entry.name == "made":
        return MAX_IDS
    if entry.type in ("bool", "uint32"):
        return 1 if entry.type == "bool" else (1 << 32) - 1
    return (1 << 64) - 1 if entry.type in VARINTS or entry.type in FIXED else (1 << 31) - 1  # or an enum


def hostile(random, entry):
    """A field with a hostile value: what it is, its bytes, and whether it is outside of its type."""
    if entry.type in ("string", "bytes"):
        text = random.choice(TEXTS) if random.random() < 0.7 else random.randbytes(random.randrange(40))
        body = varint(entry.number << 3 | 2) + varint(len(text)) + text
        outside = entry.type == "string" and not valid_utf8(text)
        return f"{text[:20]!r} ({len(text)} bytes)", body, outside
    if entry.repeated and random.random() < 0.5:
        count = random.choice([0, 1, 2, 3, 8, 9, 13, 200])
        values = [number(random) for _ in range(count)]
        fixed = entry.type in FIXED
        body = b"".join(struct.pack("<Q", each) if fixed else varint(each) for each in values)
        return f"{count} numbers {values[:3]}", varint(entry.number << 3 | 2) + varint(len(body)) + body, any(
            each > range_of(entry) for each in values)
    chosen = number(random)
    return str(chosen), raw_number(entry, chosen), chosen > range_of(entry)


def valid_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def draw(random):
    """Returns what is wrong, the bytes of a Command, and whether a thin session may end by it."""
    command = random.choice(VALID)
    kind = next((name for name, value in command.items() if isinstance(value, dict)), None)
    scope = SCHEMA.resolve(SCHEMA.messages["Command"].fields[kind].type, "Command") if kind else "Command"
    fields = command[kind] if kind else command
    message = SCHEMA.messages[scope]
    entries = [entry for entry in message.fields.values() if not is_message(entry, scope)]
    body = {name: field(message.fields[name], scope, value) for name, value in fields.items()}
    what, ends, wrong = [], False, random.random()
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        entry = random.choice(entries)
        place = f"{kind or 'op'}.{entry.name}"
        chance = random.random()
        if chance < 0.65:
            shown, body[entry.name], outside = hostile(random, entry)
            what.append(f"{place} = {shown}")
            ends |= outside
        elif chance < 0.8:
            body.pop(entry.name, None)
            what.append(f"no {place}")
        elif chance < 0.9:
            wire = random.choice(WIRES)
            body[entry.name] = varint(entry.number << 3 | wire) + random.randbytes(random.randrange(12))
            what.append(f"{place} of wire type {wire}: {body[entry.name].hex()}")
            ends = True
        else:
            unknown = random.choice([0, 12 if kind else 33, 33, 99, (1 << 29) - 1])
            body[f"unknown {unknown}"] = varint(unknown << 3) + varint(number(random))
            what.append(f"{place}: unknown field {unknown}")
            ends = True
    inner = b"".join(body.values())
    data = inner if kind is None else (
        varint(SCHEMA.messages["Command"].fields[kind].number << 3 | 2) + varint(len(inner)) + inner)
    if wrong < 0.1:
        data = data[:random.randrange(len(data) + 1)]
        what.append("cut off")
        ends = True
    elif wrong < 0.2 and data:
        at = random.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1:]
        what.append(f"a bit of byte {at}")
        ends = True
    elif wrong < 0.3:
        other = random.choice(VALID)
        data += SCHEMA.encode("Command", other)
        what.append(f"and {other}")
        ends |= ("op" in other) != (kind is None)  # a command has one kind
    return "; ".join(what), data, ends
