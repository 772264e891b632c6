"""Compares hooks, joined ranks, the divided optimizer and differentiable collectives with PyTorch over
gloo."""

from pathlib import Path

import numpy as np
from support.gloo import RANKS, results

NET = """
nn, DDP = L.nn, L.nn.parallel.DistributedDataParallel
import importlib
algorithms = L.__name__ + ".distributed.algorithms"
join = importlib.import_module(algorithms + ".join")
hooks = {name: importlib.import_module(algorithms + ".ddp_comm_hooks." + name)
         for name in ("default_hooks", "powerSGD_hook", "post_localSGD_hook")}
ZeRO = importlib.import_module(L.__name__ + ".distributed.optim").ZeroRedundancyOptimizer

width = np.float32

def fixed(shape, seed):
    values = np.random.default_rng(seed).standard_normal(tuple(shape))
    return L.from_numpy(values.astype(width))

def net():
    made = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    with L.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(fixed(p.shape, i) / 3)
    return made

def train(model, optimizer, steps, name):
    for i in range(steps):
        optimizer.zero_grad()
        loss = ((model(fixed((8, 12), rank + i)) - fixed((8, 3), i)) ** 2).mean()
        loss.backward()
        optimizer.step()
    keep(name, model)

def keep(name, model):
    for key, value in model.state_dict().items():
        found[f"{name}/{key}"] = value.numpy()
"""

HOOKS = """
# Random numbers differ, so both get these for the first matrices.
(L if library == "torch" else L._api).randn = lambda *shape, **given: fixed(shape, 5)
default, power, local = hooks.values()
if library == "torch":  # whose batched_powerSGD_hook gives it a matrix, although it takes a batch of them
    batched = power._orthogonalize
    power._orthogonalize = lambda m, *given: batched(m if m.dim() == 3 else m.unsqueeze(0), *given)
some = dist.new_group([0, 1])
chosen = {
    "none": (None, None),
    "allreduce": (None, default.allreduce_hook),
    "fp16": (None, default.fp16_compress_hook),
    "bf16": (None, default.bf16_compress_hook),
    "fp16 wrapper": (None, default.fp16_compress_wrapper(default.allreduce_hook)),
    "bf16 wrapper": (None, default.bf16_compress_wrapper(default.allreduce_hook)),
    "local": (local.PostLocalSGDState(None, some, 3, post_local_gradient_allreduce=False), local.post_localSGD_hook),
}
for name, options in {"one": {"matrix_approximation_rank": 1}, "three": {"matrix_approximation_rank": 3},
                      "cold": {"warm_start": False, "use_error_feedback": False},
                      "plain": {"use_error_feedback": False, "orthogonalization_epsilon": 1e-3}}.items():
    for kind in ("powerSGD_hook", "batched_powerSGD_hook"):
        state = power.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1, **options)
        chosen[f"{kind} {name}"] = (state, getattr(power, kind))
for name, (state, hook) in chosen.items():
    model = DDP(net())
    if hook is not None:
        model.register_comm_hook(state, hook)
    train(model, L.optim.SGD(model.parameters(), lr=0.05), 6, name)
    if isinstance(state, power.PowerSGDState) and "batched" not in name:
        found[name + "/rate"] = np.array(state.compression_stats())
"""

JOINED = """
width = np.float64  # batch norm makes much of differences

class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.other = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.last = nn.Linear(8, 3)

    def forward(self, x, both):
        hidden = self.norm(self.first(x))
        return self.last(hidden) + (self.other(hidden) if both else 0)

for whole in (True, False):
    for unused in (True, False):
        model = Uneven().double()
        with L.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(fixed(p.shape, i))
        model = DDP(model, find_unused_parameters=unused)
        step = L.optim.SGD(model.parameters(), lr=0.05)
        with model.join(divide_by_initial_world_size=whole):
            for i in range(2 + 2 * ((rank + 1) % ranks)):
                step.zero_grad()
                with model.no_sync():
                    (model(fixed((5, 12), i), True) ** 2).mean().backward()
                both = i % 2 == 0 or not unused
                ((model(fixed((5, 12), rank + i), both) - i) ** 2).mean().backward()
                step.step()
        keep(f"{whole} {unused}", model)

class Counter(join.Joinable):
    def __init__(self):
        super().__init__()
        self.total, self.last = L.zeros(1), None
    def __call__(self):
        join.Join.notify_join_context(self)
        count = L.ones(1)
        dist.all_reduce(count)
        self.total += count
    def join_hook(self, **given):
        counter, self.given = self, given
        class Hook(join.JoinHook):
            def main_hook(self):
                dist.all_reduce(L.zeros(1))
            def post_hook(self, is_last_joiner):
                counter.last = is_last_joiner
                x = counter.total.clone()
                dist.broadcast(x, 0)
        return Hook()
    @property
    def join_device(self):
        return L.device("cpu")
    @property
    def join_process_group(self):
        return dist.group.WORLD

counter = Counter()
with join.Join([counter], word=3):
    for i in range(3 + 2 * rank):
        counter()
found["counter"] = np.array([counter.total.item(), counter.last, counter.given["word"]])
try:
    with join.Join([counter], throw_on_early_termination=True):
        for i in range(3 + rank):
            counter()
except RuntimeError as error:
    found["thrown"] = np.array(str(error))
"""

DIVIDED = """
for name, kind, options in (
    ("Adam", L.optim.Adam, {"lr": 0.02}), ("SGD", L.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1})):
    model = DDP(net())
    given = list(model.parameters())
    optimizer = ZeRO([{"params": given[:4]}], kind, **options)
    optimizer.add_param_group({"params": given[4:], "lr": 0.001})
    schedule = L.optim.lr_scheduler.StepLR(optimizer, 2)
    for i in range(3):
        train(model, optimizer, 1, name)
        schedule.step()
    optimizer.consolidate_state_dict(to=2)
    mine = [sorted(p.numel() for group in optimizer.optim.param_groups for p in group["params"])]
    found[name + "/shard"] = np.array(mine)
    found[name + "/lr"] = np.array([group["lr"] for group in optimizer.param_groups])
    if rank == 2:
        saved = optimizer.state_dict()
        found[name + "/groups"] = np.array([len(group["params"]) for group in saved["param_groups"]])
        for number, state in saved["state"].items():
            for key, value in state.items():
                value = value if not hasattr(value, "numpy") else value.numpy()
                found[f"{name}/{number} {key}"] = np.array(value, dtype=np.float64)
"""

GRADIENTS = """
functional = importlib.import_module(L.__name__ + ".distributed.nn.functional")

def case(name, call, *operands):
    leaves = [x.clone().requires_grad_() for x in operands]
    results = call(*leaves)
    results = results if isinstance(results, (tuple, list)) else [results]
    sum((y * fixed(y.shape, 3 + i + rank)).sum() for i, y in enumerate(results)).backward()
    for i, y in enumerate(results):
        found[f"{name}/result {i}"] = y.detach().numpy()
    for i, x in enumerate(leaves):
        found[f"{name}/gradient {i}"] = (L.zeros_like(x) if x.grad is None else x.grad).numpy()

x, rows = fixed((2, 3), rank), [fixed((2, 3), rank + 2 * i) for i in range(ranks)]
case("all_reduce", functional.all_reduce, x)
case("broadcast", lambda x: functional.broadcast(x, 1), x)
case("reduce", lambda x: functional.reduce(x, 1) * (rank == 1), x)
case("gather", lambda x: functional.gather(x, 1), x)
case("scatter", lambda *rows: functional.scatter(list(rows), 1), *rows)
case("all_gather", functional.all_gather, x)
case("reduce_scatter", lambda *rows: functional.reduce_scatter(L.zeros(2, 3), list(rows)), *rows)
case("all_to_all", lambda *rows: functional.all_to_all([L.zeros(2, 3) for _ in range(ranks)], list(rows)), *rows)
case("all_to_all_single", lambda x: functional.all_to_all_single(L.zeros(ranks, 2), x), fixed((ranks, 2), rank))
sizes = [1 + (rank + other) % 2 for other in range(ranks)]
case("uneven", lambda x: functional.all_to_all_single(L.zeros(sum(sizes), 2), x, sizes, sizes),
     fixed((sum(sizes), 2), rank))
"""


def test_as_pytorch(start_daemon, tmp_path: Path):
    program = NET + HOOKS + DIVIDED + GRADIENTS + JOINED
    theirs = results(program, "torch", "float32", tmp_path)
    ours = results(program, "teletensor", "float32", tmp_path, [start_daemon().unix])
    for rank in range(RANKS):
        assert ours[rank].keys() == theirs[rank].keys() and len(ours[rank]) > 150
        for name, wanted in theirs[rank].items():
            got, text = ours[rank][name], f"rank {rank}: {name}"
            if wanted.dtype.kind == "U":
                assert str(got) == str(wanted), text
                continue
            assert got.shape == wanted.shape, text
            near = 1e-3 if "16" in name.partition("/")[0] else 1e-4  # rounded once, or after each addition
            np.testing.assert_allclose(got, wanted, rtol=near, atol=near, err_msg=text)
        for name in ("0.weight", "4.bias"):
            key = "/module." + name
            assert ours[rank]["none" + key].tobytes() == ours[rank]["allreduce" + key].tobytes()
