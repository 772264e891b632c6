"""The command `teletensor`: serve | health | sessions | memory | doctor | --version."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from typing import Any

import grpc

from . import __version__, _core
from ._errors import RefusedError, SessionLostError, TeletensorError
from ._protowire import Message, decode
from ._session import connect, find_daemon, memory_of, runtime_dir
from ._transport import Transport

__all__ = ["main"]


def _address(given: str | None) -> str:
    """The daemon that people mean: --address, TELETENSOR_ADDRESS, this user's socket."""
    return given or os.environ.get("TELETENSOR_ADDRESS") or f"unix:{runtime_dir()}/teletensor.sock"


def _ask(address: str, service: str, method: str) -> Message:
    transport = Transport(address, connect_timeout=3.0)
    try:
        return decode(transport.unary(service, method, b"", wait=False))
    finally:
        transport.close()


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _serve(arguments: list[str]) -> int:
    binary = find_daemon()
    os.execv(binary, [binary, *arguments])


def _health(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    reply = _ask(_address(args.address), "Compute", "Describe")
    ms = (time.perf_counter() - begin) * 1000
    print(f"ok: teletensord {reply.text(1)}, up {reply.integer(5)} s, {reply.integer(9)} of "
          f"{reply.integer(10)} sessions, answered in {ms:.1f} ms")
    return 0


def _sessions(args: argparse.Namespace) -> int:
    reply = _ask(_address(args.address), "Admin", "Sessions")
    found: list[dict[str, Any]] = [
        {"name": s.text(1), "age_seconds": round(s.real(2), 1), "handles": s.integer(3),
         "queued": s.integer(4), "completed_upto": s.integer(5), "attached": bool(s.integer(7)),
         "client_version": s.text(8), "memory": [memory_of(m) for m in s.messages(6)]}
        for s in reply.messages(1)
    ]
    if args.json:
        print(json.dumps(found))
        return 0
    rows: list[tuple[str, ...]] = [("SESSION", "AGE", "HANDLES", "QUEUED", "USED", "PEAK", "CLIENT")]
    for s in found:
        used = sum(m["used"] for m in s["memory"])
        peak = sum(m["peak"] for m in s["memory"])
        rows.append((s["name"], f"{s['age_seconds']:.0f} s", str(s["handles"]), str(s["queued"]),
                     _bytes(used), _bytes(peak), s["client_version"]))
    _table(rows)
    return 0


def _memory(args: argparse.Namespace) -> int:
    reply = _ask(_address(args.address), "Admin", "Memory")
    found = [memory_of(m) for m in reply.messages(1)]
    if args.json:
        print(json.dumps(found))
        return 0
    rows: list[tuple[str, ...]] = [("DEVICE", "USED", "PEAK", "TOTAL")]
    rows += [(m["device"], _bytes(m["used"]), _bytes(m["peak"]), _bytes(m["device_total"]))
             for m in found]
    _table(rows)
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
        except (TeletensorError, RuntimeError, OSError, grpc.RpcError) as error:
            text = error.details() if isinstance(error, grpc.RpcError) else str(error)
            print(f"FAIL  {what}: {text}")
            bad += 1
            return None

    check("client", lambda: f"{__version__}, Python {platform.python_version()}, "
                            f"grpcio {grpc.__version__}, {len(_core.op_table())} ops")
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


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    parser = argparse.ArgumentParser(prog="teletensor", description=__doc__)
    parser.add_argument("--version", action="version", version=f"teletensor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="runs teletensord with the flags that follow (serve --help)")
    for name, text in (("health", "does a daemon answer?"), ("sessions", "who is on it"),
                       ("memory", "what they hold, by device"),
                       ("doctor", "checks client, binary, daemon and a computation")):
        each = commands.add_parser(name, help=text)
        each.add_argument("--address", help="host:port, unix:/path or a path "
                          "[TELETENSOR_ADDRESS, else this user's socket]")
        if name in ("sessions", "memory"):
            each.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args(arguments)
    run = {"health": _health, "sessions": _sessions, "memory": _memory, "doctor": _doctor}
    try:
        return run[args.command](args)
    except grpc.RpcError as error:
        print(f"teletensor {args.command}: no teletensord answers at {_address(args.address)}: "
              f"{error.details()}", file=sys.stderr)
    except (SessionLostError, RefusedError, TeletensorError) as error:
        print(f"teletensor {args.command}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
