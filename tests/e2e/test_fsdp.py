"""fully_shard: parameters divided among ranks train as one process with the whole batch does."""

import numpy as np
import pytest
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

MODEL = """
from teletensor.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
nn = tt.nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.scale = nn.Parameter(tt.ones(width))
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x * self.scale)
class GPT(nn.Module):
    def __init__(self, words=11, width=6, depth=3):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, words, bias=False)
    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
def model(shard=True, **options):
    tt.manual_seed(3)
    net = GPT()
    if shard:
        for block in net.blocks:
            fully_shard(block, **options)
        fully_shard(net, **options)
    return net
tokens = (tt.arange(6 * 5) ** 2 * 7 % 11).reshape(6, 5)
def batch(step):
    rows = tt.cat([tokens[step:], tokens[:step]])
    return rows[R * (6 // N):(R + 1) * (6 // N)]
def loss_of(net, rows):
    return nn.functional.cross_entropy(net(rows)[:, :-1].reshape(-1, 11), rows[:, 1:].reshape(-1))
def train(net, steps=4, make=None, clip=None):
    optimizer = (make or (lambda p: tt.optim.Adam(p, lr=0.02, eps=1e-4)))(net.parameters())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(net, batch(step))
        loss.backward()
        if clip:
            losses.append(nn.utils.clip_grad_norm_(net.parameters(), clip).item())
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses
def whole(net):
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v.detach()).flatten().tolist()
            for k, v in net.named_parameters()}
"""


def same(found, wanted, tolerance=2e-5):
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


@pytest.fixture
def worlds(start_daemon):
    """worlds(code, ranks) -> the reported values of the ranks, on one daemon."""
    daemon = start_daemon()
    return lambda code, ranks=2, **options: told(start(daemon.unix, ranks, MODEL + code, f"w:{ranks}", **options))


def test_it_trains_as_one_process(worlds):
    """Blocks and root, uneven shards, ranks without rows, clipping, and each optimizer's state of a part."""
    ((losses, weights),) = worlds("net = model(False); tell(train(net, clip=0.5), whole(net))", 1)
    for ranks in (2, 3):
        for found, own, sizes, total in worlds("""
net = model()
assert isinstance(net, FSDPModule) and isinstance(net, GPT) and type(net.blocks[0]).__name__ == "FSDPBlock"
found = train(net, clip=0.5)
sizes = [p.numel() for p in net.parameters()]
own = whole(net)
tell(found, own, sizes, sum(map(len, own.values())))
""", ranks):
            np.testing.assert_allclose(found, losses, 2e-5, 2e-5)
            same(own, weights)
            assert total / ranks * 0.7 < sum(sizes) < total / ranks * 1.3


def test_a_captured_step_has_the_same_bits(worlds):
    for same, lines in worlds("""
def trained(capture):
    net = model()
    optimizer = tt.optim.Adam(net.parameters(), lr=0.02)
    def step(rows):
        optimizer.zero_grad()
        loss = loss_of(net, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss
    step = tt.compile(step) if capture else step
    losses = [step(batch(i)).item() for i in range(4)]
    return losses, [p.tolist() for p in net.parameters()], str(step)
(*a, _), (*b, lines) = trained(False), trained(True)
tell(a == b, lines.count("reduce_scatter("))
""", 3):
        assert same and lines > 20



def test_several_daemons_give_the_same_bits(worlds, start_daemon):
    from support.daemons import start_daemons
    code = "net = model(); tell(train(net), whole(net))"
    together = worlds(code)
    apart = told(start([each.unix for each in start_daemons(start_daemon, 2)], 2, MODEL + code))
    assert together == apart and together[0] == together[1]


def test_memory(worlds):
    """Counted bytes: at rest each rank has a part of parameters, gradients and state; during a step it never
    has the whole model."""
    code = """
import gc
from teletensor._tools.admin import Admin
session = tt.current_session()
admin = Admin(session._transport)
WIDTH, DEPTH = 256, 8
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
def used(reset=False):
    tt.synchronize()
    if reset:
        return admin.holdings(most=1, reset_peaks=True)["session"]["memory"][0]["used"]
    return session.memory(1)[0]["used"]
net = Net()
if SHARD:
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
optimizer = tt.optim.Adam(net.parameters())
x = tt.ones(2, WIDTH)
def step():
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
step(); step()
gc.collect()
rest, peaks = used(), []
for _ in range(3):
    used(True)
    step()
    tt.synchronize()
    peaks.append(session.memory(1)[0]["peak"])
used(True)
with tt.no_grad():
    net(x)
tt.synchronize()
tell(rest, min(peaks), session.memory(1)[0]["peak"])
"""
    layer = (256 * 256 + 256) * 4
    model = 8 * layer
    ((rest, peak, _),) = worlds("SHARD = False" + code, 1)
    assert 4 * model <= rest < 4.2 * model and peak >= 4 * model  # parameters, gradients, two of Adam
    for rest, peak, forward in worlds("SHARD = True" + code, 4):
        assert model <= rest < 1.2 * model, (rest / model)
        # At the peak there are a gathered layer, the gradient of another layer, and its part: three of eight
        # layers in addition to the memory at rest.
        assert peak < rest + 4 * layer, ((peak - rest) / layer)
        assert forward < rest + 2.5 * layer, ((forward - rest) / layer)


CHECK = """
import copy
def small():
    tt.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
data = tt.arange(4 * 5 * N).reshape(-1, 5).sin()[4 * R:4 * R + 4]
def wholes(parameters):
    return [None if p is None else p.tolist() for p in parameters]
def gradients(net):
    found = []
    for p in net.parameters():
        g = p.grad
        if g is not None and hasattr(p, "sharding"):
            g = p.sharding.gather(g)
        elif g is not None:
            dist.all_reduce(g := g.clone(), dist.ReduceOp.AVG)
        found.append(None if g is None else g.tolist())
    return found
def both(make, run, shard=None, **options):
    # Gradients of run(net) of the module as it is, averaged here, and of the sharded one.
    plain, sharded = make(), make()
    (shard or shard_layers)(sharded, **options)
    outs = [run(net) for net in (plain, sharded)]
    return [None if o is None else o.tolist() for o in outs], gradients(plain), gradients(sharded)
def shard_layers(net, **options):
    for layer in net:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, **options)
    return fully_shard(net, **options)
def shard_root(net, **options):
    return fully_shard(net, **options)
def backward(net):
    y = net(data)
    y.square().mean().backward()
    return y
"""


def close(found, tolerance=1e-5):
    (plain_out, out), plain, sharded = found
    if plain_out is not None:
        np.testing.assert_allclose(out, plain_out, tolerance, tolerance)
    assert len(plain) == len(sharded) > 0
    for a, b in zip(plain, sharded, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(b, a, tolerance, tolerance)


def test_gradients(worlds):
    """In each way to run a module, the gradients are the average of those of the module without sharding."""
    for found in worlds(CHECK + """
cases = {}
cases["blocks"] = both(small, backward)
cases["kept"] = both(small, backward, reshard_after_forward=False)
cases["let go"] = both(small, backward, reshard_after_forward=True)
cases["root alone"] = both(small, backward, shard_root)

def accumulated(net):
    for step in range(3):
        if isinstance(net, FSDPModule):
            net.set_requires_gradient_sync(step == 2)
        net(data + step).square().mean().backward()
        if isinstance(net, FSDPModule) and step < 2:
            assert all(p.grad is None for p in net.parameters())
cases["without averages"] = both(small, accumulated)
def added(net):
    for step in range(3):
        net(data + step).square().mean().backward()
cases["added up"] = both(small, added)

def frozen():
    net = small()
    net[0].requires_grad_(False), net[2].weight.requires_grad_(False), net[4].requires_grad_(False)
    return net
def with_input(net):
    x = data.clone().requires_grad_()
    net(x).square().mean().backward()
    assert not any(group._wholes for part in net.modules() if isinstance(part, FSDPModule)
                   for group in [part._fsdp_group])
    return x.grad
cases["frozen"] = both(frozen, with_input, reshard_after_forward=True)
def all_frozen_but_one():
    net = small()
    net.requires_grad_(False)
    net[0].bias.requires_grad_(True)
    return net
cases["all but one frozen"] = both(all_frozen_but_one, backward)

def tied():
    net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    net[2].weight = net[0].weight
    tt.manual_seed(2)
    nn.init.normal_(net[0].weight), nn.init.normal_(net[0].bias), nn.init.normal_(net[2].bias)
    return net
cases["tied"] = both(tied, backward, shard_root)
def twice(net):
    y = net[0](data).tanh()
    y = net[2](net[2](y).sin())
    (net[4](y) + net[4](y * 2)).square().mean().backward()
    return y
cases["twice"] = both(small, twice)
def partly(net):
    y = net[0](data)
    y.sum().backward()
    return y
cases["unused"] = both(small, partly)
def some_ranks(net):
    if isinstance(net, FSDPModule):
        net.set_reduce_scatter_unused_params(True)
    y = net[0](data)
    z = net[2](y.tanh())
    (z.sum() if R else y.sum() + 0 * z.sum()).backward()
    return y
cases["used on some"] = both(small, some_ranks)

again = tt.utils.checkpoint.checkpoint
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        tt.manual_seed(8)
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.gain = nn.Parameter(tt.ones(1) * 1.5)
    def forward(self, x):
        y = self.a(x) * self.gain
        y = again(lambda v: again(lambda w: self.b(w).tanh(), v) * self.gain, y, use_reentrant=False)
        return again(self.c, y, use_reentrant=False) * self.gain
def shard_c(net, **options):
    fully_shard(net.c, **options)
    return fully_shard(net, **options)
cases["checkpointed"] = both(Checkpointed, backward, shard_c, reshard_after_forward=True)
cases["checkpointed, kept"] = both(Checkpointed, backward, shard_c)

def by_grad(net):
    x = data.clone().requires_grad_()
    y = net(x).square().mean()
    gx, *rest = tt.autograd.grad(y, [x, *net.parameters()])
    for p, g in zip(net.parameters(), rest, strict=True):
        p.grad = g
    return gx
cases["autograd.grad"] = both(small, by_grad)
def retained(net):
    y = net(data).square().mean()
    y.backward(retain_graph=True)
    y.backward()
cases["retained graph"] = both(small, retained, reshard_after_forward=True)
def columns(parameter):
    class Shard:
        dim = 1
    return Shard() if parameter.shape == (4, 4) else None
cases["columns"] = both(lambda: (tt.manual_seed(1), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4)))[1], backward,
                        shard_placement_fn=columns)
def early(net):
    if isinstance(net, FSDPModule):
        net[0].set_modules_to_forward_prefetch([net[2], net[4]])
        net[4].set_modules_to_backward_prefetch([net[2], net[0]])
    return backward(net)
cases["prefetched"] = both(small, early)
def list_of(net, **options):
    fully_shard([net[0], net[4]], **options)
    return fully_shard(net, **options)
cases["lists"] = both(small, backward, list_of)
def by_hand(net):
    if isinstance(net, FSDPModule):
        net[0].unshard()
        net[2].unshard(async_op=True).wait()
        assert net[0].weight.shape == (7, 5) == (7, 5) and net[2].weight.shape == (7, 7)
    y = (net[0].weight * net[2].bias[:, None]).sum()
    y.backward()
    if isinstance(net, FSDPModule):
        net[0].reshard()
        assert net[2].weight.shape != (7, 7) != net[0].weight.shape
    return y
cases["by hand"] = both(small, by_hand)
class Method(nn.Linear):
    def generate(self, x):
        with tt.no_grad():
            first = self(x)
        return self(x) * first
cases["a method"] = both(lambda: (tt.manual_seed(1), Method(5, 5))[1], lambda net: (
    register_fsdp_forward_method(net, "generate"), y := net.generate(data), y.sum().backward())[1], shard_root)
def divided(net):
    if isinstance(net, FSDPModule):
        for part in net.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(N / 4)
    (net(data).sum() * (1 if isinstance(net, FSDPModule) else 4)).backward()
cases["divided"] = both(small, divided)
with tt.no_grad():
    plain, net = small(), shard_layers(small())
    cases["no_grad"] = [[plain(data).tolist(), net(data).tolist()], [[0]], [[0]]]
    net[0].weight.mul_(2), net[0].bias.mul_(2), plain[0].weight.mul_(2), plain[0].bias.mul_(2)
    cases["written"] = [[plain.eval()(data).tolist(), net.eval()(data).tolist()], [[0]], [[0]]]
tell(cases)
"""):
        (cases,) = found
        for name, case in cases.items():
            try:
                close(case)
            except AssertionError as e:
                raise AssertionError(f"{name}: {e}") from None
        assert len(cases) == 24


def test_state_dicts(worlds):
    found = worlds(CHECK + """
import importlib
states = importlib.import_module("teletensor.distributed.checkpoint.state_dict")
Options = states.StateDictOptions
def trained(seed):
    net = shard_layers(small())
    with tt.no_grad():
        for p in net.parameters():
            p.mul_(seed)
    optimizer = tt.optim.Adam([{"params": [net[0].weight, net[4].bias], "lr": 0.1},
                               {"params": [net[0].bias, net[2].weight, net[2].bias, net[4].weight]}])
    for _ in range(2):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
    return net, optimizer
def values(net, optimizer):
    optimizer.zero_grad()
    backward(net)
    optimizer.step()
    return [p.tolist() for p in net.parameters()]
def plain(tree):
    return {k: plain(v) if isinstance(v, dict) else v.tolist() if hasattr(v, "tolist") else v for k, v in tree.items()}
one, first = trained(1)
own = one.state_dict()
assert [type(v).__name__ for v in own.values()] == ["ShardedParameter"] * 6
assert not any(v.requires_grad for v in own.values()) and own["0.weight"]._shares_storage(one[0].weight)
one[0].unshard()
assert one.state_dict()["0.weight"].shape == own["0.weight"].shape != one[0].weight.shape == (7, 5)
one.load_state_dict(one.state_dict())
assert one[0].weight.shape == own["0.weight"].shape
whole = Options(full_state_dict=True)
model, optim = states.get_state_dict(one, first, options=whole)
sizes = {k: list(v.shape) for k, v in model.items()}
on_cpu = states.get_model_state_dict(one, options=Options(full_state_dict=True, cpu_offload=True))
again = {}
from_rank0 = Options(full_state_dict=True, broadcast_from_rank0=True)
for name, options in (("shards", None), ("whole", whole), ("rank 0", from_rank0)):
    model, optim = states.get_state_dict(one, first, options=options)
    model = {k: v.clone() for k, v in model.items()}
    for each in optim["state"].values():
        each.update({k: v.clone() for k, v in each.items() if hasattr(v, "clone")})
    if name == "rank 0" and R:
        model, optim = {}, {}
    net, optimizer = trained(2)
    if name == "shards":
        for (k, v) in model.items():
            assert v.shape == net.state_dict()[k].shape
    result = states.set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=optim, options=options)
    assert not result.missing_keys and not result.unexpected_keys
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.001]
    again[name] = values(net, optimizer)
wanted = values(one, first)
texts = []
bad = {**states.get_model_state_dict(one, options=whole), "0.weight": tt.ones(5, 7)}
for line in ("states.set_model_state_dict(one, bad, options=whole)",
             "states.get_model_state_dict(one, options=Options(broadcast_from_rank0=True))",
             "states.get_optimizer_state_dict(one, tt.optim.SGD(small().parameters()))",
             "states.set_optimizer_state_dict(one, first, {'state': {}, 'param_groups': []})"):
    try:
        texts.append(str(eval(line)))
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
state = {k: list(v) for k, v in optim.get("state", {}).items()}
tell(again == {k: wanted for k in again}, sizes, len(on_cpu), state, texts)
""")
    for rank, (same_after, sizes, on_cpu, state, texts) in enumerate(found):
        assert same_after
        assert sizes == {"0.weight": [7, 5], "0.bias": [7], "2.weight": [7, 7], "2.bias": [7], "4.weight": [3, 7],
                         "4.bias": [3]}
        assert on_cpu == (0 if rank else 6)
        assert set(state) == (set() if rank else set(sizes))
        assert all(v == ["step", "exp_avg", "exp_avg_sq"] for v in state.values())
        assert texts[0].startswith("RuntimeError: size mismatch for 0.weight: a whole tensor of (7, 5)"), texts[0]
        assert texts[1].startswith("ValueError: full_state_dict must be True"), texts[1]
        assert texts[2].startswith("ValueError: the optimizer has a parameter that is not the model's"), texts[2]
        assert texts[3].startswith("ValueError: optim_state_dict has no group of the parameters 0.weight,"), texts[3]


def test_dtypes(worlds):
    """Gathered in bfloat16, averaged in float32 or bfloat16; shards and optimizer stay float32."""
    found = worlds(CHECK + """
seen = []
class Looks(nn.Linear):
    def forward(self, x):
        seen.append([str(t.dtype) for t in (x, self.weight, super().forward(x))])
        return super().forward(x)
def run(**options):
    tt.manual_seed(1)
    net = nn.Sequential(Looks(5, 5), nn.Tanh(), Looks(5, 5))
    shard_root(net, mp_policy=MixedPrecisionPolicy(**options))
    y = net(data)
    y.float().sum().backward()
    kinds = [{str(p.grad.dtype) for p in net.parameters()}, {str(p.dtype) for p in net.parameters()}]
    return [str(y.dtype), *kinds[0], *kinds[1], *net[0].weight.grad.flatten().tolist()]
bf16 = tt.bfloat16
full, low, sums, back = run(), run(param_dtype=bf16), run(param_dtype=bf16, reduce_dtype=bf16), run(
    param_dtype=bf16, output_dtype=tt.float32)
net = shard_root(small())
optimizer, scaler = tt.optim.SGD(net.parameters(), lr=0.1), tt.amp.GradScaler("cpu", init_scale=4.0)
before = [p.tolist() for p in net.parameters()]
scaler.scale(net(data).sum()).backward()
if R:
    net[0].weight.grad.fill_(float("inf"))  # only this rank's part
scaler.step(optimizer)
scaler.update()
assert before == [p.tolist() for p in net.parameters()] and scaler.get_scale() == 2
tell([each[:3] for each in (full, low, sums, back)], seen[::2], [each[3:] for each in (full, low, sums)])
""")
    for heads, seen, (full, low, sums) in found:
        f32, bf16 = "teletensor.float32", "teletensor.bfloat16"
        assert heads == [[f32] * 3, [bf16, f32, f32], [bf16, f32, f32], [f32] * 3]
        assert seen == [[f32] * 3, [bf16] * 3, [bf16] * 3, [bf16] * 3]
        assert full != low != sums
        np.testing.assert_allclose(low, full, 0.05, 0.05)
        np.testing.assert_allclose(sums, low, 0.01, 0.01)


def test_refusals(worlds):
    """Errors name the cause and are the same on all ranks; the next step works."""
    lines = {
        "fully_shard(nn.ModuleList([nn.Linear(2, 2)]))": "ValueError: fully_shard does not support containers that",
        "fully_shard(net)": "ValueError: fully_shard: FSDPSequential is sharded already",
        "fully_shard(nn.Sequential(net[0].__class__.__mro__[2](2, 2), wrapped(net[2].weight)))":
            "ValueError: parameter 1.weight is sharded already, as weight of another call of fully_shard",
        "fully_shard(wrapped(nn.Parameter(tt.tensor(1.0))))": "ValueError: FSDP doesn't support scalar parameters",
        "fully_shard(nn.LazyLinear(3))": "ValueError: fully_shard: call the lazy module of parameter weight once",
        "fully_shard(nn.Linear(3, 4), shard_placement_fn=lambda p: dim(1) if p.dim() == 2 else None)":
            "ValueError: FSDP does not support uneven sharding on dim 1: weight of (4, 3) (world size: 2)",
        "fully_shard(nn.Linear(3, 4), shard_placement_fn=lambda p: dim(5))": "ValueError: shard_placement_fn: a",
        "fully_shard(nn.Linear(3, 4), mesh=3)": "ValueError: fully_shard: mesh must be a ProcessGroup or a DeviceMesh",
        "fully_shard(nn.Linear(3, 4), offload_policy=fsdp.CPUOffloadPolicy())": "NotImplementedError: fully_shard: CPU",
        "fully_shard(nn.Linear(3, 4), reshard_after_forward=2)": "NotImplementedError: fully_shard: reshard_",
        "fully_shard(3)": "TypeError: fully_shard takes a Module, not int",
        "copy.deepcopy(net)": "AssertionError: FSDP does not support deepcopy",
        "copy.deepcopy(net[0].weight)": "TypeError: parameter weight is sharded by fully_shard",
        "replaced()": "RuntimeError: parameter weight was replaced since fully_shard",
        "tt.func.functional_call(fully_shard(nn.Linear(5, 5)), {'weight': tt.ones(5, 5)}, data)":
            "RuntimeError: parameter weight was replaced since fully_shard",
        "stale()": "RuntimeError: parameter weight, which is sharded by fully_shard, was written between a forward and",
        "inside()": "RuntimeError: parameter weight was written in the forward of a module of fully_shard",
        "net[0].set_modules_to_forward_prefetch([plain])": "TypeError: modules of fully_shard are expected, not Linear",
        "net.set_gradient_divide_factor(0)": "ValueError: set_gradient_divide_factor: a positive number",
        "tt.optim.LBFGS(net.parameters())": "ValueError: LBFGS computes with whole parameters, and weight is divided",
        "tt.optim.Muon([net[0].weight])": "ValueError: Muon computes with whole parameters",
        "tt.optim.Adafactor(net.parameters())": "ValueError: Adafactor computes with whole parameters",
        "fails()": "ZeroDivisionError: integer division",
        "twice()": "RuntimeError: backward: create_graph through what saved_tensors_hooks have packed is not",
        "fsdp.FullyShardedDataParallel": "AttributeError: torch.distributed.fsdp.FullyShardedDataParallel",
    }
    for texts, same in worlds(CHECK + f"LINES = {list(lines)!r}" + """
from teletensor.distributed import fsdp
net = shard_layers(small())
plain = nn.Linear(2, 2)
def dim(n):
    class Placement:
        dim = n
    return Placement()
def wrapped(parameter):
    module = nn.Module()
    module.weight = parameter
    return module
def replaced():
    layer = fully_shard(nn.Linear(5, 5))
    layer.weight = nn.Parameter(tt.ones(5, 5))
    layer(data)
def stale():
    layer = fully_shard(nn.Linear(5, 5))
    y = layer(data.clone().requires_grad_())
    layer.reshard()
    with tt.no_grad():
        layer.weight.add_(1)
    y.sum().backward()
class Writes(nn.Linear):
    def forward(self, x):
        with tt.no_grad():
            self.weight.mul_(2)
        return super().forward(x)
def inside():
    fully_shard(Writes(5, 5))(data)
class Fails(nn.Linear):
    def forward(self, x):
        return super().forward(x) / (1 // 0)
def fails():
    layer = fully_shard(Fails(5, 5))
    try:
        layer(data)
    finally:
        assert layer.weight.shape == (3 - R, 5)
def twice():
    layer = fully_shard(nn.Linear(5, 5))
    x = data.clone().requires_grad_()
    (g,) = tt.autograd.grad(layer(x).sin().sum(), x, create_graph=True)
    g.sum().backward()
texts = []
for line in LINES:
    try:
        texts.append(str(eval(line)))
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
tell(texts, both(small, backward))
"""):
        for (line, start_of), text in zip(lines.items(), texts, strict=True):
            assert text.startswith(start_of), f"{line}: {text}"
        close(same)


def test_ranks_that_use_different_parameters(worlds):
    """The error is the same on both ranks, and names both calls; the next step works."""
    for texts, after in worlds(CHECK + """
class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        tt.manual_seed(1)
        self.a, self.b = nn.Linear(5, 4), nn.Linear(5, 2)
    def forward(self, x):
        return (self.b if R else self.a)(x)
branch = fully_shard(Branch())
texts = []
try:
    branch(data).sum().backward()
    texts.append(str([None if p.grad is None else p.grad.tolist() for p in branch.parameters()]))
except Exception as e:
    texts.append(f"{type(e).__name__}: {e}")
tell(texts, both(small, backward))
"""):
        assert "float32" in texts[0] and "rank" in texts[0], texts
        close(after)


def test_replicas_of_shards(worlds):
    """A mesh of 2 x 2 ranks: two ranks have the parts, and the other two have the same parts for other
    data."""
    for found in worlds(CHECK + """
class Mesh:
    ndim = 2
    def __init__(self):
        rows = [dist.new_group([2 * row, 2 * row + 1]) for row in range(2)]
        columns = [dist.new_group([column, column + 2]) for column in range(2)]
        self.groups = [columns[R % 2], rows[R // 2]]
    def get_group(self, dim):
        return self.groups[dim]
mesh = Mesh()
def later(net):
    for step in range(2):
        if isinstance(net, FSDPModule):
            net.set_requires_all_reduce(step == 1)
        net(data + step).square().mean().backward()
net = shard_root(small(), mesh=mesh)
tell({"at once": both(small, backward, mesh=mesh), "later": both(small, later, mesh=mesh)},
     list(net[0].weight.shape), net[0].weight.full_tensor().tolist() == small()[0].weight.tolist())
""", 4):
        cases, shape, same_values = found
        assert shape in ([4, 5], [3, 5]) and same_values
        for case in cases.values():
            close(case)
