"""DataLoader with worker processes."""

import multiprocessing
import os
import random
import threading

import numpy as np
import pytest
from support import datasets


def loader(tt, dataset, **options):
    return tt.utils.data.DataLoader(dataset, **options)


def test_batches_come_in_order_from_other_processes(tt):
    batches = list(loader(tt, datasets.Squares(10), batch_size=3, num_workers=2))
    assert [b["y"].tolist() for b in batches] == [[0, 1, 4], [9, 16, 25], [36, 49, 64], [81]]
    assert batches[1]["x"].dtype == tt.float32 and batches[1]["x"].tolist()[2] == [5.0] * 3
    assert batches[0]["y"].dtype == tt.int64
    pids = [set(b["pid"].tolist()) for b in batches]
    assert pids[0] == pids[2] != pids[1] == pids[3] and os.getpid() not in set().union(*pids)


def test_shuffle_follows_the_seed(tt):
    def order(workers):
        tt.manual_seed(4)
        return [y for b in loader(tt, datasets.Squares(9), batch_size=2, shuffle=True, num_workers=workers)
                for y in b["y"].tolist()]

    assert order(2) == order(2) == order(0)
    assert sorted(order(2)) == [i * i for i in range(9)]


def test_streams(tt):
    got = [b.tolist() for b in loader(tt, datasets.Range(11), batch_size=2, num_workers=2)]
    assert sorted(i for b in got for i in b) == list(range(11))
    assert got[0] == [0, 2] and got[1] == [1, 3]
    twice = [b.tolist() for b in loader(tt, datasets.Range(3, split=False), batch_size=3, num_workers=2)]
    assert twice == [[0, 1, 2], [0, 1, 2]]
    assert [b.tolist() for b in loader(tt, datasets.Range(7), batch_size=2, num_workers=2, drop_last=True)] \
        == [[0, 2], [1, 3], [4, 6]]
    assert list(loader(tt, datasets.Range(5), batch_size=None, num_workers=1)) == [0, 1, 2, 3, 4]


def test_worker_info_and_init(tt):
    assert tt.utils.data.get_worker_info() is None
    rows = [b[0].tolist() for b in loader(tt, datasets.Info(), num_workers=2, worker_init_fn=datasets.mark,
                                          persistent_workers=True)]
    assert [r[:2] for r in rows] == [[i % 2, 2] for i in range(8)]
    assert [r[3] for r in rows] == [100 + i % 2 for i in range(8)]
    assert len({r[2] for r in rows}) == 2 and rows[0][2] + 1 == rows[1][2]
    assert len({r[4] for r in rows}) == 8  # every draw is another one


def test_persistent_workers_stay(tt):
    data = loader(tt, datasets.Squares(4), batch_size=2, num_workers=2, persistent_workers=True)
    pids = [[tuple(b["pid"].tolist()) for b in data] for _ in range(3)]
    assert pids[0] == pids[1] == pids[2]
    fresh = loader(tt, datasets.Squares(4), batch_size=2, num_workers=2)
    assert [tuple(b["pid"].tolist()) for b in fresh] != [tuple(b["pid"].tolist()) for b in fresh]
    next(iter(data))  # an iteration that is given up
    assert [b["y"].tolist() for b in data] == [[0, 1], [4, 9]]


def test_collate_fn_runs_in_the_worker(tt):
    def collate(samples):
        info = tt.utils.data.get_worker_info()
        return info.id, tt.stack([tt.tensor(s["x"]) for s in samples])

    batches = list(loader(tt, datasets.Squares(4), batch_size=2, num_workers=2, collate_fn=collate))
    assert [(i, b.tolist()) for i, b in batches] == [(0, [[0.0] * 3, [1.0] * 3]), (1, [[2.0] * 3, [3.0] * 3])]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_tensors_in_workers(tt, method):
    data = datasets.Tensors(4, tt.tensor([1.0, 2.0, 3.0]))
    batches = list(loader(tt, data, batch_size=3, num_workers=2, multiprocessing_context=method))
    assert [b["x"].tolist() for b in batches] == [[[0, 0, 0], [1, 2, 3], [2, 4, 6]], [[3, 6, 9]]]
    assert [b["y"].tolist() for b in batches] == [[0, 1, 2], [3]] and batches[0]["y"].dtype == tt.int64
    total = sum(b["x"].sum() for b in batches)  # tensors of this process' session
    assert total.item() == 36.0


def test_kinds_of_tensors_that_travel(tt):
    class Held:
        def __init__(self, values):
            self.values = values

        def __len__(self):
            return 1

        def __getitem__(self, i):
            return self.values

    leaf = tt.ones(2, requires_grad=True)
    values = {"bf16": tt.tensor([1.5, -2.0], dtype=tt.bfloat16), "leaf": leaf, "parameter": tt.nn.Parameter(tt.ones(1)),
              "inner": leaf * 2, "dtype": tt.int8, "device": tt.device("cpu"), "view": tt.arange(6).reshape(2, 3).t(),
              "nothing": tt.empty(0, 3), "complex": tt.tensor(1 + 2j), "bool": tt.tensor([True])}
    (got,) = loader(tt, Held(values), batch_size=None, num_workers=1)
    assert got["bf16"].dtype == tt.bfloat16 and got["bf16"].tolist() == [1.5, -2.0]
    assert got["leaf"].requires_grad and not got["inner"].requires_grad
    assert type(got["parameter"]) is tt.nn.Parameter and got["parameter"].requires_grad
    assert got["dtype"] == tt.int8 and got["device"] == tt.device("cpu")
    assert got["view"].tolist() == [[0, 3], [1, 4], [2, 5]] and got["nothing"].shape == (0, 3)
    assert got["complex"].item() == 1 + 2j and got["bool"].tolist() == [True]


def test_seeds(tt):
    """The seeds follow PyTorch's rule: a base seed plus the worker's number."""
    def draws(generator=None, **options):
        return [tuple(v.item() for v in batch)
                for batch in loader(tt, datasets.Draws(6), num_workers=2, generator=generator, **options)]

    tt.manual_seed(8)
    first, second = draws(), draws()
    tt.manual_seed(8)
    assert draws() == first != second
    base = first[0][1]
    for i, (worker, seed, own, number, numpy) in enumerate(first):
        assert (worker, seed, own) == (i % 2, base + i % 2, base + i % 2)
        if i < 2:
            assert number == random.Random(seed).random()
            entropy = [worker, base & 0xFFFFFFFF, base >> 32, 0]
            state = np.random.RandomState(np.random.SeedSequence(entropy).generate_state(4))
            assert numpy == state.rand()
    assert len({row[3] for row in first}) == len({row[4] for row in first}) == 6
    own = tt.Generator().manual_seed(5)
    again = draws(own)
    assert draws(tt.Generator().manual_seed(5)) == again != draws(own)
    stay = loader(tt, datasets.Draws(2), num_workers=1, persistent_workers=True, generator=7)
    rows = [tuple(v.item() for v in batch) for _ in range(2) for batch in stay]
    assert len({row[1] for row in rows}) == 1 and len({row[3] for row in rows}) == 4  # they continue


def test_the_order_does_not_depend_on_workers(tt):
    def order(**options):
        tt.manual_seed(3)
        made = loader(tt, datasets.Squares(9), batch_size=2, shuffle=True, **options)
        return [[y for b in made for y in b["y"].tolist()] for _ in range(2)]

    assert order() == order(num_workers=1) == order(num_workers=3, prefetch_factor=1)
    late = [b["y"].item() for b in loader(tt, datasets.Squares(8), num_workers=3, in_order=False)]
    assert sorted(late) == [i * i for i in range(8)]


def test_samplers_and_single_samples(tt):
    data = tt.utils.data
    chosen = list(loader(tt, datasets.Squares(9), sampler=[4, 2, 8], batch_size=2, num_workers=2))
    assert [b["y"].tolist() for b in chosen] == [[16, 4], [64]]
    chosen = list(loader(tt, datasets.Squares(9), batch_sampler=[[1, 2], [5]], num_workers=2))
    assert [b["y"].tolist() for b in chosen] == [[1, 4], [25]]
    single = list(loader(tt, datasets.Squares(3), batch_size=None, num_workers=2))
    assert [s["y"] for s in single] == [0, 1, 4] and single[2]["x"].tolist() == [2.0] * 3
    half = data.Subset(datasets.Squares(9), [8, 7, 6])
    assert [b["y"].tolist() for b in loader(tt, half, batch_size=2, num_workers=1)] == [[64, 49], [36]]


def test_a_dataset_on_the_daemon_needs_no_workers(tt):
    x = tt.arange(6)
    batches = loader(tt, tt.utils.data.TensorDataset(x, x * 2), batch_size=4, num_workers=3, prefetch_factor=4)
    assert [[t.tolist() for t in b] for b in batches] == [[[0, 1, 2, 3], [0, 2, 4, 6]], [[4, 5], [8, 10]]]


@pytest.mark.parametrize("error, kind", [
    (KeyError("no sample"), KeyError), (datasets.Own("no sample"), datasets.Own),
    (datasets.Choosy("no sample", 2), RuntimeError), (StopIteration("no sample"), StopIteration)])
def test_an_exception_of_a_worker(tt, error, kind):
    """The error of a worker has its type and traceback, is raised in place of its batch, and the next batch
    is still available."""
    batches = iter(loader(tt, datasets.Raising(5, error), num_workers=2))
    assert [next(batches)["y"].item() for _ in range(2)] == [0, 1]
    with pytest.raises(kind) as caught:
        next(batches)
    text = str(caught.value)
    assert text.startswith(f"Caught {type(error).__name__} in DataLoader worker process 0.\nOriginal Traceback")
    assert "raise self.error\n" in text and "no sample" in text
    assert [b["y"].item() for b in batches] == [9, 16]


def test_errors(tt):
    class Ragged(datasets.Squares):
        def __getitem__(self, i):
            return np.ones(i + 1)

    with pytest.raises(TypeError, match="worker process 0(.|\\n)*cannot pickle"):
        list(loader(tt, datasets.Unsendable(2), num_workers=1, collate_fn=list))
    with pytest.raises(RuntimeError, match=r"pid\(s\) \d+\) exited unexpectedly: exit code 3"):
        list(loader(tt, datasets.Dying(8), num_workers=2))
    with pytest.raises(RuntimeError, match="timed out after 0.5 seconds"):
        list(loader(tt, datasets.Squares(2, slow=600.0), num_workers=1, timeout=0.5))
    with pytest.raises(RuntimeError, match='worker process 0(.|\n)*"fork" makes no tensors'):
        list(loader(tt, datasets.Tensors(2, 2.0), num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(ZeroDivisionError, match="worker process 0"):
        list(loader(tt, datasets.Squares(2), num_workers=1, worker_init_fn=lambda worker: 1 // worker))
    with pytest.raises(TypeError, match="cannot be sent to worker processes: TypeError: .*lock"):
        list(loader(tt, datasets.Raising(2, threading.Lock()), num_workers=1))
    with pytest.raises(RuntimeError, match="worker process 0(.|\n)*stack expects each tensor to be equal size"):
        list(loader(tt, Ragged(2), batch_size=2, num_workers=1))
    with pytest.raises(TypeError, match="multiprocessing_context"):
        loader(tt, datasets.Squares(2), num_workers=1, multiprocessing_context=3)
    for options, text in [({"num_workers": -1}, "non-negative"), ({"prefetch_factor": 2}, "prefetch_factor"),
                          ({"persistent_workers": True}, "persistent_workers"), ({"timeout": -1}, "timeout"),
                          ({"num_workers": 1, "prefetch_factor": 0}, "positive"),
                          ({"multiprocessing_context": "spawn"}, "multi-process"),
                          ({"num_workers": 1, "multiprocessing_context": "thread"}, "valid start method")]:
        with pytest.raises(ValueError, match=text):
            loader(tt, datasets.Squares(2), **options)


def test_one_iteration_at_a_time(tt):
    """Persistent workers serve the last iteration; an abandoned iteration does not end them."""
    data = loader(tt, datasets.Squares(6), num_workers=2, persistent_workers=True)
    first = iter(data)
    pids = {next(first)["pid"].item() for _ in range(2)}
    second = iter(data)
    assert [b["y"].item() for b in second] == [0, 1, 4, 9, 16, 25]
    with pytest.raises(RuntimeError, match="one at a time"):
        list(first)
    with pytest.raises(ZeroDivisionError):
        for _ in data:
            raise ZeroDivisionError
    assert {b["pid"].item() for b in data} == pids


def test_values_of_multiprocessing_are_shared(tt):
    """A dataset may contain a counter that its workers increment."""
    class Counting(datasets.Squares):
        def __init__(self, counter):
            super().__init__(6)
            self.counter = counter

        def __getitem__(self, i):
            with self.counter.get_lock():
                self.counter.value += 1
            return i

    counter = multiprocessing.get_context("forkserver").Value("i", 0)
    assert len(list(loader(tt, Counting(counter), num_workers=2))) == 6 and counter.value == 6


def test_spawn(tt):
    batches = list(loader(tt, datasets.Squares(3), num_workers=1, multiprocessing_context="spawn"))
    assert [b["y"].item() for b in batches] == [0, 1, 4]


def test_stack_dataset_and_convert(tt):
    data = tt.utils.data
    both = data.StackDataset(image=datasets.Squares(4), label=[7, 8, 9, 6])
    assert len(both) == 4 and both[2]["label"] == 9
    (batch,) = loader(tt, both, batch_size=4)
    assert batch["label"].tolist() == [7, 8, 9, 6] and batch["image"]["y"].tolist() == [0, 1, 4, 9]
    assert data.StackDataset([1, 2], [3, 4])[1] == (2, 4)
    for bad in (lambda: data.StackDataset([1], [1, 2]), data.StackDataset, lambda: data.StackDataset([1], a=[1])):
        with pytest.raises(ValueError):
            bad()
    made = data.default_convert({"a": np.ones(2), "b": ["text", np.float32(3)], "c": 4})
    assert made["a"].tolist() == [1.0, 1.0] and made["b"][0] == "text" and made["b"][1].item() == 3.0 and made["c"] == 4
