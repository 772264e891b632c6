"""The wheels compute in an environment without a compiler, whose PATH is empty."""

import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from support.daemon import ROOT

PROGRAM = """
import pathlib
import teletensor as tt
from teletensor._connection.daemon import find_daemon
daemon = pathlib.Path(find_daemon())
assert daemon == pathlib.Path(tt.__file__).parents[1] / "teletensord/bin/teletensord", daemon
print(tt.ones(3).sum())
assert tt.current_session().transport == "native"
"""

# Libraries that every platform of the manylinux family has.
ALLOWED = {"libc", "libm", "libmvec", "libdl", "libpthread", "librt", "libstdc++", "libgcc_s", "libz"}


def lend(place: Path, name: str) -> None:
    """Links an installed distribution into another environment; nothing is downloaded."""
    found = importlib.metadata.distribution(name)
    for top in {path.parts[0] for path in found.files or [] if path.parts[0] != ".."}:
        if top != "__pycache__":
            (place / top).symlink_to(found.locate_file(top))


@pytest.fixture
def runtime():
    """A private folder of sockets with a short path."""
    path = tempfile.mkdtemp(prefix="tte-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.timeout(1800)
def test_wheels_alone(tmp_path, runtime):
    output = tmp_path / "dist"
    subprocess.run([sys.executable, ROOT / "deploy/make_wheels.py", "--output", output], check=True,
                   capture_output=True)
    for wheel in output.glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        assert "manylinux" in wheel.name
        assert [name for name in names if name.endswith("licenses/LICENSE")], names
        # The wheel has the copyright file of the package of each library from the distribution.
        assert [name for name in names if "/libgrpc-" in name]
        assert [name for name in names if name.endswith(".copyright") and "libgrpc" in name]

    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    packages = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                   check=True, capture_output=True, text=True).stdout.strip())
    for name in ("numpy", "grpcio", "typing_extensions"):
        lend(packages, name)
    bare = {"PATH": "", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": runtime, "PIP_FIND_LINKS": str(output)}
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index",
                    "teletensor[daemon]"], check=True, env=bare, cwd=tmp_path)
    done = subprocess.run([python, "-c", PROGRAM], env=bare, cwd=tmp_path, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensor(3.)\n"
    version = subprocess.run([environment / "bin/teletensord", "--version"], check=True, env=bare,
                             cwd=tmp_path, capture_output=True, text=True).stdout
    assert (ROOT / "VERSION").read_text().strip() in version.split()
    linked = subprocess.run(["ldd", packages / "teletensord/bin/teletensord"], check=True,
                            capture_output=True, text=True).stdout
    of_the_system = {line.split()[0].split(".so")[0] for line in linked.splitlines()
                     if "=>" in line and "/teletensord.libs/" not in line}
    assert of_the_system <= ALLOWED and "/teletensord.libs/libgrpc-" in linked, linked
