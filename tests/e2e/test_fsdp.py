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
