"""The rows of `make bench` on all cores: a daemon with a lane for each core, and PyTorch with a thread for each.

    .venv-peers/bin/python tests/bench/run.py --group cores --rounds 3
"""

import multiprocessing

import numpy as np
import teletensor as tt
import torch
from rows import (
    MS,
    both,
    elementwise,
    gpt_block,
    mlp_step,
    product,
    small_resnet,
    softmax,
    steps_of,
)
from support import models
from support.daemon import Daemon

CORES = multiprocessing.cpu_count()
WORDS = 50257  # of GPT-2
LARGE_ROUNDS = 3  # rounds of a row whose call takes a second


def floats(m, *shape, **options):
    return m.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32), **options)


def integers(m, most, *shape):
    return m.tensor(np.random.default_rng(0).integers(0, most, shape))


# Calls of one op. A result without gradients is kept until the next call, and one element is read at the end.

def forward(function):
    """Measures `function(m)()`, without gradients."""
    def make(m):
        call, last = function(m), [None]

        def work():
            with m.no_grad():
                last[0] = call()
        work()
        return work, lambda: last[0].flatten()[0].item()
    return make


def with_gradients(function):
    """Measures `function(m)()` and the gradients of the sum of its result."""
    def make(m):
        call, operands = function(m)
        last = [None]

        def work():
            last[0] = m.autograd.grad(call().sum(), operands)[0]
        work()
        return work, lambda: last[0].flatten()[0].item()
    return make


def sums(m):
    x = floats(m, 4096, 1024)
    return lambda: x.sum(1)


def convolution(m):
    x, w = (floats(m, *shape, requires_grad=True) for shape in ((8, 64, 56, 56), (64, 64, 3, 3)))
    return lambda: m.nn.functional.conv2d(x, w, padding=1), (x, w)


def attention(m):
    q, k, v = (floats(m, 2, 8, 512, 64, requires_grad=True) for _ in range(3))
    return lambda: m.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v)


# Models at realistic sizes, with the inputs of one call.

def gpt2_small(m, tokens=512):
    model = models.gpt(m, 768, 12, 12, tokens, WORDS, dropout=0.0)
    return model, integers(m, WORDS, 1, tokens), integers(m, WORDS, 1, tokens), lambda y, t: models.gpt_loss(m, y, t)


def resnet50(m, batch=4):
    model = models.resnet(m, 64, models.RESNET_50, 1000)
    return model, floats(m, batch, 3, 224, 224), integers(m, 1000, batch), m.nn.functional.cross_entropy


def lstm(m, batch=16, tokens=32, width=512):
    nn = m.nn

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, 10)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])
    return Last(), floats(m, batch, tokens, width), integers(m, 10, batch), nn.functional.cross_entropy


def mlp(m, batch=64, width=4096):
    nn = m.nn
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return model, floats(m, batch, width), integers(m, 10, batch), nn.functional.cross_entropy


def step(build):
    """A training step with SGD, for steps_of."""
    def make(m):
        model, x, target, loss = build(m)
        optimizer = m.optim.SGD(model.parameters(), lr=1e-3)
        run = models.trainer(model, optimizer, loss)
        return lambda: run(x, target)
    return make


def inference(build, compiled):
    """The model's forward in eval mode, captured in teletensor. PyTorch runs it line by line, or compiled."""
    def function(m):
        model, x, *_ = build(m)
        model.eval()
        run = model
        if m is tt:
            run = tt.compile(lambda x: model(x))
        elif compiled:
            run = torch.compile(model)
        with m.no_grad():
            for _ in range(3):
                run(x)
        return lambda: run(x)
    return forward(function)


def small_rows(session):
    """Kernels and small models: many calls in a round."""
    for name, make, count in (
            ("sgemm 1024", product(1024), 12),
            ("elementwise chain, 1M floats", elementwise, 40),
            ("sums of 4096 rows of 1024", forward(sums), 100),
            ("softmax 512x1024", softmax, 60),
            ("convolution 3x3, 8x64x56x56", forward(lambda m: convolution(m)[0]), 20),
            ("convolution 3x3, 8x64x56x56, with gradients", with_gradients(convolution), 8),
            ("attention 2x8x512x64, causal", forward(lambda m: attention(m)[0]), 20),
            ("attention 2x8x512x64, causal, with gradients", with_gradients(attention), 8),
            ("MLP 784-256-256-10 Adam step, batch 128", mlp_step, 60),
            ("GPT block step, captured", steps_of(gpt_block), 6),
            ("small ResNet step, captured", steps_of(small_resnet), 10)):
        yield both(f"all cores: {name}", "ms", make, count, None, MS, session)


def large_rows(session):
    """Models at realistic sizes: few calls in a round."""
    for name, make, count in (
            ("LSTM 512 step, 16x32, captured", steps_of(step(lstm)), 4),
            ("MLP 4096 step, batch 64, captured", steps_of(step(mlp)), 3),
            ("ResNet-50 forward, batch 4, captured", inference(resnet50, False), 2),
            ("ResNet-50 step, batch 4, captured", steps_of(step(resnet50)), 1),
            ("GPT-2-small step, 1x512, captured", steps_of(step(gpt2_small)), 1)):
        yield both(f"all cores: {name}", "ms", make, count, None, MS, session, most_rounds=LARGE_ROUNDS)


def inference_rows(session):
    """The latency of one call at batch 1, beside torch.compile."""
    for name, build, count in (
            ("MLP 4096", lambda m: mlp(m, batch=1), 20),
            ("LSTM 512, 32 tokens", lambda m: lstm(m, batch=1), 20),
            ("ResNet-50", lambda m: resnet50(m, batch=1), 4),
            ("GPT-2-small, 64 tokens", lambda m: gpt2_small(m, tokens=64), 3)):
        yield both(f"all cores: inference of {name}, batch 1 / torch.compile", "ms", inference(build, True), count,
                   None, MS, session, most_rounds=LARGE_ROUNDS)


def rows():
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    daemon = Daemon("--lanes", str(CORES))
    try:
        for group in (small_rows, large_rows, inference_rows):
            with tt.connect(daemon.unix) as session:
                yield from group(session)
    finally:
        problem = daemon.stop()
        torch.set_num_threads(before)
    if problem:
        raise RuntimeError(problem)

