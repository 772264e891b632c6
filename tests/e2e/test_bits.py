"""The bits of a result depend only on the instruction, its operands and the machine: the same random
programs, cut into frames at random points, on one lane and on four, with little memory, next to another busy
session, give equal bytes."""

import contextlib
import random
import threading

import numpy as np
import pytest
from support.busy import held
from support.daemon import HANG, Daemon

PROGRAMS, LENGTH = 12, 40
SHAPES = [(33, 65), (65, 33), (65,), (1, 65), (33, 1), (1030,), (5000,)]
UNARY = ("sin", "tanh", "exp", "sigmoid", "relu", "sqrt", "gelu")


def build(seed):
    """A list of steps: (op, operand numbers, parameters). Operands are earlier results."""
    rng = random.Random(seed)
    shapes = [rng.choice(SHAPES) for _ in range(4)] + [(33, 65), (65, 33)]
    steps = [("new", (), (s, rng.randrange(10**6))) for s in shapes]
    for _ in range(LENGTH):
        a = rng.randrange(len(shapes))
        shape = shapes[a]
        same = [i for i, s in enumerate(shapes) if s == shape]
        kind = rng.choice(("unary", "binary", "binary", "inplace", "sum", "softmax", "matmul", "mean", "view", "grad"))
        if kind == "unary":
            steps.append((rng.choice(UNARY), (a,), ()))
            shapes.append(shape)
        elif kind == "binary":
            steps.append((rng.choice(("add", "mul", "sub")), (a, rng.choice(same)), ()))
            shapes.append(shape)
        elif kind == "inplace":
            steps.append((rng.choice(("add_", "mul_")), (a, rng.choice(same)), ()))
            shapes.append(shape)
        elif kind == "matmul" and len(shape) == 2:
            fits = [i for i, s in enumerate(shapes) if len(s) == 2 and s[0] == shape[1]]
            if fits:
                b = rng.choice(fits)
                steps.append(("matmul", (a, b), ()))
                shapes.append((shape[0], shapes[b][1]))
        elif kind == "view" and len(shape) == 2:
            steps.append(("t", (a,), ()))
            shapes.append(shape[::-1])
        elif kind == "grad":
            steps.append(("grad", (a,), ()))
            shapes.append(shape)
        elif kind in ("sum", "mean", "softmax"):
            steps.append((kind, (a,), (len(shape) - 1,)))
            shapes.append(shape if kind == "softmax" else shape[:-1])
            if not shapes[-1]:
                shapes[-1] = ()
    return steps


def run(tt, steps, cut, device="cpu", crowd=False):
    """The bytes of every result; cut(i) says whether to wait after step i. With `crowd` no step runs before
    all have arrived, so that the daemon sees complete windows."""
    made = []
    with held(tt, tt.current_session()) if crowd else contextlib.nullcontext():
        for i, (op, operands, p) in enumerate(steps):
            args = [made[k] for k in operands]
            if op == "new":
                shape, seed = p
                result = tt.tensor(np.random.RandomState(seed).uniform(0.1, 1, shape).astype(np.float32),
                                   device=device)
            elif op in ("add_", "mul_"):
                result = getattr(args[0].clone(), op)(args[1] * 0.5)
            elif op == "grad":
                leaf = args[0].detach().clone().requires_grad_()
                (leaf.sin() * leaf + leaf.exp()).mean().backward()
                result = leaf.grad
            elif op == "gelu":
                result = tt.nn.functional.gelu(args[0])
            elif op in ("add", "mul", "sub"):
                result = getattr(tt, op)(args[0], args[1]) * 0.5
            elif op == "matmul":
                result = args[0] @ args[1] * 0.01
            elif op == "softmax":
                result = tt.softmax(args[0], *p)
            else:
                result = getattr(args[0], op)(*p)
            made.append(result)
            if cut(i):
                tt.synchronize()
    return [m.numpy().tobytes() for m in made]


@pytest.fixture(scope="module")
def daemons():
    running = {"one lane": Daemon("--lanes", "1", "--sim-devices", "1"),
               "four lanes": Daemon("--lanes", "4")}
    yield running
    problems = [p for d in running.values() if (p := d.stop())]
    assert not problems, problems


def one_way(tt, daemon, seed, cuts, memory=0, **options):
    steps, rng = build(seed), random.Random(seed * 7 + 1)
    cut = {"never": lambda i: False, "always": lambda i: True, "random": lambda i: rng.random() < 0.3}[cuts]
    with tt.connect(daemon.unix, memory=memory):
        return run(tt, steps, cut, **options)


def busy(daemon, stop):
    """Runs another session on the same daemon."""
    import teletensor
    with teletensor.connect(daemon.unix):
        x = teletensor.ones(300, 300)
        while not stop.is_set():
            (x @ x).sum().item()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_equal_bytes(daemons, tt, seed):
    one, four = daemons["one lane"], daemons["four lanes"]
    wanted = one_way(tt, one, seed, "never")
    ways = {
        "waits after every step": lambda: one_way(tt, one, seed, "always"),
        "waits at random": lambda: one_way(tt, one, seed, "random"),
        "whole windows": lambda: one_way(tt, one, seed, "never", crowd=True),
        "no windows": lambda: one_way(tt, one, seed, "never", device="sim:0"),  # runs one by one
        "four lanes": lambda: one_way(tt, four, seed, "random"),
        "little memory": lambda: one_way(tt, four, seed, "never", 1 << 20),
    }
    for name, way in ways.items():
        got = way()
        different = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
        assert not different, f"seed {seed}, {name}: steps {[build(seed)[i] for i in different[:3]]}"


def test_equal_bytes_beside_a_busy_neighbour(daemons, tt):
    four, stop = daemons["four lanes"], threading.Event()
    wanted = {seed: one_way(tt, four, seed, "never") for seed in range(3)}
    thread = threading.Thread(target=busy, args=(four, stop))
    thread.start()
    try:
        for seed, want in wanted.items():
            assert one_way(tt, four, seed, "random") == want
    finally:
        stop.set()
        thread.join(HANG)
    assert not thread.is_alive()


def test_many_systems_at_once(tt):
    """Lanes share a batch of systems, and each system has the same solution as alone."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(3, 4, 4)) + 4 * np.eye(4), rng.normal(size=(20000, 3, 4, 4))
    wanted = np.linalg.solve(a, b)
    for _ in range(5):
        np.testing.assert_allclose(tt.linalg.solve(tt.tensor(a), tt.tensor(b)).numpy(), wanted, rtol=1e-9, atol=1e-9)
