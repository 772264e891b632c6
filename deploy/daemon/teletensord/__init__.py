"""The daemon of teletensor as a package: bin/teletensord beside this file, where the client finds it."""

import os
import pathlib
import sys

__all__ = ["main"]


def main() -> None:
    """Becomes the daemon, with the arguments of this process."""
    program = str(pathlib.Path(__file__).resolve().parent / "bin" / "teletensord")
    os.execv(program, [program, *sys.argv[1:]])
