"""Compares DataLoader with PyTorch's: the order of batches, seeds of workers, types of errors, and the use
of PyTorch's datasets and tensors."""

import collections

import numpy as np
import pytest
import torch
from support import datasets
from support.torch_datasets import Killed, Split, Torch, TorchStream
from teletensor.utils.data import _workers

Pair = collections.namedtuple("Pair", "x y")


def rows(loader):
    return [[column.tolist() for column in batch] for batch in loader]


@pytest.mark.parametrize("options", [
    {"batch_size": 2, "num_workers": 3}, {"batch_size": 3, "num_workers": 2, "drop_last": True},
    {"batch_size": 4, "num_workers": 2, "prefetch_factor": 1}, {"batch_size": 5}])
def test_order_of_streams(tt, options):
    theirs = torch.utils.data.DataLoader(TorchStream(23, torch.utils.data.get_worker_info), **options)

    class Stream(Split, tt.utils.data.IterableDataset):
        pass

    ours = tt.utils.data.DataLoader(Stream(23, tt.utils.data.get_worker_info), **options)
    mixed = tt.utils.data.DataLoader(TorchStream(23, torch.utils.data.get_worker_info), **options)
    assert rows(ours) == rows(theirs) == rows(mixed)


def test_seeds_of_workers(tt):
    """PyTorch's worker draws the same numbers if its base seed is the same."""
    from torch.utils.data._utils.worker import _generate_state

    for base, worker in ((0, 0), (5, 3), (2**62 + 12345, 7), (2**63 - 9, 1)):
        assert _workers.numpy_seed(base, worker).tolist() == list(_generate_state(base, worker))
    ours = [tuple(c.item() for c in batch)
            for batch in tt.utils.data.DataLoader(datasets.Draws(6), num_workers=2, generator=3)]
    base = ours[0][1]

    class Draws(datasets.Draws):
        def __getitem__(self, i):
            import random
            info = torch.utils.data.get_worker_info()
            return info.id, info.seed, torch.initial_seed(), random.random(), np.random.rand()

    loader = torch.utils.data.DataLoader(Draws(6), num_workers=2)
    iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    asked = []
    original = torch.Tensor.random_

    def random_(self, *args, **keywords):
        asked.append(self.dtype)
        return self.fill_(base)

    torch.Tensor.random_ = random_
    try:
        theirs = iterator(loader)
    finally:
        torch.Tensor.random_ = original
    assert asked and [tuple(c.item() for c in batch) for batch in theirs] == ours


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "fork"}])
def test_torch_datasets(tt, options):
    """Batches are tensors of teletensor, with the values of PyTorch's loader."""
    torch.ones(300, 300) @ torch.ones(300, 300)  # starts PyTorch's threads
    mean = torch.tensor([1.0, 2.0])
    theirs = list(torch.utils.data.DataLoader(Torch(mean), 2))
    ours = list(tt.utils.data.DataLoader(Torch(mean), 2, **options))
    for our, their in zip(ours, theirs, strict=True):
        assert isinstance(our["x"], tt.Tensor) and our["x"].tolist() == their["x"].tolist()
        assert our["half"].dtype == tt.bfloat16 and our["half"].tolist() == their["half"].tolist()
        assert our["n"].dtype == tt.int64 and our["n"].tolist() == their["n"].tolist()
        assert our["seed"][0].tolist() == our["seed"][1].tolist()
        assert not options or set(our["threads"].tolist()) == {1}
    assert [b["x"].tolist() for b in tt.utils.data.DataLoader(Torch(mean), None, **options)] == \
        [(torch.full((2,), float(i)) - mean).tolist() for i in range(5)]
    split = torch.utils.data.TensorDataset(torch.arange(4), torch.arange(4.0))
    assert rows(tt.utils.data.DataLoader(split, 3, **options)) == rows(torch.utils.data.DataLoader(split, 3))


def test_torch_tensors_of_a_collate_fn_stay(tt):
    (batch,) = tt.utils.data.DataLoader(Torch(0.0), 5, num_workers=1,
                                        collate_fn=lambda samples: torch.stack([s["x"] for s in samples]))
    assert isinstance(batch, torch.Tensor) and batch.tolist() == [[float(i)] * 2 for i in range(5)]


SAMPLES = {
    "numbers": [1, 2], "floats": [1.0, 2.5], "bools": [True, False], "text": ["a", "b"], "bytes": [b"a", b"b"],
    "arrays": [np.ones(2), np.zeros(2)], "numpy numbers": [np.float32(1), np.float32(2)],
    "arrays without dimensions": [np.array(1), np.array(2)], "mixed dtypes": [np.ones(2, np.float32), np.ones(2)],
    "pairs": [(1, 2.0), (3, 4.0)], "lists": [[1, 2], [3, 4]], "named": [Pair(1, [2]), Pair(3, [4])],
    "dicts": [{"a": 1, "b": (2, 3)}] * 2, "ordered": [collections.OrderedDict(a=1)] * 2, "complex": [1j, 2j],
    "none": [None, None], "objects": [object()] * 2, "sets": [{1}, {2}], "array of text": [np.array(["a"])] * 2,
    "unequal": [[1], [1, 2]], "unequal arrays": [np.ones(2), np.ones(3)], "missing key": [{"a": 1}, {"b": 1}],
    "nothing": [], "empty tuple": [(), ()],
}


def shape_of(value):
    """The types, dtypes and values, for either library."""
    if hasattr(value, "dtype"):
        return "tensor", str(value.dtype).rpartition(".")[2], value.tolist()
    if isinstance(value, dict):
        return type(value), {k: shape_of(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shape_of(v) for v in value]
    return value


@pytest.mark.parametrize("name", SAMPLES)
def test_default_collate(tt, name):
    def result(library):
        try:
            return shape_of(library.utils.data.default_collate(SAMPLES[name]))
        except Exception as error:
            return type(error)

    assert result(tt) == result(torch)


def test_default_convert(tt):
    value = {"a": np.ones(2), "b": [np.float32(1), "text", 3], "c": (1, np.arange(2)), "d": Pair(np.ones(1), 2)}
    assert shape_of(tt.utils.data.default_convert(value)) == shape_of(torch.utils.data.default_convert(value))


@pytest.mark.parametrize("error", [KeyError("k"), datasets.Own("o"), datasets.Choosy(1, 2), StopIteration("s"),
                                   OSError(2, "no file"), AssertionError(), IndexError("i")])
def test_errors_of_workers(tt, error):
    def outcomes(library):
        found = []
        batches = iter(library.utils.data.DataLoader(datasets.Raising(4, error), num_workers=2))
        for _ in range(4):
            try:
                found.append(next(batches)["y"].item())
            except Exception as raised:
                found.append((type(raised), str(raised).partition("\n")[0]))
        return found

    assert outcomes(tt) == outcomes(torch)


def test_kinds_of_other_errors(tt):
    def kind(library, dataset, **options):
        try:
            list(library.utils.data.DataLoader(dataset, **options))
        except Exception as error:
            return type(error)
        return None

    def fails(worker):
        raise LookupError(worker)

    for dataset, options in [
            (Killed(2), {"num_workers": 1}),
            (datasets.Squares(2, slow=600.0), {"num_workers": 1, "timeout": 0.2}),
            (datasets.Squares(2), {"num_workers": 1, "worker_init_fn": fails}),
            (datasets.Squares(2), {"num_workers": 1, "multiprocessing_context": "thread"}),
            (datasets.Squares(2), {"num_workers": 1, "multiprocessing_context": 3}),
            (datasets.Squares(2), {"persistent_workers": True}), (datasets.Squares(2), {"timeout": -1})]:
        ours = kind(tt, dataset, **options)
        assert ours is not None and ours == kind(torch, dataset, **options), options
