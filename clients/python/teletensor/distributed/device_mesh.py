"""The interface of torch.distributed.device_mesh: the ranks of the world as an array with named
dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core import Tensor
from .._names import absent as _absent
from .._tensors.convert import tensor
from ._group import ProcessGroup, current_world, found, init_process_group, is_initialized

__all__ = ["DeviceMesh", "init_device_mesh"]


class DeviceMesh:
    """An array of ranks of the world. For each dimension there are groups of the ranks that differ only in
    it.

    `mesh` is an array, tensor or nested list of ranks, each at most once, and `mesh_dim_names` has a name
    for each dimension. All ranks of the world create it, in the same order, without waiting for each other.
    A slice, `device_mesh["tp"]` or `device_mesh["dp", "tp"]`, is the part of the mesh in these dimensions
    that contains this rank. ValueError before init_process_group, RuntimeError for ranks that are outside
    of the world or given twice, and for names that do not fit."""

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        _groups: Sequence[Any] | None = None,
        _root: tuple[DeviceMesh, list[int]] | None = None,
    ) -> None:
        ranks = np.asarray(mesh.numpy() if isinstance(mesh, Tensor) else mesh)
        ranks = ranks.reshape(1) if ranks.ndim == 0 else ranks
        world = found(None)
        flat = ranks.reshape(-1).tolist()
        if ranks.size == 0 or not all(
            isinstance(each, int) and 0 <= each < world.size() for each in flat
        ):
            raise RuntimeError(f"DeviceMesh: ranks must be from 0 to {world.size() - 1}, got "
                               f"{ranks.tolist()}")
        if len(set(flat)) != len(flat):
            raise RuntimeError(f"DeviceMesh cannot have duplicate values, but found {ranks.tolist()}")
        if mesh_dim_names is not None and len(mesh_dim_names) != ranks.ndim:
            raise RuntimeError(
                f"mesh_shape and mesh_dim_names should have same length! Found "
                f"len(mesh_dim_names): {len(mesh_dim_names)} and len(mesh_shape):{ranks.ndim}."
            )
        self.device_type = device_type
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        # for a slice, the mesh of which it is one, and its dimensions there
        self._root = (self, list(range(ranks.ndim))) if _root is None else _root
        self._flattened: dict[str, DeviceMesh] = {}
        self._ranks, self._rank = ranks, world._ranks[world.rank()]
        self._groups = (
            list(_groups)
            if _groups is not None
            else [self._group(world, dim) for dim in range(ranks.ndim)]
        )

    def _group(self, world: ProcessGroup, dim: int) -> ProcessGroup | None:
        rows = np.moveaxis(self._ranks, dim, -1).reshape(-1, self._ranks.shape[dim]).tolist()
        if rows == [list(range(world.size()))]:
            return world
        return world._part(rows)

    @property
    def mesh(self) -> Tensor:
        """The ranks as an int32 tensor of the mesh's shape."""
        return tensor(self._ranks.astype(np.int32))

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self._ranks.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return int(self._ranks.ndim)

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of ranks, in total or along one dimension."""
        return int(self._ranks.size if mesh_dim is None else self._ranks.shape[mesh_dim])

    def __repr__(self) -> str:
        names = self.mesh_dim_names or range(self.ndim)
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True))
        return f"DeviceMesh(({sizes}), {self.device_type!r}, {self._ranks.tolist()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Any:
        return self.device_type, self.mesh_dim_names, self.shape, tuple(self._ranks.reshape(-1).tolist())

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if len(names) == 1 and names[0] in self._flattened:
            return self._flattened[names[0]]
        dims = [self._dim(name) for name in names]
        if dims != sorted(set(dims)):
            raise KeyError(
                f"Mesh dim names {names} are not in the order of {self.mesh_dim_names}, each once"
            )
        where = self.get_coordinate() or [0] * self.ndim  # a rank outside of the mesh gets the first slice
        part = self._ranks[tuple(slice(None) if dim in dims else where[dim] for dim in range(self.ndim))]
        return DeviceMesh(
            self.device_type,
            part,
            mesh_dim_names=names,
            _groups=[self._groups[dim] for dim in dims],
            _root=(self._root[0], [self._root[1][dim] for dim in dims]),
        )

    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """This mesh as one of one dimension, whose name is by default that of its dimensions joined by "_".
        The mesh of which this is a slice has it under that name. All ranks of the world call it, each for
        its own slice. ValueError if the mesh has a dimension of that name."""
        root, dims = self._root
        name = "_".join(self.mesh_dim_names or ()) if mesh_dim_name is None else mesh_dim_name
        if self.ndim == 1 and name in (self.mesh_dim_names or ()):
            return self
        if not name or name in (root.mesh_dim_names or ()):
            raise ValueError(f"{name!r} cannot be the name of a flattened dimension of {root!r}")
        if name not in root._flattened:
            size = math.prod(root._ranks.shape[dim] for dim in dims)
            rows = np.moveaxis(root._ranks, dims, range(-len(dims), 0)).reshape(-1, size).tolist()
            root._flattened[name] = DeviceMesh(
                self.device_type,
                self._ranks.reshape(-1),
                mesh_dim_names=(name,),
                _groups=[found(None)._part(rows)],
            )
        return root._flattened[name]

    @staticmethod
    def from_group(
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """The mesh whose dimensions have these groups of this rank; no group is created. `mesh` has the
        ranks, and is only needed for several groups. ValueError if the groups do not fit the mesh."""
        groups = [group] if isinstance(group, ProcessGroup) else list(group)
        if mesh is None and len(groups) != 1:
            raise ValueError("Must pass mesh if passing multiple ProcessGroups")
        ranks = groups[0]._ranks if mesh is None else mesh
        made = DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _groups=groups)
        where = made.get_coordinate()
        if made.ndim != len(groups):
            raise ValueError(f"DeviceMesh.from_group: {len(groups)} groups for {made.ndim} dimensions")
        for dim, each in enumerate(groups):
            place = [0] * made.ndim if where is None else where
            row = made._ranks[tuple(slice(None) if i == dim else at for i, at in enumerate(place))]
            if row.tolist() != each._ranks:
                raise ValueError(
                    f"DeviceMesh.from_group: the group of dimension {dim} has the ranks {each._ranks}, "
                    f"and the mesh {row.tolist()}"
                )
        return made

    def _dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None:
            if self.ndim != 1:
                raise RuntimeError(
                    f"Found the DeviceMesh have {self.ndim} dimensions. Optional kwarg `mesh_dim` "
                    "needs to be specified when device_mesh.ndim > 1."
                )
            return 0
        if isinstance(mesh_dim, str):
            if mesh_dim not in (self.mesh_dim_names or ()):
                raise KeyError(f"Invalid mesh_dim_name {mesh_dim!r}: the mesh has {self.mesh_dim_names}")
            assert self.mesh_dim_names is not None
            return self.mesh_dim_names.index(mesh_dim)
        if not -self.ndim <= mesh_dim < self.ndim:
            raise IndexError(f"dimension {mesh_dim} does not exist in a mesh of {self.ndim} dimensions")
        return mesh_dim % self.ndim

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """This rank's group along a dimension, given by its name or index; for a one-dimensional mesh the
        argument can be left out. RuntimeError for a rank that is not in the mesh."""
        group = self._groups[self._dim(mesh_dim)]
        if group is None:
            raise RuntimeError(f"rank {self._rank} is not in {self!r}, and has no group of it")
        return group

    def get_all_groups(self) -> list[ProcessGroup]:
        """This rank's group along each dimension."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def get_rank(self) -> int:
        """The rank of this process in the world."""
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's index along a dimension; for a one-dimensional mesh the argument can be left out."""
        dim = self._dim(mesh_dim)
        where = self.get_coordinate()
        if where is None:
            raise RuntimeError(f"rank {self._rank} is not in {self!r}, and has no place in it")
        return where[dim]

    def get_coordinate(self) -> list[int] | None:
        """This rank's index along each dimension; None if it is not in the mesh."""
        found_at = np.argwhere(self._ranks == self._rank)
        return None if not len(found_at) else [int(each) for each in found_at[0]]


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Any = None,
) -> DeviceMesh:
    """Returns a DeviceMesh of the ranks 0, 1, 2, ... in this shape. All ranks of the world call it; if
    there is no world, init_process_group() is called first. backend_override has no effect, because all
    backends are the same. RuntimeError for a shape that does not match the number of ranks, names that do
    not fit, or a device type with an index."""
    if not device_type.isalpha():
        raise RuntimeError(f"Device type with index is not supported but got {device_type}.")
    shape = tuple(int(each) for each in mesh_shape)
    if mesh_dim_names is not None:
        if len(set(mesh_dim_names)) != len(mesh_dim_names):
            raise RuntimeError(
                "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in "
                f"mesh_dim_names {tuple(mesh_dim_names)}"
            )
        if len(mesh_dim_names) != len(shape):
            raise RuntimeError(
                f"mesh_shape and mesh_dim_names should have same length! Found "
                f"len(mesh_dim_names): {len(mesh_dim_names)} and len(mesh_shape):{len(shape)}."
            )
    if not is_initialized():
        init_process_group()
    world = current_world()
    assert world is not None
    if min(shape, default=0) < 1 or math.prod(shape) > world.size():
        raise RuntimeError(f"init_device_mesh: a world of {world.size()} has no mesh of shape {shape}")
    return DeviceMesh(
        device_type, np.arange(math.prod(shape)).reshape(shape), mesh_dim_names=mesh_dim_names
    )


_absent.attach(globals())
