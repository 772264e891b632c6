"""The fake driver of CUDA for daemons of tests (fake_cuda/fake.h says what it can do)."""

import os
from pathlib import Path

from support.daemon import ROOT, binary, wait_until

LIBRARY = str(Path(binary()).resolve().parents[1] / "tests/libfake_cuda.so")
# Kernels are text that the fake driver gives to g++: what was compiled once is kept beside the build.
KERNELS = str(Path(LIBRARY).parent / "fake_cuda_kernels")
EMULATION = str(ROOT / "engine/backends/cuda/text/emulate.cuh")


def fake(*flags, **options):
    """(flags, environment) of a daemon with fake GPUs: fake(devices=2, memory=64)."""
    options.setdefault("cache", KERNELS)
    options.setdefault("emulation", EMULATION)
    text = ",".join(f"{name}={value}" for name, value in options.items())
    return ["--cuda-driver", LIBRARY, *flags], {"TT_FAKE_CUDA": text}


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
        wait_until(lambda: not self.path.exists(), 30, "the fake driver's reading of its file")
