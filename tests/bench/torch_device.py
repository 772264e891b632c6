"""Rows of `make bench` for PyTorch's device "tt": the same PyTorch program on the device, line by line and captured,
and on the CPU of its process."""

import importlib
import time

import teletensor
import torch
import torch.nn as nn
import torch.nn.functional as F

MS = 1e3


class Block(nn.Module):
    """A language model with one block of attention, for sequences of 64 of 512 words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(512, 256)
        self.first, self.second = nn.LayerNorm(256), nn.LayerNorm(256)
        self.heads, self.joined = nn.Linear(256, 768), nn.Linear(256, 256)
        self.wide, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.out = nn.Linear(256, 512)

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = (each.unflatten(2, (4, 64)).transpose(1, 2) for each in self.heads(self.first(x)).chunk(3, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return self.out(x).flatten(0, 1)


def mlp():
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.randn(128, 784), torch.randint(0, 10, (128,))


def gpt_block():
    ids = torch.randint(0, 512, (4, 64))
    return Block(), ids, ids.flatten()


def sine(device, captured):
    """A step that fits four numbers to a sine: what a call costs beside the operators."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 2000, device=device)
    y, powers = torch.sin(x), torch.stack([x**k for k in range(4)])
    numbers = [torch.randn((), device=device, requires_grad=True) for _ in range(4)]
    optimizer = torch.optim.SGD(numbers, lr=1e-6)

    def step(powers, y):
        optimizer.zero_grad()
        loss = (sum(number * power for number, power in zip(numbers, powers)) - y).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if captured:
        step = teletensor.torch.capture(step)
    return lambda: step(powers, y)


def trainer(make, device, captured):
    """A step of training, which returns the loss."""
    if make is sine:
        return sine(device, captured)
    torch.manual_seed(0)
    model, x, y = make()
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=captured)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if captured:
        step = teletensor.torch.capture(step)
    return lambda: step(x, y)


def timed(make, device, captured, count):
    """A function that measures the milliseconds of a step."""
    state = {}

    def run():
        if "step" not in state:
            state["step"] = trainer(make, device, captured)
            for _ in range(5):
                state["step"]().item()
        begin = time.perf_counter()
        for _ in range(count):
            loss = state["step"]()
        loss.item()
        return (time.perf_counter() - begin) / count * MS

    return run


def rows(row, address):
    """The rows, for a daemon at this address. The device's session is one of its own."""
    session = teletensor.connect(address)
    try:
        with session.as_current():
            importlib.import_module("teletensor.torch")
            torch.zeros(1, device="tt").add_(1)
        for name, make, count in (("sine step", sine, 200), ("MLP step", mlp, 40), ("GPT block step", gpt_block, 10)):
            for way, captured in (("", False), (", captured", True)):
                yield row(f"torch device: {name}{way}", "ms", timed(make, "tt", captured, count),
                          timed(make, "cpu", False, count))
    finally:
        session.close()
