"""The exceptions of teletensor. All of them subclass what PyTorch would raise.

    TeletensorError(RuntimeError)
      OutOfMemoryError(TeletensorError, MemoryError)   the session's or the box's memory is used up
      SessionLostError                                 the daemon or the connection has gone
      RefusedError                                     Hello was refused: version, limits, token
      InterruptedOpError                               queued work was interrupted
      DeviceLostError                                  a GPU has failed; what lay on it is gone
      RankLostError                                    a rank of a group has gone, or does not come
    LinAlgError(RuntimeError)                          a matrix has no such inverse or factors

Wrong shapes and dtypes are RuntimeError, indices and dims out of range IndexError, wrong Python types
TypeError, as in PyTorch.
"""

from __future__ import annotations

import re

from . import _core

__all__ = [
    "DeviceLostError",
    "InterruptedOpError",
    "LinAlgError",
    "OutOfMemoryError",
    "RankLostError",
    "RefusedError",
    "SessionLostError",
    "TeletensorError",
]


class TeletensorError(RuntimeError):
    """Base of the errors that only a remote tensor library has."""


class OutOfMemoryError(TeletensorError, MemoryError):
    """An instruction did not happen because a budget has no room; the session stays usable."""


class SessionLostError(TeletensorError):
    """The session is over: the daemon has ended it, or the connection was cut and nothing came back.

    `reason` is one word: "closed", "connection", "daemon", "damaged", "evicted", "expired", "killed",
    "lost", "protocol", "rollback", "slow", "taken", "unknown". Where it is "rollback", `commands` has the
    number of the last command that the daemon has, and of the last that this client knows to have run;
    `Session.accept_rollback` goes on from there.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        found = re.search(r"\[([a-z]+)\]$", text)
        self.reason = reason or (found.group(1) if found else "connection")
        numbers = re.search(r"command (\d+).*command (\d+) had run", text, re.DOTALL)
        self.commands = ((int(numbers.group(1)), int(numbers.group(2)))
                         if numbers and self.reason == "rollback" else None)


class RefusedError(TeletensorError):
    """The daemon does not accept this client; the text says why."""


class InterruptedOpError(TeletensorError):
    """An instruction was cancelled before it ran."""


class DeviceLostError(TeletensorError):
    """A GPU of the daemon has failed, or stands still: what lay on it is gone.

    The session goes on: tensors on the host, and on other devices, are as they were. The text names the
    device and what happened first.
    """


class RankLostError(TeletensorError):
    """A rank of the group has ended, was interrupted, or has not come within the group's timeout.

    The group is over: its later collectives raise this error too. The session and its tensors are as they
    were. The text names the ranks.
    """


class LinAlgError(RuntimeError):
    """A matrix is singular or not positive-definite, or an algorithm did not converge on it."""


_core.set_error_types(
    {
        1: InterruptedOpError,
        2: DeviceLostError,
        4: RankLostError,
        8: OutOfMemoryError,
        9: RuntimeError,
        10: LinAlgError,
        11: IndexError,
        12: NotImplementedError,
        14: SessionLostError,
    }
)
