"""distribute_module: a module that computes with DTensors."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from ... import distributed as _d
from ..._core import Tensor
from ...autograd import no_grad
from ..device_mesh import DeviceMesh
from ..fsdp._shards import mark_in_state
from ._dtensor import DTensor
from ._parameter import DTensorParameter

__all__ = ["distribute_module"]


def distribute_module(
    module: Any,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, Any, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> Any:
    """Distributes the parameters of the module over the mesh, in place, and returns the module, whose
    submodules then take DTensors. All ranks of the mesh (by default all ranks) call it.

    partition_fn(name, submodule, mesh) is called for each submodule and the module itself, and may replace
    parameters: `submodule.register_parameter(key, Parameter(distribute_tensor(p, mesh, [Shard(0)])))`. All
    other parameters and buffers get the values of the first rank along each dimension of the mesh.
    input_fn(module, inputs, mesh) returns the tuple of arguments that replaces `inputs` before each forward
    of the module, and output_fn(module, outputs, mesh) the result that replaces its outputs.

    A parameter that is divided is this rank's part of it: an ordinary parameter with full_tensor() and
    to_local(), which every optimizer accepts. The functions that DTensors have are linear, layer_norm,
    softmax and elementwise ones; others raise NotImplementedError with their name.

    RuntimeError for a second call, and in a forward for a submodule with parameters whose tensors are no
    DTensors; ValueError for an input_fn or output_fn with another number of arguments."""
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError(
            "distribute_module should only be called once on a module, but it has already been called on "
            "this module!"
        )
    mesh = DeviceMesh("cpu", list(range(_d.get_world_size()))) if device_mesh is None else device_mesh
    before, after = _hook("input_fn", input_fn, mesh), _hook("output_fn", output_fn, mesh)
    for name, each in list(module.named_modules()):
        if partition_fn is not None:
            partition_fn(name, each, mesh)
        _complete(each, mesh)
    if before is not None:
        module.register_forward_pre_hook(before)
    for each in module.modules():
        if any(True for _ in each.named_parameters(recurse=False)):
            each.register_forward_pre_hook(_check_inputs, with_kwargs=True)
    if after is not None:
        module.register_forward_hook(lambda own, inputs, outputs: after(own, outputs))
    module.__dict__["_distribute_module_applied"] = True
    return module


def _complete(module: Any, mesh: DeviceMesh) -> None:
    """Gives the parameters and buffers that are not divided the same values on all ranks."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, DTensorParameter):
            parameter.name = name
            mark_in_state(module, name)
        else:
            _send(parameter, mesh)
    for _, buffer in module.named_buffers(recurse=False):
        _send(buffer, mesh)


def _send(tensor: Tensor, mesh: DeviceMesh) -> None:
    with no_grad():
        for dim in range(mesh.ndim):
            _d.broadcast(tensor.detach(), group=mesh.get_group(dim), group_src=0)


def _hook(what: str, given: Callable[..., Any] | None, mesh: DeviceMesh) -> Callable[..., Any] | None:
    """The function of (module, values) that calls input_fn or output_fn."""
    if given is None:
        return None
    count = len(inspect.signature(given).parameters)
    if count == 2:
        warnings.warn(
            f"Deprecating {what} that takes two arguments (inputs, device_mesh), please use {what} that "
            "takes in (module, inputs, device_mesh) instead!",
            FutureWarning,
            stacklevel=3,
        )
        return lambda module, values: given(values, mesh)
    if count != 3:
        raise ValueError(f"{what} should take in 3 arguments, but got {count} arguments!")
    return functools.partial(_call, given, mesh)


def _call(given: Callable[..., Any], mesh: DeviceMesh, module: Any, values: Any) -> Any:
    return given(module, values, mesh)


def _check_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """RuntimeError for tensors that are no DTensors: a rank would compute with its parts alone."""
    given = [*args, *kwargs.values()]
    if any(isinstance(each, Tensor) for each in given) and not any(
        isinstance(each, DTensor) for each in given
    ):
        raise RuntimeError(
            f"{type(module).__name__} of distribute_module got mixed Tensor and DTensor: its inputs must "
            "be DTensors, which input_fn can make"
        )
