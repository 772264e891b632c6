"""Log messages about a program's connections, each of which is written once, by the logger "teletensor".

If a program does not configure logging, Python writes such messages to stderr.
`logging.getLogger("teletensor").setLevel(logging.ERROR)` silences them.
"""

from __future__ import annotations

import logging

__all__ = ["hint_at_reads", "over", "tell"]

log = logging.getLogger("teletensor")
_over = _hinted = False


def tell(text: str, *values: object) -> None:
    """Logs a message for the user, unless the program is ending, when Python's streams may be closed
    already."""
    if not _over:
        log.warning("teletensor: " + text, *values)


def hint_at_reads(line: str) -> None:
    """Logs, once per process, that the source line `line` reads values one by one."""
    global _hinted
    if not _hinted:
        _hinted = True
        tell("%s reads values one by one, and waits for the daemon each time; tensor.tolist() or .numpy() "
             "reads many at once, and values that are kept as tensors can be read later together", line)


def over() -> None:
    """Suppresses all messages from now on, because the program is ending."""
    global _over
    _over = True
