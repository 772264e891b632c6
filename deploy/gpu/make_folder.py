"""Creates build/gpu-check: the files for `make gpu-check` on a machine with a GPU and no network.

The folder has at most 64 MiB. It contains gpu-check, which unpacks and runs the checks, and files.tar.xz:
the daemon of the preset `cuda` with its shared libraries, the client (its native part for this Python, and
the sources of that part for other versions), and the tests.
"""

import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import nanobind

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from make_sdist import ENGINE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD, CLIENT, TARGET = ROOT / "build/cuda", ROOT / "build/cuda-client", ROOT / "build/gpu-check"
MOST = 64 << 20
# Libraries of the target machine, which belong to its kernel and driver.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util)\.so.*|linux-vdso.*)")


def build():
    """Builds the daemon, the fake driver and the client, which find their libraries beside them."""
    subprocess.run(["cmake", "--preset", "cuda", "--log-level=WARNING"], cwd=ROOT, check=True)
    jobs = os.environ.get("JOBS", str(os.cpu_count()))
    subprocess.run(["cmake", "--build", "--preset", "cuda", "-j", jobs], cwd=ROOT, check=True)
    subprocess.run(
        ["cmake", "-S", ROOT / "clients/python", "-B", CLIENT, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
         "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DTELETENSOR_WERROR=ON",
         f"-DPython_EXECUTABLE={sys.executable}",
         f"-Dnanobind_DIR={nanobind.cmake_dir()}", "-DCMAKE_BUILD_RPATH=$ORIGIN/../../build/release/lib",
         "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags", "--log-level=WARNING"], check=True)
    subprocess.run(["cmake", "--build", CLIENT, "-j", jobs], check=True)


def libraries(*programs):
    """The shared libraries that programs need, as pairs (requested name, file)."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", told, re.MULTILINE))
    return sorted((name, path) for name, path in found.items() if not SYSTEM.fullmatch(name))


def stripped(path, folder):
    copy = folder / Path(path).name
    shutil.copy(path, copy)
    subprocess.run(["strip", "--strip-unneeded", copy], check=True)
    return copy


def pack(archive):
    work = BUILD / "stripped"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()

    def wanted(info):
        name = Path(info.name).name
        return None if name == "__pycache__" or name.endswith((".pyc", "_test.cc")) else info

    def put(path, name):
        archive.add(path, f"teletensor/{name}", filter=wanted)
    daemon, wire = BUILD / "bin/teletensord", CLIENT / "_wire.so"
    put(stripped(daemon, work), "build/release/bin/teletensord")
    for library in ("libfake_cuda.so", "libfaults.so"):
        put(stripped(BUILD / "tests" / library, work), f"build/release/tests/{library}")
    for name, path in libraries(daemon, *[wire] * wire.exists()):
        put(Path(path).resolve(), f"build/release/lib/{name}")
    put(ROOT / "clients/python/teletensor", "py/teletensor")
    core = CLIENT / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    for native in [core, *[wire] * wire.exists()]:
        put(stripped(native, work), f"py/teletensor/{native.name}")
    put(ROOT / "clients/python/CMakeLists.txt", "clients/python/CMakeLists.txt")
    put(ROOT / "clients/python/_core", "clients/python/_core")
    put(Path(nanobind.__file__).parent, "nanobind")
    for folder in [*ENGINE, "cmake", "engine/backends/cuda/text", "tests"]:
        put(ROOT / folder, folder)
    for name in ("VERSION", "LICENSE", "NOTICE", "README.md", "CMakePresets.json", "pyproject.toml",
                 "docs/ops.json"):
        put(ROOT / name, name)


def main():
    build()
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    path = TARGET / "files.tar.xz"
    with lzma.open(path, "wb", preset=1) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        pack(archive)
    shutil.copy(HERE / "gpu-check", TARGET / "gpu-check")
    size = sum(file.stat().st_size for file in TARGET.iterdir())
    print(f"{TARGET.relative_to(ROOT)}: {size / (1 << 20):.1f} MiB")
    if size > MOST:
        sys.exit("more than 64 MiB")


if __name__ == "__main__":
    main()
