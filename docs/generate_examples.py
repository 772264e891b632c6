"""Writes docs/ops_examples.json: for every public op the dtypes that the op tester checks, and an
example with what a daemon answered. docs/ops.md shows both; tests/ops runs the examples again.

    python docs/generate_examples.py
"""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "ops_examples.json"
sys.path[:0] = [str(ROOT / "tests" / "ops"), str(ROOT / "tests")]

# The op tester's short names of dtypes, and the long ones in the order in which the page lists them.
from arrays import TORCH as LONG  # noqa: E402
from hand_examples import EXAMPLES  # noqa: E402

LARGEST = 16  # elements of an example's operand


def call_text(call, arguments, keywords):
    """The call as a user writes it, from the row's form of the call; None if it has no short form."""
    kind, cells = call.__qualname__.split(".")[0], call.__closure__
    if not cells or len(cells) != 1 or not isinstance(cells[0].cell_contents, str):
        return None
    name = cells[0].cell_contents
    words = ", ".join([*arguments, *(f"{k}={v}" for k, v in keywords.items())])
    if kind == "function":
        return f"tt.{name}({words})"
    if kind == "nn":
        return f"tt.nn.functional.{name}({words})"
    if kind == "method":
        rest = ", ".join([*arguments[1:], *(f"{k}={v}" for k, v in keywords.items())])
        return f"{arguments[0]}.{name}({rest})"
    return None


def literal(array, dtype):
    """tt.tensor(...) of the array with short numbers."""
    values = np.round(array.astype(np.float64), 1) if array.dtype.kind == "f" else array
    text = json.dumps(values.tolist()).replace("true", "True").replace("false", "False")
    natural = {"f": "f32", "i": "i64", "b": "bool"}.get(array.dtype.kind)
    suffix = "" if natural == dtype else f", dtype=tt.{LONG[dtype]}"
    return f"tt.tensor({text}{suffix})"


def example(row):
    """Lines of code whose last one is the call, or None."""
    from tester import Case

    for index, sample in enumerate(row.samples):
        dtypes = [d for d in row.dtypes if sample.dtypes is None or d in sample.dtypes]
        dtype = next(
            (d for d in ("f32", "f64", "i64", "c64", "bool", *dtypes) if d in dtypes), None
        )
        if dtype is None:
            continue
        lines, arguments, names = [], [], iter("xyzuvw")
        for spec, array in zip(sample.args, Case(row, index, dtype).arrays, strict=True):
            if isinstance(array, np.ndarray):
                if (
                    not 0 < array.size <= LARGEST
                    or array.dtype.kind == "c"
                    or spec.layout != "plain"
                    or not np.isfinite(array).all()
                ):
                    break
                name = next(names, None)
                lines.append(f"{name} = {literal(array, spec.dtype or dtype)}")
                arguments.append(name)
            elif isinstance(array, list) and array and isinstance(array[0], np.ndarray):
                if not 0 < sum(a.size for a in array) <= LARGEST or any(
                    a.dtype.kind == "c" or not np.isfinite(a).all() for a in array
                ):
                    break
                members = [next(names, None) for _ in array]
                lines += [
                    f"{n} = {literal(a, i.dtype or dtype)}"
                    for n, a, i in zip(members, array, spec.items, strict=True)
                ]
                arguments.append(f"[{', '.join(map(str, members))}]")
            elif isinstance(array, bool | int | float | str | tuple | list | None.__class__):
                arguments.append(repr(array))
            else:
                break
        else:
            if not all(
                isinstance(v, bool | int | float | str | tuple | list | None.__class__)
                for v in sample.kwargs.values()
            ):
                continue
            text = call_text(row.call, arguments, {k: repr(v) for k, v in sample.kwargs.items()})
            if text is not None and arguments:
                return [*lines, text]
    return None


def run(lines, tt):
    """The value of the last line, as text."""
    space = {"tt": tt}
    for line in lines[:-1]:
        exec(line, space)
    return repr(eval(lines[-1], space))


def main():
    import teletensor as tt
    from rows import ROWS
    from support.daemon import Daemon

    entries = {}
    daemon = Daemon()
    with tt.connect(daemon.unix):
        for row in ROWS:
            entry = entries.setdefault(row.op, {"dtypes": []})
            entry["dtypes"] = [
                long for short, long in LONG.items() if short in row.dtypes or long in entry["dtypes"]
            ]
            if "code" not in entry:
                lines = example(row)
                if lines:
                    try:
                        entry["result"] = run(lines, tt)
                    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                        continue  # the sample's rounded numbers are outside the op's domain
                    entry["code"] = lines
        for op, lines in EXAMPLES.items():
            entry = entries.setdefault(op, {"dtypes": []})
            if "code" not in entry:
                entry["code"], entry["result"] = lines, run(lines, tt)
    daemon.stop()
    rows = [f"{json.dumps(op)}: {json.dumps(entries[op], sort_keys=True)}" for op in sorted(entries)]
    OUTPUT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{sum('code' in e for e in entries.values())} examples of {len(entries)} ops")


if __name__ == "__main__":
    main()
