"""Runs programs of PyTorch as ranks of worlds, each with gloo or with a daemon's groups, and compares what they
give."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.daemon import HANG
from support.daemons import start_daemons

RANKS = 2

# One process imports PyTorch, and begin() forks the ranks of each world, which return from it.
BEGIN = """
import datetime, json, os, sys
import numpy as np
import torch
import torch.distributed as dist
import teletensor.integrations.torch_backend
if "tt" in json.loads(sys.argv[1]):
    import teletensor.torch
worlds, ranks, folder, seconds = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])

def begin():
    statuses = []
    for world, addresses in worlds.items():
        children = []
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                return world, rank, addresses
            children.append(child)
        statuses += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(statuses), flush=True)
    os._exit(0)

world, rank, addresses = begin()
place = f"{folder}/{world}"
for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{place}-{rank}.{name}", os.O_CREAT | os.O_WRONLY), descriptor)
torch.set_num_threads(1)
if addresses:
    os.environ["TELETENSOR_ADDRESS"] = addresses[rank % len(addresses)]
device = "tt" if world.startswith("tt") else "cpu"
backend = "cpu:gloo,tt:teletensor" if device == "tt" else "teletensor" if addresses else "gloo"
dist.init_process_group(backend, init_method="file://" + place, rank=rank,
                        world_size=ranks, timeout=datetime.timedelta(seconds=seconds))
found, texts = {}, {}

def keep(name, tensors):
    for i, x in enumerate(tensors):
        x = x.detach().cpu()
        found[f"{name}/{i}"] = (x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy().copy()

def error(name, call):
    try:
        call()
    except Exception as raised:
        texts[name] = f"{type(raised).__name__}: {raised}"
    else:
        texts[name] = "no error"
"""

END = """
dist.barrier()
np.savez(f"{place}-{rank}.npz", **found)
print(json.dumps(texts))
dist.destroy_process_group()
"""


def run(program, folder, worlds, statuses=(0, 0), seconds=HANG):
    """Runs the ranks of each world: a name, and addresses of daemons that are assigned to its ranks in
    turn; no address means gloo. In the world "tt", and in others whose names begin like that, the variable
    `device` is "tt". Returns their standard output, and raises an error if a rank does not end
    with its expected status."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, json.dumps(worlds), str(RANKS), str(folder), str(seconds)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=2 * HANG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # ends the processes that it has left behind
    errors = "\n".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert json.loads(output) == [*statuses] * len(worlds), errors[-4000:]
    return {world: [Path(f"{folder}/{world}-{rank}.out").read_text() for rank in range(RANKS)] for world in worlds}


def one(start_daemon):
    """The address of a new daemon, for both ranks."""
    return [start_daemon().unix]


def two(start_daemon):
    """The addresses of two new daemons that are connected to each other, one for each rank."""
    return [daemon.unix for daemon in start_daemons(start_daemon, 2)]


def texts_of(output):
    """The texts of error() that a rank has printed last."""
    return json.loads(output.splitlines()[-1])


def text_of_a_wait(program, late, folder, worlds):
    """The error of rank 0 in `late`, an expression, after `program`, while rank 1 does not call it."""
    os.mkfifo(folder / "end")
    written = run(program + f"""
if rank == 0:
    error("late", {late})
    print(json.dumps(texts), flush=True)
open(folder + "/end", "r" if rank else "w")
if device == "tt":  # whose session would wait for the rank
    os._exit(0)
""", folder, worlds)
    return texts_of(next(iter(written.values()))[0])["late"]


def results(program, folder, worlds):
    """The arrays and the texts of each rank, for each world."""
    written = run(program + END, folder, worlds)
    found = {}
    for world, outputs in written.items():
        found[world] = []
        for rank, output in enumerate(outputs):
            with np.load(folder / f"{world}-{rank}.npz") as file:
                found[world].append((dict(file), texts_of(output)))
    return found


COLLECTIVES = """
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32,
          torch.int64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

def collectives(dtype):
    def operand(*shape):
        rng = np.random.default_rng([rank, *shape])
        values = torch.from_numpy(rng.integers(0, 5, shape))
        return (values / 4 + rng.standard_normal() if dtype.is_floating_point else values).to(device, dtype)

    def inplace(name, function, x, *given, **named):
        done = function(x, *given, **named)
        if named.get("async_op"):
            done.wait()
        keep(f"{dtype} {name}", [x])

    def lists(name, function, outputs, *given):
        function(outputs, *given)
        keep(f"{dtype} {name}", outputs if isinstance(outputs, list) else [outputs])

    def zeros(n, *shape):
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(n)]

    shapes = {"0d": operand(), "none": operand(0), "rows": operand(3, 5), "large": operand(700, 1000)}
    if dtype is not torch.float32:
        del shapes["large"]
    for shape, x in shapes.items():
        for op in OPS[: 4 if dtype.is_floating_point else 7]:
            inplace(f"all_reduce {op} {shape}", dist.all_reduce, x.clone(), getattr(dist.ReduceOp, op))
        y = x.clone()
        dist.reduce(y, 1)
        if rank == 1:
            keep(f"{dtype} reduce {shape}", [y])
        inplace(f"broadcast {shape}", dist.broadcast, x.clone(), 1, async_op=True)
        lists(f"all_gather {shape}", dist.all_gather, zeros(ranks, *x.shape), x)
        rows = zeros(ranks, *x.shape) if rank == 1 else None
        dist.gather(x, rows, 1)
        keep(f"{dtype} gather {shape}", rows or [])
        inplace(f"scatter {shape}", dist.scatter, torch.zeros_like(x),
                [x + i for i in range(ranks)] if rank == 0 else None, 0)
        lists(f"reduce_scatter {shape}", dist.reduce_scatter, torch.zeros_like(x), [x + i for i in range(ranks)])
        lists(f"all_to_all {shape}", dist.all_to_all, zeros(ranks, *x.shape), [x + i for i in range(ranks)])
        y = torch.zeros_like(x)
        works = [dist.irecv(y, 1 - rank), dist.isend(x, 1 - rank)]
        for work in works:
            work.wait()
        keep(f"{dtype} irecv {shape}", [y])
    inplace("strided", dist.all_reduce, operand(4, 6).t())
    inplace("all_gather_into_tensor", dist.all_gather_into_tensor, *zeros(1, 4, 5), operand(2, 5))
    inplace("reduce_scatter_tensor", dist.reduce_scatter_tensor, *zeros(1, 2, 5), operand(4, 5))
    sends = [[1, 2], [3, 4]]
    inplace("all_to_all_single", dist.all_to_all_single,
            *zeros(1, sends[0][rank] + sends[1][rank], 2), operand(sum(sends[rank]), 2),
            [sends[0][rank], sends[1][rank]], sends[rank])
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as coalesced:
        parts = [operand(3), operand(2, 2)]
        for part in parts:
            dist.all_reduce(part)
    coalesced.wait()
    keep(f"{dtype} coalesced", parts)

for dtype in DTYPES:
    collectives(dtype)
x = torch.arange(4.0, device=device) * (1 + 1j * rank)
dist.all_reduce(x)
keep("complex", [x])
x = torch.tensor([[0, rank], [2, 0]]).float().to_sparse()
dist.all_reduce(x)
keep("sparse", [x.coalesce().values(), x.coalesce().indices()])
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
keep("functional", [all_reduce(torch.ones(3, device=device) + rank, "sum", dist.group.WORLD),
                    all_gather_tensor(torch.ones(3, device=device) + rank, 0, dist.group.WORLD)])
y = torch.zeros(3, device=device)
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.arange(3.0, device=device) + rank, 1 - rank),
                                dist.P2POp(dist.irecv, y, 1 - rank)])
for work in works:
    work.wait()
keep("batch", [y])
if rank == 0:
    works = [dist.isend(torch.full((3,), float(tag), device=device), 1, tag=tag) for tag in (7, 8, 0)]
    for work in works:
        work.wait()
else:
    for tag in (8, 7):  # the other way round
        dist.recv(y, 0, tag=tag)
        keep(f"tag {tag}", [y])
    keep("any", [torch.tensor(dist.recv(y)), y])
alone = dist.new_group([1])
half = dist.new_group([1, 0])
if rank == 1:
    x = torch.ones(2, device=device)
    dist.all_reduce(x, group=alone)
    keep("alone", [x])
x = torch.arange(3.0, device=device) + rank
dist.broadcast(x, 1, group=half)
keep("half", [x])
gathered = [None] * ranks
dist.all_gather_object(gathered, {"rank": rank, "list": [1, "two"]})
texts["objects"] = gathered
"""


def compared(theirs, ours, least):
    for (wanted, their_texts), (got, our_texts) in zip(theirs, ours, strict=True):
        assert got.keys() == wanted.keys()
        assert len(got) > least
        assert our_texts == their_texts
        for name, value in wanted.items():
            assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
            # the sum of two numbers does not depend on their order
            assert got[name].tobytes() == value.tobytes(), (name, got[name], value)


def collectives_compared(start_daemon, folder, world):
    """Compares each collective for each dtype in this world, on one daemon and on two, with gloo."""
    found = results(COLLECTIVES, folder, {"gloo": [], world: one(start_daemon), f"{world} two": two(start_daemon)})
    for each in (world, f"{world} two"):
        compared(found["gloo"], found[each], 300)
