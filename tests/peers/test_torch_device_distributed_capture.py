"""Collectives of torch.distributed in steps of teletensor.torch.capture and in graphs of torch.compile, on the
device "tt"."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_worlds import one, results, run, two

COLLECTIVES = """
from teletensor import _core as core

gathered, total = torch.zeros(6, device="tt"), torch.zeros(3, device="tt")

def step(x):
    twice = x * 2
    dist.all_reduce(twice)
    dist.all_gather_into_tensor(gathered, twice + rank)
    dist.all_reduce(total.add_(x), op=dist.ReduceOp.MAX)
    dist.broadcast(x, 1)
    if rank == 0:
        dist.send(twice, 1)
    else:
        dist.recv(total, 0)
    return twice + 1

def values(step):
    gathered.zero_(), total.zero_()
    found = []
    for i in range(6):
        x = torch.full((3,), float(i + rank), device="tt")
        before = core.torch_session().last_seq
        y = step(x)
        commands = core.torch_session().last_seq - before
        found += [y, x, gathered.clone(), total.clone()]
    return torch.cat(found).cpu(), commands

(wanted, _), (found, commands) = values(step), values(teletensor.torch.capture(step))
assert torch.equal(wanted, found) and commands <= 4, (wanted, found, commands)
dist.destroy_process_group()
"""


def test_collectives_and_transfers(start_daemon, tmp_path: Path):
    """They write to arguments, to tensors of outside and to what the step makes; a step is one command, and those
    that give two tensors their contents."""
    run(COLLECTIVES, tmp_path, {"tt": one(start_daemon), "tt two": two(start_daemon)})


TRAINING = """
import contextlib
import torch.nn as nn
import torch.nn.functional as F
from teletensor import _core as core
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.last(F.relu(self.second(self.norm(F.relu(self.first(x))))))

def own_hook(model):
    def average(_, bucket):
        future = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True).get_future()
        return future.then(lambda f: f.value()[0])
    model.register_comm_hook(None, average)

def halves(model):
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)

def train(captured, hook=None, join=False, no_sync="", line_by_line=(), evaluate=(), **options):
    torch.manual_seed(rank)  # the parameters of rank 0 count
    model = DistributedDataParallel(Net().to("tt"), **options)
    if hook is not None:
        hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

    def step(x, y):
        if no_sync != "around":
            optimizer.zero_grad()
        if no_sync == "inside":
            with model.no_sync():
                F.cross_entropy(model(x), y).backward()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if no_sync != "around":
            optimizer.step()
        return loss

    own, numbers, found = step, torch.Generator().manual_seed(rank), []
    if captured:
        step = teletensor.torch.capture(step)
    with model.join() if join else contextlib.nullcontext():
        for i in range(10 + (rank if join else 0)):
            x, y = torch.randn(8, 6, generator=numbers).to("tt"), torch.randint(3, (8,), generator=numbers).to("tt")
            before = core.torch_session().last_seq
            if no_sync == "around":
                optimizer.zero_grad()
                with model.no_sync():
                    step(x, y)
            if i in evaluate:
                with torch.no_grad():
                    found.append(model.eval()(x))
                model.train()
            found.append((own if i in line_by_line else step)(x, y).detach())
            if no_sync == "around":
                optimizer.step()
            commands = core.torch_session().last_seq - before
    if captured:
        assert step.programs == (2 if no_sync == "around" else 1), step.programs
        assert commands <= (200 if no_sync == "around" else 4), commands  # of which the optimizer has the most
    return [*found, *model.state_dict().values(), *(p.grad for p in model.parameters())]

CASES = {
    "plain": {}, "buckets": {"bucket_cap_mb": 0.0005}, "views": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True}, "hook": {"hook": own_hook}, "bfloat16": {"hook": halves},
    "no_sync inside": {"no_sync": "inside"}, "no_sync around": {"no_sync": "around"},
    "join": {"join": True, "broadcast_buffers": False}, "line by line": {"line_by_line": (5,)},
    "evaluation": {"evaluate": (5,)},
}
if len(set(addresses)) > 1:
    CASES = {name: CASES[name] for name in ("buckets", "static_graph")}
for name, case in CASES.items():
    for wanted, got in zip(train(False, **case), train(True, **case), strict=True):
        torch.testing.assert_close(got.cpu(), wanted.cpu(), rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")
assert teletensor.torch.fallbacks() == {}
dist.destroy_process_group()
"""


def test_distributed_data_parallel(start_daemon, tmp_path: Path):
    """A captured step is one command, and gives what the step gives."""
    run(TRAINING, tmp_path, {"tt": one(start_daemon)})


def test_distributed_data_parallel_over_two_daemons(start_daemon, tmp_path: Path):
    run(TRAINING, tmp_path, {"tt": two(start_daemon)})


COMPILED = """
import warnings
import torch.distributed._functional_collectives as functional
from teletensor import _core as core

dist.all_reduce(torch.ones(1, device="tt"))

@torch.compile(backend="teletensor")
def returned(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

@torch.compile(backend="teletensor")
def written(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

with warnings.catch_warnings():
    warnings.filterwarnings("error", message="torch.compile")
    for function in (returned, written):
        for i in range(4):
            x = torch.full((3,), float(i + rank), device="tt")
            before = core.torch_session().last_seq
            y = function(x)
            commands = core.torch_session().last_seq - before
            assert y.tolist() == [4 * i + 3.0] * 3, y
        assert commands <= 4, commands
dist.destroy_process_group()
"""


def test_compiled_functions(start_daemon, tmp_path: Path):
    """A graph with a collective is one command."""
    run(COMPILED, tmp_path, {"tt": one(start_daemon)})


REFUSED = """
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

def step_of(model):
    def step(x):
        model.zero_grad()
        model(x).sum().backward()
    return teletensor.torch.capture(step)

def repeated(step):
    for _ in range(4):
        step(torch.ones(2, 3, device="tt"))

early = teletensor.torch.capture(lambda x, joins: dist.all_reduce(x) if joins else x * 2)
early(torch.ones(1, device="tt"), False)
error("first", lambda: early(torch.ones(1, device="tt"), True))
dist.all_reduce(torch.ones(1, device="tt"))
model = DistributedDataParallel(nn.Linear(3, 3).to("tt"), find_unused_parameters=True)
error("unused", lambda: repeated(step_of(model)))
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3))).to("tt")
error("norm", lambda: repeated(step_of(model)))
step = teletensor.torch.capture(lambda x: dist.barrier() or x * 2)
error("barrier", lambda: repeated(step))
mesh = init_device_mesh("tt", (2,))
error("sharded", lambda: repeated(step_of(fully_shard(nn.Linear(3, 3).to("tt"), mesh=mesh))))
"""


def test_what_is_refused(start_daemon, tmp_path: Path):
    for _, texts in results(REFUSED, tmp_path, {"tt": one(start_daemon)})["tt"]:
        assert "the first call of a group with tensors of the device tt cannot be a part" in texts["first"]
        assert "use static_graph=True" in texts["unused"]
        assert "aten::index depends on values" in texts["norm"]
        assert "barrier: it waits for the other processes and cannot be a part" in texts["barrier"]
        assert "tensors of the class DTensor" in texts["sharded"]


ERRORS = """
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1, device="tt"), group=group)

@teletensor.torch.capture
def step(x):
    dist.all_reduce(x, group=group)
    return x * 2

def called(size=2):
    return step(torch.ones(size, device="tt")).tolist()

for _ in range(5):
    called()
assert step.programs == 1
error("sizes", lambda: called(2 + rank))  # a program of one rank, and lines of the other one
for _ in range(5):
    assert called() == [4, 4]
dist.destroy_process_group(group)
error("destroyed", called)
assert torch.ones(2, device="tt").add(1).tolist() == [2, 2]
"""


def test_errors(start_daemon, tmp_path: Path):
    """An error of a captured collective names the lines of both ranks, and later calls work."""
    for _, texts in results(ERRORS, tmp_path, {"tt": one(start_daemon)})["tt"]:
        assert "rank 0 is in all_reduce(sum, float32[2]) at <string>:" in texts["sizes"], texts
        assert "rank 1 in all_reduce(sum, float32[3]) at <string>:" in texts["sizes"], texts
        assert "it has left the group" in texts["destroyed"], texts
