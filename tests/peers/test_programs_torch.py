"""Tests idioms of public programs and libraries that once did not work after only the imports were changed.

Each function does what the program named in its docstring does, in its own code, and runs with both
libraries (teletensor under PyTorch's names, as with `teletensor.as_torch`): the numbers must be equal.
"""

import abc
import collections
import copy
import importlib
import io
import math
import typing

import numpy as np
import pytest


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def part(t, path):
    return importlib.import_module(f"{t.__name__}.{path}")


def functions_as_class_attributes(t):
    """kornia's Hausdorff loss stores `conv = torch.conv2d` in its class, as other losses store their
    activations."""
    class Erosion(t.nn.Module):
        conv = t.conv2d
        squash = t.tanh
        act = t.nn.functional.gelu

        def forward(self, x, kernel):
            return self.squash(self.conv(x, kernel, padding=1))

    out = Erosion()(t.from_numpy(values(1, 1, 5, 5)), t.ones(1, 1, 3, 3) / 9)
    return out, Erosion.act(t.ones(2))


def a_misspelt_flag(t):
    """Informer's embedding, and programs that copy it (Time-Series-Library), set `require_grad` on a
    tensor."""
    class Position(t.nn.Module):
        def __init__(self, width, length=50):
            super().__init__()
            table = t.zeros(length, width).float()
            table.require_grad = False
            place = t.arange(0, length).float().unsqueeze(1)
            rate = (t.arange(0, width, 2).float() * -(math.log(10000.0) / width)).exp()
            table[:, 0::2] = t.sin(place * rate)
            table[:, 1::2] = t.cos(place * rate)
            self.register_buffer("table", table.unsqueeze(0))

        def forward(self, x):
            return self.table[:, :x.size(1)]

    return Position(6)(t.zeros(2, 7, 6))


def metrics_with_other_bases(t):
    """torchmetrics: modules that also derive from ABC, log their use, and gather states if there is a
    world."""
    t._C._log_api_usage_once("metrics")

    class Metric(t.nn.Module, abc.ABC):
        def __init__(self):
            super().__init__()
            self._defaults, self._reductions = {}, {}

        def add_state(self, name, default, reduction):
            self._defaults[name] = copy.deepcopy(default)
            self._reductions[name] = reduction
            setattr(self, name, default)

        @abc.abstractmethod
        def update(self, preds, target): ...

        def synced(self):
            if t.distributed.is_available() and t.distributed.is_initialized():
                for name in self._defaults:
                    t.distributed.all_reduce(getattr(self, name))
            return self.compute()

    class Accuracy(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("right", t.tensor(0), "sum")
            self.add_state("total", t.tensor(0), "sum")

        def update(self, preds, target):
            self.right += (preds.argmax(dim=-1) == target).sum()
            self.total += target.numel()

        def compute(self):
            return self.right.float() / self.total

    metric = Accuracy()
    for seed in range(3):
        metric.update(t.from_numpy(values(8, 4, seed=seed)), t.arange(8) % 4)
    return metric.synced(), float(np.asarray(metric.compute())), list(metric.state_dict())


def a_token_file(t):
    """modded-nanogpt reads shards through the array of a preallocated tensor."""
    tokens = np.arange(32, dtype=np.uint16)
    file = io.BytesIO(tokens.tobytes())
    read = t.from_numpy(np.frombuffer(file.read(), dtype=np.uint16).astype(np.int32))
    x = read[:-1].to(dtype=t.int32, non_blocking=True)
    y = read[1:].to(dtype=t.int64, non_blocking=True)
    return x.view(-1)[:5], y[-3:], x.dtype == t.int32


def jitter_until_it_factors(t):
    """Gaussian processes: a Cholesky factor with growing jitter until the decomposition succeeds."""
    k = t.tensor([[1.0, 1.5], [1.5, 1.0]])
    for power in range(6):
        try:
            factor = t.linalg.cholesky(k + 10.0 ** (power - 3) * t.eye(2))
            break
        except RuntimeError:
            pass
    mean = t.cholesky_solve(t.ones(2, 1), factor)
    return power, factor, mean, part(t, "distributions.multivariate_normal").MultivariateNormal(
        t.zeros(2), scale_tril=factor).log_prob(t.ones(2))


def an_adaptive_solver(t):
    """torchdiffeq: steps whose size depends on the error, which is read."""
    w = t.from_numpy(values(2, 2)) * 0.1
    y, now, h, taken, refused = t.tensor([[2.0, 0.0]]), t.tensor(0.0), t.tensor(0.5), 0, 0
    while now < 1.0 and taken + refused < 60:
        h = t.min(h, 1.0 - now)
        k1 = t.mm(y ** 3, w)
        k2 = t.mm((y + h * k1) ** 3, w)
        error = (h * (k2 - k1) / 2).abs().max() / 1e-3
        if error <= 1.0:
            y, now, taken = y + h * (k1 + k2) / 2, now + h, taken + 1
        else:
            refused += 1
        h = h * t.clamp(0.9 / error.sqrt().clamp(min=1e-3), 0.2, 2.0)
    return y, taken, refused


def rows_of_an_image(t):
    """The recurrent classifier of image rows in PyTorch's tutorials: LSTM and GRU, the last output, a few
    steps."""
    out = []
    for kind in (t.nn.LSTM, t.nn.GRU):
        net = kind(4, 5, num_layers=2, batch_first=True)
        head = t.nn.Linear(5, 3)
        with t.no_grad():
            for i, p in enumerate([*net.parameters(), *head.parameters()]):
                p.copy_(t.from_numpy(values(*p.shape, seed=i)) * 0.2)
        optimizer = t.optim.Adam([*net.parameters(), *head.parameters()], lr=0.01)
        for _ in range(3):
            x = t.from_numpy(values(6, 7, 4)).reshape(-1, 7, 4)
            loss = t.nn.CrossEntropyLoss()(head(net(x)[0][:, -1, :]), t.arange(6) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
    return out


def centres_and_counts(t):
    """k-means and makemore's bigrams: counts at pairs of indices, centres by masks, sampling row by row."""
    x, centres = t.from_numpy(values(30, 2)), t.from_numpy(values(3, 2, seed=1))
    for _ in range(4):
        nearest = t.cdist(x, centres).argmin(dim=1)
        centres = t.stack([x[nearest == i].mean(0) if (nearest == i).any() else centres[i] for i in range(3)])
    words = ["abba", "cab"]
    places = {letter: i + 1 for i, letter in enumerate("abc")}
    counts = t.zeros((4, 4), dtype=t.int32)
    for word in words:
        letters = [0, *(places[c] for c in word), 0]
        for a, b in zip(letters, letters[1:]):
            counts[a, b] += 1
    rows = (counts + 1).float()
    rows /= rows.sum(1, keepdim=True)
    likelihood = sum(rows[places[a], places[b]].log() for a, b in ("ab", "bb", "ba"))
    return centres, counts, -likelihood / 3, rows[t.tensor(1)]


def rewards_of_an_episode(t):
    """PyTorch's examples actor_critic and dqn: sampled actions, returns computed backwards, a table of
    transitions."""
    net = t.nn.Sequential(t.nn.Linear(3, 2))
    with t.no_grad():
        net[0].weight.copy_(t.from_numpy(values(2, 3)))
        net[0].bias.zero_()
    kind = part(t, "distributions.categorical").Categorical
    saved, rewards = [], []
    for step in range(6):
        policy = kind(t.nn.functional.softmax(net(t.from_numpy(values(3, seed=step))), dim=-1))
        action = policy.probs.argmax()
        saved.append(policy.log_prob(action))
        rewards.append(float(int(action.item()) == step % 2))
    total, returns = 0, collections.deque()
    for reward in rewards[::-1]:
        total = reward + 0.9 * total
        returns.appendleft(total)
    returns = t.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = t.stack([-p * r for p, r in zip(saved, returns)]).sum()
    loss.backward()
    return loss, net[0].weight.grad, t.cat([t.tensor([[r]]) for r in rewards])


def items_made_one_by_one(t):
    """minGPT's adder and makemore's datasets: items of tensors, a loader, masked targets."""
    class Sums(t.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            digits = [int(c) for c in f"{i:02d}{i + 5:02d}{2 * i + 5:03d}"[::1]]
            x = t.tensor(digits[:-1], dtype=t.long)
            y = t.zeros(6, dtype=t.long)
            y[:] = t.tensor(digits[1:])
            y[:3] = -1
            return x, y

    loader = part(t, "utils.data.dataloader").DataLoader(Sums(), batch_size=5, shuffle=False, num_workers=0)
    table = t.from_numpy(values(10, 10))
    return [t.nn.functional.cross_entropy(table[x].view(-1, 10), y.view(-1), ignore_index=-1) for x, y in loader]


def registered_models(t):
    """timm: layers that check whether they are scripted, initial values by fans, a registry of wrapped
    functions."""
    init = part(t, "nn.init")

    class Attend(t.nn.Module):
        fused: t.jit.Final[bool] = False

        def __init__(self):
            super().__init__()
            self.weight = t.nn.Parameter(t.zeros(4, 3))

        @t.jit.ignore
        def no_weight_decay(self):
            return {"weight"}

        @t.jit.unused
        def slow(self, x):
            return x @ self.weight.t()

        def forward(self, x: t.Tensor) -> typing.Optional[t.Tensor]:  # noqa: UP045
            return t.nn.functional.linear(x, self.weight) if t.jit.is_scripting() else self.slow(x)

    net = Attend()
    fan_in, fan_out = init._calculate_fan_in_and_fan_out(net.weight)
    with t.no_grad():
        net.weight.copy_(t.arange(12.0).view(4, 3) / math.sqrt(fan_in * fan_out))
    ema = t.optim.swa_utils.AveragedModel(net)
    ema.update_parameters(net)
    groups = [{"params": [p for n, p in net.named_parameters() if n in net.no_weight_decay()], "weight_decay": 0.0}]
    kind = part(t, "optim.adamw").AdamW
    optimizer = kind(groups, lr=0.1)
    scheduler = part(t, "optim.lr_scheduler").CosineAnnealingLR(optimizer, 5)
    net(t.ones(2, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    old = isinstance(scheduler, t.optim.lr_scheduler.LRScheduler)
    return net.weight, ema.module.weight, scheduler.get_last_lr(), old, fan_in, fan_out


def nested_states(t):
    """transformers, torchrl and the examples of functorch: maps over nested outputs with other containers
    in them."""
    tree = part(t, "utils._pytree")
    Output = collections.namedtuple("Output", "logits cache")
    out = Output(t.ones(2, 3), [{"k": t.zeros(2), "v": (t.arange(3.0), None)}])
    halves = tree.tree_map(lambda x: x / 2 if isinstance(x, t.Tensor) else x, out)
    leaves, spec = tree.tree_flatten(out)
    doubled = tree.tree_unflatten([x * 2 if x is not None else x for x in leaves], spec)
    paths = [tree.keystr(path) for path, _ in tree.tree_leaves_with_path(out)]
    return halves.logits, doubled.cache[0]["v"][0], type(halves).__name__, paths, len(leaves)


def mixed_precision_of_a_function(t):
    """Kernels as in apex and mamba: a Function with a fixed precision, in a program for one GPU or a
    CPU."""
    class Scale(t.autograd.Function):
        @staticmethod
        @t.amp.custom_fwd(device_type="cpu", cast_inputs=t.float32)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @t.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

    x, w = (t.from_numpy(values(3, 3, seed=i)).requires_grad_() for i in (1, 2))
    with t.autocast("cpu", dtype=t.bfloat16):
        y = Scale.apply(x.bfloat16(), w)
    y.sum().backward()
    scaler = part(t, "cuda.amp").GradScaler(enabled=False)
    optimizer = t.optim.SGD([w], lr=0.1)
    scaler.scale(y.sum().detach())
    scaler.step(optimizer)
    scaler.update()
    return y, w.grad, w, str(y.dtype).split(".")[1]


def several_or_one(t):
    """detectron2, segment-anything and YOLO: helpers that query the world, removal of wrappers, loaders by
    rank."""
    d = t.distributed
    world = d.get_world_size() if d.is_available() and d.is_initialized() else 1
    net = t.nn.Sequential(t.nn.Conv2d(1, 2, 3), t.nn.BatchNorm2d(2))
    net = t.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    wrapped = part(t, "nn.parallel").DataParallel(net) if world == 1 else net
    wrappers = (t.nn.DataParallel, t.nn.parallel.DistributedDataParallel)
    bare = wrapped.module if isinstance(wrapped, wrappers) else wrapped
    sampler = part(t, "utils.data.distributed").DistributedSampler(range(9), num_replicas=2, rank=1, shuffle=False)
    handle = bare.register_forward_hook(lambda *args: None)
    kind = part(t, "utils.hooks").RemovableHandle
    return list(sampler), bare is net, isinstance(handle, kind), list(wrapped.state_dict())[:2], world


def a_filter_over_time(t):
    """Kalman filters and pykan: small linear systems in a loop, einsum over splines, numbers that are
    read."""
    state, cov = t.zeros(2, 1), t.eye(2)
    move, see = t.tensor([[1.0, 1.0], [0.0, 1.0]]), t.tensor([[1.0, 0.0]])
    seen = []
    for z in t.from_numpy(values(5)):
        state, cov = move @ state, move @ cov @ move.T + 0.01 * t.eye(2)
        gain = cov @ see.T @ t.linalg.inv(see @ cov @ see.T + 0.1)
        state = state + gain @ (z - see @ state)
        cov = (t.eye(2) - gain @ see) @ cov
        seen.append(float(state[0]))
    grid = t.linspace(-1, 1, 5)[None, None]
    basis = ((t.from_numpy(values(4, 3))[..., None] >= grid[..., :-1]) & (
        t.from_numpy(values(4, 3))[..., None] < grid[..., 1:])).float()
    return seen, state, t.einsum("bik,iok->bo", basis, t.ones(3, 2, 4))


PROGRAMS = [
    functions_as_class_attributes, a_misspelt_flag, metrics_with_other_bases, a_token_file, jitter_until_it_factors,
    an_adaptive_solver, rows_of_an_image, centres_and_counts, rewards_of_an_episode, items_made_one_by_one,
    registered_models, nested_states, mixed_precision_of_a_function, several_or_one, a_filter_over_time,
]  # fmt: skip


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.detach().tolist() if hasattr(value, "detach") else value


def close(ours, theirs):
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(theirs, float):
        return ours == pytest.approx(theirs, rel=2e-4, abs=2e-5)
    return ours == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(tt, program):
    torch = pytest.importorskip("torch")
    ours, theirs = plain(program(tt)), plain(program(torch))
    assert close(ours, theirs), (ours, theirs)




def test_vision_transformers(tt):
    """vit-pytorch and x-transformers: einops on tensors, and a version check for the library's
    attention."""
    torch = pytest.importorskip("torch")
    einops = pytest.importorskip("einops")
    found = []
    for t, version in ((tt, importlib.import_module("teletensor.torch_version").TorchVersion("2.15.0")),
                       (torch, torch.__version__)):
        assert tuple(int(n) for n in version.split("+")[0].split(".")[:2]) >= (2, 0)
        x = t.from_numpy(values(2, 3, 4, 4))
        patches = einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
        q, k, v = (einops.rearrange(part, "b n (h d) -> b h n d", h=3) for part in (patches * s for s in (1, 2, 3)))
        out = t.nn.functional.scaled_dot_product_attention(q, k, v)
        mask = t.ones(4, 4, dtype=t.bool).triu(1)
        scores = t.einsum("b h i d, b h j d -> b h i j", q, k).masked_fill(mask, -t.finfo(q.dtype).max)
        pooled = einops.reduce(einops.rearrange(out, "b h n d -> b n (h d)"), "b n d -> b d", "mean")
        found.append(plain([pooled, scores.softmax(dim=-1), einops.repeat(pooled, "b d -> b r d", r=2).sum()]))
    assert close(*found)
