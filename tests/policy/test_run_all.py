"""Tests tests/run_all.py: what it reads from reports, and that it does not ignore a skip silently."""

import importlib.util
import subprocess
import sys

from repository import ROOT

PYTEST = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="test_good" />
<testcase classname="tests.e2e.test_a" name="test_bad"><failure message="assert 1 == 2&#x0A;  a hint" /></testcase>
<testcase classname="tests.e2e.test_a" name="test_broken"><error message="x" /></testcase>
<testcase classname="tests.e2e.test_a" name="test_none[b]"><skipped message="not installed: nginx (list)" /></testcase>
<testcase classname="" name="tests.e2e.test_m"><skipped message="collection skipped">
('/x/test_m.py', 13, 'Skipped: needs root, to be two users')</skipped></testcase>
</testsuite></testsuites>"""
GTEST = """<testsuites><testsuite>
<testcase classname="A" name="Runs" status="run" result="completed" />
<testcase classname="A" name="Skips" status="run" result="skipped"><skipped message="a_test.cc:3&#x0A;one core&#x0A;" />
</testcase>
<testcase classname="A" name="DISABLED_Is" status="notrun" result="suppressed" />
</testsuite></testsuites>"""


def load():
    spec = importlib.util.spec_from_file_location("run_all", ROOT / "tests/run_all.py")
    module = sys.modules["run_all"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reports(tmp_path):
    run_all, path = load(), tmp_path / "report.xml"
    path.write_text(PYTEST, encoding="utf-8")
    found = run_all.read_cases(path)
    assert (found.passed, found.failed) == (1, 2)
    assert found.failures == [("tests.e2e.test_a.test_bad", "assert 1 == 2 a hint"),
                              ("tests.e2e.test_a.test_broken", "x")]
    assert found.skipped == [("tests.e2e.test_a.test_none[b]", "not installed: nginx (list)"),
                             ("tests.e2e.test_m", "needs root, to be two users")]
    path.write_text(GTEST, encoding="utf-8")
    found = run_all.read_cases(path)
    assert (found.passed, found.failed, found.skipped) == (1, 0, [("A.Skips", "one core")])


def test_a_skip_needs_its_line():
    unexpected = load().unexpected
    allowed = "# A comment.\n\ntests.a.test_* | not installed: nginx*\nA.Skips | one core\n"
    assert unexpected([("tests.a.test_x[1]", "not installed: nginx (list)"), ("A.Skips", "one core")], allowed) == []
    for case in (("tests.b.test_x", "not installed: nginx"), ("tests.a.test_x", "no time"), ("A.Skips", "")):
        assert unexpected([case], allowed) == [case]


def run_stage(root, skips=""):
    """Runs the stage e2e of the checkout `root`, which has only the tests."""
    (root / "tests" / "run_all.py").write_bytes((ROOT / "tests/run_all.py").read_bytes())
    (root / "tests" / "skips.txt").write_text(skips, encoding="utf-8")
    return subprocess.run([sys.executable, str(root / "tests" / "run_all.py"), "e2e"], capture_output=True,
                          text=True, cwd=root)


def test_the_last_line(tmp_path):
    """For a stage with a case that passes, one that fails, and skips, one of which is in no list."""
    folder = tmp_path / "tests" / "e2e"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text("""import pytest
def test_good(): pass
def test_bad(): assert False
def test_none(): pytest.skip("known: here")
def test_other(): pytest.skip("new")
""", encoding="utf-8")
    done = run_stage(tmp_path, "tests.e2e.test_some.test_none | known: *\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-4:] == [
        "skipped: tests.e2e.test_some.test_none: known: here",
        "skipped, which is a failure: tests.e2e.test_some.test_other: new",
        "failed: tests.e2e.test_some.test_bad: assert False", "1 passed, 2 failed"]


def test_cases_of_a_crashed_worker_are_run(tmp_path):
    """A case that ends its process counts as one failed case, and all others are run once."""
    folder = tmp_path / "tests" / "e2e"
    folder.mkdir(parents=True)
    good = "".join(f"def test_good{i}(): open({str(tmp_path / 'ran')!r}, 'a').write('x')\n" for i in range(5))
    crash = "import os, signal\ndef test_crash(): os.kill(os.getpid(), signal.SIGSEGV)\n"
    for name, text in {"crash_a": crash + good, "crash_b": good + crash, "good": good}.items():
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    done = run_stage(tmp_path)
    assert done.returncode == 1 and "cases were not run" in done.stdout
    assert done.stdout.splitlines()[-1] == "15 passed, 2 failed", done.stdout
    assert (tmp_path / "ran").read_text(encoding="utf-8") == 15 * "x"


def test_cases_that_are_never_run_count_as_failed(tmp_path):
    """Each run of pytest ends with a crash, more often than the cases are run again."""
    folder = tmp_path / "tests" / "e2e"
    folder.mkdir(parents=True)
    crash = "import os, signal\n"
    crash += "".join(f"def test_crash{i}(): os.kill(os.getpid(), signal.SIGSEGV)\n" for i in range(20))
    (folder / "test_crash.py").write_text(crash, encoding="utf-8")
    done = run_stage(tmp_path)
    assert done.returncode == 1 and "not run: tests/e2e/test_crash.py::test_crash19" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 20 failed", done.stdout
