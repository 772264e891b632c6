"""The command `teletensor conformance`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .._connection.credentials import credentials_of
from .transcript import FOLDER, steps

__all__ = ["add_command", "names", "play_all", "playable", "serve_all"]


def names() -> list[str]:
    """The names of all transcripts."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def playable(name: str) -> bool:
    """Whether a transcript can be played without an operator, who restarts the daemon, for example."""
    return all(step.word != "operator" for step in steps(FOLDER / f"{name}.txt"))


def play_all(address: str, chosen: Iterable[str] = (), bearer: str | None = None,
             patience: float = 240,
             operator: Callable[[list[str]], str] | None = None) -> Iterator[tuple[str, str | None]]:
    """Plays the chosen transcripts, or all that need no operator of the daemon (Player).

    Yields the name of each transcript, and how the daemon differed from it, or None.
    """
    from .runner import Mismatch, Player  # here, because it imports grpc

    for name in chosen or filter(playable, names()):
        difference = None
        try:
            player = Player(address, bearer, patience, operator)
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
    parser.add_argument("names", metavar="NAME", nargs="*", type=_name,
                        help="transcripts (default: all; those named operator_* only with --serve, because "
                             "they need an operator of the daemon)")
    parser.add_argument("--serve", action="store_true",
                        help="answer clients at ADDRESS instead, one transcript after the other, and "
                             "compare what they send; port 0 takes a free one")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=60.0,
                        help="how long one call may take, or a client between two messages [60]")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return _conformance


def serve_all(address: str, chosen: Iterable[str] = (), patience: float = 60,
              listening: Callable[[str], None] = lambda _: None) -> Iterator[tuple[str, str | None]]:
    """Answers a client with the chosen transcripts, or with all of them, in this order.

    Yields the name of each transcript, and how the client differed from it, or None. `listening` is called
    with the address, whose port 0 is replaced, when the first client may connect.
    """
    from .fake import FakeDaemon  # here, because it imports grpc

    daemon = FakeDaemon(address, min(patience, 10))
    try:
        for name in chosen or names():
            script = daemon.begin(FOLDER / f"{name}.txt")
            listening(daemon.address)
            listening = lambda _: None  # noqa: E731
            yield name, daemon.wait(script, patience) or None
    finally:
        daemon.close()


def _conformance(args: argparse.Namespace) -> int:
    free = args.serve and args.address.endswith(":0")  # which is no address of a client
    credentials_of(f"{args.address[:-1]}1" if free else args.address)  # raises ValueError if it is none
    if args.serve:
        if args.address.startswith("tls://"):
            raise ValueError("--serve has no TLS: give host:port or unix:/path")
        played = serve_all(args.address, args.names, args.timeout,
                           lambda address: print(f"listening on {address}", file=sys.stderr, flush=True))
    elif needing := [name for name in args.names if not playable(name)]:
        print(f"teletensor conformance: {needing[0]} needs an operator of the daemon: use --serve",
              file=sys.stderr)
        return 2
    else:
        played = play_all(args.address, args.names, patience=args.timeout)
    found = []
    for name, difference in played:
        found.append({"transcript": name, "passed": difference is None, "difference": difference})
        if not args.json:
            print(f"failed  {name}\n  {difference}" if difference else f"passed  {name}", flush=True)
    failed = sum(not each["passed"] for each in found)
    print(json.dumps(found) if args.json else f"{len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0
