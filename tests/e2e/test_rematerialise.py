"""Values that a captured program computes again instead of keeping them: equal bits, less memory."""

import random

import numpy as np
import pytest
import teletensor as tt
from teletensor._tools.admin import Admin

F = tt.nn.functional
# Rows of so many floats do not collide in the cache, so products make no temporary copies of operands.
WIDE = 1008
VALUE = 256 * WIDE * 4  # bytes of a value in the tests of memory
ACTIVATIONS = [F.gelu, F.silu, F.softplus, F.elu, F.mish, F.hardswish, lambda h: h * h.sigmoid(),
               lambda h: h.sin() * h.exp().reciprocal(), lambda h: F.layer_norm(h, h.shape[-1:]),
               lambda h: F.leaky_relu(h.tanh() - h), lambda h: h.clamp(-0.5, 0.5) + h.square(),
               lambda h: F.dropout(F.gelu(h), 0.3), lambda h: h.softmax(-1) * h]


def matrix(rng, *shape):
    return tt.tensor((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))


def most_held(call):
    """The additional bytes of a call. The minimum of several calls is used, because a call's memory may be
    freed late."""
    session = tt.current_session()
    admin = Admin(session._transport)
    used, peaks = [], []
    for _ in range(5):
        tt.synchronize()
        used.append(admin.holdings(most=1, reset_peaks=True)["session"]["memory"][0]["used"])
        call()
        tt.synchronize()
        peaks.append(session.memory(1)[0]["peak"])
    return min(peaks) - min(used)


def changed(compiled):
    (before, after), = [p[1:] for p in compiled.passes() if p[0] == "rematerialise"]
    return before != after


def net(number):
    """A training step of layers with random activations."""
    choose, rng = random.Random(number), np.random.default_rng(number)
    layers = [(matrix(rng, 512, 512).requires_grad_(), choose.choice(ACTIVATIONS))
              for _ in range(choose.randint(3, 6))]
    weights = [w for w, _ in layers]
    optimizer = tt.optim.SGD(weights, lr=0.05)
    x = matrix(rng, 256, 512)

    def step():
        optimizer.zero_grad()
        y = x
        for w, activation in layers:
            y = activation(y @ w)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return step, weights


def outcome(number, compiled):
    tt.manual_seed(number)
    step, weights = net(number)
    step()
    run = tt.compile(step) if compiled else step
    losses = [run() for _ in range(3)]
    most = most_held(lambda: losses.append(run()))
    return [v.detach().numpy() for v in (*losses, *weights)], most, compiled and changed(run)


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_training_steps_have_the_same_bits_and_hold_less(first):
    fewer = 0
    for number in range(first, first + 4):
        values, eager, _ = outcome(number, False)
        same, captured, again = outcome(number, True)
        for value, other in zip(values, same, strict=True):
            np.testing.assert_array_equal(value.view(np.uint32), other.view(np.uint32))
        fewer += again
        if again:
            assert captured < eager
    assert fewer >= 2


# Tensors of 1 MiB and 4 MiB, whose products take far longer than elementwise ops.
def operands():
    return tt.randn(256, WIDE), tt.randn(WIDE, WIDE)


def test_it_holds_what_the_plan_says():
    def f(x, w):
        h = x @ w
        a = h.sigmoid()
        return (a @ w @ w * (a * h)).sum()

    x, w = operands()
    compiled = tt.jit.trace(f, x, w)
    assert compiled(x, w).item() == f(x, w).item()
    assert changed(compiled)
    assert 3 * VALUE <= most_held(lambda: compiled(x, w)) < 3 * VALUE + VALUE // 8


def test_the_second_step_has_the_line_of_the_first():
    def f(x, w):
        h = x @ w
        a = h.sigmoid()
        return a @ w @ w * (a * h)

    compiled = tt.jit.trace(f, *operands())
    after = next(p[2] for p in compiled.passes() if p[0] == "rematerialise")
    lines = [line.split("#")[1] for line in after.splitlines() if "= sigmoid" in line]
    assert len(lines) == 2 and lines[0] == lines[1]


def test_not_of_what_is_written_in_between():
    def f(x, w, c):
        a = c.sigmoid()
        y = a @ w
        c.add_(1)
        return y @ w @ w + a

    x, w = operands()
    compiled = tt.jit.trace(f, x, w, tt.zeros(256, WIDE))
    assert not changed(compiled)
    c, d = tt.zeros(256, WIDE), tt.zeros(256, WIDE)
    for _ in range(2):
        assert (compiled(x, w, c) == f(x, w, d)).all().item()


def test_saved_programs_keep_it(tmp_path):
    def f(x, w):
        h = x @ w
        a = h.sigmoid()
        return (a @ w @ w * (a * h)).sum()

    x, w = operands()
    tt.jit.save(tt.jit.trace(f, x, w), tmp_path / "f.safetensors")
    loaded = tt.jit.load(tmp_path / "f.safetensors")
    assert loaded(x, w).item() == f(x, w).item()
    assert most_held(lambda: loaded(x, w)) < 3 * VALUE + VALUE // 8
