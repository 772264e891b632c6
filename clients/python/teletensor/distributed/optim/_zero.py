"""ZeroRedundancyOptimizer: each rank keeps the optimizer state of a part of the parameters.

As described in Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2019 (arXiv:1910.02054), stage 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..._core import Tensor
from ...optim import Optimizer
from .. import gather_object, get_global_rank, get_rank, get_world_size
from .._buckets import broadcast_all
from .._group import found as found_group
from ..algorithms.join import Join, Joinable, JoinHook

__all__ = ["ZeroRedundancyOptimizer"]

_BUCKET_BYTES = 25 * 2**20


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer of class `optimizer_class` for a part of the parameters on each rank: step() updates the
    parameters of this rank, and then all ranks receive those of the other ranks. All ranks must have the
    same parameters in the same order, with equal gradients, as DistributedDataParallel provides them.

    The parameters of each group are assigned, the largest first, to the rank that has the fewest elements
    so far. A parameter is never divided. **defaults are the options of optimizer_class; `param_groups`
    contains all parameters, and options that are changed there take effect at the next step.
    parameters_as_bucket_view has no effect.

    NotImplementedError for overlap_with_ddp; TypeError if optimizer_class is not an Optimizer class."""

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: Any = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        if overlap_with_ddp:
            raise NotImplementedError(
                "ZeroRedundancyOptimizer: overlap_with_ddp is not supported yet: call step() after "
                "the backward"
            )
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise TypeError(f"optimizer_class must be a class of optimizers, not {optimizer_class!r}")
        if get_rank(process_group) < 0:
            raise ValueError("ZeroRedundancyOptimizer: this process is not in process_group")
        self.process_group = found_group(process_group)
        self.world_size, self.rank = get_world_size(process_group), get_rank(process_group)
        self.parameters_as_bucket_view = parameters_as_bucket_view
        self._sizes = [0] * self.world_size  # the number of elements, by rank
        self._shards: list[list[list[Tensor]]] = []  # the parameters, by group and rank
        self._consolidated: list[dict[Any, Any]] | None = None  # the state of the optimizer of each rank
        self.optim: Optimizer | None = None
        Joinable.__init__(self)
        Optimizer.__init__(self, params, defaults)
        self.optim = optimizer_class([self._part(i) for i in range(len(self.param_groups))], **defaults)
        _copy_options(self.optim.param_groups, self.param_groups)

    def _part(self, i: int) -> dict[str, Any]:
        """This rank's part of a parameter group."""
        given = {key: value for key, value in self.param_groups[i].items() if key != "param_names"}
        return {**given, "params": self._shards[i][self.rank]}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As Optimizer.add_param_group. All ranks must add the same groups."""
        super().add_param_group(param_group)
        shards: list[list[Tensor]] = [[] for _ in range(self.world_size)]
        for each in sorted(self.param_groups[-1]["params"], key=lambda p: -p.numel()):
            rank = self._sizes.index(min(self._sizes))
            shards[rank].append(each)
            self._sizes[rank] += each.numel()
        self._shards.append(shards)
        if self.optim is not None:
            self.optim.add_param_group(self._part(-1))
            _copy_options(self.optim.param_groups, self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Updates the parameters of this rank, and receives those of the other ranks. Returns the closure's
        result; **kwargs are passed to the step() of optimizer_class."""
        Join.notify_join_context(self)
        return self._step(closure, **kwargs)

    def _step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        assert self.optim is not None
        _copy_options(self.param_groups, self.optim.param_groups)
        given = kwargs if closure is None else {"closure": closure, **kwargs}
        result = self.optim.step(**given)
        _copy_options(self.optim.param_groups, self.param_groups)
        self._consolidated = None
        for rank in range(self.world_size):
            own = [each for shards in self._shards for each in shards[rank]]
            broadcast_all(own, self.process_group, rank, _BUCKET_BYTES)
        return result

    # ---- dictionary form

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Sends the state of all ranks to the rank `to` of the group, whose state_dict() contains it until
        the next step. All ranks call it."""
        assert self.optim is not None
        _copy_options(self.param_groups, self.optim.param_groups)
        root = get_global_rank(self.process_group, to)
        found: list[Any] | None = [None] * self.world_size if self.rank == to else None
        gather_object(self.optim.state_dict()["state"], found, root, self.process_group)
        self._consolidated = found

    def _numbers(self, rank: int) -> list[int]:
        """The numbers, counted across all groups, of a rank's parameters, in the order of its optimizer."""
        numbers: dict[int, int] = {}
        for every in self.param_groups:
            for each in every["params"]:
                numbers[id(each)] = len(numbers)
        return [numbers[id(each)] for shards in self._shards for each in shards[rank]]

    def state_dict(self) -> dict[str, Any]:
        """The state of a plain optimizer_class for all parameters, on the rank that was given to
        `consolidate_state_dict`. RuntimeError on all other ranks, and after a step."""
        if self._consolidated is None:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call "
                f"`consolidate_state_dict(to={self.rank})` on all ranks beforehand if you meant to save "
                "the global state."
            )
        whole = super().state_dict()
        state = {}
        for rank, own in enumerate(self._consolidated):
            numbers = self._numbers(rank)
            state.update({numbers[key]: value for key, value in own.items()})
        return {**whole, "state": dict(sorted(state.items()))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the options, and the part of the state that belongs to this rank's parameters.
        `state_dict` is a result of state_dict(), or that of a plain optimizer_class. All ranks must load
        the same."""
        assert self.optim is not None
        super().load_state_dict({**state_dict, "state": {}})
        names = [str(number) for saved in state_dict["param_groups"] for number in saved["params"]]
        state = {str(key): value for key, value in state_dict["state"].items()}
        own = {
            local: state[names[number]]
            for local, number in enumerate(self._numbers(self.rank))
            if names[number] in state
        }
        self.optim.load_state_dict({"state": own, "param_groups": self.optim.state_dict()["param_groups"]})
        _copy_options(self.param_groups, self.optim.param_groups)
        self._consolidated = None

    # ---- ranks with different numbers of inputs

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Makes a rank that has joined continue to update its parameters. Their gradients are those that
        DistributedDataParallel leaves there, which must precede this optimizer in the list of the Join. The
        remaining ranks must call step() once after each forward, before their next forward."""
        return _ZeroJoin(self)

    @property
    def join_device(self) -> Any:
        """The device of the first parameter."""
        return self.param_groups[0]["params"][0].device

    @property
    def join_process_group(self) -> Any:
        """The group whose ranks share the state."""
        return self.process_group


class _ZeroJoin(JoinHook):
    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        self._optimizer._step()


def _copy_options(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    """Copies all options of each group, but not its parameters."""
    for given, group in zip(source, target, strict=True):
        group.update({key: given[key] for key in given if key not in ("params", "param_names")})
