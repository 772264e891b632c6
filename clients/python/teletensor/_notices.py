"""What becomes of a program's connections, told once each by the logger "teletensor".

Where a program sets up no logging, Python writes such lines to stderr.
`logging.getLogger("teletensor").setLevel(logging.ERROR)` silences them.
"""

from __future__ import annotations

import logging

__all__ = ["hint_at_reads", "over", "tell"]

log = logging.getLogger("teletensor")
_over = _hinted = False


def tell(text: str, *values: object) -> None:
    """A line for the person; nothing once the program ends, when Python's streams may be gone."""
    if not _over:
        log.warning("teletensor: " + text, *values)


def hint_at_reads(line: str) -> None:
    """Once a process: `line` reads values one by one."""
    global _hinted
    if not _hinted:
        _hinted = True
        tell("%s reads values one by one, and waits for the daemon each time; tensor.tolist() or .numpy() "
             "reads many at once, and values that are kept as tensors can be read later together", line)


def over() -> None:
    """The program ends."""
    global _over
    _over = True
