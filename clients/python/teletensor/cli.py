"""The command `teletensor`: serve | run | convert | health | sessions | memory | top | slowlog | kill |
snapshot | drain | token | bench | doctor | --version."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

from . import __version__, _convert_files, _core, _operate, _run
from ._daemon import find_daemon, runtime_dir
from ._errors import TeletensorError
from ._protowire import decode
from ._session import connect
from ._transport import CallError

__all__ = ["main"]


def _serve(arguments: list[str]) -> int:
    binary = find_daemon()
    os.execv(binary, [binary, *arguments])


def _health(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    with _operate.transport(args) as transport:
        reply = decode(transport.unary("Compute", "Describe", b"", wait=False))
    ms = (time.perf_counter() - begin) * 1000
    print(f"ok: teletensord {reply.text(1)}, up {reply.integer(5)} s, {reply.integer(9)} of "
          f"{reply.integer(10)} sessions, answered in {ms:.1f} ms")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    """Each thing that has to be right, one line each; exit 1 if one is not."""
    bad = 0

    def check(what: str, action: Any) -> Any:
        nonlocal bad
        try:
            value = action()
            print(f"ok    {what}: {value}")
            return value
        except (TeletensorError, RuntimeError, OSError) as error:
            print(f"FAIL  {what}: {error}")
            bad += 1
            return None

    check("client", lambda: f"{__version__}, Python {platform.python_version()}, "
                            f"{len(_core.op_table())} ops")

    def transport() -> str:
        from ._native import wire

        try:
            wire()
            return "native"
        except CallError as error:
            return f"grpcio ({error})"

    check("transport", transport)
    check("teletensord binary", find_daemon)
    check("runtime folder", runtime_dir)

    def round_trip() -> str:
        from . import _functions

        with connect(args.address) as session, session:
            begin = time.perf_counter()
            value = _functions.ones(64, 64).sum().item()
            if value != 4096.0:
                raise TeletensorError(f"a sum of 4096 ones is {value}")
            ms = (time.perf_counter() - begin) * 1000
            return (f"{session.address}, teletensord {session.server_version}, devices "
                    f"{', '.join(session.devices)}, a sum computed and read in {ms:.1f} ms")

    check("daemon", round_trip)
    return 1 if bad else 0


def _command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="teletensor", description=__doc__)
    parser.add_argument("--version", action="version", version=f"teletensor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="runs teletensord with the flags that follow (serve --help)")
    runs: dict[str, Callable[[argparse.Namespace], int]] = {"health": _health, "doctor": _doctor}
    for name, text in (("health", "does a daemon answer?"),
                       ("doctor", "checks client, binary, daemon and a computation")):
        _operate.with_address(commands.add_parser(name, help=text))
    runs |= _operate.add_commands(commands)
    runs["run"] = _run.add_command(commands)
    runs["convert"] = _convert_files.add_command(commands)
    args = parser.parse_args(arguments)
    try:
        return runs[args.command](args)
    except CallError as error:
        where = _operate.address_of(args.address)
        prefix = f"no teletensord answers at {where}: " if error.unreachable else ""
        print(f"teletensor {args.command}: {prefix}{error}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except (TeletensorError, OSError, ValueError) as error:
        print(f"teletensor {args.command}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def _flush() -> None:
    """Writes what standard output still holds. OSError: it cannot take that, and gets nothing more."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter's own attempt, at its end, goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    if isinstance(sys.stdout, io.TextIOWrapper):  # paths are bytes that may be no text
        sys.stdout.reconfigure(errors="backslashreplace")
    status = 0
    try:
        try:
            status = _command(arguments)
        except SystemExit as end:  # argparse: --help, --version, a wrong use
            status = end.code if isinstance(end.code, int) else 0
        _flush()
    except BrokenPipeError:  # `teletensor top | head`: nothing reads on
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
