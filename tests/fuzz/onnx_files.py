"""Gives damaged ONNX files to tt.onnx.load: the result must be a model that runs, or a refusal.

    python tests/fuzz/onnx_files.py [--seed 1] [--seconds 300]

A third of the files are truncated, in a third bytes are changed, and in a third messages are removed,
duplicated or moved, with lengths that fit.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import onnx_files as files


def good():
    """The bytes of models with all kinds of messages."""
    branch = [files.graph([files.node(op, "x", name)], outputs=[files.value(name)]) for op, name in (
        ("Neg", "a"), ("Exp", "b"))]
    body = files.graph([files.node("Identity", "go", "again"), files.node("Add", "s x", "t")],
                       [files.value("i", "int64", []), files.value("go", "bool", []), files.value("s")],
                       [files.value("again", "bool", []), files.value("t")])
    nodes = [
        files.node("Shape", "x", "size"), files.node("ConstantOfShape", "size", "zero", value=np.zeros(1, np.float32)),
        files.node("Concat", "zero x", "c", axis=0), files.node("Softmax", "c", "p", axis=-1),
        files.node("If", "yes", "d", then_branch=branch[0], else_branch=branch[1]),
        files.node("Loop", "three yes x", "e", body=body), files.node("Twice", "e", "f", domain="own"),
        files.node("Slice", "f zero1 one", "g"), files.node("Clip", "g - k", "h"),
    ]
    constants = [files.tensor("yes", np.array(True)), files.tensor("three", np.array(3)),
                 files.tensor("zero1", np.array([0])), files.tensor("one", np.array([1])),
                 files.tensor("k", np.float32(0.5)), files.tensor("w", np.ones((40, 40), np.float32))]
    made = files.graph(nodes, [files.value("x", shape=["n", 4])], [files.value("d"), files.value("h"),
                                                                    files.value("p")], constants)
    twice = files.function("Twice", "v", "w", [files.node("Add", "v v", "w")])
    return [files.model(made, functions=[twice], domains=["own"]), files.perceptron()[0]]


def parts(data):
    """(number and kind, contents) of each field of a message; None if it is not a message."""
    from teletensor._connection.protowire import _read_varint

    found, at = [], 0
    try:
        while at < len(data):
            begin = at
            tag, at = _read_varint(data, at)
            if tag & 7 == 2:
                size, at = _read_varint(data, at)
                at += size
            elif tag & 7 == 0:
                _, at = _read_varint(data, at)
            else:
                at += 8 if tag & 7 == 1 else 4
            if at > len(data) or not tag >> 3 or tag & 7 not in (0, 1, 2, 5):
                return None
            found.append((tag, data[begin:at]))
    except (IndexError, ValueError):
        return None
    return found


def other_messages(data, choose, depth=0):
    """The message with a change somewhere inside, with lengths that fit."""
    from teletensor._connection.protowire import _varint

    fields = parts(data)
    if not fields or depth > 8:
        return other_bytes(data, choose)
    place = choose.randrange(len(fields))
    tag, whole = fields[place]
    how = choose.random()
    if how < 0.1:
        del fields[place]
    elif how < 0.2:
        fields.insert(choose.randrange(len(fields) + 1), fields[place])
    elif how < 0.3:
        fields[place] = tag, _varint(choose.choice((1, 5, 7, 9, 11)) << 3 | tag & 7) + whole[len(_varint(tag)):]
    elif tag & 7 == 2:
        head = len(_varint(tag))
        inner = whole[head:]
        while inner[0] > 127:
            inner = inner[1:]
        inner = other_messages(inner[1:], choose, depth + 1)
        fields[place] = tag, whole[:head] + _varint(len(inner)) + inner
    else:
        number = choose.choice((0, 1, 2, 7, 11, 16, 17, 63, 2**31, 2**40, 2**63, 2**64 - 1, choose.randrange(2**20)))
        fields[place] = tag, _varint(tag & ~7) + _varint(number)
    return b"".join(field for _, field in fields)


def other_bytes(data, choose):
    changed = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(changed) + 1)
        how = choose.randrange(4)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << choose.randrange(8)
        elif how == 1:
            del changed[at:at + choose.randrange(30)]
        elif how == 2:
            changed[at:at] = changed[at:at + choose.randrange(30)]
        else:
            changed[at:at + 1] = bytes([choose.randrange(256)])
    return bytes(changed)


def run(seed, count=None, seconds=None):
    """Tries this number of files, or for this time; returns how many were tried, and how many of them
    ran."""
    import teletensor as tt
    from teletensor.onnx import _run

    _run.MAX_STEPS = 10_000  # ends a loop of very many iterations sooner
    end, tried, ran, models = time.monotonic() + (seconds or 0), 0, 0, good()
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "m.onnx")
    while tried < count if count is not None else time.monotonic() < end:
        choose = random.Random(seed + tried)
        data = choose.choice(models)
        how = choose.randrange(3)
        data = (data[:choose.randrange(len(data))] if how == 0 else other_bytes(data, choose) if how == 1
                else other_messages(data, choose))
        Path(path).write_bytes(data)
        tried += 1
        try:
            model = tt.onnx.load(path)
            found = model(*(tt.ones(2, 4) if name == "x" else tt.ones(2, 5) for name in model.inputs))
            for each in found if isinstance(found, tuple) else (found,):
                if isinstance(each, tt.Tensor):
                    each.float().numpy()
            ran += 1
        except (tt.onnx.OnnxError, MemoryError):
            pass  # refused, or larger than the limits of a session
        except BaseException:
            print(f"onnx_files: --seed {seed + tried - 1}: {data!r}", file=sys.stderr)
            raise
    os.remove(path)
    os.rmdir(folder)
    return tried, ran


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    import teletensor as tt

    with tt.connect():
        tried, ran = run(args.seed, seconds=args.seconds)
        assert np.all((tt.ones(2) * 1).numpy() == 1)
    print(f"onnx_files: {tried} tried, {ran} of them ran")


if __name__ == "__main__":
    main()
