"""torch.distributed with tensors on the device "tt": the collectives, DistributedDataParallel and what PyTorch builds
on them, compared with PyTorch's CPU and gloo. A group of "cpu:gloo,tt:teletensor" serves both in one process."""

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.daemon import HANG, Daemon, binary

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_worlds import (
    collectives_compared,
    compared,
    one,
    results,
    run,
    text_of_a_wait,
    texts_of,
    two,
)


def test_what_gloo_gives(start_daemon, tmp_path: Path):
    """Each collective for each dtype, on one daemon and on two."""
    collectives_compared(start_daemon, tmp_path, "tt")


ORDER = """
x, works = torch.ones(1000, device=device), []
for _ in range(5):
    works.append(dist.all_reduce(x, async_op=True))
    if device == "cpu":
        works[-1].wait()
y = x * 2  # sees the results of all of them
assert all(work.is_completed() and work.is_success() and work.exception() is None for work in works)
assert works[0].get_future().then(lambda future: future.value()[0] + 1).wait()[0].item() == 33
works[-1].wait(datetime.timedelta(seconds=100))
works[-1].synchronize()
keep("order", [x, y])
if device == "tt":  # gloo takes the memory for dense
    x = torch.zeros(4, 6, device=device).t()[::2]  # a part of a storage, transposed
    x += rank + 1
    dist.all_reduce(x)
    assert x.tolist() == [[3] * 4] * 3 and x._base.tolist() == [[3, 0] * 3] * 4
leaf = torch.ones(3, device=device, requires_grad=True)
saved = leaf * 2
square = saved.square()
dist.all_reduce(saved.detach())  # is no write for autograd, which reads the sum
square.sum().backward()
keep("autograd", [leaf.grad])
mixed = [torch.full((3,), float(rank), device=device), torch.full((2,), rank, device=device)]
dist._broadcast_coalesced(dist.group.WORLD, mixed, 1 << 20, 1)
keep("coalesced", mixed)
with torch.autograd.profiler.profile() as profile:
    dist.all_reduce(torch.ones(2, device=device))
assert any("all_reduce" in event.name for event in profile.function_events)
if rank == 0:
    dist.isend(torch.full((2,), 7.0, device=device), 1, tag=3).wait()
else:
    late, y = torch.zeros(2, device=device), torch.zeros(2, device=device)
    first, second = dist.irecv(late, 0, tag=4), dist.irecv(y, 0, tag=3)
    second.wait()
    keep("first", [y])
dist.barrier()
if rank == 0:
    dist.send(torch.full((2,), 8.0, device=device), 1, tag=4)
else:
    first.wait()
    keep("second", [late])
"""


def test_calls_are_ordered_by_the_stream(start_daemon, tmp_path: Path):
    """No call waits, and each line sees what earlier calls have written."""
    found = results(ORDER, tmp_path, {"gloo": [], "tt": one(start_daemon)})
    compared(found["gloo"], found["tt"], 4)


# Trains in both ways on the CPU with gloo and on the device.
TRAINING = """
import contextlib
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x, deep=True):
        x = self.norm(F.relu(self.first(x)))
        return self.last(F.relu(self.second(x)) if deep else x)

def own_hook(model):
    def average(_, bucket):
        future = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True).get_future()
        return future.then(lambda f: f.value()[0])
    model.register_comm_hook(None, average)

def halves(model):
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)

def low_rank(model):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

def train(place, hook=None, join=False, no_sync=False, deep=lambda step: True, ids=False, **options):
    torch.manual_seed(rank)  # the parameters of rank 0 count
    net = Net().to(place)
    if ids and place == "tt":
        options["device_ids"] = [0]
    model = DistributedDataParallel(net, **options)
    if hook is not None:
        hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers, losses = torch.Generator().manual_seed(rank), []
    with model.join() if join else contextlib.nullcontext():
        for step in range(5 + (rank if join else 0)):
            x, y = torch.randn(8, 6, generator=numbers), torch.randint(3, (8,), generator=numbers).to(place)
            x = x if "device_ids" in options else x.to(place)  # which copies its inputs itself
            optimizer.zero_grad()
            if no_sync:
                with model.no_sync():
                    F.cross_entropy(model(x), y).backward()
            loss = F.cross_entropy(model(x, deep(step)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [*losses, *model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]

CASES = {
    "plain": {}, "device_ids": {"ids": True}, "buckets": {"bucket_cap_mb": 0.0005},
    "views": {"gradient_as_bucket_view": True}, "static_graph": {"static_graph": True},
    "unused": {"find_unused_parameters": True, "deep": lambda step: step % 2 == rank},
    "no_sync": {"no_sync": True}, "join": {"join": True, "broadcast_buffers": False},
    "hook": {"hook": own_hook}, "bfloat16": {"hook": halves}, "powerSGD": {"hook": low_rank},
}
for name, case in CASES.items():
    for wanted, got in zip(train("cpu", **case), train("tt", **case), strict=True):
        tolerance = {"bfloat16": 2e-2, "powerSGD": 1e-3}.get(name, 1e-5)
        torch.testing.assert_close(got.cpu(), wanted, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")
assert teletensor.torch.fallbacks() == {}
print(sorted(CASES))
"""


def test_distributed_data_parallel(start_daemon, tmp_path: Path):
    """Losses, weights, buffers and gradients equal those of the CPU with gloo."""
    run(TRAINING + "dist.destroy_process_group()", tmp_path, {"tt": one(start_daemon)})


def test_distributed_data_parallel_over_two_daemons(start_daemon, tmp_path: Path):
    run(TRAINING + "dist.destroy_process_group()", tmp_path, {"tt": two(start_daemon)})


COMPILED = """
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

def losses(wrap):
    torch.manual_seed(3)
    model = wrap(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to("tt"))
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(4):
        loss = (model(torch.randn(8, 6).to("tt") + rank) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach().cpu())
    return torch.stack(found)

wanted = losses(DistributedDataParallel)
inside = losses(lambda net: DistributedDataParallel(torch.compile(net, backend="teletensor")))
outside = losses(lambda net: torch.compile(DistributedDataParallel(net), backend="teletensor"))
torch.testing.assert_close(inside, wanted)
torch.testing.assert_close(outside, wanted)
dist.destroy_process_group()
"""


def test_compiled_models(start_daemon, tmp_path: Path):
    """torch.compile in DistributedDataParallel, and around it."""
    run(COMPILED, tmp_path, {"tt": one(start_daemon)})


UNUSED = """
from torch.nn.parallel import DistributedDataParallel
net = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]).to("tt")
net.forward = lambda x: net[0](x)
model = DistributedDataParallel(net)
model(torch.ones(2, 3, device="tt")).sum().backward()
error("unused", lambda: model(torch.ones(2, 3, device="tt")))
log = model._get_ddp_logging_data()
assert log["backend_name"] == "teletensor" and log["world_size"] == 2, log
error("index", lambda: DistributedDataParallel(torch.nn.Linear(3, 3).to("tt"), device_ids=[1])(torch.ones(2, 3)))
error("mixed", lambda: DistributedDataParallel(torch.nn.ModuleList([torch.nn.Linear(3, 3).to("tt"),
                                                                    torch.nn.Linear(3, 3)])))
"""


def test_errors_of_distributed_data_parallel(start_daemon, tmp_path: Path):
    for _, texts in results(UNUSED, tmp_path, {"tt": one(start_daemon)})["tt"]:
        assert "find_unused_parameters=True" in texts["unused"]
        assert "tt: there is one device, tt:0, not" in texts["index"]
        assert "same type of devices" in texts["mixed"]


SYNCHRONIZED = """
import torch.nn as nn
cases = [(nn.BatchNorm2d, (5, 4, 3, 2), torch.float32), (nn.BatchNorm1d, (6, 4), torch.float64),
         (nn.BatchNorm1d, (6, 4), torch.bfloat16)]
for kind, shape, dtype in cases:
    torch.manual_seed(1)
    x, weights = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    whole = kind(4)
    whole.weight.data.uniform_(), whole.bias.data.uniform_()
    whole = whole.to(torch.float32 if dtype is torch.bfloat16 else dtype)
    own = nn.SyncBatchNorm.convert_sync_batchnorm(kind(4).to(whole.weight.dtype))
    own.load_state_dict(whole.state_dict())
    own.to("tt")
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    def close(got, wanted):
        torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=tolerance, atol=tolerance)
    for _ in range(2):
        all_of_it = x.clone().requires_grad_()
        wanted = whole(all_of_it)
        (wanted * weights).sum().backward()
        part = slice(0, 2) if rank == 0 else slice(2, None)  # of different sizes
        some = x[part].to("tt").requires_grad_()
        got = own(some)
        (got * weights[part].to("tt")).sum().backward()
    close(got, wanted[part])
    close(some.grad, all_of_it.grad[part])
    for got, wanted in ((own.weight.grad, whole.weight.grad), (own.bias.grad, whole.bias.grad)):
        dist.all_reduce(got)
        close(got, wanted)
    close(own.running_mean, whole.running_mean)
    close(own.running_var, whole.running_var)
    if dtype is torch.bfloat16:
        continue
    # one rank without a batch, for which PyTorch gathers zeros of the input's dtype
    x = x[:4 if rank else 0].to("tt").requires_grad_()
    y = own(x)
    y.sum().backward()
    assert y.shape == x.shape and (x.grad is None) == (rank == 0)
    own.eval()
    assert own(x).shape == x.shape
assert teletensor.torch.fallbacks() == {}
dist.destroy_process_group()
"""


def test_sync_batch_norm(start_daemon, tmp_path: Path):
    """The ranks together equal one process with the whole batch."""
    run(SYNCHRONIZED, tmp_path, {"tt": one(start_daemon)})


SHARDED = """
import copy
import torch.nn as nn
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def close(got, wanted, tolerance=1e-5):
    torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=tolerance, atol=tolerance)

mesh = init_device_mesh("tt", (ranks,))
whole = torch.arange(14.0).view(7, 2)  # not equal parts
sharded = distribute_tensor(whole, mesh, [Shard(0)])
assert sharded.to_local().device.type == "tt" and sharded.to_local().shape[0] == (4, 3)[rank]
for placement in (Replicate(), Shard(1), Shard(0)):
    again = sharded.redistribute(mesh, [placement])
    close(again.full_tensor(), whole)
close((sharded @ distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])).full_tensor(), whole @ torch.ones(2, 3))
close(sharded.sum(0).full_tensor(), whole.sum(0))

def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

def batch(step):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))

def sharded_model(**options):
    own = model().to("tt")
    for layer in own:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(own, **options)

for options, tolerance in (({}, 1e-5), ({"reshard_after_forward": False}, 1e-5),
                           ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, 3e-2)):
    alone, own = model(), sharded_model(**options)
    theirs, ours = (torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (alone, own))
    for step in range(3):
        theirs.zero_grad(), ours.zero_grad()
        alone(batch(step)).square().mean().backward()
        own(batch(step)[rank::ranks].to("tt")).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        wanted = nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        close(norm.full_tensor(), wanted, tolerance)
        theirs.step(), ours.step()
    for got, wanted in zip(own.parameters(), alone.parameters(), strict=True):
        close(got.full_tensor(), wanted, tolerance)

weights, moments = get_state_dict(own, ours)
kept = {name: value.full_tensor().cpu() for name, value in weights.items()}
state = {"weights": weights, "moments": moments, "plain": torch.arange(5.0, device="tt"), "sharded": sharded, "step": 3}
checkpoint.save(state, checkpoint_id=folder + "/saved")
other = sharded_model()
other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
weights, moments = get_state_dict(other, other_optimizer)
state = {"weights": weights, "moments": moments, "plain": torch.zeros(5, device="tt"), "step": 0,
         "sharded": distribute_tensor(torch.zeros(7, 2), mesh, [Shard(1)])}  # another layout
checkpoint.load(state, checkpoint_id=folder + "/saved")
set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=moments)
for name, value in other.state_dict().items():
    close(value.full_tensor(), kept[name])
close(state["plain"], torch.arange(5.0))
close(state["sharded"].full_tensor(), whole)
assert state["step"] == 3

alone = model()
parts = {"0": ColwiseParallel(), "2": RowwiseParallel()}
own = parallelize_module(model().to("tt"), mesh, parts)
theirs, ours = (torch.optim.SGD(each.parameters(), 0.1, foreach=False) for each in (alone, own))
for step in range(3):
    for net, optimizer, x in ((alone, theirs, batch(step)), (own, ours, batch(step).to("tt"))):
        optimizer.zero_grad()
        net(x).square().sum().div(30).backward()
        optimizer.step()
for got, wanted in zip(own.parameters(), alone.parameters(), strict=True):
    close(got.full_tensor() if hasattr(got, "full_tensor") else got, wanted)
assert teletensor.torch.fallbacks() == {}
dist.destroy_process_group()
"""


def test_sharded_tensors_modules_and_checkpoints(start_daemon, tmp_path: Path):
    """DTensor, fully_shard, parallelize_module and torch.distributed.checkpoint on a mesh of the device."""
    run(SHARDED, tmp_path, {"tt": one(start_daemon)})


# ---------------------------------------------------------------- backends and launchers


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launched(words, address, folder, seconds=HANG):
    environment = {**os.environ, "TELETENSOR_ADDRESS": address, "OMP_NUM_THREADS": "1", "TELETENSORD": str(binary())}
    return subprocess.run([sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True,
                          timeout=seconds, check=False)


def torchrun(*words, address, folder):
    return launched(["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
                     *words], address, folder)


# argument 1: the backend, or nothing
BACKENDS = """
import sys
import torch
import torch.distributed as dist
import teletensor.torch
dist.init_process_group(*sys.argv[1:])
rank = dist.get_rank()
with_device = "NO DEVICE" not in __doc__
for device in ("cpu", "tt") if with_device else ("cpu",):
    x = torch.ones(2, device=device) + rank
    dist.all_reduce(x)
    assert x.tolist() == [3, 3], x
    names = [None] * 2
    dist.all_gather_object(names, f"rank {rank}")
    assert names == ["rank 0", "rank 1"]
part = dist.new_group([0, 1])
dist.all_reduce(x, group=part)
assert x.tolist() == [6, 6]
dist.barrier()
dist.monitored_barrier()
sys.stdout.write(f"{type(dist.group.WORLD._get_backend(torch.device('cpu'))).__name__} {dist.get_backend()}\\n")
assert torch.tt._is_in_use() == with_device
dist.destroy_process_group()
"""


def test_backends_of_the_device(shared_daemon, tmp_path):
    (tmp_path / "program.py").write_text('"""tt"""' + BACKENDS)
    for backend, of_cpu in ((None, "ProcessGroupGloo"), ("cpu:gloo,tt:teletensor", "ProcessGroupGloo"),
                            ("tt:teletensor,cpu:gloo", "ProcessGroupGloo"), ("teletensor", "_Facade")):
        done = torchrun("program.py", *([backend] if backend else []), address=shared_daemon.unix, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        words = [of_cpu, backend or "undefined"]
        assert sorted(done.stdout.split()) == sorted(words * 2), done.stdout


def test_a_program_for_the_cpu_has_gloo_and_needs_no_daemon(tmp_path):
    (tmp_path / "program.py").write_text('"""NO DEVICE"""' + BACKENDS)
    done = torchrun("program.py", address="127.0.0.1:1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ProcessGroupGloo", "undefined"] * 2


def test_a_daemon_that_is_not_there(tmp_path):
    (tmp_path / "program.py").write_text('"""tt"""' + BACKENDS)
    done = torchrun("program.py", address="127.0.0.1:1", folder=tmp_path)
    assert done.returncode != 0 and "127.0.0.1:1" in done.stderr, done.stderr


# A program for two GPUs as it is commonly written.
FOR_GPUS = """
import os
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

place = torch.device("cuda")  # read again by the processes of spawn

def train(local, world, path):
    torch.cuda.set_device(local)
    torch.manual_seed(local)
    assert dist.get_backend() == "nccl" and dist.is_nccl_available() and torch.cuda.device_count() == world
    x = torch.randn(128, 10, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, pin_memory=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).to(local)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model), device_ids=[local], output_device=local)
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for a, b in loader:
            a, b = a.cuda(local, non_blocking=True), b.to(torch.device("cuda", local), non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(a), b)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        total = torch.tensor([loss.item(), 1.0], device=f"cuda:{local}")
        dist.all_reduce(total)
        assert total[1] == world
        if local == 0:
            torch.save(model.module.state_dict(), path)
        dist.barrier(device_ids=[local])
        model.module.load_state_dict(torch.load(path, map_location={"cuda:0": f"cuda:{local}"}))
        dist.barrier()
    weights = [torch.zeros_like(model.module[0].weight) for _ in range(world)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert all(torch.equal(weights[0], each) for each in weights[1:]) and weights[0].is_cuda
    sys.stdout.write(f"rank {dist.get_rank()} loss {(total[0] / world).item() < 0.5} {place.type}\\n")
    dist.destroy_process_group()

def spawned(rank, world, port, path):
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    train(rank, world, path)

if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group(backend="nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        train(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]), sys.argv[1])
    else:
        gpus = torch.cuda.device_count()
        torch.multiprocessing.spawn(spawned, args=(gpus, sys.argv[2], sys.argv[1]), nprocs=gpus)
"""
TRAINED = sorted("rank 0 loss True tt rank 1 loss True tt".split())


def test_a_program_for_two_gpus_runs_without_a_change(shared_daemon, tmp_path):
    (tmp_path / "train.py").write_text(FOR_GPUS)
    done = torchrun("-m", "teletensor.torch", "--as-cuda", "train.py", "model.pt", address=shared_daemon.unix,
                    folder=tmp_path)
    assert done.returncode == 0 and sorted(done.stdout.split()) == TRAINED, done.stderr


def test_a_program_that_starts_its_processes_itself(shared_daemon, tmp_path):
    (tmp_path / "train.py").write_text(FOR_GPUS)
    done = launched(["-m", "teletensor.torch", "--as-cuda=2", "train.py", "model.pt", str(free_port())],
                    shared_daemon.unix, tmp_path)
    assert done.returncode == 0 and sorted(done.stdout.split()) == TRAINED, done.stderr


def test_the_example_learns(shared_daemon, tmp_path):
    example = Path(__file__).resolve().parents[2] / "clients/python/examples/torch_ddp.py"
    done = torchrun(str(example), "--epochs", "3", address=shared_daemon.unix, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[3]) for line in done.stdout.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0] / 2


# ---------------------------------------------------------------- bad input


ERRORS = """
def reduced(x, **options):
    dist.all_reduce(x, **options)
    return x.tolist()

error("devices", lambda: dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(3, device="tt")))
error("dtypes", lambda: dist.all_reduce_coalesced([torch.ones(3, device="tt"), torch.ones(3, device="tt").long()]))
error("list", lambda: dist.all_gather([torch.ones(3, device="tt")], torch.ones(3, device="tt")))
error("outputs", lambda: dist.all_gather([torch.ones(3, device="tt")] * 2, torch.ones(4, device="tt")))
error("average", lambda: reduced(torch.ones(3, device="tt").long(), op=dist.ReduceOp.AVG))
error("itself", lambda: dist.group.WORLD.send([torch.ones(3, device="tt")], rank, 0))
error("root", lambda: dist.broadcast(torch.ones(3, device="tt"), group_src=2))
error("gloo", lambda: dist.all_reduce(torch.ones(3, device="tt"), group=dist.new_group([0, 1], backend="gloo")))
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(2, device="tt"), group=group)
dist.destroy_process_group(group)
error("destroyed", lambda: group.allreduce([torch.ones(3, device="tt")]).wait())
keep("works", [torch.tensor(reduced(torch.ones(2, device="tt")))])
x = torch.ones(3, device="tt")
if (child := os.fork()) == 0:
    error("forked", lambda: dist.group.WORLD.allreduce([x]))
    os._exit(7 if "before this process was forked" in texts["forked"] else 8)
texts["forked"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
error("shapes", lambda: reduced(torch.ones(3 + rank, device="tt")))
error("after", lambda: reduced(torch.ones(3, device="tt")))
"""


def test_errors(start_daemon, tmp_path: Path):
    """Wrong calls are errors at once where this process can see it, and otherwise on all ranks at the next read."""
    (found, texts), (_, others) = results(ERRORS, tmp_path, {"tt": one(start_daemon)})["tt"]
    for name, words in {
        "devices": "the tensors must be on one device", "dtypes": "different dtypes",
        "list": "a list of 2 elements", "outputs": "must have the inputs' dtype", "average": "average is of",
        "itself": "send: rank 0 is no other rank", "root": "rank 2 is not in",
        "gloo": "No backend type associated with device type tt",
        "destroyed": "all_reduce: the process group has been destroyed",
        "shapes": "rank 0 is in all_reduce(sum, float32[3]) at <string>:",
    }.items():
        assert words in texts[name], (name, texts[name])
    assert texts["forked"] == 7
    assert "rank 1 in all_reduce(sum, float32[4])" in texts["shapes"] and "float32[4]" in others["shapes"]
    assert found["works/0"].tolist() == [2, 2]


def test_a_rank_that_has_gone(start_daemon, tmp_path: Path):
    """The remaining rank is notified at once, in the middle of a step of DistributedDataParallel."""
    written = run("""
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(3, 3).to("tt"))
model(torch.ones(2, 3, device="tt")).sum().backward()
torch.tt.synchronize()
if rank:
    sys.exit(3)

def step():
    model(torch.ones(2, 3, device="tt")).sum().backward()
    return model.module.weight.grad.tolist()

error("gone", step)
error("again", step)
print(json.dumps(texts))
os._exit(0)
""", tmp_path, {"tt": one(start_daemon)}, statuses=(0, 3), seconds=600)
    for text in texts_of(written["tt"][0]).values():
        assert text.startswith("RankLostError: ") and "rank 1 has" in text


def test_a_rank_that_does_not_come(start_daemon, tmp_path: Path):
    """The remaining rank waits until the timeout of the group."""
    assert "timeout" in text_of_a_wait("""
dist.all_reduce(torch.ones(2, device="tt"))
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
dist.all_reduce(torch.ones(2, device="tt"), group=group)
torch.tt.synchronize()
x = torch.ones(2, device="tt")
""", "lambda: (dist.all_reduce(x, group=group), x.tolist())", tmp_path, {"tt": one(start_daemon)})


def test_a_daemon_that_ends(tmp_path: Path):
    """Both ranks get an error at their next read."""
    daemon = Daemon()
    os.mkfifo(tmp_path / "trained")
    os.mkfifo(tmp_path / "killed")
    program = """
x = torch.ones(2, device="tt")
dist.all_reduce(x)
x.tolist()
dist.all_reduce(torch.ones(1))  # of gloo
if rank == 0:
    open(folder + "/trained", "w")
    open(folder + "/killed")
dist.all_reduce(torch.ones(1))
error("gone", lambda: (dist.all_reduce(x), x.tolist()))
print(json.dumps(texts))
os._exit(0)
"""
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(run, program, tmp_path, {"tt": [daemon.unix]})
        with open(tmp_path / "trained"):
            daemon.kill()
        with open(tmp_path / "killed", "w"):
            pass
        daemon.stop()  # removes its folder
        for output in ran.result()["tt"]:
            text = texts_of(output)["gone"]
            assert re.search("Connection|Session", text), text
