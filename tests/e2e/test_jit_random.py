"""Random functions: line by line, captured, and loaded from a file give the same bits: values and
in-place writes; and the same gradients, whose sums a captured call may add in another order."""

import io
import random

import numpy as np
import pytest
import teletensor as tt

UNARY = ["sin", "exp", "tanh", "neg", "abs", "sigmoid", "relu", "square"]
BINARY = ["add", "sub", "mul", "maximum", "div"]


def plan(rng):
    """Lines of a function over (a, b, c, s): c is written in place, s is a number."""
    lines, shapes = [], {"a": (2, 3), "b": (2, 3), "c": (2, 3)}
    for i in range(rng.randint(2, 9)):
        kind = rng.random()
        name, x = f"t{i}", rng.choice(list(shapes))
        shape = shapes[x]
        if kind < 0.3:
            lines.append((name, "unary", rng.choice(UNARY), x))
        elif kind < 0.55:
            others = [n for n, other in shapes.items() if other == shape]
            lines.append((name, "binary", rng.choice(BINARY), x, rng.choice(others)))
        elif kind < 0.65:
            lines.append((name, "number", rng.choice(BINARY), x))
        elif kind < 0.75 and len(shape) == 2:
            lines.append((name, "transpose", x))
            shape = shape[::-1]
        elif kind < 0.82 and len(shape) == 2:
            lines.append((name, "row", x, rng.randrange(shape[0])))
            shape = shape[1:]
        elif kind < 0.88 and len(shape) == 2:
            other = shape[::-1]
            fits = [n for n, o in shapes.items() if o == other]
            if not fits:
                continue
            lines.append((name, "matmul", x, rng.choice(fits)))
            shape = (shape[0], shape[0])
        elif kind < 0.94:
            lines.append(("c", "write", rng.choice(["add_", "mul_"]), rng.choice(
                [n for n, o in shapes.items() if o == (2, 3)])))
            continue
        else:
            lines.append((name, "random", x))
        shapes[name] = shape
    return lines, rng.sample(list(shapes), min(3, len(shapes)))


def build(lines, out):
    def f(a, b, c, s):
        env = {"a": a, "b": b, "c": c}
        for name, kind, *rest in lines:
            if kind == "unary":
                env[name] = getattr(env[rest[1]], rest[0])()
            elif kind == "binary":
                env[name] = getattr(env[rest[1]], rest[0])(env[rest[2]])
            elif kind == "number":
                env[name] = getattr(tt, rest[0])(env[rest[1]], env[rest[1]] * s)
            elif kind == "transpose":
                env[name] = env[rest[0]].t()
            elif kind == "row":
                env[name] = env[rest[0]][rest[1]]
            elif kind == "matmul":
                env[name] = env[rest[0]] @ env[rest[1]]
            elif kind == "random":
                env[name] = tt.rand_like(env[rest[0]]) + env[rest[0]]
            else:
                with tt.no_grad():
                    getattr(env["c"], rest[0])(env[rest[1]].detach() * 0.5)
        return [env[name] for name in out]

    return f


def inputs(seed, grad):
    tt.manual_seed(seed)
    a, b, c = tt.randn(2, 3), tt.randn(2, 3), tt.randn(2, 3)
    return [a.requires_grad_(grad), b.requires_grad_(grad), c]


def observe(f, seed, grad, s):
    given = inputs(seed, grad)
    tt.manual_seed(seed + 1)
    results = f(*given, s)
    seen = [r.detach() for r in results] + [given[2]]
    total = None
    for r in results:
        if grad and r.requires_grad:
            part = (r * r).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    grads = [None if given[i].grad is None else given[i].grad.numpy() for i in range(2)]
    return [(str(t.tolist()), t._strides()) for t in seen], grads


def same(got, expected):
    assert got[0] == expected[0]
    for a, b in zip(got[1], expected[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", range(8))
def test_captured_functions_have_the_bits_of_their_lines(part):
    done = 0
    for number in range(part * 40, part * 40 + 40):
        rng = random.Random(number)
        lines, out = plan(rng)
        grad = rng.random() < 0.5
        f = build(lines, out)
        g = tt.compile(f)
        expected = [observe(f, seed, grad, 0.25 * seed + 0.5) for seed in range(3)]
        for seed in (0, 1, 2, 1):
            got = observe(g, seed, grad, 0.25 * seed + 0.5)
            same(got, expected[seed])
        file = io.BytesIO()
        if g._latest is None:
            continue
        tt.jit.save(g, file)
        loaded = tt.jit.load(io.BytesIO(file.getvalue()))
        for seed in (2, 0):
            got = observe(lambda a, b, c, s, k=loaded: k(a, b, c, s)
                          if len(k.arguments) == 4 else k(a, b, c), seed, grad, 0.25 * seed + 0.5)
            same(got, expected[seed])
        done += 1
    assert done >= 35
