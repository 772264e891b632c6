"""Datasets, samplers, DataLoader."""

import collections
import types

import numpy as np
import pytest

Point = collections.namedtuple("Point", "x y")


@pytest.fixture
def data(tt):
    return tt.utils.data


@pytest.fixture
def dataset(tt, data):
    return data.TensorDataset(tt.arange(20.0).reshape(10, 2), tt.arange(10))


def labels(loader):
    return [batch[1].tolist() for batch in loader]


def test_batches_in_order(data, dataset):
    assert labels(data.DataLoader(dataset, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert labels(data.DataLoader(dataset, 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(data.DataLoader(dataset, 4)) == 3
    assert len(data.DataLoader(dataset, 4, drop_last=True)) == 2
    x, y = next(iter(data.DataLoader(dataset, 3)))
    assert x.shape == (3, 2) and np.array_equal(x.numpy()[:, 0], 2 * y.numpy())


def test_shuffle_follows_manual_seed(tt, data, dataset):
    loader = data.DataLoader(dataset, 3, shuffle=True)
    tt.manual_seed(11)
    first, second = labels(loader), labels(loader)
    assert sorted(sum(first, [])) == list(range(10)) and first != second
    tt.manual_seed(11)
    assert labels(loader) == first
    for x, y in loader:
        assert np.array_equal(x.numpy()[:, 0], 2 * y.numpy())
    fixed = data.DataLoader(dataset, 3, shuffle=True, generator=5)
    assert labels(fixed) == labels(fixed)


def test_a_generator_of_teletensors_own(tt, data, dataset):
    """As in PyTorch, each shuffle advances the generator, independently of manual_seed."""
    def orders(seed):
        own = tt.Generator().manual_seed(seed)
        loader = data.DataLoader(dataset, 3, shuffle=True, generator=own)
        parts = data.random_split(dataset, [7, 3], generator=own)
        chosen = list(data.WeightedRandomSampler([1.0, 2.0], 8, generator=own))
        return labels(loader), labels(loader), [part.indices for part in parts], chosen
    tt.manual_seed(1)
    first = orders(3)
    tt.manual_seed(2)
    assert orders(3) == first != orders(4) and first[0] != first[1]


def test_a_batch_is_a_copy(tt, data, dataset):
    for batch in (next(iter(data.DataLoader(dataset, 4))),
                  next(iter(data.DataLoader(dataset, 4, shuffle=True)))):
        batch[0].fill_(-1)
    assert np.array_equal(dataset.tensors[0].numpy().ravel(), np.arange(20.0))


def test_split_and_subset(tt, data, dataset):
    train, held = data.random_split(dataset, [0.75, 0.25], generator=3)
    assert len(train) == 8 and len(held) == 2
    assert sorted(sum(labels(data.DataLoader(train, 3)) + labels(data.DataLoader(held)), [])) == \
        list(range(10))
    assert [len(part) for part in data.random_split(dataset, [3, 7])] == [3, 7]
    with pytest.raises(ValueError, match="8 and 10"):
        data.random_split(dataset, [3, 5])
    nested = data.Subset(data.Subset(dataset, [9, 7, 5]), [2, 0])
    assert labels(data.DataLoader(nested, 2)) == [[5, 9]]
    assert nested[0][1].item() == 5


def test_subclasses_that_change_samples_are_asked_for_each(tt, data):
    class Doubled(data.TensorDataset):
        def __getitem__(self, index):
            return (super().__getitem__(index)[0] * 2,)

    batches = list(data.DataLoader(Doubled(tt.arange(4)), 2))
    assert [batch[0].tolist() for batch in batches] == [[0, 2], [4, 6]]


def test_collate(tt, data):
    samples = [{"a": 1, "b": (2.5, "text"), "c": np.float32(1), "d": np.ones(2), "e": True,
                "p": Point(tt.zeros(2), 0)}] * 3
    out = data.default_collate(samples)
    assert out["a"].dtype == tt.int64 and out["a"].tolist() == [1, 1, 1]
    assert out["b"][0].dtype == tt.float64 and out["b"][1] == ("text",) * 3
    assert out["c"].dtype == tt.float32 and out["d"].shape == (3, 2) and out["e"].dtype == tt.bool
    assert type(out["p"]) is Point and out["p"].x.shape == (3, 2)
    with pytest.raises(TypeError, match="set"):
        data.default_collate([{1}])
    with pytest.raises(RuntimeError, match="equal size"):
        data.default_collate([[1], [1, 2]])


def test_collate_keeps_kinds_of_containers(tt, data):
    ordered = collections.OrderedDict(b=1, a=np.ones(2))
    counted = collections.defaultdict(int, a=1)
    frozen = types.MappingProxyType({"a": 1.5})
    out = data.default_collate([(ordered, counted, frozen, collections.UserList([1, 2]), range(2))] * 2)
    assert type(out) is list and type(out[0]) is collections.OrderedDict and list(out[0]) == ["b", "a"]
    assert type(out[1]) is collections.defaultdict and out[1]["a"].tolist() == [1, 1] and out[1]["other"] == 0
    assert type(out[2]) is types.MappingProxyType and type(out[3]) is collections.UserList
    assert out[3][1].tolist() == [2, 2] and [c.tolist() for c in out[4]] == [[0, 0], [1, 1]]
    for bad in (np.array(["a"]), np.array([object()]), np.datetime64("2020-01-01"), object(), None):
        with pytest.raises(TypeError):
            data.default_collate([bad, bad])
    with pytest.raises(RuntimeError, match=r"got \[2\] at entry 0 and \[3\] at entry 1"):
        data.default_collate([np.ones(2), np.ones(3)])
    with pytest.raises(IndexError):
        data.default_collate([])


def test_an_exception_leaves_the_iteration(tt, data):
    """After the error of a batch the next batch is still available."""
    class Failing(list):
        def __getitem__(self, i):
            return 1 // (i - 1)

    batches = iter(data.DataLoader(Failing([0] * 3)))
    assert next(batches).tolist() == [-1]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert [b.tolist() for b in batches] == [[1]]


def test_streams_chains_and_samples(tt, data, dataset):
    class Count(data.IterableDataset):
        def __iter__(self):
            return iter(range(5))

    assert [b.tolist() for b in data.DataLoader(Count(), 2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in data.DataLoader(Count(), 2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(data.DataLoader(data.ChainDataset([Count(), Count()]), None)) == [*range(5)] * 2
    both = dataset + dataset
    assert len(both) == 20 and both[-1][1].item() == 9 and both[10][1].item() == 0
    assert labels(data.DataLoader(both, 12))[1] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert len(list(data.DataLoader(dataset, None))) == 10
    assert [list(b) for b in data.DataLoader([1, 2, 3], 2, collate_fn=tuple)] == [[1, 2], [3]]


def test_samplers(tt, data):
    tt.manual_seed(0)
    assert sorted(data.SubsetRandomSampler([4, 8, 1])) == [1, 4, 8]
    assert set(data.WeightedRandomSampler([0, 1, 0, 2], 50)) == {1, 3}
    assert len(set(data.WeightedRandomSampler([1, 1, 1], 3, replacement=False))) == 3
    drawn = list(data.RandomSampler(range(4), replacement=True, num_samples=40))
    assert len(drawn) == 40 and set(drawn) == {0, 1, 2, 3}
    assert list(data.BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    loader = data.DataLoader([10, 11, 12], batch_sampler=[[2, 0], [1]])
    assert [b.tolist() for b in loader] == [[12, 10], [11]] and len(loader) == 2


def test_refusals(tt, data, dataset):
    for options in ({"num_workers": -2}, {"batch_size": 0}, {"sampler": [0], "shuffle": True},
                    {"batch_sampler": [[0]], "batch_size": 2},
                    {"batch_size": None, "drop_last": True}):
        with pytest.raises(ValueError):
            data.DataLoader(dataset, **options)
    with pytest.raises(AssertionError, match=r"\[2\], \[3\]"):
        data.TensorDataset(tt.ones(2), tt.ones(3))
    with pytest.raises(TypeError, match="generator"):
        list(data.RandomSampler([1], generator="x"))
