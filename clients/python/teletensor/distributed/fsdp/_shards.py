"""Parameters of which each rank of a group has a part: those of fully_shard and of parallelize_module."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ..._core import Tensor, ops
from ..._functions import norm
from ...autograd import no_grad
from ...nn.module import Module
from ...nn.parameter import Parameter
from .._collectives import gathered, reduce_scatter_tensor
from .._group import ProcessGroup, ReduceOp

__all__ = [
    "ParallelParameter", "ShardedParameter", "Sharding", "alias", "gradient_norms", "mark_in_state",
    "place", "sharded",
]  # fmt: skip


class Sharding:
    """How a parameter of shape `shape` is divided among the ranks of a group: along `dim`, as chunk() does.
    The last ranks may have fewer rows, or none. In transfers between ranks all parts have the same size;
    smaller ones are padded with zeros. If the parameter itself is a part of another one, `outer` is how
    that is divided."""

    def __init__(
        self, group: ProcessGroup, shape: tuple[int, ...], dim: int, outer: Sharding | None = None
    ) -> None:
        self.group, self.shape, self.dim, self.outer = group, shape, dim, outer
        self.full_shape: tuple[int, ...] = shape if outer is None else outer.full_shape
        rows, ranks = shape[dim], group.size()
        self.chunk = -(-rows // ranks)
        self.begin = min(group.rank() * self.chunk, rows)
        self.rows = min(self.chunk, rows - self.begin)
        self._padded = (*shape[:dim], self.chunk, *shape[dim + 1 :])

    def part(self, whole: Tensor) -> Tensor:
        """A copy of this rank's part of the whole tensor."""
        return whole.detach().narrow(self.dim, self.begin, self.rows).clone()

    def gather(self, part: Tensor) -> Tensor:
        """The whole tensor from the parts of the ranks, without history. All ranks call it."""
        with no_grad():
            sent = self._filled(part.detach(), self.chunk)
            whole = gathered(sent, self.group).to(part.device).movedim(0, self.dim)
            return self._joined(whole).narrow(self.dim, 0, self.shape[self.dim])

    def full_part(self, full: Tensor) -> Tensor:
        """A copy of this rank's part of the tensor that nothing divides."""
        return self.part(full if self.outer is None else self.outer.full_part(full))

    def gather_full(self, part: Tensor) -> Tensor:
        """The tensor that nothing divides, without history. All ranks call it."""
        whole = self.gather(part)
        return whole if self.outer is None else self.outer.gather_full(whole)

    def scatter(self, whole: Tensor, op: ReduceOp) -> Tensor:
        """This rank's part of the sum or average of the ranks' whole tensors. All ranks call it."""
        with no_grad():
            ranks = self.group.size()
            filled = self._filled(whole.detach(), self.chunk * ranks)
            parts = filled.reshape(*self.shape[: self.dim], ranks, *self._padded[self.dim :])
            mine = whole.new_empty(self._padded)
            reduce_scatter_tensor(mine, parts.movedim(self.dim, 0), op, self.group)
            return mine.narrow(self.dim, 0, self.rows)

    def _filled(self, x: Tensor, rows: int) -> Tensor:
        missing = rows - x.shape[self.dim]
        if missing == 0:
            return x
        zeros = x.new_zeros((*x.shape[: self.dim], missing, *x.shape[self.dim + 1 :]))
        return ops["cat"]([x, zeros], self.dim)

    def _joined(self, x: Tensor) -> Tensor:
        """Reshapes [..., ranks, chunk, ...] so that these two dimensions become one."""
        rows = self.group.size() * self.chunk
        return x.reshape(*self.shape[: self.dim], rows, *self.shape[self.dim + 1 :])


class ShardedParameter(Parameter):
    """This rank's part of a parameter: an ordinary leaf tensor, whose gradient has the shape of the part.
    These are the parameters of a module of fully_shard or parallelize_module."""

    sharding: Sharding
    name: str

    def full_tensor(self) -> Tensor:
        """The whole parameter with its global shape, as a new tensor without history. All ranks call it."""
        return self.sharding.gather_full(self)

    def to_local(self) -> Tensor:
        """This rank's part, sharing its memory, without history."""
        return self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        raise TypeError(
            f"parameter {self.name} is sharded by fully_shard and cannot be copied by deepcopy: copy the "
            "module before it is sharded"
        )


class ParallelParameter(ShardedParameter):
    """This rank's part of a parameter of parallelize_module: the module computes with the part itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = Parameter.__deepcopy__(self, memo)
        assert isinstance(copy, ParallelParameter)
        copy.sharding, copy.name = self.sharding, self.name
        return copy


def sharded(parameter: Parameter, name: str, sharding: Sharding) -> ShardedParameter:
    """Returns this rank's part as a parameter, with the corresponding part of the gradient."""
    made = ShardedParameter(sharding.part(parameter), parameter.requires_grad)
    made.sharding, made.name = sharding, name
    if parameter.grad is not None:
        made.grad = sharding.part(parameter.grad)
    return made


def alias(part: Tensor, like: ShardedParameter, name: str) -> ShardedParameter:
    """A tensor that is divided like a parameter and shares the memory of `part`, under another name and
    without history."""
    made = ShardedParameter(part.detach(), False)
    made.sharding, made.name = like.sharding, name
    return made


def mark_in_state(module: Module, name: str) -> None:
    """Makes state_dict mark this ParallelParameter of the module as a part, as which checkpoints save
    it."""
    module.register_state_dict_post_hook(functools.partial(_mark, name))


def _mark(name: str, module: Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    own = module.__dict__[name]
    if isinstance(own, ParallelParameter) and state.get(prefix + name) is not own:
        state[prefix + name] = alias(own, own, own.name)


def place(owners: list[tuple[Module, str]], tensor: Tensor) -> None:
    """Makes the tensor the attribute with these names of the modules."""
    for module, name in owners:
        module.__dict__[name] = tensor


def gradient_norms(parameters: Iterable[ShardedParameter], norm_type: float) -> list[Tensor]:
    """For each group of ranks, the norm of the whole gradients of which its ranks have parts."""
    by_groups: dict[tuple[int, ...], list[ShardedParameter]] = {}
    for each in parameters:
        by_groups.setdefault(tuple(map(id, _groups(each.sharding))), []).append(each)
    norms = []
    for several in by_groups.values():
        own = [norm(each.grad, norm_type) for each in several if each.grad is not None]
        part = norm(ops["stack"](own, 0), norm_type) if own else several[0].detach().new_zeros(())
        for group in _groups(several[0].sharding):
            part = norm(gathered(part, group).to(part.device), norm_type)
        norms.append(part)
    return norms


def _groups(sharding: Sharding | None) -> list[ProcessGroup]:
    """The groups whose ranks have the parts, beginning with the smallest parts."""
    return [] if sharding is None else [sharding.group, *_groups(sharding.outer)]
