"""Measures every figure that the documentation quotes, together with that of its peer in the same run: the
ratios are what matters.

    make bench                                      # build/bench.json and a table
    .venv-peers/bin/python tests/bench/run.py --only step --rounds 3
    .venv-peers/bin/python tests/bench/run.py --group cores     # only the rows on all cores
    .venv-peers/bin/python tests/bench/run.py --write-docs      # docs/benchmarks.md from build/bench.json

Uses one daemon with one lane, and PyTorch with one thread; the rows "all cores" (cores.py) use a lane and a
thread for each core. Measurements of teletensor and of the peer alternate; a figure is the median of the
rounds.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
ROOT = Path(__file__).resolve().parents[2]
OUTPUT, PAGE = ROOT / "build/bench.json", ROOT / "docs/benchmarks.md"


def measure(row, rounds):
    """The medians of the row, and the spread of the ratio over the rounds."""
    ours, peers = [], []
    row.prepare()
    for _ in range(min(rounds, row.most_rounds or rounds)):
        if row.peer:
            peers.append(row.peer())
        ours.append(row.ours())
    row.release()
    result = {"name": row.name, "unit": row.unit, "ours": statistics.median(ours), "peer_name": row.peer_name,
              "bound": row.bound, "higher_is_better": row.higher_is_better}
    if peers:
        result["peer"] = statistics.median(peers)
        result["ratio"] = result["ours"] / result["peer"]
        ratios = sorted(a / b for a, b in zip(ours, peers))
        result["ratio_spread"] = [ratios[0], ratios[-1]]
    return result


def reached(r):
    """Whether the row meets its bound; None if it has none."""
    if r["bound"] is None:
        return None
    value = r.get("ratio", r["ours"])
    return value >= r["bound"] if r["higher_is_better"] else value <= r["bound"]


def cells(r):
    def number(x):
        return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"
    sign = ">=" if r["higher_is_better"] else "<="
    bound = "" if r["bound"] is None else f"{sign} {r['bound']:g}{'x' if 'ratio' in r else ' ' + r['unit']}"
    mark = {None: "", True: "yes", False: "NO"}[reached(r)]
    spread = f"{r['ratio']:.2f}x ({r['ratio_spread'][0]:.2f}-{r['ratio_spread'][1]:.2f})" if "ratio" in r else ""
    peer = f"{number(r['peer'])} {r['peer_name']}" if "peer" in r else ""
    return [r["name"], f"{number(r['ours'])} {r['unit']}", peer, spread, bound, mark]


HEAD = ["work", "teletensor", "peer", "ratio (range)", "bound", "reached"]


def table(rows):
    lines = [HEAD, *[cells(r) for r in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines)


def page(report):
    lines = [
        "# Benchmarks", "",
        f"Measured {report['date']} on {report['machine']} by `make bench` (tests/bench/run.py), "
        f"{report['rounds']} rounds, medians; one lane of the daemon, one thread of PyTorch {report['torch']}, and in "
        'the rows "all cores" a lane and a thread for each core; the range is over the rounds. A ratio below 1 of a '
        "time means that teletensor is faster. Client and daemon are two processes; the peer is one. Load average of "
        f"the machine at the end: {report['load']:.1f} (a run on a busy machine says little: run it again).", "",
        "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|",
        *["| " + " | ".join(cells(r)) + " |" for r in report["rows"]], "",
        "Bounds are the project's aims: a row with NO falls short of its aim.", ""]
    return "\n".join(lines)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.machine()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--group", choices=["lane", "cores"], help="only the rows on one lane, or on all cores")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    if options.write_docs:
        known = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        _, heading, rest = known.partition("\n## ")  # sections that other scripts write are kept
        text = page(json.loads(OUTPUT.read_text(encoding="utf-8")))
        PAGE.write_text(text + heading + rest, encoding="utf-8")
        return
    import cores
    import rows
    import torch
    from support.daemon import Daemon

    torch.set_num_threads(1)
    daemon = Daemon("--lanes", "1")
    results = []
    try:
        groups = {"lane": lambda: rows.rows(daemon), "cores": cores.rows}
        chosen = [options.group] if options.group else groups
        for row in itertools.chain.from_iterable(groups[name]() for name in chosen):
            if options.only in row.name:
                results.append(measure(row, options.rounds))
                print("  ".join(cells(results[-1])), flush=True)
    finally:
        problem = daemon.stop()
    report = {"date": datetime.date.today().isoformat(), "machine": machine(), "torch": torch.__version__,
              "rounds": options.rounds, "load": os.getloadavg()[0], "rows": results}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("\n" + table(results))
    print(f"load average {report['load']:.2f}; written to {OUTPUT.relative_to(ROOT)}")
    if problem:
        sys.exit(problem)


if __name__ == "__main__":
    main()
