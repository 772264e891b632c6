"""Runs PyTorch programs on a daemon's groups, and compares the backend "teletensor" of torch.distributed
with gloo."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.daemon import HANG
from support.daemons import start_daemons

RANKS = 2
RUNNER = Path(__file__).with_name("torch_distributed.py")

# One process imports PyTorch, and begin() forks the ranks of each world, which return from it.
BEGIN = """
import datetime, json, os, sys
import numpy as np
import torch
import torch.distributed as dist
import teletensor.integrations.torch_backend
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
dist.init_process_group("teletensor" if addresses else "gloo", init_method="file://" + place, rank=rank,
                        world_size=ranks, timeout=datetime.timedelta(seconds=seconds))
found, texts = {}, {}

def keep(name, tensors):
    for i, x in enumerate(tensors):
        x = x.detach()
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
    turn; no address means gloo. Returns their standard output, and raises an error if a rank does not end
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


def results(program, folder, worlds):
    """The arrays and the texts of each rank, for each world."""
    written = run(program + END, folder, worlds)
    found = {}
    for world, outputs in written.items():
        found[world] = []
        for rank, output in enumerate(outputs):
            with np.load(folder / f"{world}-{rank}.npz") as file:
                found[world].append((dict(file), json.loads(output.splitlines()[-1])))
    return found


COLLECTIVES = """
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32,
          torch.int64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

def collectives(dtype):
    def operand(*shape):
        rng = np.random.default_rng([rank, *shape])
        values = torch.from_numpy(rng.integers(0, 5, shape))
        return (values / 4 + rng.standard_normal() if dtype.is_floating_point else values).to(dtype)

    def inplace(name, function, x, *given, **named):
        done = function(x, *given, **named)
        if named.get("async_op"):
            done.wait()
        keep(f"{dtype} {name}", [x])

    def lists(name, function, outputs, *given):
        function(outputs, *given)
        keep(f"{dtype} {name}", outputs if isinstance(outputs, list) else [outputs])

    def zeros(n, *shape):
        return [torch.zeros(shape, dtype=dtype) for _ in range(n)]

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
    inplace("all_gather_into_tensor", dist.all_gather_into_tensor, torch.zeros(4, 5, dtype=dtype), operand(2, 5))
    inplace("reduce_scatter_tensor", dist.reduce_scatter_tensor, torch.zeros(2, 5, dtype=dtype), operand(4, 5))
    sends = [[1, 2], [3, 4]]
    inplace("all_to_all_single", dist.all_to_all_single,
            torch.zeros(sends[0][rank] + sends[1][rank], 2, dtype=dtype), operand(sum(sends[rank]), 2),
            [sends[0][rank], sends[1][rank]], sends[rank])
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as coalesced:
        parts = [operand(3), operand(2, 2)]
        for part in parts:
            dist.all_reduce(part)
    coalesced.wait()
    keep(f"{dtype} coalesced", parts)

for dtype in DTYPES:
    collectives(dtype)
x = torch.arange(4.0) * (1 + 1j * rank)
dist.all_reduce(x)
keep("complex", [x])
x = torch.tensor([[0, rank], [2, 0]]).float().to_sparse()
dist.all_reduce(x)
keep("sparse", [x.coalesce().values(), x.coalesce().indices()])
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
keep("functional", [all_reduce(torch.ones(3) + rank, "sum", dist.group.WORLD),
                    all_gather_tensor(torch.ones(3) + rank, 0, dist.group.WORLD)])
y = torch.zeros(3)
if rank == 0:
    works = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (7, 8, 0)]
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
    x = torch.ones(2)
    dist.all_reduce(x, group=alone)
    keep("alone", [x])
x = torch.arange(3.0) + rank
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


def test_what_gloo_gives(start_daemon, tmp_path: Path):
    """Each collective for each dtype, on one daemon and on two."""
    two = [daemon.unix for daemon in start_daemons(start_daemon, 2)]
    found = results(COLLECTIVES, tmp_path, {"gloo": [], "one": [start_daemon().unix], "two": two})
    for world in ("one", "two"):
        compared(found["gloo"], found[world], 300)


TRAINING = """
torch.manual_seed(rank)  # the parameters of rank 0 count
net = torch.nn.Sequential(torch.nn.Linear(6, 80), torch.nn.BatchNorm1d(80), torch.nn.ReLU(), torch.nn.Linear(80, 3))
net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005, find_unused_parameters=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
losses = []
for step in range(5):
    optimizer.zero_grad()
    with net.no_sync():
        (net(torch.randn(8, 6)) ** 2).mean().backward()
    loss = (net(torch.randn(8, 6)) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss)
keep("losses", losses)
keep("state", net.state_dict().values())
"""


def test_distributed_data_parallel(start_daemon, tmp_path: Path):
    """PyTorch's DDP: the weights must be equal to gloo's bit by bit."""
    found = results(TRAINING, tmp_path, {"gloo": [], "ours": [start_daemon().unix]})
    compared(found["gloo"], found["ours"], 10)


ERRORS = """
error("shapes", lambda: dist.all_reduce(torch.ones(3 + rank)))
error("calls", lambda: dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), 0))
error("future", lambda: dist.all_reduce(torch.ones(3 + rank), async_op=True).get_future().wait())
work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
error("wait", work.wait)
texts["ended"] = [work.is_completed(), work.is_success()]
error("average", lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG))
error("premultiplied", lambda: dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0)))
error("float8", lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e5m2)))
error("meta", lambda: dist.all_reduce(torch.ones(3, device="meta")))
error("list", lambda: dist.all_gather([torch.ones(3)], torch.ones(3)))
error("outputs", lambda: dist.all_gather([torch.ones(3)] * 2, torch.ones(4)))
error("parts", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [2, 2]))
error("itself", lambda: dist.group.WORLD.send([torch.ones(3)], rank, 0))
error("root", lambda: dist.broadcast(torch.ones(3), group_src=2))
error("monitored", lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.2)) if rank == 0 else None)
dist.barrier()
if rank == 0:
    dist.send(torch.ones(3), 1)
else:
    error("long", lambda: dist.recv(torch.ones(4), 0))
group = dist.new_group([0, 1])
dist.destroy_process_group(group)
error("destroyed", lambda: group.allreduce([torch.ones(3)]).wait())
x = (torch.arange(3.0) + rank).to(torch.float8_e5m2)
dist.broadcast(x, 1)
keep("float8 moves", [x.float()])
x = torch.ones(3)
dist.all_reduce(x)
keep("works", [x])
"""


def test_errors(start_daemon, tmp_path: Path):
    """A call that fails on one rank raises the same error on all ranks; later calls work."""
    (found, texts), (_, others) = results(ERRORS, tmp_path, {"ours": [start_daemon().unix]})["ours"]
    for name, words in {
        "shapes": "rank 0 is in all_reduce(sum, float32[3]) at <string>:",
        "calls": "rank 0 is in broadcast(src=0, float32[3]) at <string>:",
        "future": "rank 1 in all_reduce(sum, float32[4])", "wait": "rank 1 in all_reduce(sum, float32[4])",
    }.items():
        assert words in texts[name], texts[name]
        # pybind11 reads the line numbers below "At:" while the thread of the calls continues.
        mine, theirs = (re.split(r"\(issued|\n\nAt:", text)[0] for text in (texts[name], others[name]))
        assert mine == theirs
    assert texts["ended"] == [True, False]
    for name, words in {
        "average": "average is of floating point", "premultiplied": "NotImplementedError: ",
        "float8": "TypeError: the daemon cannot compute with torch.float8_e5m2",
        "meta": "not torch.float32 of layout torch.strided on meta",
        "list": "a list of 2 elements", "outputs": "must have the inputs' dtype",
        "parts": "output_split_sizes [1, 1] do not split 4 rows", "itself": "send: rank 0 is no other rank",
        "root": "rank 2 is not in", "monitored": "Rank 1 failed to pass monitoredBarrier in 200 ms",
        "destroyed": "all_reduce: the process group has been destroyed", "long": None,
    }.items():
        assert words is None or words in texts[name], (name, texts[name])
    assert "float32[3]" in others["long"] and "float32[4]" in others["long"], others["long"]
    assert found["float8 moves/0"].tolist() == [1, 2, 3]
    assert found["works/0"].tolist() == [2, 2, 2]


def test_a_rank_that_has_gone(start_daemon, tmp_path: Path):
    """The remaining ranks are notified at once, and their processes end normally."""
    written = run("""
dist.all_reduce(torch.ones(2))
if rank:
    sys.exit(3)
error("gone", lambda: dist.all_reduce(torch.ones(2)))
error("again", dist.barrier)
print(json.dumps(texts))
dist.destroy_process_group()
""", tmp_path, {"ours": [start_daemon().unix]}, statuses=(0, 3), seconds=600)
    for text in json.loads(written["ours"][0].splitlines()[-1]).values():
        assert text.startswith("RankLostError: ") and "rank 1 has ended its session" in text


def test_a_rank_that_does_not_come(start_daemon, tmp_path: Path):
    """The remaining ranks wait until the timeout of the group."""
    os.mkfifo(tmp_path / "end")
    written = run("""
dist.barrier()
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=5))  # which both have to join within that time
if rank == 0:
    error("late", lambda: dist.all_reduce(torch.ones(2), group=group))
    print(json.dumps(texts))
open(folder + "/end", "r" if rank else "w")
""", tmp_path, {"ours": [start_daemon().unix]})
    assert "timeout" in json.loads(written["ours"][0].splitlines()[-1])["late"]


# A selection of fast and different tests from PyTorch's suite; torch_distributed.py runs all of them.
CHOSEN = """
test_all_gather test_all_gather_coalesced_simple test_all_gather_object_default_pg test_all_reduce_coalesced_sum
test_all_reduce_coalesced_full_group_max test_all_reduce_sum_async test_all_reduce_sum_complex
test_barrier_full_group test_batch_isend_irecv_gloo
test_batch_isend_irecv_gloo_tags test_broadcast test_ddp_create_graph test_destroy_group test_gather test_get_future
test_get_backend test_irecv test_isend test_isend_autograd_profiler test_monitored_barrier_gloo_subgroup
test_reduce_full_group_max test_reduce_product test_scatter test_scatter_object_list test_send_recv
test_accumulate_gradients_no_sync_allreduce_with_then_hook test_send_recv_any_source_torch_profiler
test_send_recv_with_tag test_sparse_all_reduce_sum test_static_graph_api_cpu
""".split()


def test_part_of_pytorchs_suite(start_daemon, tmp_path: Path):
    address = start_daemon("--max-sessions", "200", "--user-sessions", "0").unix
    done = subprocess.run([sys.executable, RUNNER, "--ranks", str(RANKS), "--address", address, "--json",
                           tmp_path / "found", *CHOSEN], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found").read_text())["teletensor"]
    assert {name: why for name, (state, why) in found.items() if state == "failed"} == {}
    assert sum(state == "passed" for state, _ in found.values()) > 25


def test_without_pytorch(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['torch'] = None; import teletensor.integrations.torch_backend"],
        capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "ImportError: teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'" in (
        done.stderr)


@pytest.mark.parametrize("name", ["broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather",
                                  "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced",
                                  "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
                                  "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "barrier",
                                  "monitored_barrier", "send", "recv", "recv_anysource"])
def test_calls_are_ours(name):
    """No call uses PyTorch's own implementation, which would look for another backend."""
    from teletensor.integrations.torch_backend import TeletensorProcessGroup
    assert getattr(TeletensorProcessGroup, name).__module__.startswith("teletensor.")
