"""Shows where the time of a small op is spent: the processor time by thread of client and daemon, and the
median time of reading one scalar. Processor time is meaningful on a busy machine as well, unlike wall-clock
time. `--instructions` counts the instructions in the client instead, by thread and function, which no other
program affects: of an op, or of a training step. It needs valgrind; names of local functions need a module that
is not stripped. Run by hand:

    python tests/bench/hot_path.py [unix | tcp] [--perf FILE]     # perf's samples of both processes
    python tests/bench/hot_path.py [unix | tcp] --instructions [chain | recorded | sin2 | captured]
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import teletensor as tt
from support import models
from support.daemon import Daemon

OPS = 10  # in one line of the chain below


def busy(pid):
    """The processor time in seconds, by the name of the thread."""
    total = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (thread / "comm").read_text().strip()
            spent = int((thread / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # the thread has ended
            continue
        total[name] = total.get(name, 0) + spent
    return total


def chain(x, a, b, lines):
    for _ in range(lines):
        x = x * b + a
        x = x * b + a
        x = x * b + a
        x = x * b + a
        x = x * b + a
    return x.sum().item()


def ops(daemon, lines, rounds):
    """The minimum over the rounds, in microseconds per op, by (process, thread)."""
    x, a, b = (tt.tensor(np.full((8, 8), v, np.float32)) for v in (0.5, 0.1, 0.9))
    chain(x, a, b, lines)
    least = {}
    for _ in range(rounds):
        pids = {"daemon": daemon.pid, "client": os.getpid()}
        before = {who: busy(pid) for who, pid in pids.items()}
        begin = time.perf_counter()
        chain(x, a, b, lines)
        spent = {("clock", ""): time.perf_counter() - begin}
        for who, pid in pids.items():
            for name, seconds in busy(pid).items():
                spent[who, name] = seconds - before[who].get(name, 0)
        spent["all", "threads"] = sum(v for k, v in spent.items() if k[0] != "clock")
        for key, seconds in spent.items():
            least[key] = min(least.get(key, seconds), seconds)
    return {key: seconds / (lines * OPS) * 1e6 for key, seconds in least.items()}


def reads(count):
    x = tt.rand(())  # A value that the client does not know and cannot derive.
    took = []
    for _ in range(count):
        y = x + 1
        begin = time.perf_counter()
        y.item()
        took.append((time.perf_counter() - begin) * 1e6)
    return np.percentile(took, [1, 10, 50])


def work(program):
    """The program whose instructions are counted: run(n) calls it n times and waits for its end."""
    if program in ("chain", "recorded"):
        x, a, b = (tt.tensor(np.full((8, 8), v, np.float32)) for v in (0.5, 0.1, 0.9))
        a.requires_grad_(program == "recorded")
        return lambda n: chain(x, a, b, n // OPS)
    step = models.sin2_step(tt)
    if program == "captured":
        step = tt.compile(step)

    def run(n):
        for _ in range(n):
            loss = step()
        loss.item()
    return run


def count_here(program, times):
    """Runs the program; a callgrind that this process runs under counts only what follows its first calls."""
    run = work(program)
    run(2000)
    for switch in ("on", "off"):
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        if switch == "on":
            run(times)


def count_instructions(address, program, functions=40):
    """Runs this file under callgrind, and prints the instructions of an op or step."""
    times, unit = (5000, "op") if program in ("chain", "recorded") else (500, "step")
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts")
        command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes",
                   f"--callgrind-out-file={counts}", sys.executable, __file__, address, "--instructions", program,
                   "--counted", str(times)]
        subprocess.run(command, check=True)
        for file in sorted(Path(folder).glob("counts-*")):
            text = subprocess.run(["callgrind_annotate", "--inclusive=no", "--threshold=100", str(file)],
                                  stdout=subprocess.PIPE, text=True).stdout
            found = re.findall(r"^ *([\d,]+) \([ \d.]+%\) +(.*)", text, re.MULTILINE)
            each = [(int(count.replace(",", "")) / times, name) for count, name in found]
            if not each or each[0][0] < 2:  # a thread that does nothing here
                continue
            print(f"{file.name.removeprefix('counts-')}: {each[0][0]:.0f} instructions of a {unit}")
            for count, name in each[1:functions]:
                print(f"{count:10.1f}  {name[:120]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="unix", choices=["unix", "tcp"])
    parser.add_argument("--perf")
    parser.add_argument("--instructions", nargs="?", const="chain", choices=["chain", "recorded", "sin2", "captured"])
    parser.add_argument("--counted", type=int, help=argparse.SUPPRESS)  # the process under callgrind
    options = parser.parse_args()
    if options.instructions and not options.counted:
        count_instructions(options.address, options.instructions)
        return
    daemon = Daemon("--lanes", "1")
    try:
        with tt.connect(getattr(daemon, options.address)):
            if options.counted:
                count_here(options.instructions, options.counted)
                return
            for (who, name), us in ops(daemon, 2000, 12).items():
                if us > 0.001:
                    print(f"{who:8}{name:20}{us:8.3f} us an op")
            print("scalar read: {:.0f} us (1 %), {:.0f} (10 %), {:.0f} (median)".format(*reads(1500)))
            if options.perf:
                command = ["perf", "record", "-q", "-F", "2000", "--call-graph", "dwarf,2048", "-o", options.perf]
                with subprocess.Popen([*command, "-p", f"{daemon.pid},{os.getpid()}"]) as perf:
                    ops(daemon, 4000, 12)
                    perf.send_signal(signal.SIGINT)
    finally:
        daemon.stop()


if __name__ == "__main__":
    main()
