"""`x.to(mesh[1])`: moves a tensor from one session to another, from daemon to daemon, with its gradient.

In the second session the result is the output of a node whose backward sends the gradient to the first
session. `autograd._elsewhere` continues the backward there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core import Tensor, ops
from ..._sessions.session import owner_of
from ...autograd import is_grad_enabled
from ...autograd._elsewhere import Passage
from ...autograd.function import Function
from .._group import ProcessGroup

if TYPE_CHECKING:
    from ._rank import Rank

__all__ = ["moved", "upload"]

_TAG = (1 << 31) - 1  # the tag of transfers, which differs from those of the program's own sends


def moved(x: Tensor, rank: Rank) -> Tensor:
    """Returns the tensor on that rank; the tensor itself if it is already there. ValueError for a tensor
    that requires grad and whose session is not in the mesh."""
    session = owner_of(x._session)
    if session is rank.session:
        return x if x.device == rank.device else ops["to_device"](x, rank.device)
    source = next((each for each in rank.mesh if each.session is session), None)
    if source is None:
        if x.requires_grad and is_grad_enabled():
            raise ValueError(
                f"to({rank!r}): the tensor requires grad and is of {session!r}, which is no rank of the "
                "mesh: "
                "detach() it, or make it on a rank"
            )
        return upload(x, rank)
    if x.requires_grad and is_grad_enabled():
        with rank.as_current():
            door = ops["full"](0.0, [], x.dtype, rank.device).requires_grad_()
        result: Tensor = _Move.apply(source, rank, _Origin(x), door)
        return result
    return _sent(x, source, rank)


def upload(x: Tensor, rank: Rank) -> Tensor:
    """Sends a tensor of any session to the rank through this program."""
    from ..._tensors.convert import tensor

    values = x.detach().numpy()
    with rank.as_current():
        return tensor(values, dtype=x.dtype, device=rank.device)


def _sent(x: Tensor, source: Rank, target: Rank) -> Tensor:
    """Returns the tensor on the target rank, without history."""
    here, there = _world(source), _world(target)
    x = x.detach()
    here._sent = True
    with source.session.as_current():
        here.issue("send_to", x.cpu(), there.rank(), _TAG)
    with target.session.as_current():
        like = ops["full"](0, list(x.shape), x.dtype, "cpu")
        data, _ = there.issue("receive_from", like, here.rank(), _TAG)
        return ops["to_device"](data, target.device) if target.device.type != "cpu" else data


def _world(rank: Rank) -> ProcessGroup:
    world: ProcessGroup = rank.session._world
    return world


class _Origin:
    """Holds the tensor that was moved, which belongs to another session than the node."""

    def __init__(self, x: Tensor) -> None:
        self.tensor = x


class _Move(Function):
    @staticmethod
    def forward(ctx: Any, source: Rank, target: Rank, origin: _Origin, door: Tensor) -> Tensor:
        ctx.source, ctx.target = source, target
        ctx.passage = Passage(origin.tensor, target.session._core)
        return _sent(origin.tensor, source, target)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.passage.reached(moved(gradient, ctx.source))
        return None, None, None, None
