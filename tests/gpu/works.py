"""The works that are timed on a device, written once for teletensor and for PyTorch (`m`).

Every result is used, so that neither library can leave out a computation: it is the operand of the next
call, or one of its elements is added to a sum.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from support import models


@dataclass
class Work:
    name: str
    # make(m) returns a function that does the work once, or a function of its last result together with its
    # first argument
    make: Callable
    moved: float = 0  # the number of bytes that have to be read or written in the device's memory
    flops: float = 0
    captured: bool = False  # as one captured program in teletensor, and line by line in PyTorch


def used(m, call):
    """Runs call() and adds an element of its result to a sum on the device."""
    total = m.zeros(1, device="cuda")

    def once():
        nonlocal total
        result = call()
        total = total + result[(0,) * result.dim()]
    return once


def chain(n):
    def make(m):
        x, y = m.rand(n, device="cuda"), m.rand(n, device="cuda")

        def once(x):
            return ((x * y + 0.5).relu() - y) * 0.5
        return once, x
    return make


def small(n):
    def make(m):
        return (lambda x: x + 1.0), m.rand(n, device="cuda")
    return make


def of_one(shape, call):
    """Work that is call(m, x) on one tensor."""
    def make(m):
        x = m.rand(*shape, device="cuda")
        return used(m, lambda: call(m, x))
    return make


def attention(batch, heads, tokens, size, dtype="float32"):
    def make(m):
        q, k, v = (m.rand(batch, heads, tokens, size, device="cuda").to(getattr(m, dtype)) for _ in range(3))
        return used(m, lambda: m.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    return make


def attention_gradients(batch, heads, tokens, size, dtype):
    """Forward and backward of attention."""
    def make(m):
        parts = [m.rand(batch, heads, tokens, size, device="cuda").to(getattr(m, dtype)).requires_grad_()
                 for _ in range(3)]
        gradient = m.ones_like(parts[0]).detach()

        def once():
            y = m.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return sum(part[0, 0, 0, 0] for part in m.autograd.grad(y, parts, gradient))
        return used(m, once)
    return make


def gradient_of(shape, call):
    """Forward and backward of call(m, x) on one tensor."""
    def make(m):
        x = m.rand(*shape, device="cuda").requires_grad_()
        gradient = m.ones_like(call(m, x)).detach()
        return used(m, lambda: m.autograd.grad(call(m, x), x, gradient)[0])
    return make


def cross_entropy(rows, classes):
    """Forward and backward of cross entropy."""
    def make(m):
        x = m.rand(rows, classes, device="cuda").requires_grad_()
        target = m.randint(0, classes, (rows,), device="cuda")
        return used(m, lambda: m.autograd.grad(m.nn.functional.cross_entropy(x, target), x)[0])
    return make


def batch_norm(batch, channels, side):
    """Forward and backward of batch norm in training."""
    def make(m):
        layer = m.nn.BatchNorm2d(channels).to("cuda")
        x = m.rand(batch, channels, side, side, device="cuda").requires_grad_()
        gradient = m.ones_like(x).detach()
        return used(m, lambda: m.autograd.grad(layer(x), x, gradient)[0])
    return make


def convolution(batch, channels, side):
    def make(m):
        x = m.rand(batch, channels, side, side, device="cuda")
        w = m.rand(channels, channels, 3, 3, device="cuda")
        return used(m, lambda: m.nn.functional.conv2d(x, w, padding=1))
    return make


def small_step(m):
    model = m.nn.Sequential(m.nn.Linear(64, 64), m.nn.ReLU(), m.nn.Linear(64, 1)).to("cuda")
    optimizer = m.optim.SGD(model.parameters(), lr=0.01)
    x, target = m.rand(32, 64, device="cuda"), m.rand(32, 1, device="cuda")
    step = models.trainer(model, optimizer, m.nn.functional.mse_loss)
    return lambda: step(x, target)


def gpt_step(batch, tokens, **sizes):
    def make(m):
        words = sizes["words"]
        model = models.gpt(m, tokens=tokens, **sizes).to("cuda")
        optimizer = m.optim.AdamW(model.parameters(), lr=1e-4)
        x, target = (m.randint(0, words, (batch, tokens), device="cuda") for _ in range(2))
        step = models.trainer(model, optimizer, lambda y, t: models.gpt_loss(m, y, t))
        return lambda: step(x, target)
    return make


def resnet_step(batch, side, **sizes):
    def make(m):
        model = models.resnet(m, **sizes).to("cuda")
        optimizer = m.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        x = m.rand(batch, 3, side, side, device="cuda")
        target = m.randint(0, sizes["classes"], (batch,), device="cuda")
        step = models.trainer(model, optimizer, m.nn.functional.cross_entropy)
        return lambda: step(x, target)
    return make


def bfloat16_matmul(side):
    def make(m):
        x = m.rand(side, side, device="cuda").bfloat16()
        return used(m, lambda: x @ x)
    return make


def to_host(n):
    """Copies a tensor into memory of the program."""
    def make(m):
        x = m.rand(n, device="cuda")
        return lambda: x.cpu().numpy()
    return make


def to_device(n):
    """Copies a tensor from memory of the program."""
    def make(m):
        array = np.random.default_rng(0).random(n, dtype="float32")
        return used(m, lambda: m.from_numpy(array).to("cuda"))
    return make


def works(quick):
    """All works; with `quick`, so small that the fake driver can run them."""
    n, side, channels, image = (1 << 10, 64, 4, 8) if quick else (1 << 24, 4096, 64, 56)
    heads, tokens, batch = (2, 16, 1) if quick else (12, 1024, 8)
    gpt = (dict(width=32, heads=2, layers=1, words=50, batch=1, tokens=8) if quick else
           dict(width=768, heads=12, layers=12, words=50257, batch=4, tokens=256))
    resnet = (dict(stem=8, stages=((4, 16, 1),), classes=10, batch=1, side=16) if quick else
              dict(stem=64, stages=models.RESNET_50, classes=1000, batch=32, side=224))
    found = [
        Work(f"elementwise chain of four, {n} floats", chain(n), moved=12 * n),
        Work(f"the same, captured, {n} floats", chain(n), moved=12 * n, captured=True),
        Work(f"sum of {n} floats", of_one((n,), lambda m, x: x.sum()), moved=4 * n),
        Work(f"sum over rows, {n} floats", of_one((n // 64, 64), lambda m, x: x.sum(0)), moved=4 * n),
        Work(f"softmax {n // 512}x512", of_one((n // 512, 512), lambda m, x: m.softmax(x, 1)), moved=8 * n),
        Work(f"transposed copy {side}x{side}", of_one((side, side), lambda m, x: x.t().contiguous()),
             moved=8 * side * side),
        Work(f"matmul {side}, float32", of_one((side, side), lambda m, x: x @ x), flops=2 * side**3),
        Work(f"matmul {side}, bfloat16", bfloat16_matmul(side), flops=2 * side**3),
        Work(f"attention {batch}x{heads}x{tokens}x64, causal", attention(batch, heads, tokens, 64),
             flops=2 * batch * heads * tokens**2 * 64),
        Work(f"the same, bfloat16 {batch}x{heads}x{tokens}x64", attention(batch, heads, tokens, 64, "bfloat16"),
             flops=2 * batch * heads * tokens**2 * 64),
        Work(f"attention and its gradients, bfloat16 {batch}x{heads}x{tokens}x64",
             attention_gradients(batch, heads, tokens, 64, "bfloat16"), flops=7 * batch * heads * tokens**2 * 64),
        Work(f"the same, {batch}x{heads}x{tokens}x128",
             attention_gradients(batch, heads, tokens, 128, "bfloat16"), flops=7 * batch * heads * tokens**2 * 128),
        Work(f"max_pool2d and its gradient, {batch}x{channels}x{2 * image}x{2 * image}",
             gradient_of((batch, channels, 2 * image, 2 * image),
                         lambda m, x: m.nn.functional.max_pool2d(x, 3, 2, 1))),
        Work(f"cross_entropy and its gradient, {tokens}x{gpt['words']}", cross_entropy(tokens, gpt["words"])),
        Work(f"batch_norm and its gradient, {batch}x{4 * channels}x{image}x{image}",
             batch_norm(batch, 4 * channels, image)),
        Work(f"convolution {channels} channels, {image}x{image}", convolution(batch, channels, image),
             flops=18 * batch * channels**2 * image**2),
        Work("a small op", small(64)),
        Work(f"to the host, {n} floats", to_host(n)),
        Work(f"to the device, {n} floats", to_device(n)),
    ]
    for name, make in (("a small training step", small_step), ("GPT-2-small step", gpt_step(**gpt)),
                       ("ResNet-50 step", resnet_step(**resnet))):
        found += [Work(name, make), Work(f"{name}, captured", make, captured=True)]
    return found
