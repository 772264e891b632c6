"""`python -m teletensor.torch [--as-cuda[=GPUS]] script.py [argument ...]`, or `-m module` in place of the
script.

Runs a PyTorch program with the device "tt". With --as-cuda the program's "cuda" is that device. The program
sees GPUS GPUs, by default one for each process that torchrun has started on this machine; all of them are
the one device.
"""

from __future__ import annotations

import os
import runpy
import sys

USAGE = "usage: python -m teletensor.torch [--as-cuda[=GPUS]] (script.py | -m module) [argument ...]"


def main(words: list[str]) -> None:
    """Runs the program that the words name, in this process."""
    option, _, gpus = words[0].partition("=") if words else ("", "", "")
    as_cuda = option == "--as-cuda" and (gpus.isdecimal() and int(gpus) > 0 or words[0] == option)
    words = words[as_cuda:]
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words or words[0].startswith("-"):
        raise SystemExit(USAGE)
    if not is_module and not os.path.exists(words[0]):
        raise SystemExit(f"teletensor.torch: there is no file {words[0]!r}\n{USAGE}")
    if as_cuda:
        from . import _as_cuda

        _as_cuda.install(int(gpus or os.environ.get("LOCAL_WORLD_SIZE", "1")))
    sys.argv = words
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
