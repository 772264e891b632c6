"""A process of a c10d group as a member of groups of the daemon.

`Member` is for CPU tensors, and joins two groups: one for collectives and one for transfers. Each group for
collectives has a session of its own, so that groups do not wait for each other. The
transfers of all groups use two sessions of the process: one that sends, and one that receives and waits. In
the daemon's group for the transfers of n processes, rank r sends, and rank n + r receives for the same
process. So a send does not wait for a receive, and neither waits for a collective.

`StreamMember` is for tensors of the device "tt", and joins one group in the session of the device. Its
calls are instructions of that session, which later lines of the program follow.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .._sessions.session import beside, owner_of
from .._tensors.arrays import DTYPES
from .._tensors.convert import _download, _send
from ..autograd import no_grad
from ..distributed._group import ProcessGroup
from ._torch_data import Elements
from ._torch_work import Lane, Work

__all__ = ["Alone", "Member", "StreamMember"]

_CPU = _core.device("cpu")


class _Transfers:
    """The two sessions of this process for transfers, which exist while a group uses them."""

    def __init__(self) -> None:
        self.pid, self.users = os.getpid(), 0
        self.sends = Lane(beside())
        try:
            self.receives = Lane(beside())
        except BaseException:
            self.sends.drop()
            raise


_transfers: _Transfers | None = None
_lock = threading.Lock()


def _acquired() -> _Transfers:
    global _transfers
    with _lock:
        if _transfers is None or _transfers.pid != os.getpid():
            _transfers = _Transfers()
        _transfers.users += 1
        return _transfers


def _released(used: _Transfers, drop: bool) -> None:
    global _transfers
    with _lock:
        used.users -= 1
        if used.users or used is not _transfers:
            return
        _transfers = None
    for lane in (used.sends, used.receives):
        lane.drop() if drop else lane.close()


class Member:
    """Joins the daemon's groups of this name, and waits for the other processes. RankLostError
    (RuntimeError) if a process does not arrive within `timeout` seconds."""

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None:
        self.size, self.rank, self.pid, self._ended = size, rank, os.getpid(), False
        self._receives: set[Work] = set()  # receives that have begun and not ended
        with contextlib.ExitStack() as undo:
            self._lane = Lane(beside())
            undo.callback(self._lane.drop)
            self._transfers = _acquired()
            undo.callback(_released, self._transfers, drop=True)
            sends, receives = self._transfers.sends.session, self._transfers.receives.session
            self._group = ProcessGroup(name, "teletensor", range(size), rank, timeout, self._lane.session)
            name, both = f"{name} transfers", range(2 * size)
            self._sender = ProcessGroup(name, "teletensor", both, rank, timeout, sends)
            undo.callback(self._sender._leave)
            self._receiver = ProcessGroup(name, "teletensor", both, size + rank, timeout, receives)
            undo.callback(self._receiver._leave)
            met = Work("init_process_group")
            self.put(met, lambda: self.meet("init_process_group"))
            met.wait()
            undo.pop_all()

    def put(self, work: Work, call: Callable[[], None]) -> None:
        """Runs a call of one of the functions below after all earlier calls, and then ends the work."""
        self._lane.put(work, call)

    def run(self, op: str, data: Elements, *attributes: Any, shape: tuple[int, ...] = (-1,)) -> Any:
        """The elements of the op's result. `attributes` are those after the group; the operand is reshaped
        to `shape`."""
        operand = _send(self._lane.session, data.array.reshape(shape), _CPU, getattr(_core, data.dtype))
        return self._elements(ops[op](operand, self._group._number, *attributes), data.dtype)

    def broadcast(self, data: Elements, root: int, site: str) -> Any:
        """Returns the root's elements; on the root returns None when they have been sent."""
        if self.rank == root:
            operand = _send(self._lane.session, data.array, _CPU, getattr(_core, data.dtype))
        else:
            operand = self._group._zero.new_empty((data.array.size,), dtype=getattr(_core, data.dtype))
        result = ops["broadcast_from"](operand, self._group._number, root, site)
        return self._seen(result, data.dtype, self.rank != root)

    def reduce_to(self, data: Elements, root: int, site: str) -> Any:
        """Returns the sum on the root; on other ranks returns None when the operation is done."""
        operand = _send(self._lane.session, data.array, _CPU, getattr(_core, data.dtype))
        result = ops["reduce_to"](operand, self._group._number, root, site)
        return self._seen(result, data.dtype, self.rank == root)

    def _seen(self, result: Tensor, dtype: str, wanted: bool) -> np.ndarray[Any, Any] | None:
        if wanted:
            return self._elements(result, dtype)
        self._elements(result[:1], dtype)  # raises an error of the call here
        return None

    def _elements(self, result: Tensor, dtype: str) -> np.ndarray[Any, Any]:
        return _download(result, DTYPES[dtype]).reshape(-1)

    def meet(self, site: str) -> None:
        """Waits for the other processes."""
        ops["all_reduce"](self._group._zero, self._group._number, False, site).item()

    def send(self, work: Work, data: Elements, to: int, tag: int, site: str) -> None:
        """Sends the elements; the work ends when the daemon has them, which it keeps for the receiver."""
        lane, group = self._transfers.sends, self._sender

        def call() -> None:
            group._sent = True
            operand = _send(lane.session, data.array, _CPU, getattr(_core, data.dtype))
            sent = ops["send_to"](operand, group._number, self.size + to, tag, site)
            self._elements(sent, data.dtype)

        lane.put(work, call)

    def receive(self, work: Work, dtype: str, count: int, source: int, tag: int, site: str,
                take: Callable[[Any], None]) -> None:
        """Passes the elements that `source` (-1: any process) sends with that tag to `take`, on another
        thread."""
        group = self._receiver

        def call() -> None:
            if self._ended:
                raise RuntimeError("recv: the process group has been destroyed")
            try:
                like = group._zero.new_empty((count,), dtype=getattr(_core, dtype))
                data, sender = ops["receive_from"](like, group._number, source, tag, site)
                take(self._elements(data, dtype))
                work.source = int(sender.item())
            finally:
                self._receives.discard(work)

        self._receives.add(work)
        self._transfers.receives.put(work, call)

    def end(self, drop: bool = False) -> None:
        """Leaves the groups when everything that this process has sent has been received, or at once with
        `drop`. Does nothing in a process that was forked from the one that has joined."""
        if self._ended or self.pid != os.getpid():
            return
        self._ended = True
        if drop or not self._lane.idle:
            self._lane.drop()
        else:
            self._lane.close()
        transfers = self._transfers
        self._sender._sent = self._sender._sent and not drop
        transfers.receives.interrupt(self._receives)
        for lane, group in ((transfers.sends, self._sender), (transfers.receives, self._receiver)):
            left = Work("destroy_process_group")
            lane.put(left, group._leave)
            with contextlib.suppress(RuntimeError):  # the session is lost
                if not drop:
                    left.wait()
        _released(transfers, drop)


class Alone(Member):
    """The member of a group with only one process, which needs no daemon."""

    def __init__(self) -> None:
        self.size, self.rank, self.pid = 1, 0, os.getpid()

    def put(self, work: Work, call: Callable[[], None]) -> None:
        """Runs the call."""
        error: Exception | None = None
        try:
            call()
        except Exception as raised:
            error = raised
        work.end(error)

    def run(self, op: str, data: Elements, *attributes: Any, shape: tuple[int, ...] = (-1,)) -> Any:
        """Returns the elements."""
        return data.array

    def broadcast(self, data: Elements, root: int, site: str) -> None:
        """Returns None."""

    def reduce_to(self, data: Elements, root: int, site: str) -> Any:
        """Returns the elements."""
        return data.array

    def meet(self, site: str) -> None:
        """Does nothing, because there are no other processes."""

    def end(self, drop: bool = False) -> None:
        """Does nothing, because there are no other processes."""


class StreamMember(Alone):
    """Joins the daemon's group of this name in the session of the device "tt", without waiting. Each call
    is issued at once. Its errors are raised when the program reads a value, with the line of the call."""

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None:
        self.size, self.rank, self.pid = size, rank, os.getpid()
        session = owner_of(_core.torch_session())
        self._group = ProcessGroup(name, "teletensor", range(size), rank, timeout, session)

    def put(self, work: Work, call: Callable[[], None]) -> None:
        """Issues the call in the session of the device."""
        session = self._group._session
        assert session is not None
        with session.as_current(), no_grad():
            super().put(work, call)

    def run(self, op: str, data: Elements, *attributes: Any, shape: tuple[int, ...] = (-1,)) -> Any:
        """The elements of the op's result. The last attribute is the source line."""
        *others, site = attributes
        operand = data.array.cpu().reshape(shape)
        return self._group.issue(op, operand, *others, line=site).reshape(-1)

    def broadcast(self, data: Elements, root: int, site: str) -> Any:
        """Returns the root's elements; None on the root."""
        result = self.run("broadcast_from", data, root, site)
        return None if self.rank == root else result

    def reduce_to(self, data: Elements, root: int, site: str) -> Any:
        """Returns the sum on the root; None on other ranks."""
        result = self.run("reduce_to", data, root, site)
        return result if self.rank == root else None

    def send(self, work: Work, data: Elements, to: int, tag: int, site: str) -> None:
        """Sends the elements, which the daemon keeps for the receiver."""
        def call() -> None:
            self._group._sent = True
            self._group.issue("send_to", data.array.cpu(), to, tag, line=site)

        self.put(work, call)

    def receive(self, work: Work, dtype: str, count: int, source: int, tag: int, site: str,
                take: Callable[[Any], None]) -> None:
        """Passes the elements that `source` (-1: any process) sends with that tag to `take`."""
        def call() -> None:
            like = self._group._zero.cpu().new_empty((count,), dtype=getattr(_core, dtype))
            data, work.source = self._group.issue("receive_from", like, source, tag, line=site)
            take(data)

        self.put(work, call)

    def end(self, drop: bool = False) -> None:
        """Leaves the group. Later commands of the session wait until everything that this process has sent
        has been received, except with `drop`. Does nothing in a process that was forked."""
        if self.pid != os.getpid() or self._group._left:
            return
        self._group._sent = self._group._sent and not drop
        with contextlib.suppress(RuntimeError):  # the session is lost
            self._group._leave()
