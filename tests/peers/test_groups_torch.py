"""Compares collectives of each dtype, reduction and shape with gloo's."""

from pathlib import Path

import numpy as np
import pytest
from support.daemons import start_daemons
from support.gloo import RANKS, results

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "complex64")

COLLECTIVES = """
kind = getattr(L, dtype)

def operand(shape, scale=3):
    rng = np.random.default_rng([rank, *map(len, map(str, shape)), *shape])
    values = rng.integers(0 if dtype in ("uint8", "bool") else -scale, scale, shape)
    if dtype in ("float32", "float64", "float16", "bfloat16"):
        values = values + rng.integers(0, 4, shape) / 4
    if dtype == "complex64":
        values = values + 1j * rng.integers(-scale, scale, shape)
    return L.from_numpy(np.asarray(values)).to(kind)

def keep(name, tensors):
    for i, x in enumerate(tensors):
        x = x.float() if dtype == "bfloat16" else x
        found[f"{name}/{i}"] = x.numpy()

def run(name, call):
    try:
        keep(name, call())
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        found[name + "/error"] = np.array(f"{type(error).__name__}: {error}"[:200])

def inplace(function, x, *given):
    function(x, *given)
    return [x]

def strided():
    return operand((4, 3)).t()

SHAPES = {"0d": lambda: operand(()), "none": lambda: operand((0,)), "one": lambda: operand((1,)),
          "rows": lambda: operand((2, 5)), "strided": strided, "large": lambda: operand((3, 1001))}
for shape, make in SHAPES.items():
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        run(f"all_reduce {op} {shape}", lambda: inplace(dist.all_reduce, make(), getattr(dist.ReduceOp, op)))
        def reduced():
            y = make()
            dist.reduce(y, 1, getattr(dist.ReduceOp, op))
            return [y] if rank == 1 else []
        run(f"reduce {op} {shape}", reduced)
    run(f"broadcast {shape}", lambda: inplace(dist.broadcast, make(), 2))
    def all_gather():
        rows = [L.zeros_like(make()) for _ in range(ranks)]
        dist.all_gather(rows, make())
        return rows
    run(f"all_gather {shape}", all_gather)
    def gather():
        rows = [L.zeros_like(make()) for _ in range(ranks)] if rank == 1 else None
        dist.gather(make(), rows, 1)
        return rows or []
    run(f"gather {shape}", gather)
    def scatter():
        y = L.zeros_like(make())
        dist.scatter(y, [make() for _ in range(ranks)] if rank == 0 else None, 0)
        return [y]
    run(f"scatter {shape}", scatter)
    def reduce_scatter():
        y = L.zeros_like(make())
        dist.reduce_scatter(y, [make() for _ in range(ranks)])
        return [y]
    run(f"reduce_scatter {shape}", reduce_scatter)
    def around():
        y = L.zeros_like(make())
        work = dist.irecv(y, (rank - 1) % ranks)
        dist.send(make().contiguous(), (rank + 1) % ranks)
        work.wait()
        return [y]
    run(f"send {shape}", around)
run("all_gather_into_tensor", lambda: inplace(
    dist.all_gather_into_tensor, L.zeros(2 * ranks, 5, dtype=kind), operand((2, 5))))
run("reduce_scatter_tensor", lambda: inplace(
    dist.reduce_scatter_tensor, L.zeros(2, 5, dtype=kind), operand((2 * ranks, 5))))
run("all_to_all_single", lambda: inplace(
    dist.all_to_all_single, L.zeros(2 * ranks, 5, dtype=kind), operand((2 * ranks, 5))))
uneven = [[rank + other + 1 for other in range(ranks)] for _ in range(2)]
run("all_to_all_single uneven", lambda: inplace(
    dist.all_to_all_single, L.zeros(sum(uneven[0]), 2, dtype=kind), operand((sum(uneven[0]), 2)), *uneven))
half = dist.new_group([0, 2])
if rank != 1:
    run("all_reduce of a group", lambda: inplace(
        lambda x: dist.all_reduce(x, group=half), operand((7,))))
"""

TRAINING = """
nn = L.nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)
        self.last, self.sometimes = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, both):
        hidden = self.norm(self.first(x)).relu()
        return self.last(hidden) + (self.sometimes(hidden) if both else 0)

net = Net()
with L.no_grad():  # each rank begins with other values, of which those of rank 0 count
    for i, p in enumerate(net.parameters()):
        count = p.numel()
        p.copy_(L.from_numpy(np.sin(np.arange(count) + i + rank).astype(np.float32)).reshape(p.shape))
net = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=0.0002)
optimizer = L.optim.Adam(net.parameters(), lr=0.05)
rng = np.random.default_rng(rank)
losses = []
for step in range(6):
    optimizer.zero_grad()
    batches = [L.from_numpy(rng.standard_normal((5, 6)).astype(np.float32)) for _ in range(2)]
    with net.no_sync():
        (net(batches[0], step % 2 == 0) ** 2).mean().backward()
    loss = (net(batches[1], (step + rank) % 2 == 0) ** 2).mean()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
found["losses"] = np.array(losses)
for name, value in net.state_dict().items():
    found[name] = value.numpy()
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_gloo_gives(start_daemon, tmp_path: Path, dtype):
    theirs = results(COLLECTIVES, "torch", dtype, tmp_path)
    ours = results(COLLECTIVES, "teletensor", dtype, tmp_path, [start_daemon().unix])
    together = [daemon.unix for daemon in start_daemons(start_daemon, 2)]
    apart = results(COLLECTIVES, "teletensor", dtype, tmp_path, together)
    for rank in range(RANKS):  # on two daemons the same bits and the same errors
        assert apart[rank].keys() == ours[rank].keys()
        for name, value in ours[rank].items():
            assert apart[rank][name].tobytes() == value.tobytes(), f"rank {rank}: {name}"
    compared = 0
    wide = {"float16": 1e-2, "bfloat16": 4e-2}.get(dtype, 1e-6)  # gloo rounds after each addition
    for rank in range(RANKS):
        for name, wanted in theirs[rank].items():
            if name.endswith("/error"):
                continue  # a call that gloo does not support may be an error in teletensor, or not
            assert name in ours[rank], (name, ours[rank].get(name.rpartition("/")[0] + "/error"))
            got = ours[rank][name]
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
            np.testing.assert_allclose(got, wanted, rtol=wide, atol=wide, err_msg=f"rank {rank}: {name}")
            compared += 1
    assert compared > 100, f"only {compared} results of gloo"


def test_distributed_data_parallel(start_daemon, tmp_path: Path):
    """Buckets, accumulation, parameters that some ranks do not reach, buffers: the weights must be
    PyTorch's."""
    theirs = results(TRAINING, "torch", "float32", tmp_path)
    ours = results(TRAINING, "teletensor", "float32", tmp_path, [start_daemon().unix])
    for rank in range(RANKS):
        assert ours[rank].keys() == theirs[rank].keys()
        for name, wanted in theirs[rank].items():
            np.testing.assert_allclose(ours[rank][name], wanted, rtol=1e-3, atol=1e-4, err_msg=f"rank {rank}: {name}")
