"""A package with teletensor's daemon. The program is bin/teletensord beside this file; the client finds it
there.
"""

import os
import pathlib
import sys

__all__ = ["main"]


def main() -> None:
    """Replaces this process by the daemon, with the same arguments."""
    program = str(pathlib.Path(__file__).resolve().parent / "bin" / "teletensord")
    os.execv(program, [program, *sys.argv[1:]])
