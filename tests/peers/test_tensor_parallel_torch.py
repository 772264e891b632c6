"""Compares values and gradients of DTensor and tensor-parallel modules with PyTorch's over gloo."""

import numpy as np
import pytest
from support.daemons import start_daemons
from support.gloo import RANKS, results

BEGIN = """
import importlib
T = importlib.import_module(L.__name__ + ".distributed.tensor")
P = importlib.import_module(L.__name__ + ".distributed.tensor.parallel")
M = importlib.import_module(L.__name__ + ".distributed.device_mesh")
nn = L.nn
mesh = M.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
Shard, Replicate, Partial, DTensor = T.Shard, T.Replicate, T.Partial, T.DTensor

def values(*shape, seed=0):
    return L.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))

def keep(name, x):
    x = x.full_tensor() if isinstance(x, DTensor) else x
    found[name] = x.detach().numpy()

def fill(module):
    for i, p in enumerate(module.parameters()):
        p.data = values(*p.shape, seed=i + 1) + rank  # of rank 0 alone
"""

LAYOUTS = """
found["mesh"] = np.array([*mesh.mesh.tolist(), mesh.get_local_rank(), *mesh.get_coordinate(), mesh.size(), mesh.ndim])
places = {"replicate": Replicate(), "shard0": Shard(0), "shard1": Shard(-1), "partial": Partial()}
for rows in (6, 7, 2):
    for a, source in places.items():
        for b, wanted in places.items():
            if a == "partial":
                x = values(rows, 3, seed=rank).requires_grad_()
                made = DTensor.from_local(x, mesh, [source])
            else:
                x = values(rows, 3).requires_grad_()
                made = T.distribute_tensor(x, mesh, [source])
                made.requires_grad_()
            if a == "replicate" and b == "partial":
                continue  # both refuse it
            name = f"{rows}/{a}/{b}"
            then = made.redistribute(placements=[wanted])
            found[name + "/shape"] = np.array(then.shape)
            local = then.to_local()
            keep(name, local)
            (local * local).sum().backward()
            if a == "partial":
                keep(name + "/grad", x.grad)
            else:
                keep(name + "/grad", made.grad.to_local())
            keep(name + "/full", made.full_tensor())
x = values(4, 3).requires_grad_()
made = DTensor.from_local(x, mesh, [Replicate()])
(made.to_local(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
keep("partial gradient", x.grad)
"""

MODULES = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)
    def forward(self, x):
        return self.second(self.first(self.norm(x)).tanh())

def run(name, module, plan, x):
    fill(module)
    module = P.parallelize_module(module, mesh, plan)
    out = module(x)
    keep(name, out)
    out = out.to_local() if isinstance(out, DTensor) else out
    (out * out).sum().backward()
    for key, p in module.named_parameters():
        g = p.grad
        if isinstance(g, DTensor):  # PyTorch keeps summands apart until redistribute()
            g = g.redistribute(placements=p.placements).to_local()
        keep(f"{name}/{key}", g)
    if x.requires_grad:
        keep(name + "/x", x.grad)

run("mlp", Block(), {"first": P.ColwiseParallel(), "second": P.RowwiseParallel()}, values(4, 6).requires_grad_())
run("wild", nn.ModuleDict({"a": Block()})["a"], {"fir*": P.ColwiseParallel(output_layouts=Replicate())},
    values(4, 6).requires_grad_())
run("rows", nn.Linear(6, 9), P.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
    values(6, 6).requires_grad_())
run("last", nn.Linear(6, 9), P.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1)),
    values(6, 6).requires_grad_())
run("columns", nn.Linear(6, 9), P.ColwiseParallel(input_layouts=Shard(0), use_local_output=False),
    values(2, 6, seed=rank).requires_grad_())
run("sequence", Block(), {
    "norm": P.SequenceParallel(),
    "first": P.ColwiseParallel(input_layouts=Shard(1)),
    "second": P.RowwiseParallel(output_layouts=Shard(1)),
}, values(2, 3, 6, seed=rank).requires_grad_())
run("features", nn.Embedding(7, 6), P.ColwiseParallel(output_layouts=Replicate()), L.tensor([[0, 3], [6, 6]]))
run("vocabulary", nn.Embedding(9, 5), P.RowwiseParallel(input_layouts=Replicate()), L.tensor([[0, 3], [8, 8]]))
run("prepared", nn.Sequential(nn.Linear(6, 6)), {
    "": P.PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True),
    "0": P.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
}, values(2, 6, seed=rank).requires_grad_())
"""


LOSS = """
F = nn.functional
def run(name, x, mesh, placements, target, **options):
    x = T.distribute_tensor(x.requires_grad_(), mesh, placements)
    with P.loss_parallel():
        loss = F.cross_entropy(x, target, **options)
        assert isinstance(loss, DTensor)
        keep(name + "/loss", loss)
        keep(name + "/part", loss.to_local())
        found[name + "/placements"] = np.array([repr(each) for each in loss.placements])
        whole = [Replicate()] * mesh.ndim
        (loss if loss.ndim == 0 else loss.redistribute(placements=whole).to_local().sum()).backward()
    keep(name, x.grad)

for rows, classes in ((4, 7), (5, 6), (2, 3)):  # 7 classes: parts of 3, 3 and 1
    goal = L.tensor([i % classes for i in range(1, rows + 1)])
    weight = values(classes, seed=3).abs()
    for reduction in ("mean", "sum", "none"):
        for name, options in (("", {}), ("weight", {"weight": weight}), ("ignore", {"ignore_index": 1}),
                              ("both", {"weight": weight, "ignore_index": 2})):
            run(f"{rows}x{classes}/{reduction}/{name}", values(rows, classes), mesh, [Shard(1)], goal,
                reduction=reduction, **options)
run("one", values(7), mesh, [Shard(0)], L.tensor(6))
run("three", values(2, 7, 4), mesh, [Shard(1)], L.tensor([[0, 1, 2, 6], [5, 4, -100, 3]]))
run("dtensor", values(4, 7), mesh, [Shard(1)], T.distribute_tensor(L.tensor([0, 3, 6, 5]), mesh, [Replicate()]))
run("large", values(4, 7) * 1000, mesh, [Shard(1)], L.tensor([0, 3, 6, 5]))
for shape in ((1, ranks), (ranks, 1)):
    plane = M.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    for reduction in ("sum", "none"):
        goal = T.distribute_tensor(L.tensor([0, 3, -100, 6]), plane, [Shard(0), Replicate()])
        run(f"{shape[0]}/{reduction}", values(4, 7), plane, [Shard(0), Shard(1)], goal, reduction=reduction)
        goal = T.distribute_tensor(L.tensor([[0, 3, 1], [-100, 6, 2]]), plane, [Shard(1), Replicate()])
        run(f"{shape[0]}/{reduction}/positions", values(2, 7, 3), plane, [Shard(2), Shard(1)], goal,
            reduction=reduction)

def refused(x, placements, target, on=mesh, **options):
    try:
        with P.loss_parallel():
            F.cross_entropy(T.distribute_tensor(x, on, placements), target, **options)
        return "nothing"
    except Exception as e:
        return type(e).__name__
rows = L.tensor([0, 3])
found["refused"] = np.array([
    refused(values(2, 6), [Shard(0)], rows),
    refused(values(2, 6), [Replicate()], rows),
    refused(values(2, 6), [Shard(0), Shard(1)], rows, plane),
    refused(values(2, 6), [Shard(1), Shard(1)], rows, plane),
    refused(values(2, 6), [Replicate(), Shard(1)], rows, plane),  # the mean
    refused(values(2, 6), [Shard(1)], T.distribute_tensor(L.tensor([0, 3]), mesh, [Shard(0)])),
    refused(values(2, 6), [Shard(1)], L.tensor([0, 3, 1])),
    refused(values(2, 6), [Shard(1)], T.distribute_tensor(L.tensor([0, 3, 1]), mesh, [Replicate()])),
])
"""


DISTRIBUTED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 7)
        self.register_buffer("count", L.ones(2) * (rank + 1))
    def forward(self, x):
        return nn.functional.log_softmax(self.second(nn.functional.gelu(self.first(self.norm(x)))), -1)

def shards(**placements):
    def partition(name, module, mesh):
        for key, p in list(module.named_parameters(recurse=False)):
            if f"{name}_{key}" in placements:
                module.register_parameter(
                    key, nn.Parameter(T.distribute_tensor(p, mesh, [placements[f"{name}_{key}"]])))
    return partition

def inputs(placement):
    def convert(module, given, mesh):
        return tuple(T.distribute_tensor(x, mesh, [placement]) for x in given)
    return convert

def whole(module, outputs, mesh):
    return outputs.full_tensor()

def run(name, partition, placement, rows=6):
    module = Block()
    fill(module)
    made = T.distribute_module(module, mesh, partition, inputs(placement), whole)
    assert made is module
    x = values(rows, 6)
    optimizer = L.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for i in range(2):
        optimizer.zero_grad()
        out = module(x)
        keep(f"{name}/{i}", out)
        (out * out).mean().backward()
        optimizer.step()
    for key, p in module.named_parameters():
        keep(f"{name}/{key}", p.full_tensor() if hasattr(p, "full_tensor") else p)
        if library == "torch":
            found[f"{name}/{key}/part"] = p.to_local().detach().numpy()
        else:
            found[f"{name}/{key}/part"] = p.detach().numpy()
    keep(name + "/count", module.count)

for label, placement in (("replicate", Replicate()), ("rows", Shard(0)), ("columns", Shard(1))):
    run(label + "/all", None, placement)
    run(label + "/columns", shards(first_weight=Shard(0), first_bias=Shard(0)), placement)
    run(label + "/both", shards(first_weight=Shard(0), first_bias=Shard(0), second_weight=Shard(1)), placement)
    run(label + "/every", shards(norm_weight=Shard(0), norm_bias=Shard(0), first_weight=Shard(1), first_bias=Shard(0),
                                 second_weight=Shard(0), second_bias=Shard(0)), placement)
run("uneven", shards(second_weight=Shard(0), second_bias=Shard(0)), Shard(0), rows=7)

def refused(act):
    try:
        act()
        return "nothing"
    except Exception as e:
        return type(e).__name__
once = T.distribute_module(nn.Linear(6, 6), mesh)
found["refused"] = np.array([
    refused(lambda: T.distribute_module(once, mesh)),
    refused(lambda: once(values(2, 6))),
    refused(lambda: T.distribute_module(nn.Linear(6, 6), mesh, input_fn=lambda x: x)),
    refused(lambda: T.distribute_module(nn.Linear(6, 6), mesh, output_fn=lambda a, b, c, d: a)),
])
"""


@pytest.mark.parametrize("name", ["layouts", "modules", "loss", "distributed"])
def test_as_pytorch(name, start_daemon, tmp_path):
    program = BEGIN + {"layouts": LAYOUTS, "modules": MODULES, "loss": LOSS, "distributed": DISTRIBUTED}[name]
    addresses = [daemon.unix for daemon in start_daemons(start_daemon, 2)]
    theirs = results(program, "torch", "float32", tmp_path)
    ours = results(program, "teletensor", "float32", tmp_path, addresses)
    assert len(theirs) == RANKS and len(theirs[0]) > 30
    for rank, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        assert a.keys() == b.keys()
        for key in a:
            if a[key].dtype.kind == "U":
                assert b[key].tolist() == a[key].tolist(), f"rank {rank}: {key}"
                continue
            # Small elements may be differences of large products, whose rounding depends on the processor.
            largest = float(np.abs(a[key]).max(initial=0))
            np.testing.assert_allclose(b[key], a[key], rtol=1e-4, atol=max(1e-5, 1e-6 * largest),
                                       err_msg=f"rank {rank}: {key}")
