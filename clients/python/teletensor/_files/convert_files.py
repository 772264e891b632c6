"""The command `teletensor convert IN OUT`: writes the tensors of any file that `load` can read into one
safetensors file, without a daemon."""

from __future__ import annotations

import argparse
import os
from typing import Any

from .serialize import reading, save
from .stored import AsStored

__all__ = ["add_command"]


def add_command(commands: Any) -> Any:
    """Adds the parser of `convert`; returns the function that runs the command."""
    parser = commands.add_parser(
        "convert", help="writes a file of torch.save, or an index of several files, as one of safetensors")
    parser.add_argument("source", metavar="IN", help="a file of torch.save or of safetensors, or an index "
                        "(.index.json) beside its files")
    parser.add_argument("target", metavar="OUT", help="the .safetensors file, new or replaced")
    return _convert


def _convert(args: argparse.Namespace) -> int:
    with reading(args.source) as source:
        if os.path.exists(args.target) and os.path.samefile(args.source, args.target):
            raise ValueError(f"the target {args.target} is the source file: give another target")
        found = source.tree(AsStored())
        try:
            save(found, args.target)
        except TypeError as error:
            raise ValueError(error) from None
    print(f"{args.target}: {os.path.getsize(args.target)} bytes")
    return 0
