"""Runs test stages one after the other and counts their cases: run_all.py STAGE...

Stages: unit (gtest executables through ctest), and the pytest folders policy, e2e, ops, peers.
Every stage runs whatever happened before it. The last line is `N passed, N failed`; the exit status
is 0 only when something ran and nothing failed. A crash, a time-out or a missing stage counts as a
failed case.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TELETENSOR_BUILD", ROOT / "build" / "release"))
RESULTS = ROOT / "build" / "results"
JOBS = str(min(os.cpu_count() or 1, 4))  # programs, or files of a folder, side by side
# Seconds; CI gives the whole run 90 minutes.
LIMITS = {"unit": 1500, "policy": 900, "e2e": 2700, "ops": 1800, "peers": 1800}


def run(command: list[str], limit: int) -> int:
    """The exit status; 124 when the command ran past `limit` seconds and was ended."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"ended after {limit} s: {' '.join(command)}")
        return 124


def count_cases(path: Path) -> tuple[int, int]:
    """Passed and failed cases of a JUnit file as gtest and pytest write it."""
    passed = failed = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status", "run") == "run":
            passed += 1
    return passed, failed


def run_unit() -> tuple[int, int]:
    results = BUILD / "results"
    for old in results.glob("*.xml"):
        old.unlink()
    summary = RESULTS / "ctest.xml"
    status = run(
        ["ctest", "--test-dir", str(BUILD), "-L", "^unit$", "-j", JOBS, "--output-on-failure",
         "--output-junit", str(summary)], LIMITS["unit"])
    if not summary.exists():
        return 0, 1
    passed = failed = 0
    for executable in ElementTree.parse(summary).iter("testcase"):
        report = results / f"{executable.get('name')}.xml"
        good = executable.get("status") == "run"
        try:
            ran, broken = count_cases(report)
        except (FileNotFoundError, ElementTree.ParseError):
            ran, broken = int(good), 0  # a program that writes no report is one case
        if not good and broken == 0:
            broken = 1  # it crashed after its last case, or ran out of time
        passed, failed = passed + ran, failed + broken
    return passed, failed or int(status != 0)


def run_pytest(stage: str) -> tuple[int, int]:
    report = RESULTS / f"{stage}.xml"
    status = run([sys.executable, "-m", "pytest", "-q", f"tests/{stage}", f"--junitxml={report}",
                  "-p", "no:cacheprovider", "-n", JOBS, "--dist", "loadfile",
                  "--max-worker-restart", "0"],  # after a crash xdist waits for ever
                 LIMITS[stage])
    try:
        passed, failed = count_cases(report)
    except (FileNotFoundError, ElementTree.ParseError):
        passed, failed = 0, 1
    return passed, failed or int(status != 0)


def main(stages: list[str]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    total_passed = total_failed = 0
    rows = []
    for stage in stages:
        print(f"== {stage}", flush=True)
        (RESULTS / f"{stage}.xml").unlink(missing_ok=True)
        begin = time.monotonic()
        passed, failed = run_unit() if stage == "unit" else run_pytest(stage)
        rows.append(f"{stage}: {passed} cases passed, {failed} failed "
                    f"in {time.monotonic() - begin:.0f} s")
        total_passed, total_failed = total_passed + passed, total_failed + failed
    print("\n".join(["== summary", *rows]))
    print(f"{total_passed} passed, {total_failed} failed", flush=True)
    return 0 if total_passed > 0 and total_failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["unit", "policy", "e2e", "ops"]))
