"""Batches of a dataset: made in the process that iterates, or in a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..._arrays import tensor_of
from .collate import Make, default_collate, default_convert
from .dataset import _gather

__all__ = ["Fetcher", "Recipe"]


@dataclass
class Recipe:
    """What a DataLoader says of its batches."""

    dataset: Any
    stream: bool  # the dataset is iterated, not indexed
    collate: Callable[[Any], Any] | None
    batched: bool  # else samples come one by one
    batch_size: int  # of a stream
    drop_last: bool  # of a stream


class Fetcher:
    """One iteration: called with the indices of a batch (of a stream: None) it makes that batch.

    Raises StopIteration, also when called again, where a stream has no batch more. `make` as in
    default_collate, where no collate_fn is given.
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
        """A sample of the stream, or a list of them."""
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
