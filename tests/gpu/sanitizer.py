"""Runs compute-sanitizer on each family of kernels: a daemon under each of its tools."""

import collections
import os
import re
import shutil
import signal
import subprocess
import time

from box import is_loss
from support.daemon import Daemon, binary

TOOLS = ("memcheck", "racecheck", "synccheck")
PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
OPS = 6  # the number of ops from a family


def program():
    return shutil.which("compute-sanitizer") or next((p for p in PLACES if os.access(p, os.X_OK)), None)


def families(daemon):
    """Family of kernels -> the ops of the catalog for which it is used, as reported by the daemon."""
    told = subprocess.run([daemon, "--gpu-paths"], capture_output=True, text=True, check=True).stdout
    found = {}
    for op, path in (line.split() for line in told.splitlines()):
        if path not in ("host", "view"):
            found.setdefault(path, []).append(op)
    return found


def chosen(rows, found):
    """(family, row), with ops that are spread over each family."""
    for family, ops in sorted(found.items()):
        there = [row for row in rows if row.op in set(ops)]
        for i in range(min(OPS, len(there))):
            yield family, there[i * len(there) // min(OPS, len(there))]


def exercise(tt, row):
    """Values of two cases of a row, and gradients of one."""
    from arrays import Library
    from tester import gradients, plan

    lib = Library(tt)
    for case in list(plan(row, "value"))[:2]:
        for result in case.call(lib, case.tensors(lib)[0]):
            lib.numpy(result)
    for case in list(plan(row, "gradient"))[:1]:
        gradients(lib, case)


def train(tt):
    """A training step of a language model and of a ResNet, for kernels that only training uses."""
    from support import models

    f = tt.nn.functional
    words = tt.randint(0, 50, (2, 16), device="cuda")
    gpt = models.gpt(tt, width=32, heads=2, layers=1, tokens=16, words=50).to("cuda")
    step = models.trainer(gpt, tt.optim.AdamW(gpt.parameters()), lambda y, t: models.gpt_loss(tt, y, t))
    step(words, words).item()
    resnet = models.resnet(tt, stem=8, stages=((4, 16, 2),), classes=10).to("cuda")
    step = models.trainer(resnet, tt.optim.SGD(resnet.parameters(), lr=0.1), f.cross_entropy)
    step(tt.rand(2, 3, 32, 32, device="cuda"), tt.randint(0, 10, (2,), device="cuda")).item()


def below(process):
    """The ids of the processes that a process has started, directly or indirectly."""
    told = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout
    children = [int(number) for number in told.split()]
    return children + [each for child in children for each in below(child)]


def end(process):
    """Ends the daemon below a tool, so that the tool writes its summary. The tool may have started the
    daemon through another process, which does not pass signals on."""
    daemon = os.path.realpath(binary())
    for each in below(process.pid):
        try:
            if os.path.realpath(f"/proc/{each}/exe") == daemon:
                os.kill(each, signal.SIGTERM)
        except OSError:
            continue
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def exercise_until_loss(tt, pending, found, deadline):
    """Runs the works in `pending` until the device is lost; the work that loses it is recorded and is the
    last one."""
    while pending:
        if time.monotonic() > deadline:
            found["errors"].append(f"no time was left for {len(pending)} ops")
            pending.clear()
            return
        family, row = pending.popleft()
        try:
            train(tt) if row is None else exercise(tt, row)
            found["families"][family] = found["families"].get(family, 0) + 1
        except Exception as error:
            told = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
            found["errors"].append(f"{row.op if row else family}: {told}")
            if is_loss(error):
                return


def under(tool, rows, flags, environment, deadline):
    """The findings of one tool, from a sequence of daemons: each continues after the work that lost the
    previous one's device."""
    import teletensor as tt

    found = {"families": {}, "errors": [], "found": 0, "log": []}
    # Training is last, because a tool needs minutes for all the kernels that it uses.
    pending = collections.deque([*chosen(rows, families(binary())), ("training", None)])
    while pending:
        daemon = Daemon(*flags, env=environment, under=(program(), "--tool", tool, "--print-limit", "20"))
        try:
            with tt.connect(daemon.unix):
                tt.set_default_device("cuda:0")
                try:
                    exercise_until_loss(tt, pending, found, deadline)
                finally:
                    tt.set_default_device("cpu")
        except Exception as error:
            found["errors"].append(f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0])
        end(daemon.process)
        daemon.kill()
        shutil.rmtree(daemon.folder, ignore_errors=True)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", daemon.log)
        if not summary:
            found["errors"].append(f"{tool} has written no summary")
        found["found"] += sum(map(int, summary[-1:]))
        found["log"] += [line for line in daemon.log.splitlines() if line.startswith("=====")][:200]
    return found


def run(rows, flags, environment, deadline):
    """Tool -> its findings; None if the tool is not installed."""
    if program() is None:
        return None
    left = max(0.0, deadline - time.monotonic())
    report = {}
    for i, tool in enumerate(TOOLS):
        report[tool] = under(tool, rows, flags, environment, deadline - left * (len(TOOLS) - 1 - i) / len(TOOLS))
        print(f"  {tool}: {report[tool]['found']} errors, families {report[tool]['families']} "
              f"{'; '.join(report[tool]['errors'])}", flush=True)
    return report
