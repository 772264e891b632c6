"""DataLoader with worker processes."""

import os

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


def test_collate_runs_where_tensors_are(tt):
    pid = os.getpid()

    def collate(samples):  # cannot be pickled, and makes tensors
        assert os.getpid() == pid
        return tt.stack([tt.tensor(s["x"]) for s in samples])

    batches = list(loader(tt, datasets.Squares(4), batch_size=2, num_workers=1, collate_fn=collate))
    assert [b.tolist() for b in batches] == [[[0.0] * 3, [1.0] * 3], [[2.0] * 3, [3.0] * 3]]


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


def test_errors(tt):
    with pytest.raises(KeyError, match=r"worker process 1(.|\n)*no sample 5"):
        list(loader(tt, datasets.Failing(8), num_workers=2))
    with pytest.raises((RuntimeError, AttributeError), match="pickle"):
        list(loader(tt, datasets.Unsendable(2), num_workers=1))
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader(tt, datasets.Dying(8), num_workers=2))
    with pytest.raises(RuntimeError, match="timed out after 0.5 seconds"):
        list(loader(tt, datasets.Squares(2, slow=600.0), num_workers=1, timeout=0.5))
    with pytest.raises(RuntimeError, match="does not talk to the daemon"):
        list(loader(tt, datasets.Touching(2), num_workers=1))
    for options, text in [({"num_workers": -1}, "non-negative"), ({"prefetch_factor": 2}, "prefetch_factor"),
                          ({"persistent_workers": True}, "persistent_workers"), ({"timeout": -1}, "timeout"),
                          ({"num_workers": 1, "prefetch_factor": 0}, "positive"),
                          ({"multiprocessing_context": "spawn"}, "multi-process")]:
        with pytest.raises(ValueError, match=text):
            loader(tt, datasets.Squares(2), **options)


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
