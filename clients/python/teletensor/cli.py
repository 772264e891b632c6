"""The command `teletensor`: serve | launch | run | onnx | convert | health | sessions | memory | top |
slowlog | groups | kill | snapshot | drain | token | cert | bench | doctor |
conformance | --version."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable

from ._conformance import command as _conformance
from ._connection import certificates as _certificates
from ._connection.daemon import find_daemon
from ._connection.protowire import decode
from ._connection.transport import CallError
from ._files import convert_files as _convert_files
from ._sessions.errors import TeletensorError
from ._tools import doctor as _doctor, operate as _operate, run as _run
from .version import __version__

__all__ = ["command_parser", "main"]


def _serve(arguments: list[str]) -> int:
    binary = find_daemon()
    os.execv(binary, [binary, *arguments])


def _health(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    with _operate.transport(args) as transport:
        reply = decode(transport.unary("Compute", "Describe", b"", wait=False))
    ms = (time.perf_counter() - begin) * 1000
    if args.json:
        print(json.dumps({"version": reply.text(1), "up_seconds": reply.integer(5),
                          "sessions": reply.integer(9), "max_sessions": reply.integer(10),
                          "answer_seconds": ms / 1000}))
        return 0
    print(f"ok: teletensord {reply.text(1)}, up {reply.integer(5)} s, {reply.integer(9)} of "
          f"{reply.integer(10)} sessions, answered in {ms:.1f} ms")
    return 0


# What the exit status of a command means, at the end of its --help and on its manual page.
_EXITS = ("Exit status: 0 if it has done its work, 1 if {failure}, 2 for a mistake on the command line, "
          "130 after Ctrl-C.")
_FAILURES = {
    "health": "the daemon does not serve, or there is none",
    "doctor": "a check has failed",
    "drain": "it has failed or was refused, or a session stays at this daemon",
    "conformance": "a transcript has failed",
}


def command_parser() -> tuple[argparse.ArgumentParser, dict[str, Callable[[argparse.Namespace], int]]]:
    """Returns the parser of all commands except `serve` and `launch`, which read their own arguments; and
    the function that runs each command."""
    parser = argparse.ArgumentParser(prog="teletensor", description=__doc__)
    parser.add_argument("--version", action="version", version=f"teletensor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="runs teletensord with the flags that follow (serve --help)")
    commands.add_parser("launch", help="starts the processes of a world, as torchrun does (launch --help)")
    runs: dict[str, Callable[[argparse.Namespace], int]] = {"health": _health, "doctor": _doctor.doctor}
    for name, text in (("health", "does a daemon answer?"),
                       ("doctor", "checks all that a first value needs, in turn, and tells the cure")):
        _operate.with_address(commands.add_parser(name, help=text), table=name == "health")
    runs |= _operate.add_commands(commands)
    runs["run"] = _run.add_command(commands)
    runs["onnx"] = _run.add_onnx(commands)
    runs["convert"] = _convert_files.add_command(commands)
    runs["conformance"] = _conformance.add_command(commands)
    runs["cert"] = _certificates.add_command(commands)
    for name, each in commands.choices.items():
        _tell_exits(each, _FAILURES.get(name, "it has failed or was refused"))
    parser.epilog = _EXITS.format(failure="the command has failed or was refused")
    return parser, runs


def _tell_exits(parser: argparse.ArgumentParser, failure: str) -> None:
    """Puts the meaning of the exit status at the end of the help of a command and of its subcommands."""
    parser.epilog = _EXITS.format(failure=failure)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _tell_exits(each, failure)


def _command(arguments: list[str]) -> int:
    parser, runs = command_parser()
    args = parser.parse_args(arguments)
    try:
        return runs[args.command](args)
    except CallError as error:
        print(f"teletensor {args.command}: {_operate.explained(args.address, error)}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except (TeletensorError, OSError, ValueError) as error:
        print(f"teletensor {args.command}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def _flush() -> None:
    """Writes the buffered standard output. Raises OSError if that fails; the remaining output is then
    discarded."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:  # stdout is redirected, so that the interpreter's own flush at exit does not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        try:
            return _serve(arguments[1:])
        except (TeletensorError, OSError) as error:
            print(f"teletensor serve: {error}", file=sys.stderr)
            return 1
    if arguments[:1] == ["launch"]:
        from .distributed import run

        return run.main(arguments[1:], "teletensor launch")
    if isinstance(sys.stdout, io.TextIOWrapper):  # paths are bytes that may not be valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    status = 0
    try:
        try:
            status = _command(arguments)
        except SystemExit as end:  # raised by argparse for --help, --version and invalid arguments
            status = end.code if isinstance(end.code, int) else 0
        _flush()
    except BrokenPipeError:  # `teletensor top | head`: the reader has closed the pipe
        with contextlib.suppress(OSError):
            _flush()
        return 1
    except OSError as error:
        if status == 0:
            print(f"teletensor: standard output: {error}", file=sys.stderr)
        return status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
