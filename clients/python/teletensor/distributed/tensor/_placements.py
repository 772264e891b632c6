"""Placements: which part of a tensor each rank along a dimension of a mesh has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._group import ReduceOp
from ..device_mesh import DeviceMesh

__all__ = ["Layout", "Partial", "Placement", "Replicate", "Shard", "for_gradients", "listed", "sizes"]


class Placement:
    """Says which part of a tensor each rank along a dimension of a mesh has: `Shard`, `Replicate` or
    `Partial`."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Returns whether the placement is a Shard (of that dimension, if one is given)."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Returns whether the placement is Replicate."""
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        """Returns whether the placement is Partial."""
        return isinstance(self, Partial)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and repr(self) == repr(other)


class Shard(Placement):
    """Each rank has a part along dimension `dim`, as `Tensor.chunk` makes them: the first ranks have parts
    of equal size, and the last ones may have smaller parts, or none."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"


class Replicate(Placement):
    """Each rank has the whole tensor."""

    def __repr__(self) -> str:
        return "Replicate()"


class Partial(Placement):
    """Each rank has a summand: the tensor is the sum ("sum") or the average ("avg") over the ranks.
    ValueError for another reduction."""

    def __init__(self, reduce_op: str = "sum") -> None:
        if reduce_op not in ("sum", "avg"):
            raise ValueError(f"Partial: reduce_op must be 'sum' or 'avg', not {reduce_op!r}")
        self.reduce_op = reduce_op

    @property
    def reduction(self) -> ReduceOp:
        """The ReduceOp of that name."""
        return ReduceOp.SUM if self.reduce_op == "sum" else ReduceOp.AVG

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"


class Layout(NamedTuple):
    """The distribution of a tensor of this shape: a placement for each dimension of the mesh."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]

    def placed(self, placements: Sequence[Placement]) -> Layout:
        """The same tensor with other placements."""
        return Layout(self.mesh, tuple(placements), self.shape)

    def local_shape(self, upto: int | None = None) -> list[int]:
        """The shape of this rank's part; with `upto`, after division by only the first dimensions of the
        mesh."""
        shape = list(self.shape)
        where = coordinate(self.mesh)
        for dim, placement in enumerate(self.placements[:upto]):
            if isinstance(placement, Shard):
                shape[placement.dim] = sizes(shape[placement.dim], self.mesh.size(dim))[where[dim]]
        return shape


def coordinate(mesh: DeviceMesh) -> list[int]:
    """This rank's coordinate in the mesh. RuntimeError for a rank that is not in the mesh."""
    where = mesh.get_coordinate()
    if where is None:
        raise RuntimeError(f"rank {mesh.get_rank()} is not in {mesh!r}, and has no part of its tensors")
    return where


def sizes(size: int, parts: int) -> list[int]:
    """The sizes of the parts along a dimension of this size."""
    most = -(-size // parts)
    return [max(0, min(most, size - most * i)) for i in range(parts)]


def listed(placements: Any, mesh: DeviceMesh, dims: int) -> tuple[Placement, ...]:
    """A placement for each dimension of the mesh, in which the dimensions of Shard are counted from 0;
    Replicate if none are given. ValueError for a wrong number of placements, IndexError for a dimension
    that a tensor of `dims` dimensions does not have."""
    given = [Replicate()] * mesh.ndim if placements is None else list(placements)
    if len(given) != mesh.ndim:
        raise ValueError(
            f"`placements` must have the same length as `device_mesh.ndim`! Found placements length: "
            f"{len(given)}, and device_mesh.ndim: {mesh.ndim}."
        )
    found: list[Placement] = []
    for each in given:
        if not isinstance(each, (Shard, Replicate, Partial)):
            raise TypeError(f"placements must be Shard, Replicate or Partial, not {each!r}")
        if isinstance(each, Shard):
            if not -dims <= each.dim < dims:
                raise IndexError(f"{each!r}: a tensor of {dims} dimensions does not have this dimension")
            each = Shard(each.dim % dims)
        found.append(each)
    return tuple(found)


def for_gradients(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """The placements of a tensor's gradient: where the tensor is Partial, its gradient is Replicate."""
    return tuple(Replicate() if isinstance(each, Partial) else each for each in placements)
