"""Assembles dist/teletensor-VERSION.tar.gz: the Python client with the engine folders it compiles.

`pip install` of the archive needs no checkout: only a C++20 compiler, and no Debian package.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from scikit_build_core.build import build_sdist

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ["engine/core", "engine/program", "engine/ops", "engine/autograd", "engine/passes", "proto/wire",
          "proto/teletensor", "clients/session", "clients/torch", "clients/wire"]


def assemble(stage: Path) -> None:
    shutil.copytree(ROOT / "clients/python", stage,
                    ignore=shutil.ignore_patterns("__pycache__", "build", "*.so", "tests"))
    sources = stage / "_src"
    for folder in ENGINE:
        shutil.copytree(ROOT / folder, sources / folder,
                        ignore=shutil.ignore_patterns("*_test.cc", "CMakeLists.txt"))
    (sources / "cmake").mkdir()
    shutil.copy(ROOT / "cmake/teletensor.cmake", sources / "cmake")
    (sources / "docs").mkdir()
    shutil.copy(ROOT / "docs/ops.json", sources / "docs")  # which the conformance kit reads
    shutil.copytree(ROOT / "docs/man", sources / "docs/man")
    for name in ("LICENSE", "NOTICE", "VERSION"):
        shutil.copy(ROOT / name, stage)
    # VERSION is two folders above the client in the checkout, and beside the client in the archive.
    project = stage / "pyproject.toml"
    text, count = re.subn(r'input = "\.\./\.\./VERSION"', 'input = "VERSION"', project.read_text())
    if count != 1:
        sys.exit("clients/python/pyproject.toml does not read ../../VERSION")
    project.write_text(text)


def main() -> None:
    version = (ROOT / "VERSION").read_text().strip()
    stage = ROOT / "build/sdist" / f"teletensor-{version}"
    shutil.rmtree(stage.parent, ignore_errors=True)
    stage.parent.mkdir(parents=True)
    assemble(stage)
    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    os.chdir(stage)
    print(target / build_sdist(str(target)))


if __name__ == "__main__":
    main()
