"""Implements the forward and backward of a module of fully_shard.

A forward gathers the parameters and runs with them as attributes of the module. When an operation saves a
gathered parameter for the backward, only a reference is kept: the index of the parameter, and the shape,
strides and offset of the part. The backward gathers the parameter again when it reads the saved value. The
gathered parameters are the results of one tape node, whose backward averages the gradients and gives each
shard its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ... import _core
from ..._calls.tree import flatten, map_tree, unflatten
from ..._core import Tensor
from ..._sessions.scopes import Restoring
from ..._sessions.session import owner_of
from ...autograd import is_grad_enabled, no_grad
from ...autograd.function import Function
from ...autograd.graph import saved_tensors_hooks
from ...nn.module import Module
from ...utils.checkpoint import _surrounded
from .. import all_reduce
from .._group import ProcessGroup, ReduceOp
from ._policies import MixedPrecisionPolicy
from ._shards import ShardedParameter, Sharding, place

__all__ = ["Group", "Owned"]


class Owned(NamedTuple):
    """A parameter, and the modules that have it, with its name in each."""

    parameter: ShardedParameter
    owners: list[tuple[Module, str]]


class _Whole(NamedTuple):
    """A gathered parameter, with the version of the shard from which it was gathered."""

    tensor: Tensor | None
    shard: Tensor  # an alias of the shard
    version: int

    def is_of(self, shard: Tensor) -> bool:
        return self.version == shard._version and bool(self.shard._shares_storage(shard))


class _Saved(NamedTuple):
    """A reference that replaces a value that an operation has saved: a part of a gathered parameter."""

    number: int
    whole: _Whole  # the gathered parameter, with its tensor removed
    geometry: tuple[Any, ...]  # shape, strides, offset


class _Gathered(Function):
    """The gathered parameters as functions of the shards."""

    @staticmethod
    def forward(ctx: Any, group: Group, *shards: Tensor) -> Any:
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tuple(group.whole(i) for i in group.trained())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        shares = ctx.group.average(gradients)
        ctx.group.end_backward()
        return None, *shares


class _Begins(Function):
    """The identity of the arguments of a module without trained parameters: their backward is the end of
    the module's backward."""

    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Tensor) -> Any:
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.group.end_backward()
        return None, *gradients


class _Notes(saved_tensors_hooks):
    """A context in which references replace the parts of gathered parameters that operations save."""

    def __init__(self, group: Group, wholes: list[_Whole]) -> None:
        bare = [each._replace(tensor=None) for each in wholes]

        def note(number: Any, *geometry: Any) -> _Saved:
            group.noted.add(number)
            return _Saved(number, bare[number], geometry)

        super().__init__(note, group.saved)
        self._storages = [each.tensor for each in wholes]

    def _sessions(self) -> list[_core.Session]:
        return [owner_of(self._storages[0]._session)._core]  # type: ignore[union-attr]

    def _apply(self) -> None:
        for each in self._native:
            _core.push_saved_hooks(each, *self._hooks, self._storages)


class Group:
    """The parameters that one call of fully_shard has sharded together."""

    def __init__(
        self,
        owned: list[Owned],
        replicas: ProcessGroup | None,
        policy: MixedPrecisionPolicy,
        reshards: bool | None,
    ) -> None:
        self.owned, self.policy = owned, policy
        self.replicas = replicas  # the ranks that have the same shards and other parts of the batch
        # whether a forward reshards; None: only if the module is in another sharded module
        self.reshards = reshards
        self.nested = False
        self.reshards_after_backward = self.syncs = self.syncs_replicas = True
        self.averages_unused = False
        # the divisor of the sums of gradients; None means the number of ranks
        self.divisor: float | None = None
        self.next_forward: list[Group] = []  # groups whose parameters are gathered early
        self.next_backward: list[Group] = []
        self.depth = 0  # the nesting depth of calls
        # the tensors that are the modules' attributes now: shards or gathered parameters
        self._placed: list[Tensor] = [each.parameter for each in owned]
        self._wholes: dict[int, _Whole] = {}  # the parameters that are gathered now
        self.noted: set[int] = set()  # the parameters of which a backward needs parts
        self._in_backward = False
        self._pending: dict[int, Tensor] = {}  # gradients that have not been averaged over the ranks yet
        # gradients that are averaged over the ranks of the group, but not yet over the replicas
        self._scattered: dict[int, Tensor] = {}

    # ---- the parameters

    def trained(self) -> list[int]:
        """The indices of the parameters that require grad."""
        return [i for i, each in enumerate(self.owned) if each.parameter.requires_grad]

    def whole(self, number: int) -> Tensor:
        """The gathered parameter, without history. All ranks call it."""
        tensor = self._whole(number).tensor
        assert tensor is not None
        return tensor

    def _whole(self, number: int) -> _Whole:
        shard = self.owned[number].parameter
        found = self._wholes.get(number)
        if found is None or not found.is_of(shard):
            own, dtype = shard.detach(), self.policy.param_dtype
            cast = dtype is not None and shard.is_floating_point()
            made = shard.sharding.gather(own.to(dtype) if cast else own)
            found = self._wholes[number] = _Whole(made, own, shard._version)
        return found

    def gather(self) -> list[Tensor]:
        """All parameters, gathered. RuntimeError if a parameter was replaced since fully_shard."""
        for (parameter, owners), placed in zip(self.owned, self._placed, strict=True):
            for module, name in owners:
                if module.__dict__.get(name) is not placed:
                    raise RuntimeError(
                        f"parameter {parameter.name} was replaced since fully_shard: write its shard in "
                        "place, or load a state_dict without assign=True"
                    )
        return [self.whole(i) for i in range(len(self.owned))]

    def recorded(self) -> list[Tensor]:
        """All parameters, gathered; those that require grad have a history that leads to their shards."""
        found = self.gather()
        trained = self.trained()
        if trained and is_grad_enabled():
            results = _Gathered.apply(self, *(self.owned[i].parameter for i in trained))
            for i, tensor in zip(trained, results, strict=True):
                found[i] = tensor
        return found

    def show(self, tensors: list[Tensor]) -> None:
        """Makes these tensors the attributes of the modules."""
        for (_, owners), tensor in zip(self.owned, tensors, strict=True):
            place(owners, tensor)
        self._placed = tensors

    def reshard(self) -> None:
        """Releases the gathered parameters; the shards become the attributes of the modules again."""
        self._wholes.clear()
        self.show([each.parameter for each in self.owned])

    def reset(self) -> None:
        """Restores the state after fully_shard: gradients that were to be averaged later are discarded."""
        self.reshard()
        self._pending.clear()
        self._scattered.clear()
        self._in_backward = False

    # ---- a forward

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Returns function(*args, **kwargs), called with the gathered parameters."""
        policy = self.policy
        if policy.cast_forward_inputs and policy.param_dtype is not None:
            args, kwargs = _cast((args, kwargs), policy.param_dtype)
        if not self.owned:
            return _cast(function(*args, **kwargs), policy.output_dtype)
        if is_grad_enabled() and not self.trained():
            args, kwargs = self._marked((args, kwargs))
        tensors = self.recorded()
        wholes = [self._whole(i) for i in range(len(self.owned))]
        versions = [each.tensor._version for each in wholes]  # type: ignore[union-attr]
        for other in self.next_forward:
            other.gather()
        with self._showing(tensors), _Notes(self, wholes), _surrounded(self._again):
            result = function(*args, **kwargs)
        for each, version, (parameter, _) in zip(wholes, versions, self.owned, strict=True):
            if each.tensor._version != version:  # type: ignore[union-attr]
                raise RuntimeError(
                    f"parameter {parameter.name} was written in the forward of a module of fully_shard, "
                    "where it is a copy: write its shard, outside of forward"
                )
        return _cast(result, policy.output_dtype)

    def _showing(self, tensors: list[Tensor]) -> Restoring:
        """A context in which these tensors are the attributes of the modules. At the end of the outermost
        one the parameters are resharded, if forwards are to do so."""

        def apply() -> None:
            self.depth += 1
            self.show(tensors)

        def restore(state: tuple[int, list[Tensor]]) -> None:
            self.depth = state[0]
            self.show(state[1])
            if self.depth == 0 and (self.nested if self.reshards is None else self.reshards):
                self.reshard()

        return Restoring(lambda: (self.depth, self._placed), apply, restore)

    def _marked(self, tree: Any) -> Any:
        leaves, structure = flatten(tree)
        places = [
            i for i, each in enumerate(leaves) if isinstance(each, Tensor) and each.requires_grad
        ]
        if places:
            renamed = _Begins.apply(self, *(leaves[i] for i in places))
            for i, tensor in zip(places, renamed, strict=True):
                leaves[i] = tensor
        return unflatten(leaves, structure)

    def _again(self) -> Restoring:
        """A context for a second call, by the backward, of a checkpointed function in the module's
        forward."""
        found = [each.detach() for each in self.gather()]
        for i in self.trained():
            found[i].requires_grad_()
        return Restoring(lambda: self._placed, lambda: self.show(found), self.show)

    # ---- a backward

    def saved(self, saved: _Saved) -> Tensor:
        """The value that an operation had saved. RuntimeError if the shard was overwritten since."""
        parameter = self.owned[saved.number].parameter
        if not saved.whole.is_of(parameter):
            raise RuntimeError(
                f"parameter {parameter.name}, which is sharded by fully_shard, was written between a "
                "forward and its backward, which needs its former value"
            )
        if not self._in_backward:
            self._in_backward = True
            for i in sorted(self.noted):
                self.whole(i)
            for other in self.next_backward:
                for i in sorted(other.noted):
                    other.whole(i)
        return self.whole(saved.number).as_strided(*saved.geometry)

    def end_backward(self) -> None:
        """Called when the backward has run all operations of the forward."""
        self._in_backward = False
        if self.reshards_after_backward and self.depth == 0:
            self.reshard()

    def average(self, gradients: Any) -> list[Any]:
        """The parts of the averaged gradients that belong to the shards of the trained parameters; None for
        those without a gradient."""
        trained = self.trained()
        with no_grad():
            for i, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    gradient = gradient.to(self._reduce_dtype(i))
                    held = self._pending.get(i)
                    self._pending[i] = gradient if held is None else held + gradient
            if not self.syncs:
                return [None] * len(trained)
            return [self._share(i) for i in trained]

    def _reduce_dtype(self, number: int) -> Any:
        given = self.policy.reduce_dtype
        return self.owned[number].parameter.dtype if given is None else given

    def _share(self, i: int) -> Any:
        parameter = self.owned[i].parameter
        sharding: Sharding = parameter.sharding
        gradient = self._pending.pop(i, None)
        if gradient is None and self.averages_unused:
            gradient = parameter.detach().new_zeros(sharding.shape, dtype=self._reduce_dtype(i))
        if gradient is None:
            return None
        op = ReduceOp.AVG if self.divisor is None else ReduceOp.SUM
        share = sharding.scatter(gradient, op)
        if self.divisor is not None:
            share = share / self.divisor
        if self.replicas is not None:
            held = self._scattered.pop(i, None)
            share = share if held is None else share + held
            if not self.syncs_replicas:
                self._scattered[i] = share
                return None
            share = share.clone()
            all_reduce(share, op, self.replicas)
        return share.to(parameter.dtype)


def _cast(tree: Any, dtype: Any) -> Any:
    """The tree with its floating-point tensors cast to that dtype; unchanged if dtype is None."""

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree if dtype is None else map_tree(cast, tree)
