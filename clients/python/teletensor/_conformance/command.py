"""The command `teletensor conformance`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

from .._connection.credentials import credentials_of
from .transcript import FOLDER

__all__ = ["add_command", "names", "play_all"]


def names() -> list[str]:
    """The names of all transcripts."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def play_all(address: str, chosen: Iterable[str] = (), bearer: str | None = None,
             patience: float = 240) -> Iterator[tuple[str, str | None]]:
    """Plays the chosen transcripts, or all of them.

    Yields the name of each transcript, and how the daemon differed from it, or None.
    """
    from .runner import Mismatch, Player  # here, because it imports grpc

    for name in chosen or names():
        difference = None
        try:
            player = Player(address, bearer, patience)
            try:
                player.play(FOLDER / f"{name}.txt")
            finally:
                player.close()
        except Mismatch as mismatch:
            difference = str(mismatch)
        yield name, difference


def _name(text: str) -> str:
    if text not in names():
        raise argparse.ArgumentTypeError(f"no transcript {text!r}; there are: {', '.join(names())}")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value


def add_command(commands: Any) -> Any:
    """Adds the parser of `conformance`; returns the function that runs the command."""
    parser = commands.add_parser(
        "conformance", help="compares a daemon's answers with transcripts of the wire protocol")
    parser.add_argument("address", metavar="ADDRESS",
                        help="host:port, tls://host:port, unix:/path or a path")
    parser.add_argument("names", metavar="NAME", nargs="*", type=_name, help="transcripts (default: all)")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=60.0,
                        help="how long one call may take [60]")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return _conformance


def _conformance(args: argparse.Namespace) -> int:
    credentials_of(args.address)  # raises ValueError if this is not an address
    found = []
    for name, difference in play_all(args.address, args.names, patience=args.timeout):
        found.append({"transcript": name, "passed": difference is None, "difference": difference})
        if not args.json:
            print(f"failed  {name}\n  {difference}" if difference else f"passed  {name}", flush=True)
    failed = sum(not each["passed"] for each in found)
    print(json.dumps(found) if args.json else f"{len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0
