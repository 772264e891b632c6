"""DataLoader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ._random import numpy_generator
from ._workers import Pool, fetch
from .collate import default_collate, default_convert
from .dataset import IterableDataset, _gather
from .sampler import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader"]


class DataLoader:
    """Iterates over batches of a dataset.

    With batch_size=None samples come one by one. `shuffle` draws a new order for each iteration; it
    follows `teletensor.manual_seed`, or `generator` (a number, a `teletensor.Generator` or a NumPy
    generator). `sampler` yields indices, `batch_sampler` lists of indices. Without collate_fn,
    batches are made by default_collate, or by the dataset's `gather` where it has one
    (TensorDataset: one instruction per tensor, on the daemon; workers have nothing to do there).

    num_workers processes index the dataset, each up to prefetch_factor batches ahead (2 unless
    given); the next batch is uploaded while the caller works with this one. The dataset must be
    picklable and return NumPy arrays and numbers, not tensors: workers do not talk to the daemon.
    collate_fn runs in the calling process, where tensors can be made. worker_init_fn(number) is
    called in each worker first; get_worker_info() tells an IterableDataset which part is its own.
    persistent_workers keeps the processes for the next iteration; timeout (seconds, 0: none) limits
    the wait for a batch; multiprocessing_context is "forkserver" (default), "spawn" or "fork".
    pin_memory is accepted and changes nothing: uploads are staged by the transport.

    >>> data = tt.utils.data.TensorDataset(tt.arange(5), tt.arange(5) * 10)
    >>> for x, y in tt.utils.data.DataLoader(data, batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [0, 1] [0, 10]
    [2, 3] [20, 30]
    [4] [40]

    Raises ValueError for options that exclude each other.
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
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable "
                "multiprocessing."
            )
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing. let "
                "num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor <= 0:
            raise ValueError("prefetch_factor option should be positive")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if multiprocessing_context is not None and num_workers == 0:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading "
                "(num_workers > 0), but got num_workers=0"
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
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.persistent_workers = persistent_workers
        self._pool: Pool | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._iterable:
            return self._ahead(None) if self.num_workers else self._iterate_stream()
        if self.batch_sampler is not None:
            return self._iterate_batches(self.batch_sampler)
        if self.num_workers:
            return self._ahead((index,) for index in self.sampler or ())
        return self._iterate_samples()

    @property
    def _collate(self) -> Callable[[list[Any]], Any]:
        return default_collate if self.collate_fn is None else self.collate_fn

    def _iterate_batches(self, batches: Iterable[Sequence[int]]) -> Iterator[Any]:
        rest = iter(batches)
        for indices in rest:
            batch = _gather(self.dataset, indices) if self.collate_fn is None else None
            if batch is None and self.num_workers:
                yield from self._ahead(map(list, itertools.chain([indices], rest)))
                return
            yield self._collate(fetch(self.dataset, list(indices))) if batch is None else batch

    def _iterate_samples(self) -> Iterator[Any]:
        for index in self.sampler or ():
            sample = self.dataset[index]
            yield sample if self.collate_fn is None else self.collate_fn(sample)

    def _iterate_stream(self) -> Iterator[Any]:
        if self.batch_size is None:
            for sample in self.dataset:
                yield sample if self.collate_fn is None else self.collate_fn(sample)
            return
        stream = iter(self.dataset)
        while batch := list(itertools.islice(stream, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield self._collate(batch)

    # ---- with workers

    def _open(self) -> Pool:
        if self._pool is not None:
            return self._pool
        pool = Pool(
            self.dataset,
            self.num_workers,
            context=self.multiprocessing_context,
            start=self.worker_init_fn,
            timeout=self.timeout,
            prefetch=self.prefetch_factor or 2,
            stream=self._iterable,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
        )
        if self.persistent_workers:
            self._pool = pool
        return pool

    def _ahead(self, batches: Iterator[Any] | None) -> Iterator[Any]:
        """Batches whose samples workers fetch. One more than was asked for is made, so that its
        upload runs while the caller trains."""
        one_by_one = self.batch_size is None and self.batch_sampler is None
        seed = int(numpy_generator(self.generator).integers(2**31))
        pool = self._open()
        made: list[Any] = []
        try:
            for samples in pool.run(batches, seed):
                if not one_by_one:
                    made.append(self._collate(samples))
                elif self.collate_fn is None:
                    made.append(default_convert(samples))
                else:
                    made.append(self.collate_fn(samples))
                if len(made) > 1:
                    yield made.pop(0)
            yield from made
        except BaseException:
            self._pool = None
            pool.close()
            raise
        finally:
            if pool is not self._pool:
                pool.close()

    def __len__(self) -> int:
        if self._iterable:
            size = len(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        return len(self.sampler)  # type: ignore[arg-type]
