"""A disk that is full, fails or is slow under a daemon of a test, or ends it (faults/faults.cc), a calendar that jumps
(faults/clock.cc), memory that runs out (faults/memory.cc)."""

import mmap
import struct
from pathlib import Path

import pytest

from support.daemon import SANITIZED, binary

LIBRARY = Path(binary()).resolve().parents[1] / "tests/libfaults.so"
TEXT = 256


class Faults:
    """environment: of the daemon. good(): all goes well again."""

    def __init__(self, folder):
        if SANITIZED or not LIBRARY.exists():
            pytest.skip("no library to preload: " + ("a sanitized daemon" if SANITIZED else str(LIBRARY)))
        self._path = Path(folder) / "faults"
        self._path.write_bytes(bytes(TEXT))
        self.environment = {"LD_PRELOAD": str(LIBRARY), "TT_FAULTS": str(self._path)}
        self._count = 0

    def _say(self, text):
        with open(self._path, "r+b") as file:
            file.write(text.encode().ljust(TEXT, b"\0"))

    def good(self):
        self._say("")


class Calendar(Faults):
    """Its clock, which the test can put forward and back."""

    def jump(self, seconds):
        """It is off by so much from now on."""
        self._say(f"clock {seconds}")


class Memory(Faults):
    """memory.fail(n): the n-th allocation from now on that the daemon's own code makes fails (faults/memory.cc)."""

    def __init__(self, folder):
        super().__init__(folder)
        path = Path(folder) / "memory"
        path.write_bytes(bytes(16))
        self.environment["TT_MEMORY"] = str(path)
        with open(path, "r+b") as file:
            self._said = mmap.mmap(file.fileno(), 16)

    def fail(self, n):
        self._said[:] = struct.pack("qq", n, 0)

    def count(self, act):
        """How many of them act() makes."""
        most = 1 << 40
        self.fail(most)
        act()
        return most - struct.unpack("qq", self._said[:])[0]

    def end(self):
        """No more of it. Has one failed?"""
        failed = struct.unpack("qq", self._said[:])[1] > 0
        self.fail(0)
        return failed


class Disk(Faults):
    """disk.full("sessions/"): from now on, until disk.good()."""

    def full(self, part, after=0, error="enospc"):
        """What is written to files with `part` in their path fails after so many more bytes."""
        self._count += 1  # a rule of its own, whose bytes are counted from here
        self._say(f"{error} {after} {part} {self._count}")

    def room(self, part, bytes):
        """The folder of such files has room for so many bytes; what is removed is free again."""
        self._say(f"room {bytes} {part}")

    def slow(self, part, milliseconds):
        """Each write to such files takes so much longer."""
        self._say(f"slow {milliseconds} {part}")

    def kill(self, part, n):
        """The daemon ends, as by kill -9, in front of the n-th call from now on that writes, syncs, renames or removes
        such a file."""
        self._count += 1
        self._say(f"kill {n} {part} {self._count}")
