"""The PyTorch extension: compiled at the first import against the torch that is there, and kept."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from ..version import __version__

__all__ = ["load"]

_HERE = Path(__file__).parent
_SOURCES = tuple(_HERE / name for name in (
    "_bridge.cpp", "_bridge_compressed.hpp", "_bridge_device.hpp", "_bridge_guards.hpp",
    "_bridge_layers.hpp", "_bridge_replay.hpp", "_bridge_rows.hpp", "_bridge_sparse.hpp",
    "_bridge_steps.hpp", "record.h"))
OLDEST = (2, 11)


def check_version(torch: Any) -> None:
    """Raises ImportError for a torch that the extension is not made for."""
    parts = torch.__version__.split("+")[0].split(".")
    if tuple(int(part) for part in parts[:2]) < OLDEST:
        raise ImportError(f"teletensor.torch needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is torch "
                          f"{torch.__version__}")


def cache_folder() -> Path:
    """Where compiled extensions are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "teletensor" / "torch"


def _key(torch: Any) -> str:
    found = hashlib.sha256()
    for part in (torch.__version__, str(torch.compiled_with_cxx11_abi()),
                 str(torch.distributed.is_available()), sys.version, __version__):
        found.update(part.encode() + b"\0")
    for source in _SOURCES:
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _compiler() -> str:
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise ImportError(
            "teletensor.torch compiles a small extension against the installed torch at its first import, "
            f"and there is no C++ compiler {wanted!r}: install g++ 11 or later, or set CXX")
    return found


def _compile(torch: Any, target: Path) -> None:
    root = Path(torch.__file__).parent
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    command = [
        _compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DTT_DISTRIBUTED={int(torch.distributed.is_available())}",
        f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}", f"-I{_HERE}",
        str(_SOURCES[0]), "-o", str(unfinished),
        f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}",
        "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:10]
        raise ImportError("teletensor.torch: the extension cannot be compiled against torch "
                          f"{torch.__version__}:\n" + "\n".join(errors or done.stderr.splitlines()[-10:]))
    unfinished.rename(target)


def load(torch: Any) -> ModuleType:
    """The extension for this torch; compiles it where that has not been done (about 30 seconds)."""
    check_version(torch)
    missing = [source.name for source in _SOURCES if not source.exists()]
    if missing:
        raise ImportError(f"this installation of teletensor lacks teletensor/torch/{missing[0]}")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"_bridge-{_key(torch)}.so"
    if not target.exists():
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _compile(torch, target)
    spec = importlib.util.spec_from_file_location("teletensor.torch._bridge", target)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
