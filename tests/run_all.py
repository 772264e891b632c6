"""Runs test stages one after the other and counts their cases: run_all.py STAGE...

Stages: unit (gtest executables through ctest), and the pytest folders policy, e2e, ops, peers. Every stage
runs, whatever happened in earlier ones. The last line is `N passed, N failed`; the exit status is 0 only if
something ran and nothing failed. A crash, a timeout or a missing stage counts as a failed case. Skipped
cases are listed with their reasons above the last line; one that is not in tests/skips.txt counts as
failed.
"""

import fnmatch
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TELETENSOR_BUILD", ROOT / "build" / "release"))
RESULTS = ROOT / "build" / "results"
SKIPS = ROOT / "tests" / "skips.txt"
# the number of programs, or of files in a folder, that run at the same time
JOBS = str(min(os.cpu_count() or 1, 4))
# Seconds, which only end a hang. A machine may be busy, and CI ends the whole run after 90 minutes.
LIMITS = {"unit": 3600, "policy": 1800, "e2e": 7200, "ops": 5400, "peers": 5400}


def run(command: list[str], limit: int) -> int:
    """Runs a command; returns its exit status, or 124 if it ran longer than `limit` seconds and was
    ended."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"ended after {limit} s: {' '.join(command)}")
        return 124


@dataclass
class Cases:
    """The results of the cases in a stage; `skipped` contains (case, reason)."""

    passed: int = 0
    failed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: "Cases") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def read_cases(path: Path) -> Cases:
    """Reads the cases from a JUnit file of gtest or pytest."""
    found = Cases()
    for case in ElementTree.parse(path).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found.failed += 1
        elif skip is not None:
            name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
            found.skipped.append((name, reason_of(skip)))
        elif case.get("status", "run") == "run":
            found.passed += 1
    return found


def reason_of(skip: ElementTree.Element) -> str:
    """The reason of a skip. For a skipped module pytest writes it into the text of the element; gtest
    writes it after the name of the file."""
    message = skip.get("message", "")
    if message == "collection skipped":
        message = (skip.text or "").rpartition("Skipped: ")[2].rstrip("')\"")
    return message.strip().splitlines()[-1] if message.strip() else "no reason"


def unexpected(skipped: list[tuple[str, str]], allowed: str) -> list[tuple[str, str]]:
    """The skipped cases that no line in the text of skips.txt names."""
    patterns = [line.split(" | ", 1) for line in allowed.splitlines()
                if line.strip() and not line.startswith("#")]
    return [(case, reason) for case, reason in skipped
            if not any(fnmatch.fnmatchcase(case, name) and fnmatch.fnmatchcase(reason, why)
                       for name, why in patterns)]


def run_unit() -> Cases:
    results = BUILD / "results"
    for old in results.glob("*.xml"):
        old.unlink()
    summary = RESULTS / "ctest.xml"
    status = run(
        ["ctest", "--test-dir", str(BUILD), "-L", "^unit$", "-j", JOBS, "--output-on-failure",
         "--output-junit", str(summary)], LIMITS["unit"])
    if not summary.exists():
        return Cases(failed=1)
    found = Cases()
    for executable in ElementTree.parse(summary).iter("testcase"):
        report = results / f"{executable.get('name')}.xml"
        good = executable.get("status") == "run"
        try:
            cases = read_cases(report)
        except (FileNotFoundError, ElementTree.ParseError):
            cases = Cases(passed=int(good))  # a program that writes no report counts as one case
        if not good and cases.failed == 0:
            cases.failed = 1  # it crashed after its last case, or exceeded the time limit
        found.add(cases)
    found.failed = found.failed or int(status != 0)
    return found


def run_pytest(stage: str) -> Cases:
    report = RESULTS / f"{stage}.xml"
    status = run([sys.executable, "-m", "pytest", "-q", f"tests/{stage}", f"--junitxml={report}",
                  "-p", "no:cacheprovider", "-n", JOBS, "--dist", "loadfile",
                  "--no-loadscope-reorder",  # tests/conftest.py has already ordered the files
                  "--max-worker-restart", "0"],  # without this, xdist waits for ever after a crash
                 LIMITS[stage])
    try:
        found = read_cases(report)
    except (FileNotFoundError, ElementTree.ParseError):
        found = Cases(failed=1)
    found.failed = found.failed or int(status != 0)
    return found


def main(stages: list[str]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    total, rows = Cases(), []
    for stage in stages:
        print(f"== {stage}", flush=True)
        (RESULTS / f"{stage}.xml").unlink(missing_ok=True)
        begin = time.monotonic()
        found = run_unit() if stage == "unit" else run_pytest(stage)
        rows.append(f"{stage}: {found.passed} cases passed, {found.failed} failed, {len(found.skipped)} "
                    f"skipped in {time.monotonic() - begin:.0f} s")
        total.add(found)
    wrong = unexpected(total.skipped, SKIPS.read_text(encoding="utf-8"))
    total.failed += len(wrong)
    print("\n".join(["== summary", *rows]))
    for case, reason in total.skipped:
        print(f"skipped{', which is a failure' if (case, reason) in wrong else ''}: {case}: {reason}")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["unit", "policy", "e2e", "ops"]))
