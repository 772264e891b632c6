"""Datasets that worker processes import, for comparisons with PyTorch."""

import os
import signal

import torch

from support import datasets


class Split:
    """A stream of unequal parts: each number with that of its worker. `info` is the library's
    get_worker_info."""

    def __init__(self, size, info):
        self.size, self.info = size, info

    def __iter__(self):
        worker = self.info()
        parts = [(0, self.size)] if worker is None else [
            (self.size * i // (i + 2), self.size * (i + 1) // (i + 3) if i + 1 < worker.num_workers else self.size)
            for i in [worker.id]]
        return iter([(-1 if worker is None else worker.id, i) for i in range(*parts[0])])


class TorchStream(Split, torch.utils.data.IterableDataset):
    pass


class Torch(torch.utils.data.Dataset):
    """Samples that are PyTorch tensors, and the facts that PyTorch knows about its worker."""

    def __init__(self, mean):
        self.mean = mean

    def __len__(self):
        return 5

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        return {"x": torch.full((2,), float(i)) - self.mean, "half": torch.tensor(i, dtype=torch.bfloat16),
                "n": i, "seed": (torch.initial_seed(), info.seed) if info else (1, 1),
                "threads": torch.get_num_threads()}


class Killed(datasets.Squares):
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGKILL)
