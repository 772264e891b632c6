"""DTensorParameter: a parameter that was made of a DTensor."""

from __future__ import annotations

from typing import Any

from ...nn.parameter import Parameter
from ..fsdp._shards import ParallelParameter, Sharding
from ._placements import Layout, Partial, Shard

__all__ = ["DTensorParameter", "placed_parameter"]


class DTensorParameter(ParallelParameter):
    """This rank's part of a parameter, as Parameter(dtensor) makes it if a dimension is divided. Functions
    that get it together with a DTensor take it for a DTensor of this layout."""

    dtensor_layout: Layout

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = ParallelParameter.__deepcopy__(self, memo)
        assert isinstance(copy, DTensorParameter)
        copy.dtensor_layout = self.dtensor_layout
        return copy


def placed_parameter(parameter: Parameter, layout: Layout) -> None:
    """Makes a new Parameter this rank's part of one with this layout. It stays an ordinary Parameter if all
    ranks have the whole. RuntimeError for Partial, NotImplementedError if several dimensions of the mesh
    divide it."""
    dims = [i for i, each in enumerate(layout.placements) if isinstance(each, Shard)]
    if any(isinstance(each, Partial) for each in layout.placements):
        raise RuntimeError(
            "Parameter: a DTensor that is Partial cannot be a parameter: redistribute it first"
        )
    if len(dims) > 1:
        raise NotImplementedError(
            f"Parameter: {list(layout.placements)} divides a parameter by several dimensions of the mesh"
        )
    for dim in dims:
        shard = layout.placements[dim]
        assert isinstance(shard, Shard)
        parameter.__class__ = DTensorParameter
        assert isinstance(parameter, DTensorParameter)
        parameter.dtensor_layout, parameter.name = layout, ""
        parameter.sharding = Sharding(layout.mesh.get_group(dim), layout.shape, shard.dim)
