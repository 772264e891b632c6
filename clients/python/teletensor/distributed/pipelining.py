"""The interface of torch.distributed.pipelining for one program that drives a mesh: the stages of a network
on the ranks of a mesh, and the orders in which their micro-batches are issued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._core import Tensor, ops
from .._names import absent as _absent
from ..autograd import backward, enable_grad, is_grad_enabled, no_grad
from ..nn.module import Module
from ._mesh import Rank

__all__ = ["PipelineStage", "Schedule1F1B", "ScheduleGPipe"]
__path__: list[str] = []  # the module below this one is created by _names/paths.py


class PipelineStage:
    """A part of a network on a rank of a mesh (`device=mesh[i]`), where its parameters are (`Rank.copy`).
    The first stage gets the arguments of `step`, and each later one the result of the previous stage: a
    tensor or a tuple of tensors. TypeError for another device, ValueError for an invalid index of a
    stage."""

    def __init__(self, submodule: Module, stage_index: int, num_stages: int, device: Any) -> None:
        if not isinstance(device, Rank):
            raise TypeError(
                f"PipelineStage: device must be a rank of a mesh, mesh[i], not {device!r}: one program "
                "issues all stages"
            )
        if not 0 <= stage_index < num_stages:
            raise ValueError(f"Stage index {stage_index} is out of range of {num_stages}")
        wrong = [
            name
            for name, each in submodule.named_parameters()
            if each._session is not device.session._core
        ]
        if wrong:
            raise ValueError(
                f"PipelineStage: parameter {wrong[0]} is not on {device!r}: give it rank.copy(module)"
            )
        self.submod, self.stage_index, self.num_stages, self.device = (
            submodule,
            stage_index,
            num_stages,
            device,
        )

    @property
    def is_first(self) -> bool:
        """Returns whether this stage gets the arguments of step()."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Returns whether this stage returns the outputs."""
        return self.stage_index == self.num_stages - 1


class _Schedule:
    """Base class of the schedules, which differ in `_order`, the order of the micro-batches in a stage."""

    def __init__(
        self,
        stage: Any,
        n_microbatches: int,
        loss_fn: Callable[..., Any] | None = None,
        scale_grads: bool = True,
    ) -> None:
        stages = [stage] if isinstance(stage, PipelineStage) else list(stage)
        if not stages or [each.stage_index for each in stages] != list(range(stages[0].num_stages)):
            raise ValueError(
                f"{type(self).__name__}: all stages of the network must be given, in their order; these "
                f"have the indices {[each.stage_index for each in stages]}"
            )
        if n_microbatches < 1:
            name = type(self).__name__
            raise ValueError(f"{name}: n_microbatches must be at least 1, not {n_microbatches}")
        self._stages: list[PipelineStage] = stages
        self._count, self._loss, self._scale = n_microbatches, loss_fn, scale_grads
        self._check()

    def _check(self) -> None:
        """ValueError for a number of micro-batches that the schedule does not accept."""

    def _order(self, stage: int) -> list[tuple[str, int]]:
        raise NotImplementedError

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Splits the arguments and the target along dimension 0 into micro-batches, and issues the forwards
        and backwards of all stages in the order of the schedule, without waiting. Gradients are those of
        the mean of the micro-batches' losses (of their sum with scale_grads=False). Keyword arguments are
        passed to every stage. Appends each loss, a tensor on the rank of the last stage, to `losses`.
        Returns the outputs of the last stage (None with return_outputs=False).

        ValueError if dimension 0 cannot be split equally, or if there is no loss_fn."""
        if self._loss is None:
            raise ValueError(f"{type(self).__name__}.step: backward needs loss_fn; eval() does without")
        step = _Step(self, args, kwargs, target)
        with enable_grad():
            step.run([self._order(s) for s in range(len(self._stages))])
        if losses is not None:
            losses[:] = step.losses
        return step.merged() if return_outputs else None

    def eval(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """As step(), without backward. Losses are computed if there are a target and a loss_fn."""
        step = _Step(self, args, kwargs, target)
        with no_grad():
            step.run([[("forward", i) for i in range(self._count)] for _ in self._stages])
        if losses is not None:
            losses[:] = step.losses
        return step.merged()


class ScheduleGPipe(_Schedule):
    """Runs all forwards, and then all backwards. `stage` is the list of all stages; the loss is
    `loss_fn(output, target)`."""

    def _order(self, stage: int) -> list[tuple[str, int]]:
        numbers = range(self._count)
        return [("forward", i) for i in numbers] + [("backward", i) for i in numbers]


class Schedule1F1B(_Schedule):
    """Makes each stage run one backward after each forward as soon as possible, so that it holds at most as
    many micro-batches as there are stages from it to the last one. The arguments are those of
    ScheduleGPipe. ValueError for fewer micro-batches than stages."""

    def _check(self) -> None:
        if self._count < len(self._stages):
            raise ValueError(
                f"Number of microbatches ({self._count}) must be greater than or equal to the number "
                f"of stages ({len(self._stages)})."
            )

    def _order(self, stage: int) -> list[tuple[str, int]]:
        ahead = min(self._count, len(self._stages) - stage)
        order = [("forward", i) for i in range(ahead)]
        for i in range(self._count):
            order.append(("backward", i))
            if ahead + i < self._count:
                order.append(("forward", ahead + i))
        return order


class _Step:
    """The micro-batches of one step."""

    def __init__(
        self, schedule: _Schedule, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> None:
        self._stages, self._count, self._loss = schedule._stages, schedule._count, schedule._loss
        self._share = 1.0 / self._count if schedule._scale else 1.0
        parts = [self._split(each) for each in args]
        self._inputs = {(0, i): tuple(part[i] for part in parts) for i in range(self._count)}
        self._kwargs = {name: self._split(each) for name, each in kwargs.items()}
        self._targets = None if target is None else self._split(target)
        # inputs and outputs that are kept until the backward
        self._held: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._gradients: dict[tuple[int, int], Any] = {}
        self._outputs: list[Any] = []
        self.losses: list[Any] = []

    def _split(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, Tensor):
            return [value] * self._count
        if value.dim() == 0 or value.shape[0] % self._count:
            raise ValueError(
                f"a tensor of {tuple(value.shape)} does not split along dimension 0 into {self._count} "
                "equal micro-batches"
            )
        parts: Sequence[Any] = value.chunk(self._count)
        return parts

    def run(self, orders: list[list[tuple[str, int]]]) -> None:
        """Issues the list of each stage in its order, one entry of each stage after the other, as soon as
        its inputs have been issued."""
        waiting: list[Iterator[tuple[str, int]]] = [iter(order) for order in orders]
        heads = [next(each, None) for each in waiting]
        while any(head is not None for head in heads):
            for s, head in enumerate(heads):
                if head is None or (s, head[1]) not in (
                    self._inputs if head[0] == "forward" else self._ready(s)
                ):
                    continue
                rank = self._stages[s].device
                with rank.as_current():
                    self._forward(s, head[1]) if head[0] == "forward" else self._backward(s, head[1])
                heads[s] = next(waiting[s], None)

    def _ready(self, s: int) -> Any:
        return self._held if s == len(self._stages) - 1 else self._gradients

    def _forward(self, s: int, i: int) -> None:
        stage = self._stages[s]
        inputs = tuple(_at(each, stage.device) for each in self._inputs.pop((s, i)))
        if s > 0:  # the history ends between two stages: _backward sends the gradients
            inputs = tuple(
                each.requires_grad_(bool(each.is_floating_point() and is_grad_enabled())) for each in inputs
            )
        kwargs = {name: _at(parts[i], stage.device) for name, parts in self._kwargs.items()}
        result = stage.submod(*inputs, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        if not stage.is_last:
            following = self._stages[s + 1].device
            self._inputs[s + 1, i] = tuple(_at(each.detach(), following) for each in outputs)
            self._held[s, i] = inputs, outputs
            return
        if self._loss is not None and self._targets is not None:
            self.losses.append(self._loss(result, _at(self._targets[i], stage.device)))
            self._held[s, i] = inputs, (self.losses[-1],)
        elif is_grad_enabled():
            raise ValueError("step: a target is needed for the loss")
        self._outputs.append(result)

    def _backward(self, s: int, i: int) -> None:
        inputs, outputs = self._held.pop((s, i))
        given = self._gradients.pop((s, i), None)
        if given is None:
            given = tuple(
                ops["full"](self._share, list(each.shape), each.dtype, each.device) for each in outputs
            )
        pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None and o.requires_grad]
        if pairs:
            backward([o for o, _ in pairs], [g for _, g in pairs])
        if s > 0:
            before = self._stages[s - 1].device
            self._gradients[s - 1, i] = tuple(
                None if each.grad is None else _at(each.grad, before) for each in inputs
            )

    def merged(self) -> Any:
        """The last stage's outputs of all micro-batches, merged to one."""
        with self._stages[-1].device.as_current():
            if isinstance(self._outputs[0], tuple):
                return tuple(ops["cat"](list(each), 0) for each in zip(*self._outputs, strict=True))
            return ops["cat"](self._outputs, 0)


def _at(value: Any, rank: Rank) -> Any:
    return value.to(rank) if isinstance(value, Tensor) else value


_absent.attach(globals())
