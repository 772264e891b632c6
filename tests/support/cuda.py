"""The fake driver of CUDA for daemons of tests (fake_cuda/fake.h says what it can do)."""

import os
import re
from pathlib import Path

from support.daemon import ROOT, SANITIZED, binary, wait_until

LIBRARY = str(Path(binary()).resolve().parents[1] / "tests/libfake_cuda.so")
# For a test's own process, which has no sanitizer's runtime.
CLIENT_LIBRARY = str(ROOT / "build/release/tests/libfake_cuda.so") if SANITIZED else LIBRARY
# Kernels are text that the fake driver gives to g++: what was compiled once is kept beside the build.
KERNELS = str(Path(LIBRARY).parent / "fake_cuda_kernels")
EMULATION = str(ROOT / "engine/backends/cuda/text/emulate.cuh")


def fake(*flags, **options):
    """(flags, environment) of a daemon with fake GPUs: fake(devices=2, memory=64)."""
    options.setdefault("cache", KERNELS)
    options.setdefault("emulation", EMULATION)
    environment = {"TT_FAKE_CUDA": ",".join(f"{name}={value}" for name, value in options.items())}
    if SANITIZED and "control" in options:  # a device that is lost is not asked to free what it has
        environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return ["--cuda-driver", LIBRARY, *flags], environment


class Control:
    """What happens to the devices of a daemon: control("sticky 0")."""

    def __init__(self, folder):
        self.path = Path(folder) / "control"

    def __call__(self, what):
        part = self.path.with_suffix(".part")
        part.write_text(what + "\n")
        os.rename(part, self.path)

    def taken(self):
        """Waits until the driver has read it: at its next call."""
        wait_until(lambda: not self.path.exists(), what="the fake driver's reading of its file")


def last_words(daemon):
    """Ends a daemon: how many instructions ran on its GPU, and how often each op ran on the host."""
    daemon.terminate()
    wait_until(lambda: "refused" in daemon.log, what="the last word of the device")
    instructions = int(re.search(r"cuda:0: (\d+) instructions", daemon.log).group(1))
    host = re.search(r"cuda:0: on the host: ([^\n\"]*)", daemon.log)
    found = {op: int(n) for op, n in (part.split() for part in host.group(1).split(", "))} if host else {}
    daemon.restart()  # to be ended by the fixture
    return instructions, found
