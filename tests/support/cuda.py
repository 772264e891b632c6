"""The fake CUDA driver for the daemons of tests (fake_cuda/fake.h describes it)."""

import os
import re
from pathlib import Path

from support.daemon import ROOT, SANITIZED, binary, wait_until

LIBRARY = str(Path(binary()).resolve().parents[1] / "tests/libfake_cuda.so")
# The library for the test's own process, which does not have the sanitizer's runtime.
CLIENT_LIBRARY = str(ROOT / "build/release/tests/libfake_cuda.so") if SANITIZED else LIBRARY
# Kernels are source text that the fake driver compiles with g++: compiled kernels are kept next to the
# build.
KERNELS = str(Path(LIBRARY).parent / "fake_cuda_kernels")
EMULATION = str(ROOT / "engine/backends/cuda/text/base/emulate.cuh")


def fake(*flags, **options):
    """Returns (flags, environment) for a daemon with fake GPUs: fake(devices=2, memory=64)."""
    options.setdefault("cache", KERNELS)
    options.setdefault("emulation", EMULATION)
    environment = {"TT_FAKE_CUDA": ",".join(f"{name}={value}" for name, value in options.items())}
    if SANITIZED and "control" in options:  # memory on a lost device is not freed, so a leak is expected
        environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return ["--cuda-driver", LIBRARY, *flags], environment


class Control:
    """Controls the devices of a daemon during a test: control("sticky 0")."""

    def __init__(self, folder):
        self.path = Path(folder) / "control"

    def __call__(self, what):
        part = self.path.with_suffix(".part")
        part.write_text(what + "\n")
        os.rename(part, self.path)

    def taken(self):
        """Waits until the driver has read the command, at the next call of the driver."""
        wait_until(lambda: not self.path.exists(), what="the fake driver's reading of its file")


def last_words(daemon):
    """Ends a daemon; returns how many instructions ran on its GPU, and how often each op ran on the host."""
    daemon.terminate()
    wait_until(lambda: "refused" in daemon.log, what="the last word of the device")
    instructions = int(re.search(r"cuda:0: (\d+) instructions", daemon.log).group(1))
    host = re.search(r"cuda:0: on the host: ([^\n\"]*)", daemon.log)
    found = {op: int(n) for op, n in (part.split() for part in host.group(1).split(", "))} if host else {}
    daemon.restart()  # so that the fixture has a daemon to end
    return instructions, found
