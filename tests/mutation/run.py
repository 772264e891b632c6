"""Breaks the code at places drawn at random, one at a time, and runs the tests that reach the place (`make mutate`).

    run.py --seed 1 --count 200

All mutants are compiled into one build, each behind a switch (switch.h). A first run of every unit test without a
mutant records which places the test reaches. Then each mutant runs the unit tests that reach it, the fuzzers among
them, and at last the files of tests/e2e in END_TO_END; it is caught as soon as a test fails, crashes or exceeds its
time limit. A test that fails also without the mutant does not count. The report lists the score and every survivor with
the number of tests that reached it; tests/mutation/survivors.txt has the reasons of those that are known.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sites import KINDS, sites_of

from build import ROOT, Build, Mutant

AREAS = ["server", "engine/memory", "engine/runtime", "engine/session", "engine/autograd", "proto/wire",
         "clients/session"]
UNIT = [f"tests/{name}_test" for name in ("wire", "client", "memory", "runtime", "session", "server", "cpp")]
# Programs among the unit tests without gtest, with arguments for a short run.
FUZZERS = {
    "tests/program_fuzz": ["--corpus", "tests/fuzz/programs.hex"],
    "tests/file_fuzz": ["--corpus", "tests/fuzz/files.hex"],
    "tests/frame_fuzz": ["--seconds", "4"],
    "tests/peer_fuzz": ["--seconds", "4"],
    "tests/store_fuzz": ["--seconds", "4"],
    "tests/names_inprocess": ["--seed", "1", "--programs", "4000", "--failures", "1500"],
}
# Files of tests/e2e (test_*.py) for the mutants of the files whose path matches; the first match counts.
END_TO_END = {
    "server/access": "certificates security socket_users sharing_a_box",
    "server/(admin|net/http|net/bounded)": "dashboard daemon lines health tls_recipe hostile_http",
    "server/net": "local_streams shared_memory daemon socket_owner socket_users socket_paths",
    "server/peer": "peers moving groups moving_crashes",
    "server/rendezvous": "stores world_store tcp_store",
    "server/(session/lease|state)": "snapshots restart named_sessions lost_sessions drain_order run_after_restart "
                                    "shared_restart sessions user_state moving",
    "server/(session|stream)": "attach streams sessions resume_bulk snapshots late_errors bad_input sharing restart",
    "server": "daemon security socket_paths deploy environment faults tls_recipe",
    "engine/memory": "tiers limits sharing shared_memory faults",
    "engine/runtime/.*group": "open_collectives group_gradients groups point_to_point group_bad_input group_limits "
                              "open_restart",
    "engine/runtime/programs/": "jit script script_gradients captured_collectives differential late_errors windows",
    "engine/runtime": "profile windows late_errors tiers limits bits sharing snapshots faults differential sight",
    "engine/session": "snapshots sessions restart moving late_errors sharing groups shared_memory profile",
    "engine/autograd": "autograd script_gradients jit_numbers jit func dtype_views late_errors rollback snapshots",
    "proto/wire": "encodings attach bad_input versions jit snapshots",
    "clients/session": "autograd func pending jit sessions local_streams shared_memory attach late_errors rollback "
                       "save transport cut complex",
}
ENOUGH = 0.9  # the share of mutants that must be caught, without those that have a reason to survive
QUICK = 3.0  # seconds of tests that a mutant runs first
BYTES = 4096  # the size of the file of reached places, as in switch.h


@dataclass
class Test:
    """A case of a unit test or a fuzzer, the time it takes, and the places that it reaches."""

    command: list[str]
    case: str = ""  # a gtest case, or nothing
    seconds: float = 0.0
    reached: set[int] = field(default_factory=set)
    passed: bool = False

    def __str__(self) -> str:
        return self.case or " ".join([Path(self.command[0]).name, *self.command[1:]]).split(" tests/")[-1]


@dataclass
class Work:
    """The folder of a run: temporary files, the environment of the programs, and the results."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: list[str], limit: float, **more: str) -> tuple[int, str]:
        """The exit status and the output of a command with all its children; -1 if it exceeded the limit."""
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.environment, **more}, text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output = process.communicate(timeout=limit)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return -1, ""
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # also what a crashed test has left
            except ProcessLookupError:
                pass
            process.wait()

    def measure(self, test: Test) -> Test:
        """Runs a test without a mutant, and records what it reaches."""
        path = self.folder / f"reached-{id(test)}"
        path.write_bytes(bytes(BYTES))
        started = time.monotonic()
        status, _ = self.run(test.command, 300, GTEST_FILTER=test.case or "*", MUTANTS_REACHED=str(path))
        test.seconds = time.monotonic() - started
        test.passed = status == 0
        test.reached = {number for number, byte in enumerate(path.read_bytes()) if byte}
        path.unlink()
        return test


def drawn(seed: int, count: int, only: str) -> list[Mutant]:
    """Places at random: the kind first, so that rare kinds occur, then the place. No two overlap."""
    places = {kind: [] for kind in KINDS}
    for area in AREAS:
        for path in sorted((ROOT / area).rglob("*.cc")):
            name = str(path.relative_to(ROOT))
            if not path.stem.endswith("_test") and path.name != "main.cc" and re.search(only, name):
                for site in sites_of(path.read_text()):
                    places[site.kind].append((name, site))
    source = random.Random(seed)
    found: list[Mutant] = []
    while len(found) < count and any(places.values()):
        kind = source.choice([kind for kind, left in places.items() if left])
        name, site = places[kind].pop(source.randrange(len(places[kind])))
        if all(m.path != name or m.site.end <= site.start or site.end <= m.site.start for m in found):
            line = (ROOT / name).read_text().count("\n", 0, site.start) + 1
            found.append(Mutant(len(found) + 1, name, line, site))
    return found


def cases_of(program: Path) -> list[str]:
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True, cwd=ROOT)
    found, suite = [], ""
    for line in listed.stdout.splitlines():
        if line.startswith("  "):
            found.append(suite + line.split("#")[0].strip())
        elif line.split("#")[0].strip().endswith("."):
            suite = line.split("#")[0].strip()
    return [case for case in found if "DISABLED_" not in case]


def first_failure(output: str) -> str:
    """The gtest case that failed first, or that ran when the program ended."""
    failed = re.findall(r"^\[  FAILED  \] ([\w./]+)", output, re.MULTILINE)
    begun = re.findall(r"^\[ RUN      \] ([\w./]+)", output, re.MULTILINE)
    return failed[0] if failed else begun[-1] if begun else ""


def groups_of(tests: list[Test]) -> list[list[Test]]:
    """The runs for a mutant: the quickest cases of all programs, then the other ones, then what is no gtest."""
    ordered = sorted(tests, key=lambda test: (not test.case, test.seconds))
    groups: dict[tuple[bool, str], list[Test]] = {}
    spent = 0.0
    for test in ordered:
        spent += test.seconds
        key = (spent > QUICK or not test.case, test.command[0] if test.case else str(test))
        groups.setdefault(key, []).append(test)
    return list(groups.values())


def killer(work: Work, mutant: Mutant, tests: list[Test]) -> str:
    """The unit test that catches a mutant, or nothing."""
    for group in groups_of([test for test in tests if test.passed and mutant.number in test.reached]):
        limit = 30 + 8 * sum(test.seconds for test in group)
        chosen = ":".join(test.case for test in group) if group[0].case else "*"
        status, output = work.run(group[0].command, limit, GTEST_FILTER=chosen, MUTANT=str(mutant.number))
        if status == 0:
            continue
        case = first_failure(output) if group[0].case else ""
        alone = work.run(group[0].command, limit, GTEST_FILTER=case or chosen)[0] if status != -1 else 0
        if alone == 0:
            return (case or str(group[0])) + (" (time limit)" if status == -1 else "")
    return ""


class Results:
    """What caught each mutant, by stage. Each result is written at once, so that an interrupted run can continue."""

    def __init__(self, path: Path, keep: bool) -> None:
        self.path = path
        self.found: dict[tuple[str, str], str] = {}
        if keep and path.exists():
            for line in path.read_text().splitlines():
                stage, mutant, by = json.loads(line)
                self.found[stage, mutant] = by
        else:
            path.write_text("")

    def add(self, stage: str, mutant: Mutant, by: str) -> None:
        self.found[stage, str(mutant)] = by
        with self.path.open("a") as file:
            file.write(json.dumps([stage, str(mutant), by]) + "\n")
        print(f"{stage}: {mutant}: {'caught by ' + by if by else 'survives'}", flush=True)

    def caught(self, mutant: Mutant) -> str:
        return self.found.get(("unit", str(mutant)), "") or self.found.get(("e2e", str(mutant)), "")

    def knows(self, stage: str, mutant: Mutant) -> bool:
        return bool(self.caught(mutant)) or (stage, str(mutant)) in self.found


def python_package(folder: Path, core: Path) -> None:
    """A copy of the installed client whose native part contains the mutants."""
    found = subprocess.run([ROOT / ".venv/bin/python", "-c", "import teletensor; print(teletensor.__path__[0])"],
                           capture_output=True, text=True, check=True, cwd=folder)
    package = folder / "python" / "teletensor"
    shutil.copytree(found.stdout.strip(), package, dirs_exist_ok=True)
    shutil.copy2(core, package / core.name)


def tests_of(programs: dict[str, Path]) -> list[Test]:
    cases = [Test([str(programs[name]), "--gtest_fail_fast"], case)
             for name in UNIT for case in cases_of(programs[name])]
    return cases + [Test([str(programs[name]), *arguments]) for name, arguments in FUZZERS.items()]


def end_to_end_killer(work: Work, mutant: Mutant, budget: float) -> tuple[str, int]:
    """The file of end-to-end tests that catches a mutant, or nothing, and the number of files that reached it. No
    file is begun after `budget` seconds.
    """
    names = next(names for pattern, names in END_TO_END.items() if re.match(pattern, mutant.path))
    python = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120"]
    end = time.monotonic() + budget
    reached = 0
    for name in names.split():
        if time.monotonic() > end:
            break
        command = [*python, f"tests/e2e/test_{name}.py"]
        path = work.folder / f"reached-{mutant.number}"
        path.write_bytes(bytes(BYTES))
        status, _ = work.run(command, 300, MUTANT=str(mutant.number), MUTANTS_REACHED=str(path))
        reached += path.read_bytes()[mutant.number]
        if status != 0 and work.run(command, 300)[0] == 0:
            return f"{name} (time limit)" if status == -1 else name, reached
    return "", reached


def reasons() -> dict[str, str]:
    """Known survivors: the file, the kind and the line's text, and why no test can or need catch it."""
    lines = (Path(__file__).parent / "survivors.txt").read_text().splitlines()
    return dict(line.rsplit(" | ", 1) for line in lines if line and not line.startswith("#"))


def key_of(mutant: Mutant) -> str:
    line = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
    return f"{mutant.path} | {mutant.site.kind} | {line}"


def report(seed: int, mutants: list[Mutant], dropped: int, results: Results, reached: Counter) -> bool:
    known = reasons()
    survivors = [mutant for mutant in mutants if not results.caught(mutant)]
    for mutant in survivors:
        print(f"survived: {mutant}; reached by {reached[mutant.number]} tests")
        print(f"    {key_of(mutant)} | {known.get(key_of(mutant), 'no reason yet')}")
    excused = sum(key_of(mutant) in known for mutant in survivors)
    for kind in KINDS:
        own = [mutant for mutant in mutants if mutant.site.kind == kind]
        print(f"{kind}: {sum(bool(results.caught(mutant)) for mutant in own)} of {len(own)}")
    total, good = len(mutants), len(mutants) - len(survivors)
    counted = max(total - excused, 1)
    print(f"seed {seed}: {good} of {total} mutants caught ({good / max(total, 1):.1%}), {len(survivors)} survived, "
          f"{excused} of them with a reason; without these {good / counted:.1%}; {dropped} did not compile")
    return good / counted >= ENOUGH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="the number of mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="a regular expression for the paths of files")
    parser.add_argument("--e2e-seconds", type=float, default=120, help="for each mutant that no unit test catches")
    parser.add_argument("--resume", action="store_true", help="keep the results of an interrupted run of this seed")
    parser.add_argument("--numbers", default="", help="run only these mutants of the seed, as in 3,17")
    options = parser.parse_args()
    os.nice(10)
    folder = ROOT / "build" / "mutation"
    results = Results(ROOT / "build" / f"mutation-{options.seed}.jsonl", options.resume)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mutants = drawn(options.seed, options.count, options.only)
    print(f"seed {options.seed}: {len(mutants)} mutants in {len({m.path for m in mutants})} files", flush=True)

    started = time.monotonic()
    built = Build(ROOT / "build/release", folder / "tree", mutants)
    programs = built.make([*UNIT, *FUZZERS, "bin/teletensord"], options.jobs)
    print(f"built in {time.monotonic() - started:.0f} s, {len(built.dropped)} do not compile", flush=True)
    client = Build(ROOT / "build/python", folder / "tree", built.mutants)
    core = next(path.name for path in client.folder.glob("_core*.so"))
    python_package(folder, client.make([core], options.jobs)[core])
    mutants = client.mutants
    for mutant in built.dropped + client.dropped:
        print(f"{mutant}: does not compile")
    work = Work(folder, {"TELETENSORD": str(programs["bin/teletensord"]), "PYTHONPATH": str(folder / "python")})

    asked = {int(number) for number in options.numbers.split(",") if number}
    mutants = [mutant for mutant in mutants if not asked or mutant.number in asked]
    tests = tests_of(programs)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work.measure, tests))
    failed = [str(test) for test in tests if not test.passed]
    print(f"{len(tests)} unit tests; not used, because they fail without a mutant: {', '.join(failed) or 'none'}")
    reached = Counter(number for test in tests for number in test.reached)

    def unit(mutant: Mutant) -> None:
        results.add("unit", mutant, killer(work, mutant, tests))

    def end_to_end(mutant: Mutant) -> None:
        by, files = end_to_end_killer(work, mutant, options.e2e_seconds)
        reached[mutant.number] += files
        results.add("e2e", mutant, by)

    for stage, run in (("unit", unit), ("e2e", end_to_end)):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, [mutant for mutant in mutants if not results.knows(stage, mutant)]))
    return 0 if report(options.seed, mutants, len(built.dropped) + len(client.dropped), results, reached) else 1


if __name__ == "__main__":
    sys.exit(main())
