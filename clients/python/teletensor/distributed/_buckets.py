"""Tensors that travel together: one after the other in a flat one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._core import Tensor, ops
from ..autograd import no_grad
from ._collectives import broadcast
from ._group import ProcessGroup

__all__ = ["GradBucket", "broadcast_all", "flat", "grouped", "parts_of"]


class GradBucket:
    """Gradients that DistributedDataParallel averages together, as a hook of `register_comm_hook` gets
    them. All ranks have the same buckets in the same order."""

    def __init__(self, index: int, last: bool, buffer: Tensor, parameters: Sequence[Tensor]) -> None:
        self._index, self._last = index, last
        self._buffer, self._parameters = buffer, list(parameters)

    def index(self) -> int:
        """The position of the bucket: hooks get them in the order of their indices."""
        return self._index

    def is_last(self) -> bool:
        """Is it the last bucket of this backward?"""
        return self._last

    def buffer(self) -> Tensor:
        """The gradients as one tensor of one dimension."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Takes another tensor as the buffer. Only what the hook's Future has becomes the gradients."""
        if not isinstance(buffer, Tensor):
            raise TypeError(f"set_buffer takes a Tensor, not {type(buffer).__name__}")
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """The gradients: views of the buffer, in the parameters' shapes. RuntimeError where `set_buffer`
        has taken a tensor that they do not fit."""
        return parts_of(self._buffer, self._parameters)

    def parameters(self) -> list[Tensor]:
        """The parameters that the gradients belong to."""
        return list(self._parameters)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """The elements of all, in one dimension, without history."""
    rows = [each.detach().reshape(-1) for each in tensors]
    return rows[0].clone() if len(rows) == 1 else ops["cat"](rows, 0)


def parts_of(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the flat tensor in the shapes of these."""
    wanted = sum(each.numel() for each in like)
    if buffer.dim() != 1 or buffer.numel() != wanted:
        raise RuntimeError(
            f"a buffer of {tuple(buffer.shape)} does not hold the bucket's gradients, which are "
            f"({wanted},)"
        )
    rows = buffer.split([each.numel() for each in like])
    return [row.view(each.shape) for row, each in zip(rows, like, strict=True)]


def grouped(tensors: Iterable[Tensor], size: int) -> list[list[Tensor]]:
    """Neighbours of one dtype and device, of about `size` bytes together."""
    found: list[list[Tensor]] = []
    used = 0
    for each in tensors:
        last = found[-1][0] if found else None
        if last is None or used >= size or each.dtype != last.dtype or each.device != last.device:
            found.append([])
            used = 0
        found[-1].append(each)
        used += each.numel() * each.element_size()
    return found


def broadcast_all(tensors: Iterable[Tensor], group: ProcessGroup, root: int, size: int) -> None:
    """The tensors of the group's rank `root`, on all of its ranks, in buckets of about `size` bytes."""
    with no_grad():
        for bucket in grouped(tensors, size):
            buffer = flat(bucket)
            broadcast(buffer, group=group, group_src=root)
            if group.rank() != root:
                for tensor, part in zip(bucket, parts_of(buffer, bucket), strict=True):
                    tensor.copy_(part)
