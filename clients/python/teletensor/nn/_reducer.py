"""The part of DistributedDataParallel that makes the processes' tensors equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from .. import distributed as _distributed
from .._convert import tensor
from ..autograd import no_grad
from ..autograd._backward import followers
from .module import Module
from .utils import parameters_to_vector, vector_to_parameters


class Reducer:
    """Averages the gradients of a module over the ranks of a group after a backward, in buckets of about
    `bucket_bytes`. The owner sets `armed` in each forward whose backward is to be averaged."""

    def __init__(self, module: Module, group: Any, bucket_bytes: int, find_unused: bool) -> None:
        self.armed = False
        self._module, self._group = module, group
        self._bucket_bytes, self._find_unused = bucket_bytes, find_unused
        followers.add(self)

    def begin_alike(self, buffers: bool) -> None:
        """All ranks get the parameters of rank 0, and its buffers. RuntimeError that names the first one
        whose name, shape or dtype differs."""
        named: list[tuple[str, Any]] = list(self._module.named_parameters())
        if buffers:
            named += self._module.named_buffers()
        own = [[name, list(each.shape), str(each.dtype)] for name, each in named]
        every: list[Any] = [None] * _distributed.get_world_size(self._group)
        _distributed.all_gather_object(every, own, self._group)
        for rank, theirs in enumerate(every):
            for a, b in itertools.zip_longest(every[0], theirs, fillvalue=["nothing", [], ""]):
                if a != b:
                    raise RuntimeError(
                        f"DistributedDataParallel: rank 0 has {a[0]} {a[2]}{a[1]} where rank {rank} has "
                        f"{b[0]} {b[2]}{b[1]}"
                    )
        self.broadcast(each.detach() for _, each in named)

    def broadcast(self, tensors: Iterable[Any]) -> None:
        """The tensors of the group's rank 0, on all ranks."""
        with no_grad():
            for bucket in self._buckets(tensors):
                flat = parameters_to_vector(bucket)
                _distributed.broadcast(flat, group=self._group, group_src=0)
                if _distributed.get_rank(self._group) != 0:
                    vector_to_parameters(flat, bucket)

    def _named(self) -> list[tuple[str, Any]]:
        return [(name, each) for name, each in self._module.named_parameters() if each.requires_grad]

    # ---- autograd's Follower

    def follows(self) -> bool:
        """Is the next backward one whose gradients are to be averaged?"""
        return self.armed

    def gradients_before(self) -> list[int | None]:
        """The versions of the gradients."""
        return [None if each.grad is None else each.grad._version for _, each in self._named()]

    def gradients_after(self, before: list[int | None]) -> None:
        """Averages the gradients, if the backward has reached a parameter of the module."""
        named = self._named()
        reached = [now != then for now, then in zip(self.gradients_before(), before, strict=True)]
        if not any(reached):
            return
        self.armed = False
        unused = [name for (name, _), is_reached in zip(named, reached, strict=True) if not is_reached]
        chosen = [each for _, each in named]
        if self._find_unused:
            anywhere = tensor([int(each) for each in reached])
            _distributed.all_reduce(anywhere, _distributed.ReduceOp.MAX, self._group)
            chosen = [each for each, use in zip(chosen, anywhere.tolist(), strict=True) if use]
        self._average(chosen)
        if unused and not self._find_unused:
            raise RuntimeError(
                f"the backward has not reached {len(unused)} parameters of the module that "
                f"DistributedDataParallel averages: {', '.join(unused[:8])}; use them in the loss, or pass "
                "find_unused_parameters=True"
            )

    def _average(self, parameters: list[Any]) -> None:
        with no_grad():
            for bucket in self._buckets(reversed(parameters)):
                flat = parameters_to_vector(
                    each.new_zeros(each.shape) if each.grad is None else each.grad for each in bucket
                )
                _distributed.all_reduce(flat, _distributed.ReduceOp.AVG, self._group)
                parts = flat.split([each.numel() for each in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    averaged = part.reshape(parameter.shape)
                    if parameter.grad is None:
                        parameter.grad = averaged.clone()
                    else:
                        parameter.grad.copy_(averaged)

    def _buckets(self, tensors: Iterable[Any]) -> list[list[Any]]:
        """Neighbours of one dtype and device."""
        found: list[list[Any]] = []
        used = 0
        for each in tensors:
            last = found[-1][0] if found else None
            full = used >= self._bucket_bytes
            if last is None or full or each.dtype != last.dtype or each.device != last.device:
                found.append([])
                used = 0
            found[-1].append(each)
            used += each.numel() * each.element_size()
        return found
