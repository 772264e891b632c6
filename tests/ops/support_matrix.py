"""Mode `support` of the op tester: determines from a daemon's answers which op supports which dtype on
which device.

    python tests/ops/support_matrix.py    # writes docs/ops_support.json, the table of docs/ops.md

An op supports a dtype if a sample of its row, with the operands in that dtype, is accepted and runs.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
OUTPUT = HERE.parents[2] / "docs/ops_support.json"
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

DEVICES = ("cpu", "sim")
SAMPLES = 3  # the maximum number of samples of a row that are tried
REFUSED = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


def accepted(lib, row, dtype, device):
    """Returns whether a sample of the row runs with operands of this dtype on this device."""
    from tester import Case

    tried = 0
    for index, sample in enumerate(row.samples):
        if tried == SAMPLES:
            return False
        if (
            sample.dtypes is not None
            and dtype not in sample.dtypes
            and set(sample.dtypes) & set(row.dtypes)
        ):
            continue
        tried += 1
        try:
            args, _ = Case(row, index, dtype).tensors(lib)
            place = [
                [t.to(device) for t in a]
                if isinstance(a, list) and a and hasattr(a[0], "to")
                else a.to(device)
                if hasattr(a, "numel")
                else a
                for a in args
            ]
            row.call(lib.m, *place, **Case(row, index, dtype).kwargs(lib))
            lib.m.synchronize()
        except lib.m.linalg.LinAlgError:
            return device == "sim"  # all numbers on this device are the same
        except (*REFUSED, OverflowError):
            continue
        return True
    return False


def main():
    import teletensor as tt
    from arrays import TORCH, Library
    from rows import ROWS
    from support.daemon import Daemon

    found = {}
    daemon = Daemon("--sim-devices", "1")
    lib = Library(tt)
    with tt.connect(daemon.unix):
        for row in ROWS:
            entry = found.setdefault(row.op, {device: [] for device in DEVICES})
            for short, name in TORCH.items():
                for device in DEVICES:
                    if name not in entry[device] and accepted(lib, row, short, device):
                        entry[device].append(name)
    daemon.stop()
    for entry in found.values():
        for device in DEVICES:
            entry[device] = [name for name in TORCH.values() if name in entry[device]]
    lines = [f"{json.dumps(op)}: {json.dumps(found[op])}" for op in sorted(found)]
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(
        f"{len(found)} ops, "
        + ", ".join(f"{sum(len(e[d]) for e in found.values())} op and dtype pairs on {d}" for d in DEVICES)
    )


if __name__ == "__main__":
    main()
