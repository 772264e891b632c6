"""DataLoader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .collate import default_collate
from .dataset import IterableDataset, _gather
from .sampler import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader"]


class DataLoader:
    """Iterates over batches of a dataset, in the calling process.

    With batch_size=None samples come one by one as they are. `shuffle` draws a new order for each
    iteration; it follows `teletensor.manual_seed`, or `generator` (a number or a NumPy generator).
    `sampler` yields indices, `batch_sampler` lists of indices. Without collate_fn, batches are made
    by default_collate, or by the dataset's `gather` where it has one (TensorDataset: one
    instruction per tensor). pin_memory is accepted and changes nothing: uploads are staged by the
    transport.

    >>> data = tt.utils.data.TensorDataset(tt.arange(5), tt.arange(5) * 10)
    >>> for x, y in tt.utils.data.DataLoader(data, batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [0, 1] [0, 10]
    [2, 3] [20, 30]
    [4] [40]

    Raises ValueError for options that exclude each other and for num_workers other than 0.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: Any = None,
    ) -> None:
        if num_workers != 0:
            raise ValueError(
                "num_workers: samples are loaded in the calling process; only 0 is supported, "
                f"got {num_workers}"
            )
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "DataLoader with IterableDataset: expected unspecified shuffle, sampler and "
                "batch_sampler"
            )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last"
            )
        if not self._iterable and sampler is None:
            if shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            else:
                sampler = SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler or (), batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        if self._iterable:
            return self._iterate_stream()
        if self.batch_sampler is not None:
            return self._iterate_batches(self.batch_sampler)
        return self._iterate_samples()

    def _iterate_batches(self, batches: Iterable[Sequence[int]]) -> Iterator[Any]:
        collate = default_collate if self.collate_fn is None else self.collate_fn
        for indices in batches:
            batch = _gather(self.dataset, indices) if self.collate_fn is None else None
            yield collate([self.dataset[i] for i in indices]) if batch is None else batch

    def _iterate_samples(self) -> Iterator[Any]:
        for index in self.sampler or ():
            sample = self.dataset[index]
            yield sample if self.collate_fn is None else self.collate_fn(sample)

    def _iterate_stream(self) -> Iterator[Any]:
        if self.batch_size is None:
            for sample in self.dataset:
                yield sample if self.collate_fn is None else self.collate_fn(sample)
            return
        collate = default_collate if self.collate_fn is None else self.collate_fn
        stream = iter(self.dataset)
        while batch := list(itertools.islice(stream, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield collate(batch)

    def __len__(self) -> int:
        if self._iterable:
            size = len(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        return len(self.sampler)  # type: ignore[arg-type]
