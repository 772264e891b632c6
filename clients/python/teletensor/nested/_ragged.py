"""Ragged: the lengths of the elements of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _api as tt, _core
from .._core import Tensor

__all__ = ["Ragged"]

_numbers = itertools.count(1)


class Ragged:
    """The ragged dimension of nested tensors: element b of the batch has the rows bounds[b] to
    bounds[b + 1] - 1 of the values. It is the size of that dimension in `shape`."""

    def __init__(self, lengths: Sequence[int], device: Any) -> None:
        self.lengths = tuple(lengths)
        self.bounds = (0, *itertools.accumulate(self.lengths))
        self.device = device
        self._name = f"j{next(_numbers)}"
        self._tensors: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ragged) and self.lengths == other.lengths

    def __hash__(self) -> int:
        return hash(self.lengths)

    @property
    def batch(self) -> int:
        """The number of elements of the batch."""
        return len(self.lengths)

    @property
    def total(self) -> int:
        """The number of rows of all elements."""
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        """The largest length."""
        return max(self.lengths, default=0)

    def on(self, device: Any) -> Ragged:
        """The same lengths for values of another device."""
        return self if device == self.device else Ragged(self.lengths, device)

    def offsets(self) -> Tensor:
        """The bounds [batch + 1] as a tensor."""
        return self._known("offsets", lambda: self.bounds)

    def numbers(self) -> Tensor:
        """The number [total] of the element of the batch to which each row belongs."""
        return self._known("numbers", self._numbers)

    def sizes(self) -> Tensor:
        """The lengths [batch] as a tensor."""
        return self._known("sizes", lambda: self.lengths)

    def places(self, length: int) -> Tensor:
        """The number [total] of each row among those of a batch whose elements all have this length."""

        def made() -> Any:
            inner = np.arange(self.total) - np.array(self.bounds, np.int64)[self._numbers()]
            return self._numbers() * length + inner

        return self._known(f"places {length}", made)

    def pad(self, rows: Tensor, padding: Any, length: int) -> Tensor:
        """The rows [total, ...] as [batch, length, ...], with `padding` behind each element."""
        rest = rows.shape[1:]
        empty = tt.full((self.batch * length, *rest), padding, dtype=rows.dtype, device=rows.device)
        filled: Tensor = empty.index_copy(0, self.places(length), rows)
        return filled.reshape((self.batch, length, *rest))

    def unpad(self, padded: Tensor) -> Tensor:
        """The rows [total, ...] of what `pad` returns."""
        length = padded.shape[1]
        flat = padded.reshape((self.batch * length, *padded.shape[2:]))
        found: Tensor = flat.index_select(0, self.places(length))
        return found

    def _numbers(self) -> Any:
        return np.repeat(np.arange(self.batch), np.array(self.lengths, np.int64))

    def _known(self, name: str, made: Callable[[], Any]) -> Tensor:
        """The tensor of these numbers, which is kept unless it belongs to a captured function."""
        if name in self._tensors:
            return self._tensors[name]
        tensor = tt.as_tensor(np.array(made(), np.int64), device=self.device)
        if not _core.tracing(tensor._session):
            self._tensors[name] = tensor
        return tensor
