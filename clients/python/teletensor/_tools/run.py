"""The commands `teletensor run FILE` and `teletensor onnx run FILE`: run a saved program or an ONNX
model."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._calls.tree import flatten
from .._core import Tensor
from .._files.serialize import load as load_tensors, save as save_tensors
from .._sessions.session import connect
from .._tensors.convert import tensor
from .operate import with_address

__all__ = ["add_command", "add_onnx"]


def add_command(commands: Any) -> Any:
    """Adds the parser of `run`; returns the function that runs the command."""
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
    """The type and message of an error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _value(text: str) -> Any:
    if text.endswith(".npy"):
        try:
            array = np.load(text, allow_pickle=False)
        except OSError:
            raise
        # numpy.load raises various exceptions for a damaged file: EOFError, TokenError, MemoryError, ...
        except Exception as error:
            raise ValueError(f"{text} is not a .npy file that can be read: {_line(error)}") from None
        return tensor(array)
    try:
        values = [float(part) if "." in part or "e" in part else int(part)
                  for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is neither the path of a .npy file nor a list of numbers") from None
    return values[0] if len(values) == 1 and "," not in text else tensor(values)


def _inputs(words: list[str], option: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if equals:
            given[name] = _value(value)
        elif each.endswith(".safetensors"):
            given |= load_tensors(each)
        else:
            raise ValueError(f"{option}: {each!r} is not NAME=VALUE or a .safetensors file")
    return given


def add_onnx(commands: Any) -> Any:
    """Adds the parser of `onnx` and its subcommands; returns the function that runs the command."""
    parser = commands.add_parser("onnx", help="runs a model of an .onnx file")
    parser = parser.add_subparsers(dest="action", required=True).add_parser(
        "run", help="runs a model on the daemon")
    with_address(parser)
    parser.add_argument("file", help="the .onnx file")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", dest="inputs",
        help="an input: a .npy file, or numbers with commas between them; or a .safetensors file with "
             "inputs by name. Once for each input")
    parser.add_argument("--output", help="a .safetensors file for the outputs by name; else printed")
    parser.add_argument("--save", metavar="FILE",
                        help="a .safetensors file for the program, as `teletensor run` and C++ run it")
    return _run_onnx


def _run(args: argparse.Namespace) -> int:
    from ..jit import load

    def results() -> dict[str, Any] | None:
        program = load(args.file)
        if args.show:
            print(program)
            return None
        leaves = flatten(program(**_inputs(args.inputs, "--inputs")))[0]
        return {f"output{i}": leaf for i, leaf in enumerate(leaves)}

    return _finished(args, "run", results)


def _run_onnx(args: argparse.Namespace) -> int:
    def results() -> dict[str, Any]:
        from ..onnx import load

        model = load(args.file)
        inputs = _inputs(args.inputs, "--input")
        found = model(**inputs)
        if args.save:
            model.save(pathlib.Path(args.save), **inputs)
        return dict(zip(model.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    return _finished(args, "onnx run", results)


def _finished(args: argparse.Namespace, command: str, results: Callable[[], dict[str, Any] | None]) -> int:
    """Writes or prints the results by name, if there are any; returns the exit status."""
    with connect(args.address) as session:
        try:
            found = results()
            if found is not None and args.output:
                named = {name: value for name, value in found.items() if isinstance(value, Tensor)}
                save_tensors(named, pathlib.Path(args.output))
            else:
                for value in (found or {}).values():
                    print(np.array2string(value.detach().numpy()) if isinstance(value, Tensor) else value)
            session.synchronize()
        except BrokenPipeError:
            raise
        except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
                ValueError) as error:
            print(f"teletensor {command}: {str(error) or type(error).__name__}", file=sys.stderr)
            return 1
    return 0
