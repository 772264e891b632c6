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
    """worlds(code, ranks) -> what the ranks have told, of one daemon."""
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


def test_several_daemons_give_the_same_bits(worlds, start_daemon):
    from support.daemons import start_daemons
    code = "net = model(); tell(train(net), whole(net))"
    together = worlds(code)
    apart = told(start([each.unix for each in start_daemons(start_daemon, 2)], 2, MODEL + code))
    assert together == apart and together[0] == together[1]


def test_memory(worlds):
    """Counted bytes: at rest a part of parameters, gradients and state; in a step never the whole model."""
    code = """
import gc
from teletensor._admin import Admin
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
        # A layer gathered, another's gradient, its part: three of eight beside what rests.
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
    """Each way to run a module: gradients are the average of those of the module as it is."""
    for found in worlds(CHECK + """
cases = {}
for name, options in {"blocks": {}, "kept": dict(reshard_after_forward=False), "let go": dict(reshard_after_forward=True)}.items():
    cases[name] = both(small, backward, **options)
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
