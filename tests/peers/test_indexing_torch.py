"""Compares random index expressions with PyTorch: x[index], x[index] = value, their gradients, their
errors."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SHAPES = [(), (3,), (4, 3), (2, 3, 4), (1, 3, 2, 2), (0, 3), (2, 0, 3)]
ROUNDS = 250


@pytest.fixture(scope="session")
def tt(shared_daemon):
    import teletensor

    with teletensor.connect(shared_daemon.unix):
        yield teletensor


def integer(rng, size):
    return rng.randrange(-size, size) if size and rng.random() < 0.95 else rng.randrange(-5, 6)


def part(rng, size):
    def end():
        return rng.choice([None, rng.randrange(-size - 2, size + 3)])
    return slice(end(), end(), rng.choice([None, None, 1, 2, 3]))


def numbers(rng, size, shape):
    count = int(np.prod(shape))
    return np.array([integer(rng, size) if size else 0 for _ in range(count)], np.int64).reshape(shape)


def items(rng, shape):
    """One index for each of some of the dims, with None, ... and bools between them."""
    broad = rng.choice([(), (1,), (2,), (2,), (3, 1), (1, 2), (0,)])
    out, dim = [], 0
    arrays = rng.random() < 0.5
    while dim < len(shape) and rng.random() < 0.85:
        size, kind = shape[dim], rng.random()
        if kind < 0.25:
            out.append(integer(rng, size))
        elif kind < 0.55:
            out.append(part(rng, size))
        elif kind < 0.62:
            out.append(None)
            continue
        elif kind < 0.68 and Ellipsis not in [i for i in out if not isinstance(i, np.ndarray)]:
            out.append(Ellipsis)
            dim += rng.randrange(0, len(shape) - dim)
        elif not arrays:
            out.append(slice(None))
        elif kind < 0.85:
            each = rng.choice([broad, broad, broad[-1:], ()])
            array = numbers(rng, size, each)
            out.append(array.tolist() if rng.random() < 0.3 and array.ndim == 1 and array.size else array)
        elif kind < 0.9:
            out.append(rng.random() < 0.5)
            continue
        else:
            many = rng.choice([1, 1, 2])
            taken = shape[dim:dim + many]
            out.append(np.array([rng.random() < 0.5 for _ in range(int(np.prod(taken)))], bool).reshape(taken))
            dim += len(taken) - 1
        dim += 1
    if len(out) == 1 and rng.random() < 0.5:
        return out[0]
    return tuple(out)


def as_index(module, index):
    def one(item):
        return module.tensor(item) if isinstance(item, np.ndarray) else item
    return tuple(map(one, index)) if isinstance(index, tuple) else one(index)


def outcome(run):
    try:
        return run(), None
    except (IndexError, RuntimeError, ValueError, TypeError) as error:
        return None, error


def nothing(shape, index):
    """Returns whether PyTorch selects no element."""
    if 0 in shape:
        return True
    found = outcome(lambda: torch.empty(shape)[as_index(torch, index)].numel())[0]
    return found == 0


def base(module, shape, layout):
    count = int(np.prod(shape))
    x = module.arange(float(count)).reshape(shape) + 1
    if layout == "transposed" and len(shape) > 1:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x


def compare(ours, theirs, what, empty):
    (a, ours_error), (b, theirs_error) = ours, theirs
    if theirs_error is not None:
        assert ours_error is not None, f"{what}: PyTorch says {theirs_error}"
        return False
    if empty and isinstance(ours_error, IndexError) and "out of range" in str(ours_error):
        return True  # PyTorch does not check the indices of an empty selection
    assert ours_error is None, f"{what}: {type(ours_error).__name__}: {ours_error}"
    assert a.shape == b.shape and np.array_equal(a, b), f"{what}: {a} instead of {b}"
    return True


@pytest.mark.parametrize("seed", range(4))
def test_getitem(tt, seed):
    rng, good = random.Random(seed), 0
    for round_ in range(ROUNDS):
        shape, layout = rng.choice(SHAPES), rng.choice(["plain", "transposed"])
        index = items(rng, shape)

        def run(module, shape=shape, layout=layout, index=index):
            x = base(module, shape, layout).requires_grad_()
            y = x[as_index(module, index)]
            (y * y).sum().backward()
            return np.concatenate([y.detach().numpy().ravel(), x.grad.numpy().ravel(), list(y.shape)])

        good += compare(outcome(lambda: run(tt)), outcome(lambda: run(torch)), f"{seed}.{round_}: {shape}[{index}]",
                        nothing(shape, index))
    assert good > ROUNDS / 2


@pytest.mark.parametrize("seed", range(4))
def test_setitem(tt, seed):
    rng, good = random.Random(100 + seed), 0
    for round_ in range(ROUNDS):
        shape, layout = rng.choice(SHAPES), rng.choice(["plain", "transposed"])
        index = items(rng, shape)
        repeated = any(isinstance(i, np.ndarray | list) and np.asarray(i).dtype != bool
                       for i in (index if isinstance(index, tuple) else [index]))
        try:
            target = tuple(torch.empty(shape)[as_index(torch, index)].shape)
        except (IndexError, RuntimeError, ValueError, TypeError):
            target = ()
        kind = rng.choice(["number", "0-d", "full", "broadcast", "list", "wrong"])
        if repeated and kind in ("full", "broadcast", "list"):
            kind = "number"  # PyTorch does not define which of several values for one element remains
        value = {"number": 7, "0-d": np.float64(8.0), "full": np.arange(float(np.prod(target))).reshape(target),
                 "broadcast": np.ones(target[-1:]) * 9, "list": [5.0] * (target[-1] if target else 1),
                 "wrong": np.ones((2, 5, 7))}[kind]

        def run(module, shape=shape, layout=layout, index=index, value=value):
            x = base(module, shape, layout)
            x[as_index(module, index)] = module.tensor(value, dtype=module.float32) if isinstance(
                value, np.ndarray | np.float64) else module.tensor(value) if isinstance(value, list) else value
            return x.numpy()

        good += compare(outcome(lambda: run(tt)), outcome(lambda: run(torch)),
                        f"{seed}.{round_}: {shape}[{index}] = {kind}",
                        nothing(shape, index))
    assert good > ROUNDS / 3
