"""DistributedSampler, which gives each of several processes its own part of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

from ._random import numpy_generator
from .sampler import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[int]):
    """Yields the indices for process `rank` of `num_replicas`: every num_replicas-th index of an order that
    is determined by seed and epoch (shuffle) and is the same in each process.

    If the number of samples is not a multiple of num_replicas, the first samples are repeated, or with
    drop_last the last ones are left out. Without num_replicas and rank, those of `teletensor.distributed`
    are used, whose group must exist. ValueError if it does not, and for a rank out of range.

    >>> data = list(range(5))
    >>> [list(tt.utils.data.DistributedSampler(data, 2, rank, shuffle=False)) for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        from ... import distributed

        num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        rank = distributed.get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        size = len(dataset)
        left_out = drop_last and size % num_replicas != 0
        self.num_samples = math.ceil((size - num_replicas if left_out else size) / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        indices = list(range(size))
        if self.shuffle:
            indices = numpy_generator(self.seed + self.epoch).permutation(size).tolist()
        if not self.drop_last and indices:
            indices = indices * math.ceil(self.total_size / size)
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch, which changes the order: call it before each epoch."""
        self.epoch = epoch
