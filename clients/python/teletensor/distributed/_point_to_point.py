"""Sends and receives between two ranks.

The daemon keeps sent data until the other rank receives it, so a send never waits, and ranks that first
send to each other do not block each other. Lines after a receive that do not use the tensor run before it
arrives. An irecv begins with `wait()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core import Tensor
from .._script import capturing as _capturing
from ..autograd import no_grad
from ..futures import Future
from ._checks import check, member, write
from ._group import ProcessGroup, Work, get_global_rank, rank_of, site

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def _peer(what: str, rank: int | None, group_rank: int | None, group: ProcessGroup) -> int:
    name = "destination" if what == "dst" else "source"
    peer = rank_of(group, what, rank, group_rank)
    if peer == group.rank():
        raise ValueError(
            f"Invalid {name} rank: {name} rank should not be the same as the rank of the current process."
        )
    return peer


class _Receive:
    """A receive that was described by irecv."""

    def __init__(self, tensor: Tensor, peer: int, tag: int, group: ProcessGroup) -> None:
        self.tensor, self.peer, self.tag, self.group = tensor, peer, tag, group
        self.site = site()
        # after the receive has begun: a tensor with the number of the rank that sent
        self.source: Any = None

    def may_take(self, other: _Receive) -> bool:
        """Returns whether a sent tensor may match both receives."""
        return self.tag == other.tag and (self.peer == other.peer or -1 in (self.peer, other.peer))

    def begin(self) -> None:
        """Receives, after earlier receives that may match the same tensor."""
        if self.source is not None:
            return
        posted = self.group._posted
        if self in posted:
            for earlier in posted[: posted.index(self)]:
                if earlier in posted and earlier.may_take(self):
                    earlier.begin()
            posted.remove(self)
        with no_grad():
            like = self.tensor.detach().cpu()
            data, self.source = self.group.issue("receive_from", like, self.peer, self.tag, line=self.site)
            write(self.tensor, data.to(self.tensor.device), ("tensor", "what was sent"))

    def rank(self) -> int:
        """The rank in the world that has sent the tensor."""
        peer = self.peer if self.peer != -1 else int(self.source.item())
        return get_global_rank(self.group, peer)


class _Received(Work):
    """The result of irecv."""

    def __init__(self, receive: _Receive) -> None:
        super().__init__([receive.tensor])
        self._receive = receive

    def get_future(self) -> Future[list[Any]]:
        """As Work.get_future(), but begins the receive, as wait() does."""
        self.wait()
        return super().get_future()

    def wait(self, timeout: Any = None) -> bool:
        """Begins the receive and returns True: later lines see the tensor."""
        self._receive.begin()
        return True

    def is_completed(self) -> bool:
        """Begins the receive, as wait() does, and returns True."""
        return self.wait()

    def source_rank(self) -> int:
        """Waits for the tensor; returns the rank in the world that has sent it."""
        self.wait()
        return self._receive.rank()


def send(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Sends the present value of the tensor to rank dst, which receives it by recv or irecv with the same
    tag."""
    check(tensor, "tensor")
    if (own := member(group)) is None:
        return
    check(tensor, "tensor", own)
    peer = _peer("dst", dst, group_dst, own)
    own._sent = True
    if _capturing.current is not None:
        _capturing.on_call(lambda: setattr(own, "_sent", True))
    with no_grad():
        own.issue("send_to", tensor.detach().cpu(), peer, tag)


def isend(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """As send()."""
    if member(group) is None:
        return None
    send(tensor, dst, group, tag, group_dst)
    return Work([tensor])


def _described(
    tensor: Tensor, src: int | None, group: ProcessGroup, tag: int, group_src: int | None
) -> _Receive:
    check(tensor, "tensor", group)
    anybody = src is None and group_src is None
    if anybody and group.size() == 1:
        raise ValueError("a group of one process has no other rank to receive from")
    return _Receive(tensor, -1 if anybody else _peer("src", src, group_src, group), tag, group)


def recv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Writes the tensor that rank src (or any rank, if it is not given) sends with this tag into `tensor`,
    which must have the same dtype and shape. Returns the rank in the world that has sent it; -1 outside of
    the group."""
    check(tensor, "tensor")
    if (own := member(group)) is None:
        return -1
    receive = _described(tensor, src, own, tag, group_src)
    if _capturing.current is not None:
        if own._posted:
            _capturing.refuse("receive while a receive of irecv has not begun: call its wait() before")
        _capturing.holds(("posted", own), lambda: bool(own._posted))
    own._posted.append(receive)
    receive.begin()
    return receive.rank()


def irecv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """As recv(), but the receive begins with wait() of the result."""
    check(tensor, "tensor")
    if (own := member(group)) is None:
        return None
    _capturing.refuse("call irecv, whose receive begins later: call recv")
    receive = _described(tensor, src, own, tag, group_src)
    own._posted.append(receive)
    return _Received(receive)


class P2POp:
    """A send or receive for batch_isend_irecv: `op` is isend or irecv."""

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        check(tensor, "tensor")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group
        self.tag, self.group_peer = tag, group_peer


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Any]:
    """Begins all operations, and returns a Work for each."""
    if not p2p_op_list or not all(isinstance(each, P2POp) for each in p2p_op_list):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``."
        )
    return [each.op(each.tensor, each.peer, each.group, each.tag, each.group_peer) for each in p2p_op_list]
