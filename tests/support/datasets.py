"""Datasets that worker processes import."""

import os
import time

import numpy as np
from teletensor.utils.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    """i -> (row of i, i squared), and who made it."""

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
        return lambda: i


class Touching(Squares):
    """Uses tensors in the worker, which is refused."""

    def __getitem__(self, i):
        import teletensor as tt

        return tt.ones(2)


class Range(IterableDataset):
    """0 ... size-1, split among the workers as PyTorch's documentation shows it."""

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


def batches_of_slow(size, slow):
    return Squares(size, slow)


class Line(Dataset):
    """x in [-1, 1]^2 and y = 2 x0 - x1 + 1/2."""

    def __init__(self, size):
        self.x = np.random.default_rng(3).uniform(-1, 1, (size, 2)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x, np.array([2 * x[0] - x[1] + 0.5], dtype=np.float32)
