"""Runs random programs under the transforms of torch.func in teletensor and in PyTorch."""

import random

import numpy as np
import pytest
import torch

PROGRAMS = 40
ROWS, COLUMNS = 3, 4


def pointwise(rng):
    name = rng.choice(["sin", "tanh", "exp", "sigmoid", "square", "softplus", "abs", "neg"])
    if name == "softplus":
        return lambda m, x, c: m.nn.functional.softplus(x)
    if name == "exp":
        return lambda m, x, c: (x * 0.3).exp()
    return lambda m, x, c: getattr(m, name)(x)


def binary(rng):
    i, kind = rng.randrange(3), rng.randrange(4)
    return lambda m, x, c: (x * c[i], x + c[i], x / (c[i] ** 2 + 1), m.maximum(x, c[i]))[kind]


def whole(rng):
    kind, dim = rng.randrange(8), rng.randrange(2)

    def step(m, x, c):
        return (
            lambda: x - x.mean(dim, keepdim=True),
            lambda: m.softmax(x, dim),
            lambda: x.cumsum(dim),
            lambda: x * x.sum(),
            lambda: x @ (x.T @ c[0]) * 0.1,
            lambda: m.sort(x, dim)[0] + x,
            lambda: x + m.logsumexp(x, dim, keepdim=True),
            lambda: x / (x.norm() + 1),
        )[kind]()
    return step


def structure(rng):
    kind = rng.randrange(7)

    def step(m, x, c):
        return (
            lambda: x.T.reshape(ROWS, COLUMNS),
            lambda: x.flip(1),
            lambda: m.cat([x[1:], x[:1] * 2]),
            lambda: m.where(c[1] > 0, x, x * x),
            lambda: x[:, m.tensor([3, 1, 1, 0])],
            lambda: m.stack(list(x.unbind(0))[::-1]),
            lambda: x.gather(1, m.tensor([[0, 2, 1, 1], [3, 3, 0, 1], [2, 0, 0, 2]])),
        )[kind]()
    return step


def write(rng):
    kind = rng.randrange(6)

    def step(m, x, c):
        y = x.clone()
        (
            lambda: y.mul_(c[2]),
            lambda: y[1].add_(x[0] * 2),
            lambda: y[:, ::2].copy_(x[:, 1::2]),
            lambda: y.view(-1)[2:5].sin_(),
            lambda: y.T[0].fill_(0.5),
            lambda: y.diagonal().mul_(x[0, :3]),
        )[kind]()
        return y
    return step


def program(seed):
    """(the function for a library, the constants and x; the arrays of the constants; x)."""
    rng = random.Random(seed)
    steps = [rng.choice([pointwise, binary, whole, structure, write])(rng)
             for _ in range(rng.randint(2, 6))]
    numbers = np.random.default_rng(seed)

    def function(m, c, x):
        for step in steps:
            x = step(m, x, c)
        return x
    return function, numbers.normal(size=(3, ROWS, COLUMNS)), numbers.normal(size=(ROWS, COLUMNS))


def arrays(found):
    if isinstance(found, (tuple, list)):
        return [a for each in found for a in arrays(each)]
    return [found.detach().numpy()]


def nesting(found):
    return [nesting(each) for each in found] if isinstance(found, (tuple, list)) else None


def transforms(m, f, x, t, batch):
    F = m.func

    def scalar(x):
        return (f(x) * 0.7).tanh().sum()
    yield "grad", lambda: F.grad_and_value(scalar)(x)
    yield "vjp", lambda: F.vjp(f, x)[1](t)
    yield "jvp", lambda: F.jvp(f, (x,), (t,))
    yield "vmap", lambda: m.vmap(f)(batch)
    yield "vmap of grad", lambda: m.vmap(F.grad(scalar))(batch)
    yield "grad of vmap", lambda: F.grad(lambda b: m.vmap(scalar)(b).sum())(batch)
    yield "jvp of grad", lambda: F.jvp(F.grad(scalar), (x,), (t,))
    yield "grad of grad", lambda: F.grad(lambda x: (F.grad(scalar)(x) * t).sum())(x)
    yield "jacrev", lambda: F.jacrev(f)(x)
    yield "jacfwd", lambda: F.jacfwd(f)(x)
    yield "hessian", lambda: F.hessian(scalar)(x)
    yield "vmap of jvp", lambda: m.vmap(lambda b: F.jvp(f, (b,), (t,))[1])(batch)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_program(tt, seed):
    function, constants, x = program(seed)
    numbers = np.random.default_rng(seed + 1000)
    t, batch = numbers.normal(size=x.shape), numbers.normal(size=(2, *x.shape))

    def found(m):
        def tensor(a):
            return m.tensor(a, dtype=m.float64)
        c = [tensor(each) for each in constants]
        return transforms(m, lambda x: function(m, c, x), tensor(x), tensor(t), tensor(batch))
    compared = 0
    for (name, ours), (_, theirs) in zip(found(tt), found(torch)):
        try:
            want = theirs()
        except (RuntimeError, NotImplementedError):
            continue  # PyTorch has no rule for an op in it
        compared += 1
        got = ours()
        assert nesting(got) == nesting(want), name
        got, want = arrays(got), arrays(want)
        for a, b in zip(got, want):
            assert a.shape == b.shape, name
            assert np.allclose(a, b, 1e-8, 1e-9, equal_nan=True), (name, a, b)
    assert compared >= 6
