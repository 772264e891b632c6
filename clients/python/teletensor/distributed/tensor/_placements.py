"""Placements: what each rank along a dimension of a mesh has of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._group import ReduceOp
from ..device_mesh import DeviceMesh

__all__ = ["Layout", "Partial", "Placement", "Replicate", "Shard", "for_gradients", "listed", "sizes"]


class Placement:
    """It says which part of a tensor each rank along a dimension of a mesh has: `Shard`, `Replicate` or
    `Partial`."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Is it a Shard (of that dimension, where one is given)?"""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Is it Replicate?"""
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        """Is it Partial?"""
        return isinstance(self, Partial)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and repr(self) == repr(other)


class Shard(Placement):
    """A part along dimension `dim`, as `Tensor.chunk` makes them: the first ranks have equal ones, the
    last may have less, or none."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"


class Replicate(Placement):
    """The whole tensor."""

    def __repr__(self) -> str:
        return "Replicate()"


class Partial(Placement):
    """A summand: the tensor is the sum ("sum") or the average ("avg") over the ranks. ValueError for
    another reduction."""

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
    """Where the parts of a tensor of this shape are: a placement for each dimension of the mesh."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]

    def placed(self, placements: Sequence[Placement]) -> Layout:
        """The same tensor otherwise."""
        return Layout(self.mesh, tuple(placements), self.shape)

    def local_shape(self, upto: int | None = None) -> list[int]:
        """The shape of this rank's part; `upto`: only the first dimensions of the mesh have divided it."""
        shape = list(self.shape)
        where = coordinate(self.mesh)
        for dim, placement in enumerate(self.placements[:upto]):
            if isinstance(placement, Shard):
                shape[placement.dim] = sizes(shape[placement.dim], self.mesh.size(dim))[where[dim]]
        return shape


def coordinate(mesh: DeviceMesh) -> list[int]:
    """This rank's place. RuntimeError for a rank that is not in the mesh."""
    where = mesh.get_coordinate()
    if where is None:
        raise RuntimeError(f"rank {mesh.get_rank()} is not in {mesh!r}, and has no part of its tensors")
    return where


def sizes(size: int, parts: int) -> list[int]:
    """The sizes of the parts along a dimension of this size."""
    most = -(-size // parts)
    return [max(0, min(most, size - most * i)) for i in range(parts)]


def listed(placements: Any, mesh: DeviceMesh, dims: int) -> tuple[Placement, ...]:
    """A placement for each dimension of the mesh, with Shard's dimensions from 0 on. Replicate where none
    are given. ValueError for another number, IndexError for a dimension that a tensor of `dims`
    dimensions has not."""
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
    """The placements of a tensor's gradient: it is whole if the tensor is a sum."""
    return tuple(Replicate() if isinstance(each, Partial) else each for each in placements)
