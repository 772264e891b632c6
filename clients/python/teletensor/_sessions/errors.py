"""The exceptions of teletensor. All of them are subclasses of the exceptions that PyTorch raises.

    TeletensorError(RuntimeError)
      OutOfMemoryError(TeletensorError, MemoryError)   a memory limit of the session or machine is reached
      SessionLostError                                 the session was ended, or the connection was lost
      RefusedError                                     the daemon refused the client: version, limits, token
      InterruptedOpError                               a queued command was cancelled
      DeviceLostError                                  a GPU has failed; the tensors on it are lost
      RankLostError                                    a rank of a group has ended or did not arrive
    LinAlgError(RuntimeError)                          a matrix has no inverse or decomposition

Wrong shapes and dtypes raise RuntimeError, indices and dimensions out of range IndexError, and wrong Python
types TypeError, as in PyTorch.
"""

from __future__ import annotations

import re

from .. import _core

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
    """Base class of the errors that only a remote tensor library has."""


class OutOfMemoryError(TeletensorError, MemoryError):
    """An instruction was not run because it would exceed a memory limit; the session stays usable."""


class SessionLostError(TeletensorError):
    """The session is lost: the daemon has ended it, or the connection broke and could not be restored.

    `reason` is one word: "closed", "connection", "daemon", "damaged", "evicted", "expired", "killed",
    "lost", "protocol", "rollback", "slow", "taken" or "unknown". For "rollback", `commands` is a pair: the
    number of the last command that the restored session contains, and the number of the last command that
    this client knows to have run. `Session.accept_rollback` continues with the restored session.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        found = re.search(r"\[([a-z]+)\]$", text)
        self.reason = reason or (found.group(1) if found else "connection")
        numbers = re.search(r"command (\d+).*command (\d+) had run", text, re.DOTALL)
        self.commands = ((int(numbers.group(1)), int(numbers.group(2)))
                         if numbers and self.reason == "rollback" else None)


class RefusedError(TeletensorError):
    """The daemon does not accept this client; the message says why."""


class InterruptedOpError(TeletensorError):
    """An instruction was cancelled before it ran."""


class DeviceLostError(TeletensorError):
    """A GPU of the daemon has failed or hangs; the tensors that were on it are lost.

    The session stays usable: tensors on the host and on other devices are unchanged. The message names the
    device and the first failure.
    """


class RankLostError(TeletensorError):
    """A rank of the process group has ended, was interrupted, or did not take part within the group's
    timeout.

    The group cannot be used again: its later collectives raise this error too. The session and its tensors
    are unchanged. The message names the ranks.
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
