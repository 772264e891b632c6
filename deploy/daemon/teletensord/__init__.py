"""A package with the daemon of teletensor: the program is bin/teletensord beside this file, where the client
finds it.
"""

import os
import pathlib
import sys

__all__ = ["main"]


def main() -> None:
    """Replaces this process by the daemon, with the same arguments."""
    program = str(pathlib.Path(__file__).resolve().parent / "bin" / "teletensord")
    os.execv(program, [program, *sys.argv[1:]])
