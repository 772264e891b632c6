"""The source distribution builds and computes without the checkout."""

import os
import subprocess
import sys
import tarfile

import pytest
from support.daemon import ROOT

PROGRAM = """
import teletensor as tt
x = tt.tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()
assert x.grad.tolist() == [2.0, 4.0]
print(tt.__version__, tt.__file__)
"""


@pytest.mark.timeout(1800)
def test_sdist_alone(tmp_path, start_daemon):
    subprocess.run([sys.executable, ROOT / "deploy/make_sdist.py"], check=True, capture_output=True)
    version = (ROOT / "VERSION").read_text().strip()
    archive = ROOT / f"dist/teletensor-{version}.tar.gz"
    with tarfile.open(archive) as contents:
        names = contents.getnames()
    assert not [name for name in names if name.endswith("_test.cc") or "/build/" in name]
    assert f"teletensor-{version}/_src/docs/ops.json" in names
    place = tmp_path / "installed"
    # The build is unoptimised: the test checks only that all files are present.
    environment = {**os.environ, "CXXFLAGS": "-O0", "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", "--config-settings=cmake.build-type=Debug", "--target", place, archive],
        check=True, cwd=tmp_path, env=environment)
    environment |= {"PYTHONPATH": str(place), "TELETENSOR_ADDRESS": start_daemon().unix}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [version, str(place / "teletensor/__init__.py")]
    played = subprocess.run([sys.executable, "-m", "teletensor.cli", "conformance", environment["TELETENSOR_ADDRESS"],
                             "instruction"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                            timeout=120)
    assert played.stdout.splitlines() == ["passed  instruction", "1 passed, 0 failed"], played.stderr
    assert (place / "teletensor/_conformance/ops.json").read_bytes() == (ROOT / "docs/ops.json").read_bytes()
