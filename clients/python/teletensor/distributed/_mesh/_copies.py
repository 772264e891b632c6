"""Copies of tensors, modules and optimizers on the ranks of a mesh."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._core import Tensor, ops
from ..._sessions.session import owner_of
from ..._tensors.tensor import Moving
from ...autograd import no_grad
from .._group import ProcessGroup
from ._per_rank import PerRank
from ._rank import Rank
from ._transfer import moved

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["copied", "replicated"]


def copied(value: Any, rank: Rank) -> Any:
    """Implements `Rank.copy`."""

    def move(x: Tensor) -> Tensor:
        there = moved(x, rank)
        return ops["clone"](there) if there is x else there

    with no_grad(), rank.as_current():
        return copy.deepcopy(value, Moving(move))


def replicated(mesh: Mesh, value: Any) -> PerRank:
    """Implements `Mesh.replicate` for one object: rank 0 has the object itself if all its tensors are
    there."""
    first = mesh[0]
    tensors: list[Tensor] = []
    elsewhere = False

    def find(x: Tensor) -> Tensor:
        nonlocal elsewhere
        elsewhere = elsewhere or owner_of(x._session) is not first.session or x.device != first.device
        tensors.append(moved(x.detach(), first))
        return tensors[-1]

    with no_grad():
        with first.as_current():
            on_first = copy.deepcopy(value, Moving(find))
            for each in tensors:
                _broadcast(each, first)
        ranks = [on_first if elsewhere else value]
        for rank in list(mesh)[1:]:
            with rank.as_current():
                ranks.append(copy.deepcopy(value, Moving(_receiver(tensors, rank))))
    return PerRank(mesh, ranks)


def _receiver(tensors: list[Tensor], rank: Rank) -> Callable[[Tensor], Tensor]:
    """A function that returns these tensors of rank 0 on the given rank one after the other, in the order
    in which a copy asks for its tensors."""
    rest = iter(tensors)
    return lambda _: _broadcast(next(rest), rank)


def _broadcast(x: Tensor, rank: Rank) -> Tensor:
    """Returns the tensor of rank 0 on the given rank."""
    world: ProcessGroup = rank.session._world
    if world.rank() == 0:
        if world.size() > 1:
            world.issue("broadcast_from", x.cpu(), 0)
        return x
    like = ops["full"](0, list(x.shape), x.dtype, "cpu")
    result: Tensor = world.issue("broadcast_from", like, 0)
    return ops["to_device"](result, rank.device) if rank.device.type != "cpu" else result
