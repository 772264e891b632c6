"""DataLoader, which iterates over the batches of a dataset."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ._fetch import Fetcher, Recipe
from ._random import numpy_generator
from ._workers import Epoch, Failure, Pool
from .dataset import IterableDataset, _gather
from .sampler import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader"]


class DataLoader:
    """Iterates over batches of a dataset.

    With batch_size=None samples are returned one by one. `shuffle` draws a new order for each iteration,
    which follows `teletensor.manual_seed`, or `generator` (a number, a `teletensor.Generator` or a NumPy
    generator). `sampler` yields indices, and `batch_sampler` lists of indices. Without collate_fn, batches
    are made by default_collate, or by the dataset's `gather` if it has one (TensorDataset: one instruction
    per tensor on the daemon, for which workers are not needed).

    num_workers processes make the batches, each of them up to prefetch_factor batches ahead (2 by default):
    dataset, collate_fn and worker_init_fn run there. A worker does not share the memory of tensors with
    this process: it gets copies of the tensors in the dataset, and creates its own tensors in a session
    that it opens. The tensors of its batches are sent to this process as arrays and become tensors of this
    process's session. If the following batch has arrived, it is uploaded one call early. An error, also
    the death of a worker, is raised after the batches that have arrived before it. A worker whose samples
    are NumPy arrays, numbers or PyTorch's tensors needs no session.

    Workers are started by a fork server and do not run `__main__` again. Objects that can be imported are
    sent to them by name; classes and functions of notebooks, scripts and functions are sent as code if
    cloudpickle is installed. multiprocessing_context="fork" shares this process's memory with them and
    sends nothing; such workers cannot create tensors, and in them a lock that another thread holds is never
    released.

    Each worker has its own random generators: `random`, NumPy's and teletensor's are seeded by a base seed,
    which `generator` draws for each iteration, plus the worker's number (NumPy's is derived from both), as
    in PyTorch. worker_init_fn(number) is called first in each worker; get_worker_info() tells an
    IterableDataset which part of the samples to return. persistent_workers keeps the processes for the next
    iteration; timeout (seconds, 0 for none) limits the wait for a batch; in_order=False returns batches in
    the order in which they are finished. pin_memory is accepted without effect: the transport stages
    uploads.

    An exception in a worker is raised here in place of its batch, with its own type and with its traceback
    in the message; the next batch can still be requested. RuntimeError if a worker dies, with its pid and
    exit code or signal, and after `timeout`. TypeError for objects that cannot be sent to workers.

    >>> data = tt.utils.data.TensorDataset(tt.arange(5), tt.arange(5) * 10)
    >>> for x, y in tt.utils.data.DataLoader(data, batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [0, 1] [0, 10]
    [2, 3] [20, 30]
    [4] [40]

    ValueError for options that exclude each other.
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
        _check_context(multiprocessing_context)
        self._iterable = _is_stream(dataset)
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
        self.in_order = in_order
        self._pool: Pool | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._pool is not None and not self._pool.closed:
            return _Ahead(Epoch(self._pool, self._tasks(), self.in_order))
        # Drawn before the order, even without workers, so that the order does not depend on their number.
        base_seed = int(numpy_generator(self.generator).integers(2**63 - max(self.num_workers, 1)))
        if not self.num_workers:
            return map(Fetcher(self._recipe), self._tasks())
        tasks = self._tasks()
        if self._recipe.batched and not self._iterable and self.collate_fn is None:
            first = list(itertools.islice(tasks, 1))
            batch = _gather(self.dataset, list(first[0])) if first else None
            if batch is not None:
                return itertools.chain([batch], map(Fetcher(self._recipe), tasks))
            tasks = itertools.chain(first, tasks)
        return self._ahead(base_seed, tasks)

    def _ahead(self, base_seed: int, tasks: Iterator[Any]) -> _Ahead:
        pool = Pool(
            self._recipe,
            self.num_workers,
            context=self.multiprocessing_context,
            start=self.worker_init_fn,
            base_seed=base_seed,
            timeout=self.timeout,
            prefetch=self.prefetch_factor or 2,
        )
        if self.persistent_workers:
            self._pool = pool
        return _Ahead(Epoch(pool, tasks, self.in_order))

    @property
    def _recipe(self) -> Recipe:
        return Recipe(
            self.dataset,
            self._iterable,
            self.collate_fn,
            self.batch_size is not None or self.batch_sampler is not None,
            self.batch_size or 1,
            self.drop_last,
        )

    def _tasks(self) -> Iterator[Any]:
        """The indices of each batch, or of each sample; for a stream an endless sequence of None."""
        if self._iterable:
            return itertools.repeat(None)
        return iter(self.sampler or () if self.batch_sampler is None else self.batch_sampler)

    def __len__(self) -> int:
        if self._iterable:
            size = len(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        return len(self.sampler)  # type: ignore[arg-type]


class _Raised(NamedTuple):
    """An error in the place of a batch."""

    error: Exception


class _Ahead:
    """The batches of an epoch. A batch that has arrived is taken one call early, so that its upload runs
    while the caller works with the batch before it."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch: Epoch | None = epoch
        self._early: list[Any] = []  # at most one batch, or the error in its place

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Any:
        if self._epoch is None:
            raise StopIteration
        try:
            batch = self._early.pop() if self._early else next(self._epoch)
        except StopIteration:
            self._epoch = None  # this also ends the workers, unless they are persistent
            raise
        try:
            if self._epoch.ready():
                self._early.append(next(self._epoch))
        except StopIteration:
            pass
        except Exception as error:
            self._early.append(_Raised(error))
        if isinstance(batch, _Raised):
            raise batch.error
        if isinstance(batch, Failure):
            batch.reraise()
        return batch


def _is_stream(dataset: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(dataset, IterableDataset) or (
        torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)
    )


def _check_context(context: Any) -> None:
    methods = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise ValueError(
            "multiprocessing_context option should specify a valid start method in "
            f"{methods!r}, but got multiprocessing_context={context!r}"
        )
    if not (context is None or isinstance(context, str) or hasattr(context, "Process")):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying "
            f"the start method, but got multiprocessing_context={context}"
        )
