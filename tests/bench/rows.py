"""The rows of `make bench`: the work that is timed for teletensor and for its peers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import collectives
import fairness
import numpy as np
import teletensor as tt
import torch
import torch_device
from support import models
from teletensor._tools.admin import Admin

US, MS, S = 1e6, 1e3, 1.0


@dataclass
class Row:
    name: str
    unit: str
    ours: Callable  # makes one measurement in `unit`
    peer: Callable | None = None
    peer_name: str = "torch"
    bound: float | None = None  # the bound on the ratio (or on teletensor's figure if there is no peer)
    higher_is_better: bool = False
    prepare: Callable = lambda: None
    most_rounds: int | None = None
    release: Callable = lambda: None  # frees what prepare() has made


def per(call, count, finish, scale):
    """The time of one of `count` calls, including the wait at the end."""
    finish()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    finish()
    return (time.perf_counter() - begin) / count * scale


def both(name, unit, make, count, bound, scale, session, **options):
    """A row whose work is written once: make(m) returns (call, finish)."""
    state = {}

    def prepare():
        with session:
            for m in (tt, torch):
                state[m] = make(m)
                per(state[m][0], max(count // 10, 3), state[m][1], 1)

    def run(m):
        with session:
            return per(state[m][0], count, state[m][1], scale)
    return Row(name, unit, lambda: run(tt), lambda: run(torch), "torch", bound, prepare=prepare, release=state.clear,
               **options)


# ---------------------------------------------------------------- work

def chain(m):
    x = [m.tensor(np.full((8, 8), 0.5, np.float32))]
    a, b = (m.tensor(np.full((8, 8), v, np.float32)) for v in (0.1, 0.9))

    def ten():  # ten ops
        y = x[0]
        y = y * b + a
        y = y * b + a
        y = y * b + a
        y = y * b + a
        x[0] = y * b + a
    return ten, lambda: x[0].sum().item()


def recorded_chain(m):
    w = m.tensor(np.full((8, 8), 0.9, np.float32), requires_grad=True)
    a = m.tensor(np.full((8, 8), 0.1, np.float32))
    last = [a]

    def ten():
        y = a
        y = y * w + a
        y = y * w + a
        y = y * w + a
        y = y * w + a
        last[0] = y * w + a
    return ten, lambda: last[0].detach().sum().item()


def kept_loss(step):
    """The step as a call, and the read of its last loss."""
    last = [None]

    def run():
        last[0] = step()
    run()
    return run, lambda: last[0].item()


def sin2_step(m):
    return kept_loss(models.sin2_step(m))


def mlp_model(m):
    model = m.nn.Sequential(m.nn.Linear(784, 256), m.nn.ReLU(), m.nn.Linear(256, 256), m.nn.ReLU(),
                            m.nn.Linear(256, 10))
    optimizer = m.optim.Adam(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x = m.tensor(rng.standard_normal((128, 784)).astype(np.float32))
    y = m.tensor(rng.integers(0, 10, 128))

    def step():
        optimizer.zero_grad()
        loss = m.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    return step


def mlp_step(m):
    return kept_loss(mlp_model(m))


# Whole training steps, captured in teletensor; torch runs them line by line, or under torch.compile.

def steps_of(build, compiled=False):
    """Measures the training step that `build(m)` returns; it returns its loss."""
    def make(m):
        step = build(m)
        if m is tt:
            step = tt.compile(step)
        elif compiled:
            step = torch.compile(step)
        last = [None]

        def run():
            last[0] = step()
        for _ in range(4):
            run()
        return run, lambda: last[0].item()
    return make


# The peak memory of a training step, including the model, gradients and the optimizer's state.

MIB = 1 << 20
STEPS = 3


def most_held(address, build, captured):
    """The peak memory of a separate session, according to its account, after the first calls: those of a
    captured step run line by line."""
    def run():
        with tt.connect(address) as session:
            step = tt.compile(build(tt)) if captured else build(tt)
            for _ in range(STEPS):
                step()
            tt.synchronize()
            Admin(session._transport).holdings(most=1, reset_peaks=True)
            for _ in range(STEPS):
                step()
            return session.memory(1)[0]["peak"] / MIB
    return run


def most_held_by_torch(build):
    """The maximum of the running sum of its allocations and frees."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = build(torch)
        for _ in range(STEPS):
            step()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / MIB


def gpt_block(m, width=256, heads=4, batch=4, tokens=256, blocks=1):
    stack = [models.gpt_block(m, width, heads, tokens) for _ in range(blocks)]
    return trained(m, m.nn.Sequential(*stack), (batch, tokens, width))


def four_gpt_blocks(m):
    return gpt_block(m, blocks=4)


def small_resnet(m, channels=16, batch=8, size=32):
    nn, f = m.nn, m.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
            self.na, self.nb = (nn.BatchNorm2d(channels) for _ in range(2))

        def forward(self, x):
            return f.relu(x + self.nb(self.b(f.relu(self.na(self.a(x))))))

    return trained(m, nn.Sequential(*[Block() for _ in range(3)]), (batch, channels, size, size))


def trained(m, model, shape):
    optimizer = m.optim.Adam(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x, y = (m.tensor(rng.standard_normal(shape).astype(np.float32)) for _ in range(2))

    def step():
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss
    return step


def elementwise(m):
    rng = np.random.default_rng(0)
    a, b = (m.tensor(rng.standard_normal(1 << 20).astype(np.float32)) for _ in range(2))
    last = [a[0]]

    def work():
        last[0] = (a.sin() * b + a).tanh().sum()
    return work, lambda: last[0].item()


def product(n):
    def make(m):
        rng = np.random.default_rng(0)
        a, b = (m.tensor(rng.standard_normal((n, n)).astype(np.float32)) for _ in range(2))
        last = [a]

        def work():
            last[0] = a @ b
        return work, lambda: last[0][0, 0].item()
    return make


def softmax(m):
    x = m.tensor(np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32))
    last = [x]

    def work():
        last[0] = m.softmax(x, 1)
    return work, lambda: last[0][0, 0].item()


# ---------------------------------------------------------------- rows

def reads(session):
    def run():
        with session:
            x = tt.rand(())  # A value that the client does not know and cannot derive.
            took = []
            for _ in range(1000):
                y = x + 1
                begin = time.perf_counter()
                y.item()
                took.append(time.perf_counter() - begin)
            return float(np.median(took)) * US
    return run


def issue_only(session):
    def run():
        with session:
            x, b = tt.ones(8, 8), tt.ones(8, 8)
            (x * b).sum().item()
            begin = time.perf_counter()
            for _ in range(2000):
                x * b
                x * b
                x * b
                x * b
            took = time.perf_counter() - begin
            x.sum().item()
            return took / 8000 * US
    return run


SIZE = 64 << 20


def memcpy():
    a, b = np.ones(SIZE, np.uint8), np.empty(SIZE, np.uint8)
    b[:] = a
    begin = time.perf_counter()
    b[:] = a
    return SIZE / (time.perf_counter() - begin) / 1e9


def upload(session):
    array = np.ones(SIZE // 4, np.float32)

    def run():
        with session:
            tt.synchronize()
            begin = time.perf_counter()
            x = tt.tensor(array)
            tt.synchronize()
            took = time.perf_counter() - begin
            del x
            return SIZE / took / 1e9
    return run


BATCHES, BATCH = 12, (2048, 2048)  # 16 MiB each


def batches(session, together):
    """Sends batches and computes with them: the next batch is sent during the computation, or, if `together`
    is false, after it. Returns the seconds of the whole loop."""
    array = np.ones(BATCH, np.float32)

    def run():
        with session:
            total = tt.zeros(())
            tt.synchronize()
            begin = time.perf_counter()
            for _ in range(BATCHES):
                x = tt.tensor(array)
                if not together:
                    tt.synchronize()
                total += (x.sin() * x + x.cos()).exp().sum()
                if not together:
                    tt.synchronize()
            total.item()
            return time.perf_counter() - begin
    return run


def download(session):
    def run():
        with session:
            x = tt.ones(SIZE // 4)
            tt.synchronize()
            begin = time.perf_counter()
            x.numpy()
            return SIZE / (time.perf_counter() - begin) / 1e9
    return run


def rows(daemon):
    import flight  # pyarrow, which is in the environment of the peers

    peer = flight.Peer()
    try:
        with tt.connect(daemon.unix) as unix, tt.connect(daemon.tcp, token=daemon.token) as tcp:
            yield from rows_of(unix, tcp, peer)
    finally:
        peer.close()
    yield from fairness.rows(Row)
    yield from collectives.rows(Row)
    yield from torch_device.rows(Row, daemon.unix)


def rows_of(unix, tcp, flight):
    chains = {"bound": 0.45, "scale": US / 10, "session": unix}
    yield both("chain of small ops, per op", "us", chain, 4000, **chains)
    yield both("chain of small ops, TCP", "us", chain, 4000, None, US / 10, tcp)
    yield both("chain of small ops, recorded", "us", recorded_chain, 2000, 0.45, US / 10, unix)
    yield Row("issue one small op (client only)", "us", issue_only(unix))
    yield both("sin^2 training step", "us", sin2_step, 1500, 0.09, US, unix)
    yield both("sin^2 training step, captured", "us", steps_of(models.sin2_step), 3000, 0.05, US, unix)
    yield both("GPT block step, captured", "ms", steps_of(gpt_block), 6, None, MS, unix)
    yield both("GPT block step, captured / torch.compile", "ms", steps_of(gpt_block, True), 6, None,
               MS, unix)
    yield both("small ResNet step, captured", "ms", steps_of(small_resnet), 10, None, MS, unix)
    yield both("small ResNet step, captured / torch.compile", "ms", steps_of(small_resnet, True), 10,
               None, MS, unix)
    yield both("MLP 784-256-256-10 Adam step, batch 128", "ms", mlp_step, 60, 1.0, MS, unix)
    yield both("elementwise chain, 1M floats", "ms", elementwise, 40, 1.0, MS, unix)
    yield both("softmax 512x1024", "ms", softmax, 60, None, MS, unix)
    for name, build in (("MLP 784-256-256-10", mlp_model), ("GPT block", gpt_block),
                        ("four GPT blocks", four_gpt_blocks), ("small ResNet", small_resnet)):
        for way in ("", ", captured"):
            yield Row(f"{name} step{way}, most memory held", "MiB", most_held(unix.address, build, bool(way)),
                      lambda build=build: most_held_by_torch(build), "torch", 1.0)
    for n, count in ((64, 500), (256, 300), (1024, 12), (2048, 3)):
        yield both(f"sgemm {n}", "ms", product(n), count, 1.25 if n >= 256 else None, MS, unix)
    yield Row("read one scalar, UNIX socket, median", "us", reads(unix), bound=25)
    yield Row("read one scalar, TCP, median", "us", reads(tcp))
    for name, session in (("UNIX socket", unix), ("TCP", tcp)):
        bound = 0.8 if session is unix else None
        yield Row(f"upload 64 MiB, {name}", "GB/s", upload(session), memcpy, "memcpy", bound, True)
        yield Row(f"{BATCHES} batches of 16 MiB sent and computed with, {name}", "s", batches(session, True),
                  batches(session, False), "one after the other")
        mapped = " (mapped, unread)" if session is unix else ""
        yield Row(f"download 64 MiB, {name}{mapped}", "GB/s", download(session), memcpy, "memcpy",
                  bound, True)
    yield Row("upload 64 MiB, TCP / Arrow Flight", "GB/s", upload(tcp), flight.put, "Flight", 1.2, True)
    yield Row("download 64 MiB, TCP / Arrow Flight", "GB/s", download(tcp), flight.get, "Flight", 1.2, True)
