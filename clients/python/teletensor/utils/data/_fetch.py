"""Makes the batches of a dataset, in the process that iterates or in a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..._tensors.arrays import tensor_of
from .collate import Make, default_collate, default_convert
from .dataset import _gather

__all__ = ["Fetcher", "Recipe"]


@dataclass
class Recipe:
    """How a DataLoader makes its batches."""

    dataset: Any
    stream: bool  # whether the dataset is iterated, not indexed
    collate: Callable[[Any], Any] | None
    batched: bool  # if false, samples are returned one by one
    batch_size: int  # for a stream
    drop_last: bool  # for a stream


class Fetcher:
    """One iteration over a dataset: called with the indices of a batch (None for a stream) it makes that
    batch.

    StopIteration, also at later calls, if a stream has no further batch. `make` is that of default_collate,
    and is used if no collate_fn is given.
    """

    def __init__(self, recipe: Recipe, make: Make = tensor_of) -> None:
        self._recipe, self._make = recipe, make
        self._stream: Iterator[Any] | None = iter(recipe.dataset) if recipe.stream else None
        self._ended = False

    def __call__(self, indices: Any) -> Any:
        recipe = self._recipe
        if recipe.stream:
            return self._collate(self._next())
        if not recipe.batched:
            return self._collate(recipe.dataset[indices])
        indices = list(indices)
        batch = _gather(recipe.dataset, indices) if recipe.collate is None else None
        return self._collate(_samples(recipe.dataset, indices)) if batch is None else batch

    def _next(self) -> Any:
        """The next sample of the stream, or a list of the next samples."""
        recipe = self._recipe
        if self._ended or self._stream is None:
            raise StopIteration
        if not recipe.batched:
            return next(self._stream)
        samples = list(itertools.islice(self._stream, recipe.batch_size))
        self._ended = len(samples) < recipe.batch_size
        if not samples or (self._ended and recipe.drop_last):
            raise StopIteration
        return samples

    def _collate(self, samples: Any) -> Any:
        if self._recipe.collate is not None:
            return self._recipe.collate(samples)
        return (default_collate if self._recipe.batched else default_convert)(samples, make=self._make)


def _samples(dataset: Any, indices: list[Any]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many is not None else [dataset[i] for i in indices]
