"""fully_shard, and the methods of a sharded module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...nn._layers.containers import ModuleDict, ModuleList
from ...nn.module import Module
from ...nn.parameter import Parameter, UninitializedTensorMixin
from .._group import GroupMember, ProcessGroup, found
from ._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from ._shards import ParallelParameter, ShardedParameter, Sharding, alias, place, sharded
from ._state import Group, Owned

__all__ = ["FSDPModule", "UnshardHandle", "fully_shard", "register_fsdp_forward_method"]


class UnshardHandle:
    """The result of `FSDPModule.unshard(async_op=True)`."""

    def __init__(self, group: Group | None) -> None:
        self._group = group

    def wait(self) -> None:
        """Makes the gathered parameters those of the module. No line waits for the other ranks."""
        if self._group is not None:
            self._group.show(self._group.recorded())
            self._group = None


class FSDPModule:
    """A module that `fully_shard` has sharded, whose class becomes a subclass of this one."""

    _fsdp_group: Group

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fsdp_group.call(super().__call__, args, kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError(
            "FSDP does not support deepcopy. Please use state dict for serialization."
        )

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the parameters of this module, without those of sharded submodules, and makes them its
        attributes until reshard(). All ranks call it. With async_op they become the attributes by wait() of
        the returned handle, or in the next forward."""
        self._fsdp_group.gather()
        handle = UnshardHandle(self._fsdp_group)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Releases the gathered parameters of this module, without those of sharded submodules. The shards
        become its attributes again."""
        self._fsdp_group.reshard()

    def reset_iter_state(self) -> None:
        """Reshards this module and its submodules, and discards gradients that were to be averaged
        later."""
        for group in _groups(self, True):
            group.reset()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Sets whether a backward averages the gradients. If not, they are accumulated as whole tensors on
        this rank, until a backward averages the sums."""
        for group in _groups(self, recurse):
            group.syncs = bool(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Sets whether a backward averages the gradients of the shards over the ranks that have the same
        shards, for a mesh of two dimensions. If not, they are accumulated until a backward averages
        them."""
        for group in _groups(self, recurse):
            group.syncs_replicas = bool(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Sets whether a forward releases the gathered parameters at its end."""
        for group in _groups(self, recurse):
            group.reshards = bool(reshard_after_forward)

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Sets whether a backward releases the gathered parameters at its end. Parameters that are kept are
        gathered again after an optimizer has changed the shards."""
        for group in _groups(self, recurse):
            group.reshards_after_backward = bool(reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Makes each forward of this module also start to gather the parameters of these modules."""
        self._fsdp_group.next_forward = _groups_of(modules)

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Makes each backward of this module also start to gather the parameters that the backward of these
        modules needs."""
        self._fsdp_group.next_backward = _groups_of(modules)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Sets the number by which the sums of gradients over the ranks are divided, instead of the number
        of ranks."""
        if not factor > 0:
            raise ValueError(
                f"set_gradient_divide_factor: a positive number is expected, not {factor}"
            )
        self._fsdp_group.divisor = float(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """Sets whether parameters that the backward of this rank does not reach take part in the averages
        with zeros, which is necessary if the ranks use different parameters."""
        for group in _groups(self, recurse):
            group.averages_unused = bool(reduce_scatter_unused_params)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Accepted without effect: the gradients of each backward are available to later lines."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Accepted without effect: a backward gathers only the parameters that it needs."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Accepted without effect."""


def _parts(module: Any) -> list[Any]:
    """The sharded modules in a module, including the module itself if it is sharded, which comes first."""
    return [each for each in module.modules() if isinstance(each, FSDPModule)]


def _groups(module: Any, recurse: bool) -> list[Group]:
    return [each._fsdp_group for each in (_parts(module) if recurse else [module])]


def _groups_of(modules: Iterable[Any]) -> list[Group]:
    for each in modules:
        if not isinstance(each, FSDPModule):
            raise TypeError(f"modules of fully_shard are expected, not {type(each).__name__}")
    return [each._fsdp_group for each in modules]


def fully_shard(
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | None = None,
    shard_placement_fn: Callable[[Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008
    ignored_params: set[Parameter] | None = None,
) -> Any:
    """Divides every parameter of the module among the ranks. Each rank then has a part of the parameter, of
    its gradient, and of the state of an optimizer that is created later. Returns the module itself, which
    becomes an FSDPModule.

    A forward gathers the parameters and releases them at its end. The backward gathers those that it needs
    again, and gives each shard its part of the gradients' average over the ranks. Parameters of submodules
    that are already sharded stay with these: shard the blocks of a model first, and then the model. All
    ranks call this function with equal parameters; the forwards and backwards of all ranks call the same
    modules in the same order.

    module: a Module, or a list of Modules whose parameters are gathered together.
    mesh: the ranks, as a ProcessGroup or a DeviceMesh; None means all processes. In a DeviceMesh of two
        dimensions the ranks along the second one divide the parameters, and the ranks along the first
        one have the same shards.
    reshard_after_forward: whether a forward releases the gathered parameters at its end. None means only
        in modules that are inside another sharded module.
    shard_placement_fn: called with each parameter; returns an object whose `dim` is the dimension to be
        divided, or None for dimension 0. Any other dimension must be divisible by the number of ranks.
    mp_policy: the dtypes of gathered parameters, arguments, results and averages.
    ignored_params: parameters that are not changed; their gradients are not averaged.

    ValueError for a ModuleList or ModuleDict, a parameter without dimensions or of a lazy module, a
    placement that does not fit, and a parameter or module that is sharded already;
    NotImplementedError for a CPUOffloadPolicy, a number as reshard_after_forward and a parameter on the
    device meta."""
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    ranks, replicas = _ranks_of(mesh)
    _check_options(reshard_after_forward, offload_policy)
    for each in modules:
        if not isinstance(each, Module):
            raise TypeError(f"fully_shard takes a Module, not {type(each).__name__}")
        if isinstance(each, FSDPModule):
            raise ValueError(f"fully_shard: {type(each).__name__} is sharded already")
        if isinstance(each, (ModuleList, ModuleDict)) and type(each).forward is Module.forward:
            raise ValueError(
                f"fully_shard does not support containers that do not implement forward: {each}"
            )
    owned = []
    for parameter, name, owners in _own_parameters(modules, ignored_params or set()):
        if parameter.is_meta:
            raise NotImplementedError(
                f"fully_shard: parameter {name} is on the device meta and has no data: give the module "
                "memory by to_empty() first"
            )
        dim = _dimension(parameter, name, shard_placement_fn, ranks.size())
        outer = parameter.sharding if isinstance(parameter, ParallelParameter) else None
        owned.append((parameter, name, owners, Sharding(ranks, tuple(parameter.shape), dim, outer)))
    made = []
    for parameter, name, owners, sharding in owned:
        shard = sharded(parameter, name, sharding)
        place(owners, shard)
        made.append(Owned(shard, owners))
    group = Group(made, replicas, mp_policy, reshard_after_forward)
    for shard, owners in made:
        for owner, attribute in owners:
            _attach_state(group, shard, owner, attribute)
    for each in modules:
        each.__dict__["_fsdp_group"] = group
        each.__class__ = _class_of(type(each))
        for part in _parts(each):
            part._fsdp_group.nested = part._fsdp_group.nested or part._fsdp_group is not group
    return module


def _attach_state(group: Group, shard: ShardedParameter, owner: Module, attribute: str) -> None:
    """Makes the owner's state_dict contain the shard, even while the parameter is gathered; the shard has
    the method to gather it."""

    def after_save(module: Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        if state.get(prefix + attribute) is not shard:
            state[prefix + attribute] = alias(shard, shard, shard.name)

    def before_load(*_: Any) -> None:
        group.reshard()

    owner.register_state_dict_post_hook(after_save)
    owner.register_load_state_dict_pre_hook(before_load)


_classes: dict[type, type] = {}


def _class_of(kind: type) -> type:
    if kind not in _classes:
        _classes[kind] = type(
            f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__}
        )
    return _classes[kind]


def _ranks_of(mesh: Any) -> tuple[ProcessGroup, ProcessGroup | None]:
    """The group of ranks that divide the parameters, and the group of ranks that have the same shards."""
    if mesh is None or isinstance(mesh, ProcessGroup):
        return found(mesh), None
    if mesh == GroupMember.NON_GROUP_MEMBER:
        raise ValueError("fully_shard: this process is not in the group")
    dimensions = getattr(mesh, "ndim", None)
    if dimensions == 1:
        return found(mesh.get_group()), None
    if dimensions == 2:
        return found(mesh.get_group(1)), found(mesh.get_group(0))
    raise ValueError(
        f"fully_shard: mesh must be a ProcessGroup or a DeviceMesh of 1 or 2 dimensions, not {mesh!r}"
    )


def _check_options(reshard_after_forward: Any, offload_policy: Any) -> None:
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, bool):
        raise NotImplementedError(
            "fully_shard: reshard_after_forward must be True or False; a number of ranks is not supported"
        )
    if isinstance(offload_policy, CPUOffloadPolicy):
        raise NotImplementedError(
            "fully_shard: CPUOffloadPolicy is not supported: the daemon itself moves unused tensors to "
            "host memory and to disk when memory is short (docs/operating.md)"
        )


def _own_parameters(
    modules: list[Any], ignored: set[Parameter]
) -> list[tuple[Parameter, str, list[tuple[Module, str]]]]:
    """The parameters of these modules without those of sharded submodules, each once, with all modules that
    have it. ValueError for a parameter that is already sharded, or that a sharded module outside of these
    has too."""
    found: dict[int, tuple[Parameter, str, list[tuple[Module, str]]]] = {}
    left_out = {id(each) for each in ignored}
    seen: set[int] = set()

    def visit(module: Module, prefix: str) -> None:
        if id(module) in seen or isinstance(module, FSDPModule):
            return
        seen.add(id(module))
        for name in module._parameter_names:
            parameter = module.__dict__[name]
            if parameter is None or id(parameter) in left_out:
                continue
            if isinstance(parameter, ShardedParameter) and not isinstance(parameter, ParallelParameter):
                raise ValueError(
                    f"parameter {prefix}{name} is sharded already, as {parameter.name} of another call of "
                    "fully_shard: shard inner modules first, and modules that share a parameter together"
                )
            entry = found.setdefault(id(parameter), (parameter, prefix + name, []))
            entry[2].append((module, name))
        for name in module._module_names:
            below = module.__dict__[name]
            if below is not None:
                visit(below, f"{prefix}{name}.")

    for each in modules:
        visit(each, "")
    return list(found.values())


def _dimension(parameter: Parameter, name: str, placement_fn: Any, ranks: int) -> int:
    """The dimension along which the parameter is divided."""
    if isinstance(parameter, UninitializedTensorMixin):
        raise ValueError(
            f"fully_shard: call the lazy module of parameter {name} once before it is sharded"
        )
    if parameter.dim() == 0:
        raise ValueError(
            f"FSDP doesn't support scalar parameters. Change {name} to a 1D tensor with numel equal to 1."
        )
    placement = None if placement_fn is None else placement_fn(parameter)
    if placement is None:
        return 0
    dim = getattr(placement, "dim", None)
    if not isinstance(dim, int) or not -parameter.dim() <= dim < parameter.dim():
        raise ValueError(
            f"shard_placement_fn: a placement with a dimension of {tuple(parameter.shape)} is expected for "
            f"{name}, not {placement!r}"
        )
    dim %= parameter.dim()
    if dim and parameter.shape[dim] % ranks:
        raise ValueError(
            f"FSDP does not support uneven sharding on dim {dim}: {name} of {tuple(parameter.shape)} "
            f"(world size: {ranks})"
        )
    return dim


def register_fsdp_forward_method(module: Any, method_name: str) -> None:
    """Makes calls of module.<method_name> gather the parameters as calls of the module do. Has no effect if
    the module is not an FSDPModule. AttributeError if it does not have such a method."""
    method = getattr(module, method_name)
    if not isinstance(module, FSDPModule):
        return

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return module._fsdp_group.call(method, args, kwargs)

    module.__dict__[method_name] = wrapped
