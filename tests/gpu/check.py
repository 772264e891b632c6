"""Checks a build on a machine with a GPU: `make gpu-check` (deploy/gpu/gpu-check runs it without a build tree).

    python tests/gpu/check.py [--quick] [--fake] [--minutes 9] [--rounds 5] [--only SECTION] [--output FILE] [OP...]

training   the same training on the device and on the CPU
times      compared with PyTorch on the same device, and sessions that share it
spilling   sessions that use twice the memory of a device
catalog    the op tester: values against NumPy, the CPU backend and PyTorch, gradients against the last two
sanitizer  compute-sanitizer (memcheck, racecheck, synccheck) on ops of each family of kernels
suite      tests/e2e with every tensor on the device

After each section the results so far are written to FILE (build/gpu_check.json), .md and .log, so that a run
that is cut off has reported as much as possible. Exits with 1 if a result is wrong. --fake: runs on the fake
driver (tests/support/fake_cuda), which shows that the check itself works, and reports what needs a device.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "ops"), str(TESTS / "peers")]
import catalog  # noqa: E402
import sanitizer  # noqa: E402
import spilling  # noqa: E402
import suite  # noqa: E402
import times  # noqa: E402
from box import Box  # noqa: E402
from works import works  # noqa: E402

OUTPUT = TESTS.parent / "build/gpu_check.json"
# Section -> the share of the total time by which it must be done.
ENDS = {"training": 0.08, "times": 0.33, "spilling": 0.38, "catalog": 0.65, "sanitizer": 0.82, "suite": 1.0}


class Check:
    """One run: its options, the daemon that it uses, and its results."""

    def __init__(self, options, flags, environment):
        self.options, self.flags, self.environment = options, flags, environment
        self.began, self.log = time.monotonic(), ""
        self.report = {"skipped": {}, "errors": {}}

    @contextlib.contextmanager
    def box(self):
        """A daemon for one section, whose log is kept."""
        box = Box(self.flags, self.environment)
        try:
            with box:
                yield box
        finally:
            self.log += box.log

    def deadline(self, section):
        return self.began + 60 * self.options.minutes * ENDS[section]

    def skip(self, what, why):
        self.report["skipped"][what] = why
        print(f"  skipped: {what}: {why}")

    def run(self):
        for section in ENDS:
            if self.options.only and section not in self.options.only:
                continue
            began = time.monotonic()
            print(f"== {section}", flush=True)
            try:
                self.report[section] = getattr(self, section)()
            except Exception as error:
                self.report["errors"][section] = f"{type(error).__name__}: {error}"
                print(f"  ended with {self.report['errors'][section]}")
            self.report.setdefault("seconds", {})[section] = round(time.monotonic() - began, 1)
            self.write()

    def write(self):
        output = self.options.output
        output.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        output.with_suffix(".md").write_text(page(self.report), encoding="utf-8")
        output.with_suffix(".log").write_text(self.log, encoding="utf-8")

    def find_device(self):
        """The model of the device according to the daemon's log; ends the program if there is none."""
        import teletensor as tt

        with self.box():
            found = tt.cuda.is_available()
        lines = [line for line in self.log.splitlines() if "event=device" in line]
        if not found:
            sys.exit("this daemon has no GPU:\n" + "\n".join(lines or [self.log]))
        self.report["device"] = lines[0].split('text="')[1].rstrip('"')
        print(self.report["device"])

    def training(self):
        import teletensor as tt

        with self.box():
            steps = 4 if self.options.quick else 20
            losses, wanted = (train(tt, device, steps) for device in ("cuda:0", "cpu"))
        close = bool(np.allclose(losses, wanted, rtol=1e-4))
        print(f"  {losses[0]:.6f} -> {losses[-1]:.6f} {'as' if close else 'NOT as'} on the CPU")
        return close

    def times(self):
        if len(times.peers()) == 1:
            self.skip("times of PyTorch", "no PyTorch with a device")
        with self.box() as box:
            rows = times.run(works(self.options.quick), box, self.options, self.deadline("times"))
            return {"works": rows, "sharing": times.sharing(box.daemon.unix, self.options.quick)}

    def spilling(self):
        found = spilling.run(self.flags, self.environment, self.options.quick)
        print("  " + " | ".join(spilling.cells(found)))
        return found

    def catalog(self):
        if importlib.util.find_spec("torch") is None:
            self.skip("the op tester beside PyTorch", "no PyTorch")
        options = self.options
        found, log = catalog.run(self.flags, self.environment, options.ops, options.quick, self.deadline("catalog"))
        self.log += log
        if found["rows"] < found["of"]:
            self.skip("rows of the op tester", f"{found['of'] - found['rows']} of {found['of']}: no time was left")
        print(f"  {found['rows']} rows, cases {found['cases']}, {len(found['failures'])} failures")
        print("\n".join(f"  {failure}" for failure in found["failures"][:40]))
        return found

    def sanitizer(self):
        from rows import ROWS

        if self.options.fake or sanitizer.program() is None:
            self.skip("compute-sanitizer", "no device" if self.options.fake else "no such program")
            return None
        rows = [row for row in ROWS if not self.options.ops or row.op in self.options.ops]
        return sanitizer.run(rows, self.flags, self.environment, self.deadline("sanitizer"))

    def suite(self):
        left = max(30.0, self.deadline("suite") - time.monotonic())
        found = suite.run(self.flags, self.environment, self.options.quick, self.options.output.parent, left)
        print(f"  {found.get('passed', 0)} passed, failed: {found.get('failed', [])} {found.get('error', '')}")
        return found


def compiler_flags(names=("libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"), path=None):
    """If the daemon does not find NVRTC by itself: the flags for the one that was installed with this
    Python's packages."""
    for name in names:
        try:
            ctypes.CDLL(name)
            return []
        except OSError:
            continue
    found = [library for folder in map(Path, sys.path if path is None else path)
             for library in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"))]
    return ["--cuda-compiler", str(found[-1])] if found else []


def library_environment(name="libcudnn.so.9", path=None):
    """If the loader does not find cuDNN by itself: the folder of the one that was installed with this
    Python's packages."""
    try:
        ctypes.CDLL(name)
        return {}
    except OSError:
        found = [library.parent for folder in map(Path, sys.path if path is None else path)
                 for library in sorted(folder.glob(f"nvidia/*/lib/{name}"))]
    given = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([*([given] if given else []), str(found[-1])])} if found else {}


def train(tt, device, steps):
    tt.manual_seed(1)
    model = tt.nn.Sequential(tt.nn.Linear(16, 64), tt.nn.ReLU(), tt.nn.Linear(64, 4)).to(device)
    optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
    data = np.random.default_rng(0).normal(size=(128, 16)).astype("float32")
    x = tt.tensor(data).to(device)
    y = tt.tensor(data[:, :4] ** 2).to(device)
    losses = []
    for _ in range(steps):
        loss = tt.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def page(report):
    """The report in Markdown."""
    lines = [f"# {report.get('device', '?')}", ""]
    found = report.get("times") or {}
    if found:
        lines += [times.table(times.HEAD, [times.cells(row) for row in found["works"]]), "",
                  times.table(("sessions at once", "steps a second together", "Jain's index"),
                              [[str(r["sessions"]), f"{r['together']:.1f}", f"{r['jain']:.3f}"]
                               for r in found["sharing"]]), ""]
    if found := report.get("spilling"):
        lines += [times.table(spilling.HEAD, [spilling.cells(found)]), ""]
    if "training" in report:
        lines += [f"- training: {'as' if report['training'] else 'NOT as'} on the CPU"]
    if found := report.get("catalog"):
        equal = sum(d == 0 for d in found["distances"].values())
        worst = sorted(found["distances"].items(), key=lambda item: -item[1])[:10]
        lines += [f"- op tester: {found['rows']} of {found['of']} rows, cases {found['cases']}, "
                  f"{len(found['failures'])} failures",
                  f"- {equal} of {len(found['distances'])} ops equal to the CPU backend in all bits; furthest, in "
                  "units of the last place: " + ", ".join(f"{op} {d:.3g}" for op, d in worst if d),
                  *(f"  - {failure}" for failure in found["failures"][:50])]
    for tool, found in (report.get("sanitizer") or {}).items():
        lines += [f"- {tool}: {found['found']} errors; ops by family {found['families']} {found['errors'] or ''}"]
    if found := report.get("suite"):
        lines += [f"- tests/e2e: {found.get('passed', 0)} passed, {len(found.get('failed', []))} failed "
                  f"{found.get('error', '')}", *(f"  - {name}" for name in found.get("failed", []))]
    lines += [f"- skipped: {what}: {why}" for what, why in report["skipped"].items()]
    lines += [f"- {section} ended with {error}" for section, error in report["errors"].items()]
    return "\n".join([*lines, f"- seconds: {report.get('seconds', {})}", ""])


def sound(report):
    sanitized = (report.get("sanitizer") or {}).values()
    suite_report = report.get("suite") or {}
    return (not report["errors"] and report.get("training", True)
            and (report.get("spilling") or {"right": True})["right"]
            and not (report.get("catalog") or {}).get("failures")
            and not any("error" in row for row in (report.get("times") or {}).get("works", []))
            and not any(found["found"] != 0 or found["errors"] for found in sanitized)
            and not suite_report.get("failed") and "error" not in suite_report)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ops", nargs="*", help="these alone [all of the catalog]")
    parser.add_argument("--quick", action="store_true", help="values alone, small tensors, few tests")
    parser.add_argument("--fake", action="store_true", help="on the stand-in for the driver")
    parser.add_argument("--minutes", type=float, default=9.0, help="of all sections together [9]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=ENDS, help="these sections")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the report [build/gpu_check.json]; a page "
                        "and the daemon's log go beside it, as .md and .log")
    options = parser.parse_args()
    from support.cuda import fake

    options.output = options.output.resolve()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    flags, environment = fake() if options.fake else (compiler_flags(), library_environment())
    check = Check(options, flags, environment)
    check.find_device()
    check.run()
    print("\n".join(line for line in check.log.splitlines() if "ran as kernels" in line))
    print(f"written to {options.output}")
    sys.exit(0 if sound(check.report) else 1)


if __name__ == "__main__":
    main()
