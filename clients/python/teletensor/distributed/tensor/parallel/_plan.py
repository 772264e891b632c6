"""parallelize_module: applies styles of parallelism to the modules of a network."""

from __future__ import annotations

import fnmatch
import warnings
from typing import Any

from ... import get_world_size
from ...device_mesh import DeviceMesh
from ._styles import ParallelStyle

__all__ = ["parallelize_module"]


def parallelize_module(
    module: Any,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: Any = None,
    *,
    src_data_rank: int | None = 0,
) -> Any:
    """Applies a ParallelStyle to the module, or, if the plan is a dict, applies styles to the submodules
    whose paths match its keys ("layers.*.w1" with the wildcards of fnmatch; a key that matches nothing
    causes a warning). Works in place and returns the module. The parameters become this rank's parts of the
    parameters of rank 0 (of each rank's own parameters with src_data_rank=None), so names stay the same and
    optimizers need no change. All ranks of the mesh, which must have one dimension, call it.

    ValueError for a mesh of several dimensions: use a slice such as mesh["tp"]. TypeError for another
    plan."""
    mesh = DeviceMesh("cpu", list(range(get_world_size()))) if device_mesh is None else device_mesh
    if mesh.ndim != 1:
        raise ValueError(
            f"parallelize_module: {mesh!r} has {mesh.ndim} dimensions: give a slice of one, mesh[name]"
        )
    if parallelize_plan is None:
        warnings.warn(
            "No parallelize_plan is provided and auto-parallel is not supported at the moment, so this "
            "parallelize_module will do nothing.",
            stacklevel=2,
        )
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        return parallelize_plan._apply(module, mesh)
    if not isinstance(parallelize_plan, dict):
        raise TypeError(
            "Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan, "
            f"{type(parallelize_plan)} found!"
        )
    for path, style in parallelize_plan.items():
        found = _submodules(module, path.split(".") if path else [])
        if not found:
            warnings.warn(
                f"Parallelize plan key '{path}' could not be resolved: no submodule matches, skipping this "
                "plan entry.",
                stacklevel=2,
            )
        for each in found:
            parallelize_module(each, mesh, style, src_data_rank=src_data_rank)
    return module


def _submodules(module: Any, path: list[str]) -> list[Any]:
    if not path:
        return [module]
    return [
        found
        for name, child in module.named_children()
        if fnmatch.fnmatch(name, path[0])
        for found in _submodules(child, path[1:])
    ]
