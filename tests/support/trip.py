"""Raises signals at chosen points of the client, the same in every run (trip/trip.cc)."""

import ctypes
import pathlib

import pytest

from support.daemon import SANITIZED, binary

LIBRARY = pathlib.Path(binary()).resolve().parents[1] / "tests/libtrip.so"


class Trip:
    """Runs work with a signal at the n-th line, call or instruction of the package's own files."""

    def __init__(self):
        import teletensor

        if SANITIZED or not LIBRARY.exists():
            pytest.skip(f"no library that sets off signals: {LIBRARY}")
        self._library = ctypes.PyDLL(str(LIBRARY))
        self._library.trip_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        self._library.trip_stop.restype = ctypes.c_long
        self._folder = str(pathlib.Path(teletensor.__file__).parent).encode() + b"/"

    def __call__(self, work, at=0, signal=0):
        """Runs work() with `signal` at the point `at`, or without one; returns the number of such points."""
        self._library.trip_start(self._folder, at, signal)
        try:
            work()
        finally:
            places = self._library.trip_stop()
        return places


def nothing(*_):
    """A call during which a signal that arrives at the very end is handled."""
