"""Runs PyTorch programs on a daemon's groups, and compares the backend "teletensor" of torch.distributed
with gloo."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_worlds import (
    RANKS,
    collectives_compared,
    compared,
    one,
    results,
    run,
    text_of_a_wait,
    texts_of,
)

RUNNER = Path(__file__).with_name("torch_distributed.py")


def test_what_gloo_gives(start_daemon, tmp_path: Path):
    """Each collective for each dtype, on one daemon and on two."""
    collectives_compared(start_daemon, tmp_path, "ours")


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
    found = results(TRAINING, tmp_path, {"gloo": [], "ours": one(start_daemon)})
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
    (found, texts), (_, others) = results(ERRORS, tmp_path, {"ours": one(start_daemon)})["ours"]
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
""", tmp_path, {"ours": one(start_daemon)}, statuses=(0, 3), seconds=600)
    for text in texts_of(written["ours"][0]).values():
        assert text.startswith("RankLostError: ") and "rank 1 has ended its session" in text


def test_a_rank_that_does_not_come(start_daemon, tmp_path: Path):
    """The remaining ranks wait until the timeout of the group."""
    assert "timeout" in text_of_a_wait("""
dist.barrier()
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=5))  # which both have to join within that time
""", "lambda: dist.all_reduce(torch.ones(2), group=group)", tmp_path, {"ours": one(start_daemon)})


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
