"""`make gpu-check` without a GPU: its own code, over the fake driver."""

import json
import os
import subprocess
import sys

import pytest
from support.daemon import ROOT

CHECK = [sys.executable, ROOT / "tests/gpu/check.py", "--fake", "--quick"]


def check(folder, *words):
    """Returns (exit status, report, page) of a run."""
    output = folder / "report.json"
    done = subprocess.run([*CHECK, "--output", output, *words], capture_output=True, text=True, timeout=800,
                          check=False)
    assert output.exists(), done.stdout + done.stderr
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    return done.returncode, json.loads(output.read_text(encoding="utf-8")), page


@pytest.mark.timeout(1800)
def test_sections_and_what_needs_a_device(tmp_path):
    status, report, page = check(tmp_path, "ceil", "--only", "training", "catalog", "sanitizer")
    assert status == 0, report
    assert report["training"] is True and "as on the CPU" in page
    found = report["catalog"]
    assert found["rows"] == found["of"] >= 1 and found["cases"]["value"] > 5 and not found["failures"]
    assert found["distances"] == {"ceil": 0.0}
    assert report["skipped"]["compute-sanitizer"] == "no device"
    assert "skipped: compute-sanitizer: no device" in page


@pytest.mark.timeout(1800)
def test_sessions_of_twice_the_memory(tmp_path):
    status, report, page = check(tmp_path, "--only", "spilling")
    assert status == 0, report
    found = report["spilling"]
    assert found["right"] and found["held_mib"] == 2 * found["memory_mib"]
    assert found["moved_in_memory"] == 0
    # Tensors that do not fit were spilled in each round.
    assert min(found["moved_out_mib"], found["moved_in_mib"]) >= found["turns"] / 4 * found["memory_mib"]
    assert f"| {found['memory_mib']} MiB | {found['held_mib']} MiB |" in page


@pytest.mark.timeout(1800)
def test_a_section_that_breaks_is_told_and_the_others_go_on(tmp_path):
    status, report, page = check(tmp_path, "ceil", "--only", "times", "catalog", "--minutes", "0")
    assert status == 1
    assert all(row["error"] == "no time was left" for row in report["times"]["works"])
    assert report["catalog"]["rows"] <= report["catalog"]["of"] and "| sessions at once |" in page


def test_a_compiler_that_came_with_python_is_found(tmp_path):
    folder = tmp_path / "nvidia/cu13/lib"
    folder.mkdir(parents=True)
    code = (f"import sys; sys.path.insert(0, {str(ROOT / 'tests/gpu')!r}); from check import compiler_flags as f; "
            f"print(f(('libnowhere.so',), [{str(tmp_path)!r}]), f(('libc.so.6',)))")

    def told():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                              check=True).stdout
    assert told() == "[] []\n"
    (folder / "libnvrtc.so.13").touch()
    assert told() == f"['--cuda-compiler', '{folder}/libnvrtc.so.13'] []\n"


def test_a_cudnn_that_came_with_python_is_found(tmp_path):
    folder = tmp_path / "nvidia/cudnn/lib"
    folder.mkdir(parents=True)
    (folder / "libcudnn-of-a-test.so.9").touch()
    code = (f"import sys; sys.path.insert(0, {str(ROOT / 'tests/gpu')!r}); from check import library_environment as f; "
            f"print(f('libcudnn-of-a-test.so.9', [{str(tmp_path)!r}]), f('libc.so.6', [{str(tmp_path)!r}]))")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, "LD_LIBRARY_PATH": "/first"}).stdout
    assert told == f"{{'LD_LIBRARY_PATH': '/first:{folder}'}} {{}}\n"


def test_the_folder_refuses_a_python_without_numpy(tmp_path):
    program = ROOT / "deploy/gpu/gpu-check"
    done = subprocess.run([sys.executable, "-S", "-E", program], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=False)
    assert done.returncode == 1 and "has no numpy" in done.stderr
