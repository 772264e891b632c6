"""Join: allows the ranks of a group to have different numbers of inputs.

A rank that has no more inputs joins: it takes part in the collectives of the remaining ranks, without
contributing data, until all ranks have joined.
"""

from __future__ import annotations

import abc
import warnings
from types import TracebackType
from typing import Any, NamedTuple

from ... import _api as tt
from ..._names import absent as _absent
from .. import Work, all_reduce, get_rank

__all__ = ["Join", "JoinHook", "Joinable"]

_MANY = 1000  # the number of steps after which a rank that has joined warns


class JoinHook:
    """The code of a Joinable that a rank runs after it has joined."""

    def main_hook(self) -> None:
        """Called once for each step of the ranks that have not joined: calls the collectives that the
        Joinable calls in a step."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Called once when all ranks have joined. is_last_joiner says whether this rank was among the last
        to join."""


class _Config(NamedTuple):
    """The options of the Join context in which a Joinable is used."""

    enable: bool = False
    throws: bool = False
    is_first: bool = False


class Joinable(abc.ABC):
    """An object that calls collectives in each step, and `Join.notify_join_context(self)` before them."""

    def __init__(self) -> None:
        super().__init__()
        self._join_config = _Config()

    @abc.abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Returns the hook for a Join context, whose keyword arguments it gets."""

    @property
    @abc.abstractmethod
    def join_device(self) -> Any:
        """The device of the tensors of the Join context's own collectives."""

    @property
    @abc.abstractmethod
    def join_process_group(self) -> Any:
        """The group whose ranks join."""


class Join:
    """A context in which the ranks may have different numbers of steps. All ranks of the group must enter
    it.

    joinables: the objects whose hooks are called, in this order; the first one announces each step to the
    other ranks. enable: False for a context without effect. throw_on_early_termination: if a rank has no
    more inputs, all ranks raise RuntimeError instead of joining. **kwargs: passed to the hooks; that of
    DistributedDataParallel has divide_by_initial_world_size.

    ValueError without joinables, or for joinables of several groups."""

    def __init__(
        self,
        joinables: list[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        groups = [joinable.join_process_group for joinable in joinables]
        if any(group is not groups[0] for group in groups):
            raise ValueError("Using join context manager with multiple process groups")
        self._joinables, self._enable = joinables, enable
        self._throws = throw_on_early_termination
        self._hooks = [joinable.join_hook(**kwargs) for joinable in joinables]
        self._group, self._device = groups[0], joinables[0].join_device
        for joinable in joinables:
            joinable._join_config = _Config(enable, self._throws, joinable is joinables[0])

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for joinable in self._joinables:
            joinable._join_config = _Config()
        if not self._enable or kind is not None:
            return
        steps = 0
        while _total(0, self._device, self._group).item() > 0:
            if self._throws:
                _total(1, self._device, self._group)
                raise RuntimeError(f"Rank {get_rank(self._group)} exhausted all inputs.")
            for hook in self._hooks:
                hook.main_hook()
            steps += 1
            if steps == _MANY:
                warnings.warn(
                    f"rank {get_rank(self._group)} has had no more inputs for {_MANY} steps of other ranks",
                    stacklevel=2,
                )
        for hook in self._hooks:
            hook.post_hook(steps == 0)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Work | None:
        """Tells the ranks that have joined that this rank has another step. A Joinable calls it before the
        collectives of the step. For the first joinable of an enabled Join it returns the Work whose result
        is the number of ranks that have not joined; in all other cases it returns None.

        RuntimeError if a rank has no more inputs and throw_on_early_termination is set."""
        if not hasattr(joinable, "_join_config"):
            raise RuntimeError(
                f"{type(joinable).__name__} does not call Joinable.__init__() in its constructor"
            )
        config = joinable._join_config
        if not (config.enable and config.is_first):
            return None
        device, group = joinable.join_device, joinable.join_process_group
        ones = tt.ones(1, device=device)
        work = all_reduce(ones, group=group, async_op=True)
        if config.throws and _total(0, device, group).item() > 0:
            raise RuntimeError(
                "Detected at least one rank that exhausted inputs. Throwing across all ranks."
            )
        return work


def _total(value: int, device: Any, group: Any) -> tt.Tensor:
    """The sum of the ranks' values."""
    total = tt.full((1,), float(value), device=device)
    all_reduce(total, group=group)
    return total


_absent.attach(globals())
