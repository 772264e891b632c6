"""Injects faults into the daemon of a test: a disk that is full, fails or is slow, or during whose use the
daemon is killed (faults/faults.cc); a calendar that jumps (faults/clock.cc); memory that runs out
(faults/memory.cc)."""

import mmap
import struct
from pathlib import Path

import pytest

from support.daemon import SANITIZED, binary

LIBRARY = Path(binary()).resolve().parents[1] / "tests/libfaults.so"
TEXT = 256


class Faults:
    """Base class of faults. environment: the variables for the daemon. good(): ends the fault."""

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
    """The daemon's clock, which the test can set forward and back."""

    def jump(self, seconds):
        """Sets the clock off by this time from now on."""
        self._say(f"clock {seconds}")


class Memory(Faults):
    """memory.fail(n) makes the n-th allocation from now on by the daemon's own code fail, or `many` of them
    from the n-th on (faults/memory.cc). The daemon's log then has the stack of each."""

    def __init__(self, folder):
        super().__init__(folder)
        path = Path(folder) / "memory"
        path.write_bytes(bytes(24))
        self.environment["TT_MEMORY"] = str(path)
        with open(path, "r+b") as file:
            self._said = mmap.mmap(file.fileno(), 24)

    def fail(self, n, many=1):
        self._said[:] = struct.pack("qqq", n, many, 0)

    def count(self, act):
        """Returns how many allocations act() makes."""
        most = 1 << 40
        self.fail(most)
        act()
        return most - struct.unpack("qqq", self._said[:])[0]

    def end(self):
        """Ends the fault; returns whether an allocation has failed."""
        failed = struct.unpack("qqq", self._said[:])[2] > 0
        self.fail(0, many=0)
        return failed


class Disk(Faults):
    """Faults of the daemon's disk: disk.full("sessions/") applies until disk.good()."""

    def full(self, part, after=0, error="enospc"):
        """Makes writes to files with `part` in their path fail after this number of further bytes."""
        self._count += 1  # a new rule, which counts bytes from now on
        self._say(f"{error} {after} {part} {self._count}")

    def room(self, part, bytes):
        """Limits the folder of such files to this number of bytes; removing a file frees its bytes again."""
        self._say(f"room {bytes} {part}")

    def slow(self, part, milliseconds):
        """Delays each write to such files by this time."""
        self._say(f"slow {milliseconds} {part}")

    def kill(self, part, n):
        """Kills the daemon, as by kill -9, before the n-th call from now on that writes, syncs, renames or
        removes such a file."""
        self._count += 1
        self._say(f"kill {n} {part} {self._count}")
