"""What becomes of a program's connections, told once each by the logger "teletensor".

Where a program sets up no logging, Python writes such lines to stderr.
`logging.getLogger("teletensor").setLevel(logging.ERROR)` silences them.
"""

from __future__ import annotations

import logging

__all__ = ["over", "tell"]

log = logging.getLogger("teletensor")
_over = False


def tell(text: str, *values: object) -> None:
    """A line for the person; nothing once the program ends, when Python's streams may be gone."""
    if not _over:
        log.warning("teletensor: " + text, *values)


def over() -> None:
    """The program ends."""
    global _over
    _over = True
