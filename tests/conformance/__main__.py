"""python -m tests.conformance ADDRESS [NAME ...]: plays the transcripts against a daemon.

The status is 0 where every transcript went as written. $TELETENSOR_TOKEN is a token of a user.
"""

import os
import sys

from .runner import Mismatch, Player
from .transcript import FOLDER


def play_all(address, names=(), bearer=None):
    """(name, what was otherwise, or None) of each transcript, as it has been played."""
    for path in sorted(FOLDER.glob("*.txt")):
        if names and path.stem not in names:
            continue
        player = Player(address, bearer)
        try:
            player.play(path)
            mismatch = None
        except Mismatch as found:
            mismatch = found
        finally:
            player.close()
        yield path.stem, mismatch


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    failed = 0
    for name, mismatch in play_all(sys.argv[1], sys.argv[2:], os.environ.get("TELETENSOR_TOKEN")):
        print(f"FAILED  {name}\n  {mismatch}" if mismatch else f"ok      {name}", flush=True)
        failed += mismatch is not None
    print(f"{failed} failed" if failed else "all as written")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
