"""Gradients of scripted functions: through branches and loops whose path only the daemon knows."""

import io
from functools import partial

import pytest
import teletensor as tt
from teletensor import nn


def grows(x, w):
    rounds = 0
    while x.abs().sum() < 50:
        x = x * w + 1
        rounds += 1
    return (x * x).sum(), rounds


def nested(x, w):
    count = tt.zeros((), dtype=tt.int64)
    total = x.sum() * 0
    while count < 4:
        inner = 0
        while inner < count:
            x = (x * w).tanh() + 0.1
            inner += 1
        if x.sum() > 1:
            total = total + (x * w).sum()
        else:
            total = total - w.sum()
        count += 1
    return total


def early(x, w):
    if x.sum() > 10:
        return (x * w).sum() * 2
    y = x * 3
    if x.sum() < 0:
        y = -y * w
    return y.sum()


def leaves(x, w):
    k = tt.zeros((), dtype=tt.int64)
    while k < 10:
        k += 1
        if x.sum() > 20:
            x = x - w
            break
        if k % 2 == 0:
            x = x + 1
            continue
        x = x * w * 1.5
    return x.sum()


def over(x, n):
    for i in range(n):
        x = x + 0.002 * x.sin()
        for k in range(2):
            x = x + 0.01 ** (k + 1) * x.cos() / (i + 1)
    return x.prod()


def infects(x, w):
    """A value that a round computes from w has a gradient in the next round, although it began as a
    number."""
    total = tt.zeros(2)
    n = tt.ones(())
    while n < 5:
        total = total * 0.5 + x.detach() * w
        n = n + 1
    return (total * total).sum()


def dies_out(x, w):
    """There is no 0 * inf: a branch that was not taken does not contribute."""
    root = (x * 0).sqrt()
    y = x
    if root.sum() < 1:
        y = y * w
    return y.sum()


def gradients(function, *given):
    inputs = [tt.tensor(v, requires_grad=True) if isinstance(v, list) else v for v in given]
    loss = function(*inputs)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
    found = [tt.zeros_like(t) if t.grad is None else t.grad for t in inputs
             if isinstance(t, tt.Tensor) and t.requires_grad]
    return loss.item(), [g.tolist() for g in found]


CASES = [
    (grows, ([1.0, 2.0], [1.5, 1.2])), (grows, ([100.0, 2.0], [1.5, 1.2])),
    (nested, ([0.5, 1.5], [0.7, 1.2])), (nested, ([-3.0, 1.5], [0.7, 1.2])),
    (early, ([1.0, 2.0], [3.0, 4.0])), (early, ([10.0, 2.0], [3.0, 4.0])), (early, ([-1.0, -2.0], [3.0, 4.0])),
    (leaves, ([1.0, 2.0], [3.0, 4.0])), (leaves, ([0.1, 0.2], [1.0, 0.4])), (leaves, ([50.0, 2.0], [3.0, 4.0])),
    (infects, ([1.0, 2.0], [3.0, 4.0])), (dies_out, ([1.0, 2.0], [3.0, 4.0])),
]


@pytest.mark.parametrize(("function", "given"), CASES,
                         ids=[f"{f.__name__}-{i}" for i, (f, _) in enumerate(CASES)])
def test_as_the_function_itself(function, given):
    scripted = tt.jit.script(function)
    value, found = gradients(scripted, *given)
    expected, right = gradients(function, *given)
    assert value == expected
    for a, b in zip(found, right, strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    assert scripted._latest.backward is not None  # it was no fallback


def second(function, *given):
    """A penalty on the gradients: its value, and its contribution to the gradients."""
    inputs = [tt.tensor(v, dtype=tt.float64, requires_grad=True) for v in given]
    loss = function(*[t * 1.5 for t in inputs])  # the gradients reach their sources
    loss = loss[0] if isinstance(loss, tuple) else loss
    firsts = tt.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    penalty = sum(((g * g).sum() for g in firsts if g is not None), tt.zeros(()))
    (penalty + loss).backward()
    return penalty.item(), [[0.0] * 2 if t.grad is None else t.grad.tolist() for t in inputs]


@pytest.mark.parametrize(("function", "given"), CASES[:10],
                         ids=[f"{f.__name__}-{i}" for i, (f, _) in enumerate(CASES[:10])])
def test_second_derivatives_are_the_functions_own(function, given):
    value, found = second(tt.jit.script(function), *given)
    expected, right = second(function, *given)
    assert value == pytest.approx(expected, rel=1e-12)
    for a, b in zip(found, right, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


def test_second_derivatives_by_finite_differences():
    scripted = tt.jit.script(grows)
    points = [tt.tensor(v, dtype=tt.float64, requires_grad=True) for v in ([1.0, 2.0], [1.5, 1.2])]
    assert tt.autograd.gradgradcheck(lambda x, w: scripted(x, w)[0], points)


def reads_outside():
    outside = tt.tensor([1.5, 0.5], dtype=tt.float64, requires_grad=True)

    def reads(x, y):
        while (x * x).sum() < 50:
            x = x * y * outside + x
        return x * y

    return outside, reads


def test_inputs_that_come_from_each_other_count_once():
    outside, reads = reads_outside()
    found = []
    for function in (tt.jit.script(reads), reads):
        x = tt.tensor([0.5, 2.0], dtype=tt.float64, requires_grad=True)
        y = function(x, outside * x + 1)
        y = function(y * 0.1, y * x * 0.01)
        for _ in range(3):  # a derivative of a derivative of a derivative
            (y,) = tt.autograd.grad((y * y).sum() * 1e-3, x, create_graph=True)
        found.append(tt.autograd.grad(y.sum(), [x, outside]))
    for a, b in zip(*found, strict=True):
        assert a.tolist() == pytest.approx(b.tolist(), rel=1e-9)


def test_a_tensor_from_outside_that_was_an_argument():
    outside, reads = reads_outside()
    scripted = tt.jit.script(reads)
    x = tt.tensor([0.5, 2.0], dtype=tt.float64)
    for pair in ((outside, x), (x, outside), (x, x), (x + 1, x)):
        assert scripted(*pair).tolist() == reads(*pair).tolist()


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = nn.functional.dropout(self.layer(x), 0.5)
        while x.abs().sum() < 50:
            x = x * 2
        return (x * x).sum()


def test_second_derivatives_draw_what_was_drawn_and_refuse_what_was_written():
    module = Noisy()
    found = []
    for function in (tt.jit.script(module), module):
        tt.manual_seed(7)
        x = tt.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
        (first,) = tt.autograd.grad(function(x), x, create_graph=True)
        module.zero_grad()
        first.pow(3).sum().backward()
        found.append((first.tolist(), module.layer.weight.grad.tolist(), tt.rand(1).item()))
    assert found[0] == found[1]
    loss = tt.jit.script(module)(x)
    with tt.no_grad():
        module.layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        tt.autograd.grad(loss, x, create_graph=True)


def product(x, y):
    while x.sum() < 100:
        x = x * y
    return (x * y).sum()


def test_one_tensor_at_two_places_is_another_program():
    a, b = tt.tensor([2.0, 3.0], requires_grad=True), tt.tensor([5.0, 7.0], requires_grad=True)
    for make in (tt.jit.script, tt.compile):
        function = product if make is tt.jit.script else (lambda x, y: (x * y + x).sum())
        made = make(function)
        for pair in ((a, a), (a, b), (b, b), (b, a), (a, a)):
            assert made(*pair).item() == function(*pair).item()
            firsts = [tt.autograd.grad(each(*pair), pair) for each in (made, function)]
            assert [g.tolist() for g in firsts[0]] == [g.tolist() for g in firsts[1]]


def test_rounds_are_known_at_run_time_only():
    scripted = tt.jit.script(over)
    for n in (0, 1, 7, 40, 700):  # also more rounds than a record has at first
        value, found = gradients(scripted, [1.0, 2.0], tt.tensor(n))
        expected, right = gradients(over, [1.0, 2.0], n)
        assert value == pytest.approx(expected, rel=1e-5)
        assert found[0] == pytest.approx(right[0], rel=1e-3, abs=1e-6)
    assert len(scripted._cache) == 1


class Iterated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.outer = nn.Linear(3, 1)

    def forward(self, x):
        rounds = tt.zeros((), dtype=tt.int64)
        while rounds < 3:
            x = self.inner(x).tanh()
            rounds += 1
        if x.mean() > 0:
            return self.outer(x) * 2
        return self.outer(x)


def train(module, plain, steps=4):
    x, y = tt.linspace(-1, 1, 12).reshape(4, 3), tt.ones(4, 1)
    optimizer = tt.optim.SGD(plain.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((module(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_module_trains_through_a_loop():
    tt.manual_seed(3)
    plain = Iterated()
    same = Iterated()
    same.load_state_dict(plain.state_dict())
    found, expected = train(tt.jit.script(same), same), train(plain, plain)
    assert found == pytest.approx(expected, rel=1e-5)
    for a, b in zip(same.parameters(), plain.parameters(), strict=True):
        assert tt.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_with_and_without_gradients_are_two_programs():
    scripted = tt.jit.script(grows)
    x, w = tt.tensor([1.0, 2.0]), tt.tensor([1.5, 1.2], requires_grad=True)
    with tt.no_grad():
        plain = scripted(x, w)
        assert scripted._latest.backward is None and "recording" not in str(scripted)
    recorded = scripted(x, w)
    assert "recording" in str(scripted.program)
    assert recorded[0].requires_grad and not recorded[1].requires_grad and not plain[0].requires_grad
    assert [t.item() for t in plain] == [t.item() for t in recorded]
    (a,) = tt.autograd.grad(recorded[0], [w], retain_graph=True)
    (b,) = tt.autograd.grad(recorded[0], [w])
    assert a.tolist() == b.tolist()


def test_saved_and_loaded_with_its_gradients():
    scripted = tt.jit.script(grows)
    expected = gradients(scripted, [1.0, 2.0], [1.5, 1.2])
    file = io.BytesIO()
    tt.jit.save(scripted, file)
    file.seek(0)
    assert gradients(tt.jit.load(file), [1.0, 2.0], [1.5, 1.2]) == expected


def test_repeat_under_grad_mode_gives_what_calls_give():
    scripted = tt.jit.script(grows)
    x, w = tt.tensor([[1.0, 2.0], [3.0, 1.0]]), tt.tensor([1.5, 1.2], requires_grad=True)
    rounds = list(scripted.repeat(4, w, data=x))
    assert rounds == [tuple(v.item() for v in scripted(x[i % 2], w)) for i in range(4)]


def test_dtypes_that_a_loop_carries():
    def mixed(x, w):
        n = tt.zeros((), dtype=tt.int32)
        going = w.sum() > 0
        half = x.to(tt.float16)
        while going:
            half = half * w.to(tt.float16)
            x = x + half.to(tt.float64)
            n += 1
            going = (n < 3).logical_and(going)
        return (x * n).sum()

    for dtype in (tt.float32, tt.float64):
        def run(function, dtype=dtype):
            x = tt.tensor([1.0, -2.0], dtype=tt.float64, requires_grad=True)
            w = tt.tensor([0.5, 2.0], dtype=dtype, requires_grad=True)
            function(x, w).backward()
            return x.grad.tolist(), w.grad.tolist(), w.grad.dtype

        assert run(tt.jit.script(mixed)) == run(mixed)


def endless(x, w):
    while x.sum() == x.sum():
        x = x * w
    return x.sum()


def test_a_loop_that_records_too_much_is_out_of_memory(start_daemon):
    daemon = start_daemon("--session-memory", "48MiB")
    with tt.connect(daemon.unix) as session, session.as_current():
        x = tt.ones(1 << 18, requires_grad=True)  # a MiB a round
        loss = tt.jit.script(endless)(x, tt.ones(1 << 18))
        with pytest.raises(tt.OutOfMemoryError):
            loss.item()
        assert tt.ones(4).sum().item() == 4  # the session continues


@pytest.mark.parametrize("rounds", [0, 3])
def test_finite_differences(rounds):
    def loop(x, n):
        k = 0
        while k < n:
            x = x * x.sin() + k
            k += 1
        return x

    scripted = tt.jit.script(loop)
    x = tt.tensor([0.3, 1.1], dtype=tt.float64, requires_grad=True)
    assert tt.autograd.gradcheck(partial(scripted, n=tt.tensor(rounds)), (x,))


def stepped(module, optimizer):
    @tt.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = ((module(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_captured_training_step_through_a_loop(tmp_path):
    tt.manual_seed(4)
    plain = Iterated()
    same = Iterated()
    same.load_state_dict(plain.state_dict())
    x, y = tt.linspace(-1, 1, 12).reshape(4, 3), tt.ones(4, 1)
    expected = train(plain, plain, steps=12)
    step = stepped(tt.jit.script(same), tt.optim.SGD(same.parameters(), lr=0.1))
    found = [step(x, y).item() for _ in range(4)]
    assert "while" in str(step) and "past(" in str(step)
    assert step._entries == 2  # without gradients at first, then with
    found += list(step.repeat(4, x, y))
    path = str(tmp_path / "step.safetensors")
    tt.jit.save(step, path)
    loaded = tt.jit.load(path)
    found += list(loaded.repeat(4, x, y))
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_captured_function_calls_a_scripted_one():
    scripted = tt.jit.script(grows)

    @tt.compile
    def twice(x, w):
        a, rounds = scripted(x, w)
        b, more = scripted(x + 1, w * 1.1)
        return a + b, rounds + more

    @tt.compile
    def with_a_number(x, limit):
        return tt.jit.script(scaled)(x, limit)

    w = tt.tensor([1.5, 1.2])
    for start in (1.0, 3.0, 40.0):
        x = tt.full((2,), start)
        a, b = grows(x, w), grows(x + 1, w * 1.1)
        assert [v.item() for v in twice(x, w)] == [(a[0] + b[0]).item(), a[1] + b[1]]
        assert with_a_number(x, start).tolist() == scaled(x, start).tolist()
    assert len(twice._cache) == 1


def scaled(x, limit):
    while x.sum() < limit * 4:
        x = x + limit
    return x
