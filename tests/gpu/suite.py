"""Runs the end-to-end suite on daemons with the device: the tests create their tensors on cuda:0."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# The tests that compute, train, capture, share and restore. The remaining files of tests/e2e are about the
# host, or have their own devices.
FILES = ("amp attention autograd bits complex data defined_results differences differential func jit jit_random "
         "late_errors limits named_sessions nn optim profile save saved_hooks script script_gradients "
         "seed_example_8 seed_examples sessions sharing snapshots two_clients windows workers").split()
# Tests about the host's memory, the device of a tensor, or the time of a kernel on the host.
HOST_ONLY = (
    "amp.py::test_casts", "amp.py::test_weights_held_by_a_region_go_with_it",
    "autograd.py::test_checkpoint_needs_less_memory", "late_errors.py::test_a_tape_without_end_is_out_of_memory",
    "nn.py::test_to_moves_parameters_gradients_and_buffers",
    "profile.py::test_a_loop_is_one_span_of_several_commands",
    "seed_examples.py::test_4_errors_name_both_sides_at_the_line",
    "seed_examples.py::test_4_a_device_that_is_not_there",
    "sharing.py::test_a_withdrawn_or_refused_tensor_is_not_held", "sharing.py::test_freed_with_its_last_holder",
    "sharing.py::test_the_list", "sharing.py::test_users_and_rights",
    "snapshots.py::test_a_late_error_is_raised_by_the_snapshot", "workers.py::test_tensors_in_workers")
# Flags of daemons: limits so low that tests which fill memory do so quickly.
MEMORY = ("--device-memory", "256MiB")
QUICK = ("two_clients",)


def command(quick):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "results",
             *(f"tests/e2e/test_{name}.py" for name in (QUICK if quick else FILES))]
    for name in HOST_ONLY:
        words += ["--deselect", f"tests/e2e/test_{name}"]
    if importlib.util.find_spec("xdist"):
        words += ["-n", str(max(1, min(10, (os.cpu_count() or 2) - 2)))]
    return words


def run(flags, environment, quick, folder, seconds):
    """Returns the passed and failed tests; `flags` and `environment` are those of the daemons. If the time
    limit is exceeded, that is reported as an error in addition to the results of the completed tests."""
    results = folder / "e2e.jsonl"
    results.unlink(missing_ok=True)
    own = {**os.environ, **environment, "TELETENSOR_TEST_DEVICE": "cuda:0", "TELETENSOR_TEST_RESULTS": str(results),
           "TELETENSOR_TEST_FLAGS": " ".join((*flags, *MEMORY)),
           "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    for flag, value in zip(flags[::2], flags[1::2]):  # for embedded daemons as well
        own["TELETENSOR_" + flag[2:].upper().replace("-", "_")] = value
    with subprocess.Popen(command(quick), cwd=TESTS.parent, env=own, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            output, error = process.communicate(timeout=seconds)[0], None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, error = process.communicate()[0], f"not done after {seconds:.0f} s"
    cases = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    found = {"passed": sum(case["outcome"] == "passed" for case in cases),
             "failed": [case["name"] for case in cases if case["outcome"] == "failed"],
             "texts": {case["name"]: case["text"] for case in cases if case["outcome"] == "failed"}}
    if error is None and process.returncode not in (0, 1):
        error = f"pytest ended with {process.returncode}: {output[-4000:]}"
    return found | ({"error": error} if error else {})
