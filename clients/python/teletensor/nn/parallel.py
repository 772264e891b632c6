"""DataParallel on one GPU, and DistributedDataParallel in `distributed`'s world."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _absent, cuda
from .. import distributed as _distributed
from ..autograd import is_grad_enabled
from ._reducer import Reducer
from .module import Module

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]
__path__: list[str] = []  # modules below it come from _paths.py


def _place(what: str, device_ids: Sequence[Any] | None, output_device: Any = None) -> Any:
    """The one device that is meant; None where the daemon has no GPU and none is named."""
    named = list(dict.fromkeys(cuda._device.index_of(each) for each in device_ids or ()))
    if not named and device_ids is None and cuda.is_available():
        named = list(range(cuda.device_count()))
    if len(named) > 1:
        raise NotImplementedError(
            f"{what} over {len(named)} GPUs is not there yet: name one, as device_ids=[0]"
        )
    if output_device is not None and named and cuda._device.index_of(output_device) != named[0]:
        raise NotImplementedError(f"{what} with the output on another GPU is not there yet")
    return None if not named else f"cuda:{named[0]}"


class DataParallel(Module):
    """The module on one GPU: its inputs are moved there. Where the daemon has no GPU the module is called
    as it is, as PyTorch does. The parameters are `module`'s, so names in state_dict begin with "module.".

    NotImplementedError for more than one GPU, RuntimeError where parameters are on another device."""

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        place = _place("DataParallel", device_ids, output_device)
        self.dim = dim
        self.module = module
        self.device_ids = [] if place is None else [int(place.rpartition(":")[2])]
        if place is not None:
            module.to(place)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """module(*inputs, **kwargs) on the GPU."""
        return data_parallel(self.module, inputs, self.device_ids or None, module_kwargs=kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Any = None,
) -> Any:
    """module(*inputs, **module_kwargs), with the tensors among these moved to the GPU. As DataParallel."""
    from .._core import Tensor
    from .._tree import map_tree

    place = _place("data_parallel", device_ids, output_device)
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if place is None:
        return module(*given, **(module_kwargs or {}))
    for tensor in (*module.parameters(), *module.buffers()):
        if str(tensor.device) != place:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {place} (device_ids[0]) but "
                f"found one of them on device: {tensor.device}"
            )
    given, named = map_tree(
        lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, (given, module_kwargs or {})
    )
    return module(*given, **named)


class DistributedDataParallel(Module):
    """The module of a process of `distributed`'s world: each backward averages the gradients over all
    processes. The parameters are `module`'s, so names in state_dict begin with "module.".

    All processes begin with the parameters and buffers of rank 0. Gradients travel in buckets of
    bucket_cap_mb MiB (25), in the reverse order of the parameters, after the backward. The buffers of rank
    0 are those of all at the first forward and at each one after a forward with gradients, unless
    broadcast_buffers is False. device_ids: the one GPU that inputs go to. gradient_as_bucket_view,
    static_graph and check_reduction have no effect.

    ValueError before `distributed.init_process_group`; RuntimeError for a module without a parameter that
    requires grad, for processes whose parameters differ (the first difference is named), and at a backward
    that does not reach a parameter, unless find_unused_parameters is True: a parameter that no process
    reaches then keeps its gradient."""

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: Any = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        _distributed.get_world_size(process_group)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that "
                "requires a gradient."
            )
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids can only be None or contain a single element.")
        self.module = module
        self.device_ids = None if not device_ids else [cuda._device.index_of(device_ids[0])]
        self.output_device = (
            self.device_ids[0] if self.device_ids and output_device is None else output_device
        )
        self.dim = dim
        self.process_group = _distributed.group.WORLD if process_group is None else process_group
        self.broadcast_buffers = broadcast_buffers is None or broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._reducer: Reducer | None = None
        if _distributed.get_world_size(self.process_group) > 1:
            self._reducer = Reducer(
                module, self.process_group, int((bucket_cap_mb or 25) * 2**20), find_unused_parameters
            )
            if init_sync:
                self._reducer.begin_alike(self.broadcast_buffers)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """module(*inputs, **kwargs), on the GPU of device_ids where it is given."""
        if self._reducer is not None:
            if self.require_forward_param_sync and self.broadcast_buffers:
                self._reducer.broadcast(self.module.buffers())
            averages = is_grad_enabled() and self.require_backward_grad_sync
            self.require_forward_param_sync = self._reducer.armed = averages
        if self.device_ids:
            return data_parallel(
                self.module, inputs, self.device_ids, self.output_device, module_kwargs=kwargs
            )
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it gradients are not averaged, as for all but the last of several batches of a step."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        if self._reducer is not None:
            self._reducer.armed = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Processes may have different numbers of batches within it. NotImplementedError in a world of
        several."""
        if self._reducer is not None and enable:
            raise NotImplementedError(
                "join: uneven numbers of batches are not there yet in a world of several"
            )
        yield


_absent.attach(globals())
