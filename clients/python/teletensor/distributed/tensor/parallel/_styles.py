"""Styles that divide the parameters of a module, with differentiable collectives before and after its
forward."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any

from .... import distributed as _d
from ...._core import Tensor
from ....autograd import no_grad
from ....nn import Embedding, Linear, Parameter, functional as F
from ...device_mesh import DeviceMesh
from ...fsdp._shards import ParallelParameter, Sharding, mark_in_state
from .._dtensor import DTensor, distribute_tensor
from .._placements import Partial, Placement, Replicate, Shard, listed

__all__ = ["ColwiseParallel", "ParallelStyle", "RowwiseParallel", "SequenceParallel"]


class ParallelStyle(ABC):
    """A way to divide a module among the ranks, which is implemented by `_apply(module, device_mesh)`."""

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        """Divides the module in place and returns it."""


def as_dtensor(value: Any, mesh: DeviceMesh, placement: Placement, what: Any) -> DTensor:
    """The DTensor whose part on this rank is the tensor, with this placement. ValueError if the value is
    not a tensor."""
    if isinstance(value, DTensor):
        return value
    if not isinstance(value, Tensor):
        raise ValueError(f"expecting input of {what} to be a Tensor or DTensor, but got {value!r}")
    return DTensor.from_local(value, mesh, [placement])


def _divide(module: Any, mesh: DeviceMesh, name: str, placement: Placement, source: int | None) -> None:
    """Replaces a parameter by this rank's part of it. ValueError if it is a part already."""
    parameter = getattr(module, name, None)
    if parameter is None:
        return
    if hasattr(parameter, "sharding"):
        raise ValueError(f"parallelize_module: parameter {name} is divided among ranks already")
    part = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=source).to_local()
    if not isinstance(placement, Shard):
        module.register_parameter(name, Parameter(part, parameter.requires_grad))
        return
    made = ParallelParameter(part, parameter.requires_grad)
    made.sharding = Sharding(mesh.get_group(), tuple(parameter.shape), placement.dim)
    made.name = name
    module.register_parameter(name, made)
    mark_in_state(module, name)


def _sum_gradient(parameter: Any, mesh: DeviceMesh) -> None:
    """Sums the gradient of a parameter that all ranks have, because each rank computes a summand of it."""

    def whole(gradient: Tensor) -> Tensor:
        with no_grad():
            result = gradient.clone()
            _d.all_reduce(result, group=mesh.get_group())
        return result

    if parameter is not None and parameter.requires_grad:
        parameter.register_hook(whole)


def _output(result: DTensor, layout: Placement, local: bool) -> Any:
    placed = result.redistribute(placements=[layout])
    return placed.to_local() if local else placed


class ColwiseParallel(ParallelStyle):
    """Divides a Linear by its outputs and an Embedding by its features. The input is the whole tensor on
    all ranks, or has the placement `input_layouts`; the output is a part along the last dimension, or has
    the placement `output_layouts`. It is a Tensor, or a DTensor with use_local_output=False.
    NotImplementedError for other modules."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = (input_layouts or Replicate(),)
        self.output_layouts = (output_layouts or Shard(-1),)
        self.use_local_output = use_local_output

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        if isinstance(module, Linear):
            placement = Shard(0)
        elif isinstance(module, Embedding):
            placement = Shard(1)
        else:
            raise NotImplementedError(
                "ColwiseParallel currently only support nn.Linear and nn.Embedding!"
            )
        features = module.weight.shape[placement.dim]
        for name, _ in list(module.named_parameters()):
            _divide(module, device_mesh, name, placement, self.src_data_rank)
        module.register_forward_pre_hook(functools.partial(self._before, device_mesh))
        module.register_forward_hook(functools.partial(self._after, device_mesh, features))
        return module

    def _before(self, mesh: DeviceMesh, module: Any, inputs: tuple[Any, ...]) -> Any:
        given = as_dtensor(inputs[0], mesh, self.input_layouts[0], module).redistribute(
            placements=[Replicate()]
        )
        # Each rank computes only the gradient from its part of the outputs.
        whole = (
            given.to_local(grad_placements=[Partial()])
            if given.dtype.is_floating_point
            else given.to_local()
        )
        return (whole, *inputs[1:])

    def _after(self, mesh: DeviceMesh, features: int, module: Any, inputs: Any, output: Tensor) -> Any:
        shape = [*output.shape[:-1], features]
        result = DTensor.from_local(output, mesh, [Shard(-1)], shape=shape)
        return _output(result, self.output_layouts[0], self.use_local_output)


class RowwiseParallel(ParallelStyle):
    """Divides a Linear by its inputs and an Embedding by its rows. The input of a Linear is a part along
    the last dimension and that of an Embedding the whole tensor, or has the placement `input_layouts`; the
    output is the whole tensor on all ranks, or has the placement `output_layouts`. NotImplementedError for
    other modules, and for an Embedding with padding_idx or max_norm."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self._given = input_layouts
        self.input_layouts = (input_layouts or Shard(-1),)
        self.output_layouts = (output_layouts or Replicate(),)
        self.use_local_output = use_local_output

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        own: Any = module
        if isinstance(module, Linear):
            _divide(module, device_mesh, "weight", Shard(1), self.src_data_rank)
            _divide(module, device_mesh, "bias", Replicate(), self.src_data_rank)
            own.forward = functools.partial(self._linear, device_mesh, module)
        elif isinstance(module, Embedding):
            if module.padding_idx is not None or module.max_norm is not None:
                raise NotImplementedError("RowwiseParallel: an Embedding with padding_idx or max_norm")
            rows = module.weight.shape[0]
            _divide(module, device_mesh, "weight", Shard(0), self.src_data_rank)
            own.forward = functools.partial(
                self._embedding, device_mesh, module, -(-rows // device_mesh.size())
            )
        else:
            raise NotImplementedError(
                "RowwiseParallel currently only support nn.Linear and nn.Embedding!"
            )
        return module

    def _linear(self, mesh: DeviceMesh, module: Any, x: Any) -> Any:
        given = as_dtensor(x, mesh, self.input_layouts[0], module)
        if not isinstance(x, DTensor) and given.placements[0] == Shard(given.ndim - 1):
            # the previous layer returned a DTensor, which knows the size of the whole tensor
            part = given.to_local()
        else:
            part = given.redistribute(placements=[Shard(-1)]).to_local()
        product = DTensor.from_local(F.linear(part, module.weight), mesh, [Partial()])
        then = listed(self.output_layouts, mesh, product.ndim)
        result = product.redistribute(placements=then)
        if module.bias is None:
            return result.to_local() if self.use_local_output else result
        local = result.to_local()
        bias = module.bias
        whole = DTensor.from_local(bias, mesh)
        if then[0] == Shard(product.ndim - 1):
            bias = whole.redistribute(placements=[Shard(0)]).to_local()
        elif not isinstance(then[0], Replicate):  # each rank computes a summand of the gradient
            bias = whole.to_local(grad_placements=[Partial()])
            bias = bias / mesh.size() if isinstance(then[0], Partial) else bias
        added = DTensor.from_local(local + bias, mesh, then, shape=product.shape)
        return added.to_local() if self.use_local_output else added

    def _embedding(self, mesh: DeviceMesh, module: Any, rows: int, x: Any) -> Any:
        index = (
            as_dtensor(x, mesh, self._given or Replicate(), module)
            .redistribute(placements=[Replicate()])
            .to_local()
        )
        local = index - rows * mesh.get_local_rank()
        count = module.weight.shape[0]
        mine = (local >= 0) & (local < count)
        found = F.embedding(local.clamp(0, max(count - 1, 0)), module.weight) * mine.unsqueeze(-1)
        result = DTensor.from_local(found, mesh, [Partial()])
        return _output(result, self.output_layouts[0], self.use_local_output)


class SequenceParallel(ParallelStyle):
    """The parameters are not divided (LayerNorm, Dropout, RMSNorm); input and output are parts along
    `sequence_dim`. The gradients of the parameters are summed over the ranks. The output is a DTensor, or a
    Tensor with use_local_output=True."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        for _, each in module.named_parameters():
            _sum_gradient(each, device_mesh)
        module.register_forward_pre_hook(functools.partial(self._before, device_mesh))
        module.register_forward_hook(functools.partial(self._after, device_mesh))
        return module

    def _before(self, mesh: DeviceMesh, module: Any, inputs: tuple[Any, ...]) -> Any:
        given = as_dtensor(inputs[0], mesh, self.sequence_sharding[0], module)
        return (given.redistribute(placements=self.sequence_sharding).to_local(), *inputs[1:])

    def _after(self, mesh: DeviceMesh, module: Any, inputs: Any, output: Any) -> Any:
        return (
            output
            if self.use_local_output
            else as_dtensor(output, mesh, self.sequence_sharding[0], module)
        )
