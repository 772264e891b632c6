"""The interface of torch.distributed._functional_collectives: collectives that return new tensors.
They have gradients, as in `distributed.nn.functional`; the names with `_autograd` are the same functions.

A group is a ProcessGroup, None for the world, a DeviceMesh of one dimension, or (DeviceMesh, dimension).
"""

from __future__ import annotations

from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._group import ProcessGroup, ReduceOp, found
from .device_mesh import DeviceMesh
from .nn import functional as _functional

__all__ = [
    "all_gather_tensor", "all_gather_tensor_autograd", "all_reduce", "all_reduce_coalesced",
    "all_to_all_single", "all_to_all_single_autograd", "broadcast", "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd", "wait_tensor",
]  # fmt: skip

_OPS = {each.name.lower(): each for each in ReduceOp}


def _group_of(group: Any) -> ProcessGroup:
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return group[0].get_group(group[1])
    return found(group)


def _op_of(name: Any) -> ReduceOp:
    if isinstance(name, ReduceOp):
        return name
    if str(name).lower() not in _OPS:
        raise ValueError(f"a reduction is one of {', '.join(_OPS)}, not {name!r}")
    return _OPS[str(name).lower()]


def wait_tensor(tensor: Tensor) -> Tensor:
    """Returns the tensor: later lines see the result of its collective."""
    return tensor


def all_reduce(self: Tensor, reduceOp: str, group: Any, tag: str = "") -> Tensor:
    """The tensors of all ranks, reduced to one by "sum", "avg", "product", "min", "max" and so on.
    ValueError for an unknown reduction."""
    result: Tensor = _functional.all_reduce(self, _op_of(reduceOp), _group_of(group))
    return result


def all_reduce_coalesced(self: list[Tensor], reduceOp: str, group: Any, tag: str = "") -> list[Tensor]:
    """all_reduce of each tensor."""
    return [all_reduce(each, reduceOp, group) for each in self]


def broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Tensor:
    """The tensor of the rank `src` of the world."""
    result: Tensor = _functional.broadcast(self, src, _group_of(group))
    return result


def all_gather_tensor(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Tensor:
    """The tensors of all ranks, concatenated along gather_dim."""
    return tt.cat(_functional.all_gather(self, _group_of(group)), gather_dim)


def reduce_scatter_tensor(
    self: Tensor, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
) -> Tensor:
    """This rank's part, along scatter_dim, of the reduced tensors of all ranks. ValueError if the size of
    that dimension is not a multiple of the number of ranks."""
    own = _group_of(group)
    if self.shape[scatter_dim] % own.size():
        raise ValueError(
            f"input dimension {scatter_dim} ({self.shape[scatter_dim]}) must be a multiple of group_size "
            f"({own.size()})"
        )
    parts = [each.contiguous() for each in self.chunk(own.size(), scatter_dim)]
    result: Tensor = _functional.reduce_scatter(
        parts[0].detach().clone(), parts, _op_of(reduceOp), own
    )
    return result


def all_to_all_single(
    self: Tensor,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
    group: Any,
    tag: str = "",
) -> Tensor:
    """The rows that the ranks send to this rank: rank i gets the i-th part of each rank's tensor along
    dimension 0, in parts of these sizes, or of equal size."""
    rows = len(self) if output_split_sizes is None else sum(output_split_sizes)
    output = self.detach().new_empty((rows, *self.shape[1:]))
    result: Tensor = _functional.all_to_all_single(
        output, self, output_split_sizes, input_split_sizes, _group_of(group)
    )
    return result


all_gather_tensor_autograd = all_gather_tensor
all_to_all_single_autograd = all_to_all_single
reduce_scatter_tensor_autograd = reduce_scatter_tensor
