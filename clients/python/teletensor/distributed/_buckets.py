"""Buckets: tensors that are concatenated to one flat tensor so that they are sent together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._core import Tensor, ops
from ..autograd import no_grad
from ._collectives import broadcast, broadcast_from_lowest
from ._group import ProcessGroup

__all__ = ["GradBucket", "broadcast_all", "flat", "grouped", "parts_of"]


class GradBucket:
    """The gradients that DistributedDataParallel averages together, as a hook of `register_comm_hook` gets
    them. All ranks have the same buckets in the same order."""

    def __init__(self, index: int, last: bool, buffer: Tensor, parameters: Sequence[Tensor]) -> None:
        self._index, self._last = index, last
        self._buffer, self._parameters = buffer, list(parameters)

    def index(self) -> int:
        """The index of the bucket; hooks get the buckets in the order of their indices."""
        return self._index

    def is_last(self) -> bool:
        """Returns whether this is the last bucket of the backward."""
        return self._last

    def buffer(self) -> Tensor:
        """The gradients as a flat tensor."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replaces the buffer. Only the result of the hook's Future becomes the gradients."""
        if not isinstance(buffer, Tensor):
            raise TypeError(f"set_buffer takes a Tensor, not {type(buffer).__name__}")
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """The gradients as views of the buffer in the shapes of the parameters. RuntimeError if
        `set_buffer` has set a tensor of another size."""
        return parts_of(self._buffer, self._parameters)

    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients are in the bucket."""
        return list(self._parameters)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """The elements of all tensors in one flat tensor, without history."""
    rows = [ops["reshape"](each.detach(), (-1,)) for each in tensors]
    return rows[0].clone() if len(rows) == 1 else ops["cat"](rows, 0)


def parts_of(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the flat tensor in the shapes of `like`."""
    wanted = sum(each.numel() for each in like)
    if buffer.dim() != 1 or buffer.numel() != wanted:
        raise RuntimeError(
            f"a buffer of {tuple(buffer.shape)} does not hold the bucket's gradients, which are "
            f"({wanted},)"
        )
    rows = ops["split_with_sizes"](buffer, [each.numel() for each in like], 0)
    return [ops["view"](row, each.shape) for row, each in zip(rows, like, strict=True)]


def grouped(tensors: Iterable[Tensor], size: int) -> list[list[Tensor]]:
    """Groups of adjacent tensors with the same dtype and device, of about `size` bytes each."""
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


def broadcast_all(tensors: Iterable[Tensor], group: ProcessGroup, root: int | None, size: int) -> None:
    """Copies the tensors of the group's rank `root` to all its ranks, in buckets of about `size` bytes.
    None is the lowest rank of an elastic group that is not lost."""
    with no_grad():
        for bucket in grouped(tensors, size):
            buffer = flat(bucket)
            if root is None:
                broadcast_from_lowest(buffer, group)
            else:
                broadcast(buffer, group=group, group_src=root)
            if group.rank() != root:
                for tensor, part in zip(bucket, parts_of(buffer, bucket), strict=True):
                    tensor.copy_(part)
