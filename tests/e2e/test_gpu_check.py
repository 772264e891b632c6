"""`make gpu-check` without a GPU: its own work over the stand-in for the driver."""

import json
import os
import subprocess
import sys

from support.daemon import ROOT

CHECK = [sys.executable, ROOT / "tests/gpu/check.py", "--fake", "--quick"]


def check(folder, *words):
    """(exit status, report, page) of a run."""
    output = folder / "report.json"
    done = subprocess.run([*CHECK, "--output", output, *words], capture_output=True, text=True, timeout=280,
                          check=False)
    assert output.exists(), done.stdout + done.stderr
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    return done.returncode, json.loads(output.read_text(encoding="utf-8")), page


def test_sections_and_what_needs_a_device(tmp_path):
    status, report, page = check(tmp_path, "ceil", "--only", "training", "catalog", "sanitizer")
    assert status == 0, report
    assert report["training"] is True and "as on the CPU" in page
    found = report["catalog"]
    assert found["rows"] == found["of"] >= 1 and found["cases"]["value"] > 5 and not found["failures"]
    assert found["distances"] == {"ceil": 0.0}
    assert report["skipped"]["compute-sanitizer"] == "no device"
    assert "skipped: compute-sanitizer: no device" in page


def test_a_section_that_breaks_is_told_and_the_others_go_on(tmp_path):
    status, report, page = check(tmp_path, "ceil", "--only", "times", "catalog", "--minutes", "0")
    assert status == 1
    assert all(row["error"] == "no time was left" for row in report["times"]["works"])
    assert report["catalog"]["rows"] <= report["catalog"]["of"] and "| sessions at once |" in page


def test_the_folder_refuses_a_python_without_numpy(tmp_path):
    program = ROOT / "deploy/gpu/gpu-check"
    done = subprocess.run([sys.executable, "-S", "-E", program], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=False)
    assert done.returncode == 1 and "has no numpy" in done.stderr
