"""`python -m teletensor.torch [--as-cuda] script.py [argument ...]`, or `-m module` in place of the script.

Runs a PyTorch program with the device "tt". With --as-cuda the program's "cuda" is that device.
"""

from __future__ import annotations

import os
import runpy
import sys

USAGE = "usage: python -m teletensor.torch [--as-cuda] (script.py | -m module) [argument ...]"


def main(words: list[str]) -> None:
    """Runs the program that the words name, in this process."""
    as_cuda = words[:1] == ["--as-cuda"]
    words = words[as_cuda:]
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words or words[0].startswith("-"):
        raise SystemExit(USAGE)
    if not is_module and not os.path.exists(words[0]):
        raise SystemExit(f"teletensor.torch: there is no file {words[0]!r}\n{USAGE}")
    if as_cuda:
        from . import _as_cuda

        _as_cuda.install()
    sys.argv = words
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
