"""DataParallel and its parts, and DistributedDataParallel for the world of `distributed`."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from .. import cuda, distributed as _distributed
from .._names import absent as _absent
from .._script import capturing as _capturing
from .._tensors.convert import tensor
from ..autograd import is_grad_enabled
from ..distributed.algorithms.join import Join, Joinable, JoinHook
from ..futures import Future
from ..jit._compiled import Compiled
from ._data_parallel import DataParallel, data_parallel, gather, parallel_apply, replicate, scatter
from ._ddp_precision import call, cast_buffers, reduced_dtype
from ._reducer import Reducer
from .module import Module

__all__ = [
    "DataParallel", "DistributedDataParallel", "data_parallel", "gather", "parallel_apply", "replicate",
    "scatter",
]  # fmt: skip
__path__: list[str] = []  # the modules below this one are created by _names/paths.py


class DistributedDataParallel(Module, Joinable):
    """Wraps the module of one process of `distributed`'s world: each backward averages the gradients over
    all processes. The parameters are those of `module`, so names in state_dict begin with "module.".

    All processes begin with the parameters and buffers of rank 0. Gradients are averaged after the
    backward, in buckets of bucket_cap_mb MiB (25 by default) in the reverse order of the parameters. The
    buffers of rank 0 are copied to all ranks at the first forward and at each forward that follows one with
    gradients, unless broadcast_buffers is False. device_ids: the one GPU to which inputs are moved.
    static_graph: the program promises that each backward reaches the same parameters as the first one,
    which may be fewer than all. mixed_precision: an `nn.parallel.distributed._MixedPrecision`. device_mesh:
    a DeviceMesh of one dimension, whose group is used instead of process_group. `module` may be the result
    of compile(module): its calls run compiled, and `.module` is the module itself. A copy by copy.deepcopy
    or pickle averages its own gradients; it has no communication hook and is not compiled.
    gradient_as_bucket_view and check_reduction have no effect.

    ValueError if `distributed.init_process_group` has not been called, and for a bucket_cap_mb that is not
    positive; TypeError if `module` is not a Module. RuntimeError for a module without a parameter that
    requires grad, or that is or contains a DistributedDataParallel; if the parameters differ between
    processes (the first difference is named); at a forward after parameters were replaced, frozen or
    wrapped again; and at a backward that does not reach a parameter, unless find_unused_parameters or
    static_graph is True: then a parameter that no process reaches keeps its gradient. With static_graph,
    RuntimeError at a backward that does not reach the same parameters as the first one."""

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
        *,
        mixed_precision: Any = None,
        device_mesh: Any = None,
    ) -> None:
        Module.__init__(self)
        Joinable.__init__(self)
        if device_mesh is not None:
            process_group = _group_of(device_mesh, process_group)
            self.device_mesh = device_mesh
        _distributed.get_world_size(process_group)
        module = _compiled_module(module)
        if not isinstance(module, Module):
            raise TypeError(f"module must be a Module, not {type(module).__name__}")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that "
                "requires a gradient."
            )
        if any(isinstance(each, DistributedDataParallel) for each in module.modules()):
            raise RuntimeError(
                "DistributedDataParallel of a module that is one, or has one in it, would average its "
                "gradients twice: wrap the whole module once"
            )
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError("device_ids can only be None or contain a single element.")
        if bucket_cap_mb is not None and not (bucket_cap_mb > 0 and math.isfinite(bucket_cap_mb)):
            raise ValueError(f"bucket_cap_mb must be a positive number of MiB, not {bucket_cap_mb}")
        self.module = module
        self.device_type = self.join_device.type
        self.mixed_precision = mixed_precision
        cast_buffers(module, mixed_precision)
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
        self._bucket_bytes = int((25 if bucket_cap_mb is None else bucket_cap_mb) * 2**20)
        self._divides_by_all = True
        self._reducer: Reducer | None = None
        if _distributed.get_world_size(self.process_group) > 1:
            self._begin(init_sync)

    def _begin(self, alike: bool) -> None:
        reducer = Reducer(
            self.module,
            self.process_group,
            self._bucket_bytes,
            self.find_unused_parameters,
            self.static_graph,
        )
        reducer.dtype = reduced_dtype(self.mixed_precision)
        if alike:
            reducer.broadcast_initial_state(self.broadcast_buffers)
        reducer.start()
        self._reducer = reducer

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Returns module(*inputs, **kwargs), computed on the GPU of device_ids if that is given."""
        if self._reducer is not None:
            if _capturing.current is not None:
                self._record_for_capture()
            averages = is_grad_enabled() and self.require_backward_grad_sync
            if averages:
                self._reducer.check_parameters()
            if self._join_config.enable:
                Join.notify_join_context(self)
                self._begin_step(averages, active=True)
            else:
                self._reducer.active = None
                self._broadcast_buffers(self._reducer.first)
            self.require_forward_param_sync = self._reducer.armed = averages
            self._reducer.gathers = is_grad_enabled() and not averages
        if self.device_ids and self.mixed_precision is None:
            return data_parallel(
                self.module, inputs, self.device_ids, self.output_device, module_kwargs=kwargs
            )
        return call(self.module, self.mixed_precision, inputs, kwargs)

    # ---- copies

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for copy and pickle, without the group and the hook. RuntimeError for
        another group than the world."""
        if self.process_group is not _distributed.group.WORLD:
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default process group. "
                "That is, when you have called init_process_group and have not passed process_group "
                "argument to DDP constructor"
            )
        left_out = ("process_group", "device_mesh", "_reducer")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: MutableMapping[str, Any]) -> None:
        """Makes a copy average its own gradients over the world of this process. ValueError before
        init_process_group."""
        ranks = _distributed.get_world_size()
        self.__dict__.update(state, process_group=_distributed.group.WORLD, _reducer=None)
        if ranks > 1:
            self._begin(alike=False)

    def _record_for_capture(self) -> None:
        """Tells a capture that the captured step is valid only for the state of this moment, and what state
        each call leaves."""
        assert self._reducer is not None
        if self._reducer.asks():
            _capturing.refuse(
                "use a DistributedDataParallel with find_unused_parameters=True, which reads from the "
                "other processes which parameters they have used"
            )
        if self._join_config.enable:
            _capturing.refuse("run inside of Join, which reads how many processes have joined")
        _capturing.carries(("reducer", self._reducer), self._reducer.state, self._reducer.set_state)
        _capturing.carries(("forward", self), self._forward_state, self._set_forward_state)
        self._record_sync_for_capture()

    def _record_sync_for_capture(self) -> None:
        _capturing.holds(("sync", self), lambda: self.require_backward_grad_sync)

    def _forward_state(self) -> tuple[bool, bool]:
        return self.require_forward_param_sync, self._join_config.enable

    def _set_forward_state(self, state: tuple[bool, bool]) -> None:
        self.require_forward_param_sync = state[0]

    def _broadcast_buffers(self, root: int | None) -> None:
        if self._reducer is not None and self.require_forward_param_sync and self.broadcast_buffers:
            self._reducer.broadcast(self._reducer.buffers(), root)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context gradients are not averaged; use it for all but the last of several batches of
        one step."""
        if _capturing.current is not None:
            self._record_sync_for_capture()
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Calls hook(state, bucket) for each bucket of gradients instead of averaging it; the hook returns
        a `futures.Future` of the flat tensor with the gradients for the optimizer. `bucket` is a
        `distributed.GradBucket`. All processes must register the same hook before the first backward.
        `distributed.algorithms.ddp_comm_hooks` has several hooks.

        The hook is called after the backward, without recording gradients. It may read values, which waits.
        If it raises an error, the backward raises that error, and the other processes wait for this one's
        collectives.

        TypeError for a hook that is not callable, ValueError if its annotations have other types,
        RuntimeError for a second hook."""
        if not callable(hook):
            raise TypeError(f"Communication hook must be callable, not {type(hook).__name__}.")
        _check_annotations(hook)
        if self._reducer is None:  # in a world of one process nothing is averaged, but hooks are called
            self._begin(alike=False)
        assert self._reducer is not None
        if self._reducer.hook is not None:
            raise RuntimeError("register_comm_hook can only be called once.")
        self._reducer.hook, self._reducer.hook_state = hook, state

    # ---- ranks with different numbers of inputs

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A context in which the processes may have different numbers of batches: a process without further
        batches joins, and contributes zeros to the averages of the remaining ones until all have joined.
        Then all processes get the parameters of one that was among the last. Averages are sums divided by
        the number of all processes, or with divide_by_initial_world_size=False by the number of those that
        have not joined.

        throw_on_early_termination: all processes raise RuntimeError when one has no more batches. Modules
        that call collectives themselves, such as SyncBatchNorm, need it."""
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook for a Join context, whose argument divide_by_initial_world_size means what it does in
        join()."""
        self._divides_by_all = kwargs.get("divide_by_initial_world_size", True)
        return _DataParallelJoin(self)

    @property
    def join_device(self) -> Any:
        """The device of the first parameter."""
        return next(self.module.parameters()).device

    @property
    def join_process_group(self) -> Any:
        """The group whose gradients are averaged."""
        return self.process_group

    def _begin_step(self, averages: bool, active: bool) -> bool:
        """Begins a forward of the ranks that have not joined: determines their number, and copies the
        buffers of one of them to all. Returns whether the backward of this forward averages the
        gradients."""
        assert self._reducer is not None
        count = tensor([float(averages)], device=self.join_device)
        _distributed.all_reduce(count, group=self.process_group)
        syncs = self.require_forward_param_sync and self.broadcast_buffers
        if syncs and next(self.module.buffers(), None) is not None:
            self._broadcast_buffers(self._highest(active))
        self._reducer.active = None if self._divides_by_all else count
        return averages if active else count.item() > 0

    def _highest(self, candidate: bool) -> int:
        """The highest rank whose `candidate` is true."""
        rank = tensor([_distributed.get_rank(self.process_group) if candidate else -1])
        _distributed.all_reduce(rank, _distributed.ReduceOp.MAX, self.process_group)
        return int(rank.item())

    def _shadow_step(self) -> None:
        if self._reducer is not None:
            self.require_forward_param_sync = self._begin_step(False, active=False)
            if self.require_forward_param_sync:
                self._reducer.shadow()

    def _end_join(self, is_last_joiner: bool) -> None:
        if self._reducer is not None:
            root = self._highest(is_last_joiner)
            self._reducer.broadcast([*self.module.parameters(), *self.module.buffers()], root)


def _group_of(device_mesh: Any, process_group: Any) -> Any:
    """The group of a device mesh, which must have one dimension."""
    if process_group is not None:
        raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
    if device_mesh.ndim != 1:
        raise RuntimeError(f"Only 1D device mesh is supported, but got {device_mesh}.")
    return device_mesh.get_group()


def _compiled_module(module: Any) -> Any:
    """The module in the result of compile(module), which makes all calls of the module run compiled; any
    other argument itself."""
    if not isinstance(module, Compiled) or not isinstance(module._function, Module):
        return module
    module._function._own_hooks().compiled = module
    return module._function


class _DataParallelJoin(JoinHook):
    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model

    def main_hook(self) -> None:
        self._model._shadow_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._model._end_join(is_last_joiner)


def _check_annotations(hook: Callable[..., Any]) -> None:
    """ValueError for a hook whose annotations name other parameter or result types."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return  # the hook has no annotation here
    bucket = signature.parameters.get("bucket")
    if bucket is not None and isinstance(bucket.annotation, type):
        if bucket.annotation not in (inspect.Parameter.empty, _distributed.GradBucket):
            raise ValueError(
                "Communication hook: bucket annotation should be dist.GradBucket, not "
                f"{bucket.annotation.__name__}."
            )
    returned = signature.return_annotation
    if isinstance(returned, type) and returned is not inspect.Signature.empty and returned is not Future:
        raise ValueError(
            "Communication hook: return annotation should be futures.Future, not "
            f"{returned.__name__}."
        )


_absent.attach(globals())
