"""What trains on a GPU without the host: models over the fake driver, forward, backward and optimizer,
eager and captured. Its kernels compute nothing here (compile=empty): the question is only which way each
instruction goes. That their texts compute what the CPU does is shown op by op (backend_cuda_test).
"""

import re

import numpy as np
import pytest
from support.cuda import fake
from support.daemon import wait_until

# Ops that still go through the host, and why.
HOST = {}


def gpt(tt):
    """A language model as GPT-2 is made: tied to nothing but its size."""
    nn, f = tt.nn, tt.nn.functional
    width, heads, batch, tokens, words = 64, 2, 2, 24, 50

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            parts = self.qkv(self.first(x)).reshape(batch, tokens, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.drop(self.out(a.transpose(1, 2).reshape(batch, tokens, width)))
            return x + self.drop(self.down(f.gelu(self.up(self.second(x)), approximate="tanh")))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(Block(), Block())
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, x):
            x = self.words(x) + self.places(tt.arange(tokens, device=x.device))
            return self.head(self.last(self.blocks(x)))

    numbers = np.random.default_rng(0).integers(0, words, (2, batch, tokens))
    return Model(), tt.optim.AdamW, numbers[0], numbers[1], lambda y, t: f.cross_entropy(
        y.reshape(-1, words), t.reshape(-1))


def resnet(tt):
    """The parts of a ResNet-50: a stem, a bottleneck with a stride, means, classes."""
    nn, f = tt.nn, tt.nn.functional

    class Bottleneck(nn.Module):
        def __init__(self, channels, inner, out, stride):
            super().__init__()
            self.a, self.na = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
            self.b = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
            self.nb, self.nc = nn.BatchNorm2d(inner), nn.BatchNorm2d(out)
            self.c = nn.Conv2d(inner, out, 1, bias=False)
            self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False),
                                       nn.BatchNorm2d(out))

        def forward(self, x):
            y = f.relu(self.na(self.a(x)))
            y = f.relu(self.nb(self.b(y)))
            return f.relu(self.nc(self.c(y)) + self.short(x))

    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1), Bottleneck(8, 4, 16, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10))
    x = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)

    def sgd(parameters):
        return tt.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)
    return model, sgd, x, np.array([3, 7]), f.cross_entropy


def mlp(tt):
    nn = tt.nn
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.GroupNorm(2, 16), nn.Linear(16, 4))
    x = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    return model, tt.optim.Adam, x, x[:, :4].copy(), nn.functional.mse_loss


def recurrent(kind):
    def make(tt):
        nn = tt.nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cells, self.out = getattr(nn, kind)(5, 7, batch_first=True), nn.Linear(7, 3)

            def forward(self, x):
                return self.out(self.cells(x)[0][:, -1])

        x = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
        return Model(), tt.optim.RMSprop, x, x[:, 0, :3].copy(), nn.functional.smooth_l1_loss
    return make


def last_words(daemon):
    """Ends a daemon: how many instructions ran on its GPU, and how often each op ran on the host."""
    daemon.terminate()
    wait_until(lambda: "refused" in daemon.log, 30, "the last word of the device")
    instructions = int(re.search(r"cuda:0: (\d+) instructions", daemon.log).group(1))
    host = re.search(r"cuda:0: on the host: ([^\n\"]*)", daemon.log)
    found = {op: int(n) for op, n in (part.split() for part in host.group(1).split(", "))} if host else {}
    daemon.restart()  # to be ended by the fixture
    return instructions, found


MODELS = {"gpt": gpt, "resnet": resnet, "mlp": mlp, "lstm": recurrent("LSTM"), "gru": recurrent("GRU")}


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", MODELS)
def test_trains_without_the_host(start_daemon, name, captured):
    import teletensor as tt

    flags, environment = fake(compile="empty")
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        model, optimizer, x, y, criterion = MODELS[name](tt)
        model.to("cuda:0")
        optimizer = optimizer(model.parameters())
        x, y = tt.tensor(x, device="cuda:0"), tt.tensor(y, device="cuda:0")

        def step(x, y):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
        run = tt.compile(step) if captured else step
        for _ in range(3):
            run(x, y).item()
    instructions, found = last_words(daemon)
    assert set(found) == HOST.get(name, set()), f"on the host: {found}"
    assert instructions > 50


def test_the_host_is_seen(start_daemon):
    import teletensor as tt

    flags, environment = fake(compile="empty")
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        tt.ones(4, 4, device="cuda:0").sort(0)[0].sum().item()
    assert last_words(daemon)[1] == {"sort": 1}
