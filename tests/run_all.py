"""Runs test stages one after the other and counts their cases: run_all.py STAGE...

Stages: unit (gtest executables through ctest), and the pytest folders policy, e2e, ops, peers. Every stage
runs, whatever happened in earlier ones. The last line is `N passed, N failed`; the exit status is 0 only if
something ran and nothing failed. A crash, a timeout or a missing stage counts as a failed case. Cases that
were not run because a process of pytest ended in a crash are run by another pytest; those that are still
missing then are listed and count as failed. Skipped cases and then failed cases are listed with their reasons
above the last line; a skip that is not in tests/skips.txt counts as failed.
"""

import fnmatch
import json
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
RUNS = 4  # the maximum number of pytest runs of a stage, of which all but the first run missing cases


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
    """The results of the cases in a stage; `skipped` and `failures` contain (case, reason). `failed` also
    counts what is no case, for example a stage that did not start."""

    passed: int = 0
    failed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: "Cases") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures


def read_cases(path: Path) -> Cases:
    """Reads the cases from a JUnit file of gtest or pytest."""
    found = Cases()
    for case in ElementTree.parse(path).iter("testcase"):
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        skip, wrong = case.find("skipped"), case.findall("failure") + case.findall("error")
        if wrong:
            found.failed += 1
            found.failures.append((name, " ".join(wrong[0].get("message", "no reason").split())[:300]))
        elif skip is not None:
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
            cases.failed = 1
            cases.failures.append((executable.get("name"), "it crashed, or exceeded its time limit"))
        found.add(cases)
    found.failed = found.failed or int(status != 0)
    return found


class Missing:
    """A plugin for the pytest process that controls the workers: writes the ids of the collected cases
    without a report to `path`. When a worker crashes, xdist reports the case that it ran, and the other
    cases of the worker have no report."""

    def __init__(self, path: Path):
        self.path = path
        self.collected: dict[str, None] = {}  # ordered
        self.reported: set[str] = set()

    def pytest_xdist_node_collection_finished(self, ids):
        self.collected.update(dict.fromkeys(ids))

    def pytest_runtest_logreport(self, report):
        self.reported.add(report.nodeid)

    def pytest_sessionfinish(self):
        missing = [case for case in self.collected if case not in self.reported]
        self.path.write_text(json.dumps(missing), encoding="utf-8")


def pytest_main(cases: Path, missing: Path, report: Path) -> int:
    """The process of pytest that run_pytest() starts. `cases` is a JSON file with the list of the folders or
    cases to run."""
    import pytest

    sys.path[0] = str(ROOT)  # as `python -m pytest` has it
    return pytest.main(
        ["-q", *json.loads(cases.read_text(encoding="utf-8")), f"--junitxml={report}",
         "-p", "no:cacheprovider", "-n", JOBS, "--dist", "loadfile",
         "--no-loadscope-reorder",  # tests/conftest.py has already ordered the files
         "--max-worker-restart", "0"],  # without this, xdist waits for ever after a crash
        plugins=[Missing(missing)])


def run_pytest(stage: str) -> Cases:
    end = time.monotonic() + LIMITS[stage]
    cases, report, left = (RESULTS / f"{stage}{what}" for what in (".cases.json", ".xml", ".missing.json"))
    found, missing = Cases(), [f"tests/{stage}"]
    for _ in range(RUNS):
        cases.write_text(json.dumps(missing), encoding="utf-8")
        for old in (report, left):
            old.unlink(missing_ok=True)
        status = run([sys.executable, __file__, "--pytest", str(cases), str(left), str(report)],
                     max(int(end - time.monotonic()), 1))
        try:
            found.add(read_cases(report))
            missing = json.loads(left.read_text(encoding="utf-8"))
        except (FileNotFoundError, ElementTree.ParseError, json.JSONDecodeError):
            found.failed += 1  # It was ended, or did not get as far as its cases.
            break
        found.failed = found.failed or int(status != 0)
        if not missing:
            break
        print(f"== {stage}: a worker crashed, and {len(missing)} cases were not run", flush=True)
    else:
        print("\n".join(f"not run: {case}" for case in missing), flush=True)
        found.failed += len(missing)
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
    for case, reason in total.failures:
        print(f"failed: {case}: {reason}")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pytest"]:
        sys.exit(pytest_main(*map(Path, sys.argv[2:])))
    sys.exit(main(sys.argv[1:] or ["unit", "policy", "e2e", "ops"]))
