"""Datasets that worker processes import."""

import os
import random
import threading
import time

import numpy as np
from teletensor.utils.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    """i -> (row of i, i squared), and the process that made it."""

    def __init__(self, size, slow=0.0):
        self.size, self.slow = size, slow

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if self.slow:
            time.sleep(self.slow)
        return {"x": np.full(3, i, dtype=np.float32), "y": i * i, "pid": os.getpid()}


class Failing(Squares):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError(f"no sample {i}")
        return super().__getitem__(i)


class Dying(Squares):
    def __getitem__(self, i):
        if i == 5:
            os._exit(3)
        return super().__getitem__(i)


class Unsendable(Squares):
    def __getitem__(self, i):
        return threading.Lock()


class Tensors(Squares):
    """Tensors that are made in the worker from a tensor in the dataset."""

    def __init__(self, size, scale):
        super().__init__(size)
        self.scale = scale

    def __getitem__(self, i):
        import teletensor as tt

        return {"x": tt.from_numpy(np.full(3, i, np.float32)) * self.scale, "y": tt.tensor(i)}


class Own(ValueError):
    """An exception that is defined in the module of a dataset."""


class Choosy(Own):
    """An exception whose arguments are not a single text."""

    def __init__(self, first, second):
        super().__init__(first, second)


class Raising(Squares):
    """Raises an exception at sample 2."""

    def __init__(self, size, error):
        super().__init__(size)
        self.error = error

    def __getitem__(self, i):
        if i == 2:
            raise self.error
        return super().__getitem__(i)


class Draws(Dataset):
    """Values of the generators in a worker: (worker, seed, teletensor's seed, random, NumPy)."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        import teletensor as tt

        info = get_worker_info()
        return info.id, info.seed, tt.initial_seed(), random.random(), np.random.rand()


class Range(IterableDataset):
    """0 ... size-1, divided among the workers as in PyTorch's documentation."""

    def __init__(self, size, split=True):
        self.size, self.split = size, split

    def __iter__(self):
        info = get_worker_info()
        if info is None or not self.split:
            return iter(range(self.size))
        return iter(range(info.id, self.size, info.num_workers))


class Info(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = get_worker_info()
        return np.array([info.id, info.num_workers, info.seed, int(os.environ.get("WORKER_INIT", -1)),
                         np.random.randint(1 << 30)])


def mark(worker):
    os.environ["WORKER_INIT"] = str(worker + 100)


class Line(Dataset):
    """x in [-1, 1]^2 and y = 2 x0 - x1 + 1/2."""

    def __init__(self, size):
        self.x = np.random.default_rng(3).uniform(-1, 1, (size, 2)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x, np.array([2 * x[0] - x[1] + 0.5], dtype=np.float32)


def doubled(x):
    return x * 2
