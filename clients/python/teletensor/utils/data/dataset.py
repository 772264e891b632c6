"""Datasets: objects that are indexed or iterated for samples."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ... import _api as tt
from ..._tensors.tensor import Tensor
from ._random import numpy_generator

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Maps an index to a sample: subclasses define `__getitem__`, and `__len__` for samplers.

    A subclass may define `gather(indices)`, which returns a whole collated batch at once, or None if it
    cannot; DataLoader uses it if no collate_fn is given.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def gather(self, indices: Sequence[int]) -> Any:
        """Returns the collated batch of these samples, or None if they must be collated one by one."""
        return None

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """A stream of samples: subclasses define `__iter__`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is (tensors[0][i], tensors[1][i], ...); the first dimensions of the tensors must have the
    same size.

    A batch is one `index_select` per tensor, on the daemon. ValueError for sizes that differ, or without
    tensors.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("TensorDataset: at least one tensor is needed")
        if len({tuple(tensor.shape)[:1] for tensor in tensors}) != 1 or tensors[0].dim() == 0:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
            raise AssertionError(f"Size mismatch between tensors: TensorDataset of {shapes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def gather(self, indices: Sequence[int]) -> list[Tensor] | None:
        """Copies [tensors[0][indices], ...]; consecutive indices are read as one slice."""
        if type(self).__getitem__ is not TensorDataset.__getitem__:
            return None  # a subclass changes the samples
        if min(indices) < 0 or max(indices) >= len(self):
            return None
        first, count = indices[0], len(indices)
        if list(indices) == list(range(first, first + count)):
            return [tensor[first : first + count].clone() for tensor in self.tensors]
        chosen = tt.tensor(indices, dtype=tt.int64, device=self.tensors[0].device)
        return [
            tt.index_select(tensor, 0, chosen.to(tensor.device)) for tensor in self.tensors
        ]


class Subset(Dataset[T_co]):
    """The samples of `dataset` at `indices`."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> T_co:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The samples at several indices; a dataset that has this method is asked once for all."""
        if type(self).__getitem__ is not Subset.__getitem__:
            return [self[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        wanted = [self.indices[i] for i in indices]
        return [self.dataset[i] for i in wanted] if many is None else many(wanted)

    def __len__(self) -> int:
        return len(self.indices)

    def gather(self, indices: Sequence[int]) -> Any:
        if type(self).__getitem__ is not Subset.__getitem__:
            return None
        return _gather(self.dataset, [self.indices[i] for i in indices])


class ConcatDataset(Dataset[Any]):
    """The samples of several datasets, one after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise ValueError("ConcatDataset does not support IterableDataset")
        lengths = [len(dataset) for dataset in self.datasets]  # type: ignore[arg-type]
        self.cumulative_sizes = list(itertools.accumulate(lengths))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: Any) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        index %= len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]


class StackDataset(Dataset[Any]):
    """Sample i consists of the samples i of several datasets of the same length: a tuple, or a dict if they
    are given by name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or``dict``- (via ``kwargs``) like "
                "input/output, but both types are given."
            )
        self.datasets: Any = kwargs or args
        parts = list(kwargs.values() or args)
        if not parts:
            raise ValueError("At least one dataset should be passed")
        if len({len(part) for part in parts}) != 1:
            raise ValueError("Size mismatch between datasets")
        self._length = len(parts[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: part[index] for name, part in self.datasets.items()}
        return tuple(part[index] for part in self.datasets)

    def __len__(self) -> int:
        return self._length


class ChainDataset(IterableDataset[Any]):
    """Several iterable datasets, one after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError("ChainDataset only supports IterableDataset")
            yield from dataset


def _gather(dataset: Any, indices: Sequence[int]) -> Any:
    """Calls dataset.gather, also for objects that are not Datasets but have its methods."""
    gather = getattr(dataset, "gather", None)
    return gather(indices) if gather is not None and indices else None


def random_split(
    dataset: Dataset[T_co], lengths: Sequence[int | float], generator: Any = None
) -> list[Subset[T_co]]:
    """Returns disjoint random subsets. `lengths` are numbers of samples that add up to the size, or
    fractions that add up to 1 (samples that remain after rounding are given to the subsets in turn).
    `generator` is None (follows manual_seed), a number, a `teletensor.Generator` or a NumPy generator."""
    size = len(dataset)  # type: ignore[arg-type]
    total = sum(lengths)
    if math.isclose(total, 1) and total <= 1:
        if any(not 0 <= fraction <= 1 for fraction in lengths):
            raise ValueError("random_split: fractions lie between 0 and 1")
        counts = [math.floor(size * fraction) for fraction in lengths]
        for i in range(size - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = [int(length) for length in lengths]
    if sum(counts) != size:
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset: "
            f"{sum(counts)} and {size}"
        )
    order = numpy_generator(generator).permutation(size).tolist()
    ends = list(itertools.accumulate(counts))
    return [
        Subset(dataset, order[end - count : end]) for end, count in zip(ends, counts, strict=True)
    ]
