"""Gives damaged files to tt.load: the result must be a tree or ValueError.

    python tests/fuzz/saved_files.py [--seed 1] [--seconds 300]

In half of the files bytes are changed, and in the other half the contents of the header, with a length that
fits.
"""

import argparse
import contextlib
import io
import json
import random
import struct
import sys
import time

import numpy as np

WORDS = [b"[", b"{", b"]", b"}", b'"', b":", b",", b"null", b"true", b"-1", b"1e400", b"NaN", b"18446744073709551616",
         b'"__metadata__":', b'"teletensor.tree":', b'"teletensor.ordered":', b'"$dict"', b'"$ordered"',
         b'"$list"', b'"$"', b"\\ud800", b"\xff", b"[" * 300]
VALUES = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1.5, 1e300, float("nan"), "", "F32", "X", "\ud800", [], {}, [0],
          [[]], [0, 2**62], [0, 4], [4, 0], ["0", "4"], {"$": "x"}, "a" * 5000]


def good(choose):
    """The bytes of a file that tt.save has written."""
    import teletensor as tt

    trees = [
        {"a": tt.ones(3), "b": tt.arange(2)},
        {"w": [tt.zeros(2, 2), {"x": tt.ones(0, 3)}], "n": 3, "t": ("text", None, True, 2.5)},
        tt.ones(4, dtype=tt.bfloat16),
        {"c": tt.ones(2, dtype=tt.complex64), "d": tt.tensor(True)},
        {"s": tt.eye(2).to_sparse(), "r": tt.eye(3).to_sparse_csr()},
    ]
    buffer = io.BytesIO()
    tt.save(choose.choice(trees), buffer, {"made": "here"} if choose.random() < 0.3 else None)
    return buffer.getvalue()


def places(value, found, path=()):
    """All positions in a JSON value."""
    found.append(path)
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        places(child, found, (*path, key))
    return found


def set_at(value, path, new, choose):
    if not path:
        return new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    how = choose.random()
    if how < 0.15:
        del inner[path[-1]]
    elif how < 0.3 and isinstance(inner, dict):
        inner[choose.choice(["shape", "dtype", "x", "", "__metadata__", "teletensor.tree"])] = inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def other_header(raw, choose):
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    for _ in range(choose.randint(1, 3)):
        tree = None
        if choose.random() < 0.4:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # already damaged
                tree = json.loads(header["__metadata__"]["teletensor.tree"])  # JSON text within JSON
        if tree is not None:
            tree = set_at(tree, choose.choice(places(tree, [])), choose.choice(VALUES), choose)
            header["__metadata__"]["teletensor.tree"] = json.dumps(tree)
        elif isinstance(header, (dict, list)):
            header = set_at(header, choose.choice(places(header, [])), json.loads(json.dumps(choose.choice(VALUES))),
                            choose)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def other_bytes(raw, choose):
    changed = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(changed) + 1)
        part, word = bytes(changed[at:at + choose.randrange(30)]), choose.choice(WORDS)
        how = choose.randrange(6)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << choose.randrange(8)
        elif how == 1:
            del changed[at:at + len(part)]
        elif how == 2:
            changed[at:at] = part
        elif how == 3:
            changed[at:at] = word
        elif how == 4:
            changed[at:at] = word * choose.randrange(60)
        else:
            changed[at:at + len(word)] = word
    if choose.random() < 0.7 and len(changed) > 8:  # keeps the length of the header valid
        changed[:8] = struct.pack("<Q", max(0, struct.unpack("<Q", raw[:8])[0] + len(changed) - len(raw)))
    return bytes(changed)


def run(seed, count=None, seconds=None):
    """Tries this number of files, or for this time; returns how many were tried, and how many of them were
    read."""
    import teletensor as tt

    end, tried, read = time.monotonic() + (seconds or 0), 0, 0
    while tried < count if count is not None else time.monotonic() < end:
        choose = random.Random(seed + tried)
        raw = good(choose)
        raw = other_header(raw, choose) if choose.random() < 0.5 else other_bytes(raw, choose)
        tried += 1
        try:
            tt.load(io.BytesIO(raw))
            read += 1
        except ValueError:
            pass  # the only error that a file may cause
        except BaseException:
            print(f"saved_files: --seed {seed + tried - 1}: {raw!r}", file=sys.stderr)
            raise
    return tried, read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    import teletensor as tt

    with tt.connect():
        tried, read = run(args.seed, seconds=args.seconds)
        assert np.all((tt.ones(2) * 1).numpy() == 1)
    print(f"saved_files: {tried} tried, {read} of them read")


if __name__ == "__main__":
    main()
