"""Checks that losses, weights and gradients with fully_shard are those of PyTorch over gloo on CPUs."""

import numpy as np
from support.gloo import RANKS, results

PROGRAM = """
import importlib
nn, F = L.nn, L.nn.functional
fsdp = importlib.import_module(L.__name__ + ".distributed.fsdp")
fully_shard, Policy = fsdp.fully_shard, fsdp.MixedPrecisionPolicy
place = {}
if library == "torch":
    from torch.distributed.device_mesh import init_device_mesh
    place = {"mesh": init_device_mesh("cpu", (ranks,))}

def fixed(shape, seed):
    return L.from_numpy(np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32))

def filled(net):
    with L.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(fixed(p.shape, i) / 3)
    return net

def mlp():
    return filled(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 2)))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(x)

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(13, 8), nn.Linear(8, 13)
        self.blocks = nn.ModuleList([Block(8), Block(8)])

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def shard(net, layers, **options):
    for layer in layers:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, **place, **options)
    return fully_shard(net, **place, **options)

def keep(name, net, what=lambda p: p):
    for key, p in net.named_parameters():
        if library == "torch":
            value = what(p).full_tensor()
            local = what(p).to_local()
        else:
            local = what(p).detach()
            value = p.sharding.gather(what(p))
        found[f"{name}/{key}"], found[f"{name}/{key}/local"] = value.detach().numpy(), local.detach().numpy()

def train(name, net, loss_of, optimizer, steps=10, clip=None):
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = loss_of(net, i)
        loss.backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(net.parameters(), clip)
            losses.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
        losses.append(loss.item())
    found[name] = np.array(losses)
    keep(name, net)

def square(net, i):
    return ((net(fixed((8, 12), rank + i)) - fixed((8, 2), i)) ** 2).mean()

def predicted(net, i):
    tokens = L.from_numpy(np.random.default_rng(rank + 5 * i).integers(0, 13, (4, 6)))
    return F.cross_entropy(net(tokens)[:, :-1].reshape(-1, 13), tokens[:, 1:].reshape(-1))

net = mlp()
train("mlp", shard(net, net), square, L.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
net = mlp()
shard(net, net, reshard_after_forward=False)
train("mlp kept", net, square, L.optim.AdamW(net.parameters(), lr=0.02, eps=1e-4), clip=0.3)
net = filled(GPT())
shard(net, net.blocks)
train("gpt", net, predicted, L.optim.Adam(net.parameters(), lr=0.02, eps=1e-4), clip=1.0)
for name, sums, result in (("bf16", L.float32, None), ("bf16 sums", L.bfloat16, L.float32)):
    net = filled(GPT())
    for block in net.blocks:
        fully_shard(block, mp_policy=Policy(L.bfloat16, sums), **place)
    fully_shard(net, mp_policy=Policy(L.bfloat16, sums, result), **place)
    y = predicted(net, 0)
    y.backward()
    found[f"{name}/dtypes"] = np.array(
        [str(each.dtype).split(".")[1] for each in (y, *(p.grad for p in net.parameters()))])
    found[name] = y.detach().float().numpy()
    keep(name, net, lambda p: p.grad)

net = mlp()
shard(net, net)
for i in range(3):  # collected, then averaged
    net.set_requires_gradient_sync(i == 2)
    square(net, i).backward()
keep("collected", net, lambda p: p.grad)
"""

# Sums of three terms in another order, and averages; in bfloat16 products may be rounded at different
# points.
TOLERANCES = {"bf16": 0.03, "bf16 sums": 0.03}


def test_the_same_numbers_as_pytorch(start_daemon, tmp_path):
    wanted = results(PROGRAM, "torch", "fsdp", tmp_path)
    found = results(PROGRAM, "tt", "fsdp", tmp_path, (start_daemon().unix,))
    assert len(found) == RANKS
    for own, theirs in zip(found, wanted, strict=True):
        assert own.keys() == theirs.keys() and len(own) > 100
        for name, value in theirs.items():
            assert own[name].shape == value.shape, name
            if value.dtype.kind == "U":
                assert own[name].tolist() == value.tolist(), name
                continue
            tolerance = TOLERANCES.get(name.split("/")[0], 2e-4)
            np.testing.assert_allclose(own[name], value, tolerance, tolerance, err_msg=name)
