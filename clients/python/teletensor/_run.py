"""`teletensor run FILE`: runs a saved program from the command line."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import numpy as np

from ._convert import tensor
from ._core import Tensor
from ._operate import with_address
from ._serialize import load as load_tensors
from ._serialize import save as save_tensors
from ._session import connect
from ._tree import flatten

__all__ = ["add_command"]


def add_command(commands: Any) -> Any:
    """Adds `run` to the parser; gives its function."""
    parser = commands.add_parser("run", help="runs a program that jit.save has written")
    with_address(parser)
    parser.add_argument("file", help="the program")
    parser.add_argument(
        "--inputs", nargs="*", default=[], metavar="NAME=VALUE",
        help="an argument: a .npy file, or numbers with commas between them; or a .safetensors file "
             "with arguments by name")
    parser.add_argument("--output", help="a .safetensors file for the results; else they are printed")
    parser.add_argument("--show", action="store_true", help="prints the program, runs nothing")
    return _run


def _line(error: Exception) -> str:
    """Its type and text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _value(text: str) -> Any:
    if text.endswith(".npy"):
        try:
            array = np.load(text, allow_pickle=False)
        except OSError:
            raise
        except Exception as error:  # by what is damaged: EOFError, TokenError, MemoryError, ...
            raise ValueError(f"{text} is no .npy file that can be read: {_line(error)}") from None
        return tensor(array)
    try:
        values = [float(part) if "." in part or "e" in part else int(part)
                  for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is neither a .npy file nor numbers") from None
    return values[0] if len(values) == 1 and "," not in text else tensor(values)


def _inputs(words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if equals:
            given[name] = _value(value)
        elif each.endswith(".safetensors"):
            given |= load_tensors(each)
        else:
            raise ValueError(f"--inputs: {each!r} is not NAME=VALUE or a .safetensors file")
    return given


def _run(args: argparse.Namespace) -> int:
    from .jit import load

    with connect(args.address) as session:
        try:
            program = load(args.file)
            if args.show:
                print(program)
                return 0
            leaves = flatten(program(**_inputs(args.inputs)))[0]
            if args.output:
                named = {f"output{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
                save_tensors(named, pathlib.Path(args.output))
            else:
                for leaf in leaves:
                    print(np.array2string(leaf.detach().numpy()) if isinstance(leaf, Tensor) else leaf)
            session.synchronize()
        except BrokenPipeError:
            raise
        except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
                ValueError) as error:
            print(f"teletensor run: {str(error) or type(error).__name__}", file=sys.stderr)
            return 1
    return 0
