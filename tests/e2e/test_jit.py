"""Captured functions: their results, when they are captured again, and refused code."""

import numpy as np
import pytest
import teletensor as tt
from teletensor import nn


def equal(a, b):
    return a.tolist() == b.tolist()


def small_net():
    tt.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))


def data():
    x = tt.linspace(-1, 1, 32).reshape(32, 1)
    return x, (x * 3).sin()


def test_a_call_computes_what_the_function_does():
    def f(x, y):
        return (x * y).sin() + x, x.sum()

    g = tt.compile(f)
    for seed in range(4):
        tt.manual_seed(seed)
        x, y = tt.randn(3, 4), tt.randn(3, 4)
        assert all(equal(a, b) for a, b in zip(g(x, y), f(x, y), strict=True))
    assert g._entries == 1
    assert "sin(" in str(g) and "test_jit.py:" in str(g)


def test_another_shape_or_dtype_is_captured_anew():
    g = tt.compile(lambda x: (x + x.t()).sum(0))
    for x in (tt.ones(2, 2), tt.ones(3, 3), tt.ones(3, 3, dtype=tt.float64), tt.ones(4, 2)[::2].t()):
        assert equal(g(x), (x + x.t()).sum(0))
    assert g._entries == 4


def test_an_array_from_outside_is_uploaded_and_is_no_step_of_the_program():
    array = np.arange(200_000, dtype=np.float32)
    compiled = tt.compile(lambda x: x + tt.tensor(array))
    for k in range(3):
        np.testing.assert_array_equal(compiled(tt.full((200_000,), k)).numpy(), array + k)


def test_numbers_are_not_written_into_the_program():
    g = tt.compile(lambda x, a: x * a + a * a)
    x = tt.arange(4, dtype=tt.float32)
    for a in (0.5, 2.0, -3.25):
        assert equal(g(x, a), x * a + a * a)
    assert g._entries == 1
    for n in (2, 3, 4, 5):  # an int is, until it is seen to change
        assert equal(g(x, n), x * n + n * n)
    assert g._entries == 3


def test_a_number_that_decides_is_captured_anew():
    g = tt.compile(lambda x, a: x.exp() if a > 1 else x * a)
    x = tt.ones(3)
    for a in (0.5, 0.25, 2.0, 3.0, 0.125):
        assert equal(g(x, a), x.exp() if a > 1 else x * a)
    assert g._entries == 2
    # The derivative of x ** a contains a - 1, which is not a number of the call.
    h = tt.compile(lambda x, a: (x ** a).sum())
    for a in (2.0, 3.0):
        x = tt.full((3,), 2.0).requires_grad_()
        h(x, a).backward()
        assert equal(x.grad, tt.full((3,), a * 2.0 ** (a - 1)))


@pytest.mark.parametrize("make", [
    lambda p: tt.optim.SGD(p, lr=0.1), lambda p: tt.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: tt.optim.Adam(p, lr=0.01), lambda p: tt.optim.AdamW(p), lambda p: tt.optim.NAdam(p),
    lambda p: tt.optim.RMSprop(p), lambda p: tt.optim.ASGD(p), lambda p: tt.optim.Adagrad(p)])
def test_training_step(make):
    """Forward, backward, optimizer and schedule in one program: the same bits as line by line, also
    as a loop on the daemon."""
    x, y = data()
    runs = []
    for mode in ("eager", "compiled", "repeated"):
        net = small_net()
        opt = make(net.parameters())
        schedule = tt.optim.lr_scheduler.StepLR(opt, 3, 0.5)

        def step(x, y, net=net, opt=opt, schedule=schedule):
            opt.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            schedule.step()
            return loss

        run = step if mode == "eager" else tt.compile(step)
        if mode == "repeated":
            losses = list(run.repeat(9, x, y))
        else:
            losses = [loss.item() for loss in [run(x, y) for _ in range(9)]]
        runs.append((losses, [p.tolist() for p in net.parameters()], opt.param_groups[0]["lr"],
                     [p.grad.tolist() for p in net.parameters()]))
        if mode != "eager":
            changed = [entry.facts.why() for entries in run._cache.values() for entry in entries]
            assert run._entries <= 2, f"captured again, because it read what has changed: {changed}"
    assert runs[0] == runs[1] == runs[2]


def test_repeat_over_slices_and_batches():
    weights = tt.zeros(3)

    def step(batch, scale):
        with tt.no_grad():
            weights.add_(batch * scale)
        return weights.sum()

    batches = tt.arange(12, dtype=tt.float32).reshape(4, 3)
    expected, sums = tt.zeros(3), []
    for i in range(10):
        expected = expected + batches[i % 4] * 0.5
        sums.append(expected.sum().item())
    run = tt.compile(step)
    assert list(run.repeat(10, 0.5, data=batches)) == sums
    assert equal(weights, expected)
    weights.zero_()
    assert list(run.repeat(10, 0.5, data=(batches[i % 4] for i in range(99)))) == sums


def test_gradients_flow_through_a_captured_forward():
    net, twin = small_net(), small_net()
    compiled = tt.compile(net)
    for seed in range(3):
        tt.manual_seed(seed)
        x = tt.randn(5, 1).requires_grad_()
        z = x.detach().clone().requires_grad_()
        ((compiled(x * 2) ** 2).sum() + x.sum()).backward()
        ((twin(z * 2) ** 2).sum() + z.sum()).backward()
        assert equal(x.grad, z.grad)
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            assert equal(p.grad, q.grad)
    with tt.no_grad():
        assert equal(compiled(x), twin(x)) and not compiled(x).requires_grad


def test_a_module_is_captured_for_each_mode():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = tt.compile(net)
    x = tt.ones(2, 4)
    with tt.no_grad():
        tt.manual_seed(3)
        masks = [compiled(x).tolist() for _ in range(3)]
        assert masks[0] != masks[1] != masks[2]
        tt.manual_seed(3)
        assert [net(x).tolist() for _ in range(3)] == masks
        net.eval()
        assert equal(compiled(x), net(x))
    assert compiled._entries == 2


def test_in_place_writes_are_seen_by_views_and_callers():
    base = tt.zeros(6)
    view = base[2:4]

    @tt.compile
    def bump(v, by):
        v.add_(by)
        return v

    assert bump(view, 1.0) is view
    assert bump(view, 2.0) is view
    assert base.tolist() == [0, 0, 3, 3, 0, 0]
    other = tt.zeros(8)[1:3]  # another place in another storage
    bump(other, 5.0)
    assert other.tolist() == [5, 5] and other._base.tolist() == [0, 5, 5, 0, 0, 0, 0, 0]
    assert bump._entries == 1


def test_reading_a_value_midway_is_refused_with_its_line():
    @tt.compile
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(RuntimeError, match=r"test_jit.py:\d+.*cannot read a tensor's value"):
        f(tt.ones(2))
    assert equal(tt.compile(lambda x: x + 1)(tt.ones(2)), tt.full((2,), 2.0))  # nothing is left over


def test_what_cannot_be_captured_is_refused():
    kept = []

    @tt.compile
    def leak(x):
        kept.append(x * 2)
        return x

    with pytest.raises(RuntimeError, match="stay alive"):
        for _ in range(9):
            leak(tt.ones(1))
    outside = (tt.ones(2, requires_grad=True) * 2).sum()
    with pytest.raises(RuntimeError, match="before"):
        tt.compile(lambda y: (y * 2).backward())(outside)
    with pytest.raises(RuntimeError, match="default generator"):
        tt.compile(lambda x: x + tt.rand(1, generator=tt.Generator()))(tt.ones(1))


def test_late_errors_name_the_line_inside():
    def pick(table, i):
        return table[i].sum()

    g = tt.compile(pick)
    table = tt.arange(4)
    assert g(table, tt.tensor([1, 2])).item() == 3
    with pytest.raises(IndexError, match=r"test_jit.py:\d+ in pick"):
        g(table, tt.tensor([1, 9])).item()
    assert g(table, tt.tensor([3, 3])).item() == 6


def test_trace_returns_its_input_for_two_transpositions():
    x = tt.randn(3, 4)
    g = tt.jit.trace(lambda x: x.t().t(), x)
    assert len(g.program) == 0 and equal(g(x), x)
    assert [name for name, _, _ in g.passes()]


def test_many_captures_are_bounded():
    g = tt.compile(lambda x: x * 2)
    with pytest.warns(UserWarning, match="captured more than 16 times"):
        for n in range(1, 30):
            assert equal(g(tt.ones(n)), tt.full((n,), 2.0))
    assert g._entries == 16


class Cube(tt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x ** 2 * g


def test_a_captured_derivative_that_is_a_function_is_refused_by_its_line():
    x = tt.tensor([1.0, 2.0], requires_grad=True)

    @tt.compile
    def cubes(x):
        return Cube.apply(x).sum()

    line = cubes._function.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError, match=rf"test_jit.py:{line}.*autograd\.Function's backward"):
        cubes(x)

    @tt.compile
    def gradient(x):
        (g,) = tt.autograd.grad(Cube.apply(x).sum(), x)
        return g

    for _ in range(2):
        assert gradient(x).tolist() == [3.0, 12.0]


def test_an_argument_that_is_read_from_outside_as_well(tt):
    w, v = tt.ones(3), tt.full((3,), 5.0)
    calls = []

    @tt.compile
    def f(a):
        calls.append(a)
        return a * 10 + w, a

    first = f(w)
    assert first[1] is w and first[0].tolist() == [11] * 3
    assert f(v)[0].tolist() == [51] * 3 and f(w)[0].tolist() == [11] * 3
    assert f(v + 1)[0].tolist() == [61] * 3 and len(calls) == 2  # one program for w, one for all others
    p, q = (tt.nn.Parameter(tt.full((3,), x)) for x in (1.0, 2.0))

    @tt.compile
    def g(a):
        return (a * p).sum()

    for given in (p, q, p):
        g(given).backward()
    assert p.grad.tolist() == [6] * 3 and q.grad.tolist() == [1] * 3


def test_a_failed_capture_leaves_its_arguments_as_they_were(tt):
    x = tt.ones(2)

    @tt.compile
    def f(a):
        return a * float(a.sum())

    with pytest.raises(RuntimeError, match="a captured function cannot read"):
        f(x)
    y = x.view(2)
    y.add_(1)
    assert x.add_(0) is x and x.tolist() == [2, 2]


def test_a_write_to_a_tensor_of_which_an_expanded_view_is_read():
    p = tt.zeros(1, 4)
    wide = p.expand(3, 4)

    def f(x):
        y = (wide * x).sum()
        p.add_(1)
        return y

    g = tt.compile(f)
    assert [g(tt.ones(3, 4)).item() for _ in range(4)] == [0, 12, 24, 36]
    assert p.tolist() == [[4.0] * 4]
