"""The common parts of the calls of c10d's ProcessGroup: checks, and access to the member of the daemon's
group."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from .. import _core
from ._torch_data import is_on_device, split, write
from ._torch_member import Member
from ._torch_work import Work

__all__ = ["Caller", "caller_line", "one", "refuse_trace", "spread"]

_FRAMEWORKS = ("torch", __name__.partition(".")[0])


def caller_line() -> str:
    """The source line of the program that calls torch.distributed, for error messages on other ranks."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _FRAMEWORKS:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def refuse_trace(what: str) -> None:
    """RuntimeError if the device "tt" traces a step, of which `what` cannot be a part."""
    if _core.tracing(_core.torch_session()):
        raise RuntimeError(
            f"{what} cannot be a part of a step of teletensor.torch.capture or torch.compile: call it "
            "before"
        )


def _own_timeout(options: Any) -> float | None:
    """The timeout in seconds of this call; None if it has none of its own."""
    timeout = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


def one(tensors: Any, name: str) -> Any:
    if not isinstance(tensors, (list, tuple)) or len(tensors) != 1:
        raise ValueError(f"{name}: a list with one element for this process is expected")
    return tensors[0]


def spread(array: Any, tensors: Sequence[Any]) -> None:
    for tensor, part in zip(tensors, split(array, tensors), strict=True):
        write(tensor, part)


class Caller:
    """Base class of the calls. Each call returns a Work, whose `wait()` raises the call's error.

    Calls with CPU tensors run in order on another thread, so the program must not use the tensors until it
    has waited. Calls with tensors of the device "tt" are instructions of the device's session."""

    def name(self) -> str:
        """Returns "teletensor"."""
        return "teletensor"

    def _begin(
        self, size: int, rank: int, timeout: float, member: Member | None, join: Callable[[], Member]
    ) -> None:
        """`member` is for CPU tensors; None if the group does not take them. `join` returns the member for
        tensors of the device "tt", and is called when there are such tensors."""
        self._member, self._join, self._left = member, join, False
        self._on_device: Member | None = None
        self._size, self._rank, self._timeout, self._pid = size, rank, timeout, os.getpid()
        self._posting = threading.Lock()
        self._posted: list[tuple[int, int, Work]] = []  # receives that have not begun: source, tag

    def _start(
        self, name: str, given: list[Any], result: list[Any], opts: Any, call: Callable[[Member], None]
    ) -> Work:
        limit, member = _own_timeout(opts), self._joined(name, [*given, *result])
        limit = limit if limit is not None and limit < self._timeout else None
        work = Work(f"{self.name()}:{name}", given, result, limit)
        member.put(work, lambda: call(member))
        return work

    def _joined(self, name: str, tensors: Sequence[Any]) -> Member:
        """The member for the device of these tensors, or for CPU tensors if there are none."""
        if self._left:
            raise RuntimeError(f"{name}: the process group has been destroyed")
        if self._pid != os.getpid():
            raise RuntimeError(f"{name}: the process group was made before this process was forked")
        if not tensors or not is_on_device(tensors[0]):
            assert self._member is not None
            return self._member
        if self._on_device is None:
            refuse_trace(f"{name}: the first call of a group with tensors of the device tt")
            self._on_device = self._join()
        return self._on_device

    def _leave(self, drop: bool) -> None:
        """Leaves the daemon's groups: at once with `drop`."""
        self._left = True
        for member in (self._on_device, self._member):
            if member is not None:
                member.end(drop)
        self._on_device = self._member = None

    def _root(self, opts: Any) -> int:
        root = int(opts.rootRank)
        if not 0 <= root < self._size:
            raise ValueError(f"rank {root} is not in a group of {self._size}")
        return root

    def _reached(self, name: str, peer: int, tensors: Sequence[Any]) -> Member:
        """The member of the daemon's group, after checking that it can transfer data to and from that rank
        (-1: any rank)."""
        if self._size == 1 or peer == self._rank or not -1 <= peer < self._size:
            raise ValueError(
                f"{name}: rank {peer} is no other rank of a group of {self._size}, in which this process "
                f"is rank {self._rank}"
            )
        return self._joined(name, tensors)

    def _listed(self, tensors: Any) -> list[Any]:
        if len(tensors) != self._size:
            raise ValueError(
                f"a list of {self._size} elements, one for each rank, is expected, not of {len(tensors)}"
            )
        return list(tensors)

    def _rows(self, name: str, whole: Any, part: Any) -> Sequence[Any]:
        """The parts for each rank, which share the memory of the whole tensor."""
        if whole.dtype != part.dtype or whole.numel() != part.numel() * self._size:
            raise ValueError(
                f"{name} of {whole.numel()} {whole.dtype} is not {self._size} times as large as the other "
                f"tensor, of {part.numel()} {part.dtype}"
            )
        if whole.is_contiguous():
            return list(whole.detach().view(self._size, part.numel()).unbind(0))
        if whole.dim() and whole.shape[0] % self._size == 0:
            return list(whole.detach().chunk(self._size))
        raise ValueError(f"{name} of {tuple(whole.shape)} has no equal parts along dimension 0")
