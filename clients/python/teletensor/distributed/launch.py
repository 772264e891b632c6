"""`python -m teletensor.distributed.launch`: as teletensor.distributed.run, and each process gets the
argument --local-rank=n, as with torch.distributed.launch, unless --use-env precedes the script."""

from __future__ import annotations

import sys

from . import run

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status, as `teletensor.distributed.run.main` does."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = [each for each in given[:1] if each in ("--use-env", "--use_env")]
    return run.main(given[len(own):], "python -m teletensor.distributed.launch", pass_local_rank=not own)


if __name__ == "__main__":
    sys.exit(main())
