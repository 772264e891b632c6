"""The end-to-end suite against daemons with the device: tests make their tensors on cuda:0."""

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# What computes, trains, captures, shares and comes back. The rest of tests/e2e is about the host, or
# brings its own devices.
FILES = ("amp attention autograd bits complex data defined_results differences differential func jit jit_random "
         "late_errors limits named_sessions nn optim profile save saved_hooks script script_gradients "
         "seed_example_8 seed_examples sessions sharing snapshots two_clients windows workers").split()
# Tests that speak of the host's memory, of the place of a tensor, or of a kernel's time there.
HOST_ONLY = (
    "amp.py::test_casts", "amp.py::test_weights_held_by_a_region_go_with_it",
    "autograd.py::test_checkpoint_needs_less_memory", "late_errors.py::test_a_tape_without_end_is_out_of_memory",
    "nn.py::test_to_moves_parameters_gradients_and_buffers",
    "profile.py::test_a_loop_is_one_span_of_several_commands",
    "seed_examples.py::test_4_errors_name_both_sides_at_the_line",
    "seed_examples.py::test_4_a_device_that_is_not_there",
    "sharing.py::test_freed_with_its_last_holder", "sharing.py::test_users_and_rights")
# Of daemons: what a test fills up is full soon.
MEMORY = ("--device-memory", "256MiB")
QUICK = ("two_clients",)


def command(report, quick):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
             *(f"tests/e2e/test_{name}.py" for name in (QUICK if quick else FILES))]
    for name in HOST_ONLY:
        words += ["--deselect", f"tests/e2e/test_{name}"]
    if importlib.util.find_spec("xdist"):
        words += ["-n", str(max(1, min(10, (os.cpu_count() or 2) - 2)))]
    return words


def run(flags, environment, quick, folder, seconds):
    """Passed and failed; `flags` and `environment`: of daemons."""
    report = folder / "e2e.xml"
    report.unlink(missing_ok=True)
    own = {**os.environ, **environment, "TELETENSOR_TEST_DEVICE": "cuda:0",
           "TELETENSOR_TEST_FLAGS": " ".join((*flags, *MEMORY))}
    for flag, value in zip(flags[::2], flags[1::2]):  # of embedded daemons as well
        own["TELETENSOR_" + flag[2:].upper().replace("-", "_")] = value
    try:
        done = subprocess.run(command(report, quick), cwd=TESTS.parent, env=own, timeout=seconds, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except subprocess.TimeoutExpired as late:
        text = late.stdout or b""
        return {"error": f"not done after {seconds:.0f} s", "log": text.decode(errors="replace")[-4000:]}
    found = {"passed": 0, "failed": [], "log": "" if done.returncode == 0 else done.stdout[-20000:]}
    if not report.exists():
        return {"error": "no report", "log": found["log"]}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"].append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is None:
            found["passed"] += 1
    return found
