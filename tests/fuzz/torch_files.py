"""Gives damaged files of torch.save to tt.load: the result must be an object or ValueError.

    python tests/fuzz/torch_files.py [--seed 1] [--seconds 300]

In some files bytes are changed; some are valid archives with damaged pickles; some contain programs of the
allowed opcodes in any order.
"""

import argparse
import io
import pickle
import pickletools
import random
import struct
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import torch_files as files
from support.torch_files import Call, Name

GLOBALS = """collections.OrderedDict collections.Counter builtins.set builtins.bytes builtins.bytearray builtins.complex
_codecs.encode argparse.Namespace pathlib.PosixPath numpy.dtype numpy.ndarray numpy._core.multiarray.scalar
numpy.core.multiarray._reconstruct torch.Size torch.device torch.float32 torch.bfloat16 torch.Tensor
torch.nn.parameter.Parameter torch.FloatStorage torch.BoolStorage torch.storage.UntypedStorage
torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3
torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state torch._tensor._rebuild_from_type_v2
torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor torch.serialization._get_layout torch.QInt8Storage
torch.per_tensor_affine torch.float8_e4m3fn torch.nn.parameter.UninitializedParameter
torch.nn.parameter.UninitializedBuffer torch._utils._rebuild_meta_tensor_no_storage os.system builtins.eval""".split()
OPCODES = """NONE NEWFALSE NEWTRUE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET MARK TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND
APPENDS SETITEM SETITEMS REDUCE NEWOBJ BUILD BINPERSID POP DUP ADDITEMS STACK_GLOBAL MEMOIZE OBJ LIST DICT""".split()
NUMBERS = [0, 1, 2, 3, 6, 24, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**200, -1, -(2**63)]
TEXTS = ["", *"storage 0 1 cpu cuda:0 latin1 f4 f8 < | conj neg _metadata a ../0 \x80ÿ".split()]


def trees(choose):
    """Objects whose storage is files.NUMBERS."""
    all_of_it = files.tensor(files.storage())
    part = files.tensor(files.storage(), (2,), (2,), 1, True)
    array = Call(
        "numpy._core.multiarray._reconstruct",
        Name("numpy.ndarray"),
        (0,),
        b"b",
        state=(
            1,
            (2,),
            Call("numpy.dtype", "f4", False, True, state=(3, "<", None, None, None, -1, -1, 0)),
            False,
            bytes(8),
        ),
    )
    return choose.choice(
        [
            {"w": all_of_it, "tied": part, "p": files.parameter(all_of_it)},
            OrderedDict(w=all_of_it, n=[1, 2.5, "text", None, True, (1, 2, 3, 4)], big=2**70),
            [
                files.tensor(files.storage(), (6,), (1,), 0, False, {"conj": True}),
                {1, 2},
                b"bytes",
                1j,
                bytearray(b"x"),
            ],
            {
                "a": array,
                "n": Call("argparse.Namespace", new=True, state={"lr": 0.1}),
                "c": Call("collections.Counter", {"a": 1}),
            },
            {"s": Call("torch.Size", (2, 3)), "d": Call("torch.device", "cuda", 0), "t": Name("torch.float32")},
            [files.of_dtype(files.raw(), "uint16", 12), files.of_dtype(files.raw(), "uint64", 3)],
            [files.sparse(files.indices((1, 2)), files.indices((2,)), files.size(9)),
             files.sparse(files.indices((3,)), files.indices((2,)), files.indices((2,)), files.size(2, 9),
                          layout="torch.sparse_csr")],
        ]
    )


def opcode(choose):
    """A random opcode with an argument."""
    how = choose.randrange(8)
    if how < 3:
        return getattr(pickle, choose.choice(OPCODES))
    if how == 3:
        module, _, name = choose.choice(GLOBALS).rpartition(".")
        return pickle.GLOBAL + f"{module}\n{name}\n".encode()
    if how == 4:
        text = choose.choice(TEXTS).encode()
        return pickle.BINUNICODE + struct.pack("<I", choose.choice([len(text)] * 9 + [2**32 - 1])) + text
    if how == 5:
        return pickle.dumps(choose.choice(NUMBERS), 2)[2:-1]
    if how == 6:
        return choose.choice([pickle.BINPUT, pickle.BINGET]) + bytes([choose.randrange(8)])
    return pickle.BINFLOAT + struct.pack(">d", choose.choice([0.0, 1e300, float("nan"), 2.5]))


def opcodes(data):
    """A pickle split into its opcodes."""
    starts = [at for _, _, at in pickletools.genops(data)]
    return [data[i:j] for i, j in zip(starts, [*starts[1:], len(data)])]


def other_opcodes(data, choose):
    parts = opcodes(data)
    for _ in range(choose.randint(1, 3)):
        at, how = choose.randrange(len(parts)), choose.randrange(5)
        if how == 0:
            del parts[at]
        elif how == 1:
            parts[at:at] = [parts[choose.randrange(len(parts))]]
        elif how == 2:
            parts[at:at] = [opcode(choose) for _ in range(choose.randint(1, 4))]
        elif how == 3:
            parts[at] = opcode(choose)
        else:
            parts[at:at] = parts[at : at + 5] * choose.randint(1, 30)
        parts = parts or [pickle.STOP]
    return b"".join(parts)


def other_bytes(raw, choose):
    changed = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(changed) + 1)
        part, how = bytes(changed[at : at + choose.randrange(40)]), choose.randrange(5)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << choose.randrange(8)
        elif how == 1:
            del changed[at : at + len(part)]
        elif how == 2:
            changed[at:at] = part
        elif how == 3:
            changed[at : at + 4] = struct.pack("<I", choose.choice([0, 1, 2**31, 2**32 - 1, len(changed)]))
        else:
            del changed[at:]
    return bytes(changed)


def spoilt(choose):
    """The bytes of a damaged file."""
    tree, how = files.pickled(trees(choose)), choose.random()
    wrap = files.archive if choose.random() < 0.7 else files.legacy
    if how < 0.4:
        return other_bytes(wrap(tree), choose)
    if how < 0.8:
        return wrap(other_opcodes(tree, choose))
    program = b"".join(opcode(choose) for _ in range(choose.randint(1, 40)))
    return wrap(pickle.PROTO + b"\x02" + program + pickle.STOP)


def run(seed, count=None, seconds=None):
    """Tries this number of files, or for this time; returns how many were tried, and how many of them were
    read."""
    import teletensor as tt

    end, tried, read = time.monotonic() + (seconds or 0), 0, 0
    while tried < count if count is not None else time.monotonic() < end:
        raw = spoilt(random.Random(seed + tried))
        tried += 1
        try:
            tt.load(io.BytesIO(raw))
            read += 1
        except ValueError:
            pass  # the only error that a file may cause
        except BaseException:
            print(f"torch_files: --seed {seed + tried - 1}: {raw!r}", file=sys.stderr)
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
    print(f"torch_files: {tried} tried, {read} of them read")


if __name__ == "__main__":
    main()
