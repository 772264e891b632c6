"""Functions, hooks, checkpoints, anomaly mode and streams: backwards that call Python code."""

import math
import threading
import weakref

import numpy as np
import pytest
from support.daemon import HANG


def close(a, b, tolerance=1e-6):
    return np.allclose(np.asarray(a), np.asarray(b), tolerance, tolerance)


@pytest.fixture
def square(tt):
    class Square(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            assert close((x * x).detach().numpy(), y.detach().numpy())
            return 2 * x * g

        @staticmethod
        def jvp(ctx, t):
            x, _ = ctx.saved_tensors
            return 2 * x * t
    return Square


# ---------------------------------------------------------------- seed examples

def test_seed_1_every_tangent_of_the_trace(tt):
    ad = tt.autograd.forward_ad
    with ad.dual_level():
        x1 = ad.make_dual(tt.tensor(2.0, dtype=tt.float64), tt.tensor(1.0, dtype=tt.float64))
        x2 = ad.make_dual(tt.tensor(5.0, dtype=tt.float64), tt.tensor(0.0, dtype=tt.float64))
        v1 = tt.log(x1)
        v2 = x1 * x2
        v3 = tt.sin(x2)
        v4 = v1 + v2
        y = v4 - v3
        trace = [ad.unpack_dual(v).tangent.item() for v in (x1, x2, v1, v2, v3, v4, y)]
        assert trace == [1.0, 0.0, 0.5, 5.0, 0.0, 5.5, 5.5]
        assert ad.unpack_dual(y).primal.item() == pytest.approx(math.log(2) + 10 - math.sin(5))
    assert tt.func.jvp(lambda a, b: tt.log(a) + a * b - tt.sin(b), (tt.tensor(2.0), tt.tensor(5.0)),
                       (tt.tensor(1.0), tt.tensor(0.0)))[1].item() == 5.5


def test_a_loop_that_repeats_a_custom_function(tt, square):
    for round in range(6):  # from the third round on, the daemon knows the instructions
        x = tt.full((3,), float(round), requires_grad=True)
        plain = square.apply(x.detach())
        assert not plain.requires_grad
        (square.apply(x) + plain).sum().backward()
        assert close(x.grad.numpy(), [2.0 * round] * 3)


def test_seed_10_a_custom_function_in_a_training_step(tt, square):
    x = tt.linspace(-2, 2, 5, dtype=tt.float64).requires_grad_()
    assert tt.autograd.gradcheck(square.apply, (x,), check_forward_ad=True)
    assert tt.autograd.gradgradcheck(square.apply, (x,))
    w = tt.tensor([1.5, -0.5], requires_grad=True)
    optimizer = tt.optim.SGD([w], lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = square.apply(w).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 1e-3


# ---------------------------------------------------------------- Function

def test_gradients_of_a_function(tt, square):
    x = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = square.apply(x * 1)
    assert y.grad_fn.name() == "SquareBackward"
    (y * y).sum().backward()
    assert x.grad.tolist() == [4.0, 32.0, 108.0]
    g = tt.autograd.grad(square.apply(x).sum(), x, create_graph=True)[0]
    assert tt.autograd.grad((g * g).sum(), x)[0].tolist() == [8.0, 16.0, 24.0]


def test_setup_context_and_arguments_that_are_no_tensors(tt):
    class Scale(tt.autograd.Function):
        @staticmethod
        def forward(x, factor, name):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]
            assert ctx.needs_input_grad == (True, False, False)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None, None
    x = tt.ones(2, requires_grad=True)
    Scale.apply(x, 3.0, "a").sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_several_outputs_and_missing_gradients(tt):
    seen = []

    class Two(tt.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.set_materialize_grads(False)
            return a + b, a * b, a.argmax()

        @staticmethod
        def backward(ctx, g1, g2, g3):
            seen.append((g1 is None, g2 is None, g3 is None))
            return g1, None
    a, b = tt.ones(3, requires_grad=True), tt.ones(3, requires_grad=True)
    total, product, where = Two.apply(a, b)
    assert not where.requires_grad
    assert product.requires_grad
    total.sum().backward()
    assert seen == [(False, True, True)]
    assert a.grad.tolist() == [1.0] * 3
    assert b.grad is None


def test_outputs_that_carry_no_gradient(tt):
    class Sorted(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values = x * 2
            copy = x * 3
            ctx.mark_non_differentiable(copy)
            return values, copy

        @staticmethod
        def backward(ctx, g, _):
            return 2 * g
    x = tt.ones(2, requires_grad=True)
    values, copy = Sorted.apply(x)
    assert values.requires_grad
    assert not copy.requires_grad


def test_an_input_written_in_place(tt):
    class Double(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2
    x = tt.ones(3, requires_grad=True)
    y = x * 1
    z = Double.apply(y)
    assert z is y
    (z * z).sum().backward()
    assert y.tolist() == [2.0] * 3
    assert x.grad.tolist() == [8.0] * 3
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        Double.apply(x)


def test_what_forward_saved_is_what_backward_gets(tt):
    """Backward does not see writes after the save (D1), and a second backward needs retain_graph."""
    class Keep(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.save_for_backward(c)
            return x * c

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None
    x, c = tt.ones(2, requires_grad=True), tt.full((2,), 3.0)
    y = Keep.apply(x, c)
    c.mul_(100)
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_wrong_gradients_are_refused(tt):
    def returning(what):
        class Wrong(tt.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                return x + y

            @staticmethod
            def backward(ctx, g):
                return what(g)
        x, y = tt.ones(3, requires_grad=True), tt.ones(3, requires_grad=True)
        Wrong.apply(x, y).sum().backward()

    with pytest.raises(RuntimeError, match="incorrect number of gradients .expected 2, got 1"):
        returning(lambda g: g)
    with pytest.raises(RuntimeError, match="invalid gradient at index 1"):
        returning(lambda g: (g, g[:2]))
    with pytest.raises(ZeroDivisionError):
        returning(lambda g: 1 / 0)
    x = tt.ones(2, requires_grad=True)
    (x * 2).sum().backward()  # the session continues
    assert x.grad.tolist() == [2.0, 2.0]


def test_once_differentiable(tt):
    from teletensor.autograd.function import once_differentiable

    class Once(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g
    x = tt.tensor([3.0], requires_grad=True)
    g = tt.autograd.grad((Once.apply(x) ** 2).sum(), x, create_graph=True)[0]
    assert g.item() == 108.0
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_a_function_leaves_nothing_behind(tt, square):
    session = tt.current_session()
    session.synchronize()
    before = session._core.tape_nodes
    x = tt.ones(4, requires_grad=True)
    y = square.apply(x)
    node = weakref.ref(y.grad_fn)
    assert session._core.tape_nodes == before + 1
    y.sum().backward()
    del y
    assert node() is None
    assert session._core.tape_nodes == before


# ---------------------------------------------------------------- hooks and nodes

def test_the_graph_can_be_walked(tt):
    x = tt.ones(2, requires_grad=True)
    y = (x * 3).exp()
    assert y.grad_fn.name() == "ExpBackward0"
    (mul, output), = y.grad_fn.next_functions
    assert (mul.name(), output) == ("MulBackward0", 0)
    (leaf, _), (constant, _) = mul.next_functions
    assert constant is None
    assert leaf.variable is x
    assert y.grad_fn == y.grad_fn
    assert x.grad_fn is None


def test_a_hook_of_a_later_result_gets_and_replaces_its_own_gradient(tt):
    """log |A| is the second result of slogdet; its gradient is the transposed inverse."""
    seen = []
    a = tt.tensor([[2.0, 1.0], [1.0, 3.0]], requires_grad=True)
    log = tt.linalg.slogdet(a)[1]
    log.register_hook(lambda g: (seen.append(g.item()), g * 2)[1])
    (log * 3).backward()
    assert seen == [3.0]
    assert close(a.grad.numpy(), 6 * np.linalg.inv(np.array([[2.0, 1.0], [1.0, 3.0]])).T)


def test_hooks_of_nodes_run_around_them(tt):
    log = []
    x = tt.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: log.append(("tensor", g.tolist())))
    y.grad_fn.register_prehook(lambda gs: (log.append("before"), (gs[0] * 10,))[1])
    handle = y.grad_fn.register_hook(lambda gi, go: log.append((gi[0].tolist(), go[0].tolist())))
    y.sum().backward(retain_graph=True)
    assert log == [("tensor", [1.0, 1.0]), "before", ([30.0, 30.0], [10.0, 10.0])]
    handle.remove()
    log.clear()
    y.sum().backward()
    assert log == [("tensor", [1.0, 1.0]), "before"]


def test_hook_after_accumulation(tt):
    x = tt.ones(2, requires_grad=True)
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert seen == [[2.0, 2.0], [5.0, 5.0]]
    handle.remove()
    x.sum().backward()
    assert len(seen) == 2
    with pytest.raises(RuntimeError, match="non-leaf"):
        (x * 1).register_post_accumulate_grad_hook(print)


def test_an_optimizer_step_in_the_backward(tt):
    """A post-accumulate hook can free each gradient after its step."""
    layers = [tt.nn.Linear(4, 4) for _ in range(3)]
    for p in [p for layer in layers for p in layer.parameters()]:
        def step(p):
            with tt.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None
        p.register_post_accumulate_grad_hook(step)
    x = tt.randn(8, 4)
    before = [p.detach().numpy() for layer in layers for p in layer.parameters()]
    y = x
    for layer in layers:
        y = layer(y)
    (y * y).mean().backward()
    for b, p in zip(before, [p for layer in layers for p in layer.parameters()]):
        assert p.grad is None
        assert not np.array_equal(b, p.detach().numpy())


def test_backward_hooks_of_modules(tt):
    model = tt.nn.Sequential(tt.nn.Linear(3, 4), tt.nn.Tanh(), tt.nn.Linear(4, 2))
    log = []
    model[2].register_full_backward_pre_hook(lambda m, go: log.append(("pre", tuple(go[0].shape))))
    model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    first = model[0].register_full_backward_hook(
        lambda m, gi, go: log.append(([g and tuple(g.shape) for g in gi], tuple(go[0].shape))))
    x = tt.randn(5, 3)
    model(x).sum().backward()
    assert log == [("pre", (5, 2)), ([None], (5, 4))]
    doubled = model[0].weight.grad.numpy()
    model.zero_grad()
    plain = tt.nn.Sequential(*[tt.nn.Linear(3, 4), tt.nn.Tanh(), tt.nn.Linear(4, 2)])
    plain.load_state_dict(model.state_dict())
    plain(x).sum().backward()
    assert close(doubled, 2 * plain[0].weight.grad.numpy(), 1e-5)
    first.remove()
    log.clear()
    x.requires_grad_()
    model(x).sum().backward()
    assert log == [("pre", (5, 2))]
    assert x.grad is not None


# ---------------------------------------------------------------- checkpoints

@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_gives_the_same_gradients(tt, reentrant):
    from teletensor.utils.checkpoint import checkpoint

    x = tt.randn(6, 5, requires_grad=True)
    w = tt.randn(5, 5, requires_grad=True)
    calls = []

    def segment(x):
        calls.append(1)
        return tt.tanh(tt.nn.functional.dropout(x @ w, 0.3)).exp()

    found = []
    for wrap in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=reentrant)):
        tt.manual_seed(3)
        out = wrap(segment, wrap(segment, x)).sum()
        found.append([out.item(), *(g.numpy() for g in tt.autograd.grad(out, [x, w]))])
    for a, b in zip(*found):
        assert np.array_equal(a, b)
    assert len(calls) == 2 + 4


def test_checkpoint_with_backward_hooks_and_second_derivatives(tt):
    from teletensor.utils.checkpoint import checkpoint

    x = tt.linspace(0.1, 1, 5, dtype=tt.float64).requires_grad_()
    plain = tt.autograd.grad(tt.autograd.grad((x.sin().exp()).sum(), x, create_graph=True)[0].sum(), x)
    y = checkpoint(lambda t: t.sin().exp(), x)
    y.register_hook(lambda g: g * 1)
    first = tt.autograd.grad(y.sum(), x, create_graph=True)[0]
    second = tt.autograd.grad(first.sum(), x)
    assert close(plain[0].numpy(), second[0].numpy(), 1e-12)


def test_checkpoint_sequential(tt):
    from teletensor.utils.checkpoint import checkpoint_sequential

    model = tt.nn.Sequential(*[m for _ in range(4) for m in (tt.nn.Linear(6, 6), tt.nn.Tanh())])
    x = tt.randn(3, 6, requires_grad=True)
    model(x).sum().backward()
    want = [x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    checkpoint_sequential(model, 4, x, use_reentrant=False).sum().backward()
    for a, b in zip(want, [x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())]):
        assert np.array_equal(a, b)


def test_checkpoint_needs_less_memory(tt, shared_daemon):
    """The bytes that the daemon holds between forward and backward, measured on the daemon."""
    from teletensor.utils.checkpoint import checkpoint

    def held(wrap):
        with tt.connect(shared_daemon.unix) as session:
            x = tt.randn(256, 256, requires_grad=True)
            w = tt.randn(256, 256, requires_grad=True)

            def block(x):
                for _ in range(6):
                    x = tt.tanh(x @ w).exp().sin()
                return x
            y = x
            for _ in range(4):
                y = wrap(block, y)
            used = session.memory()[0]["used"]
            y.sum().backward()
            g = x.grad.numpy()
            return used, g
    plain, g1 = held(lambda f, x: f(x))
    saved, g2 = held(lambda f, x: checkpoint(f, x, use_reentrant=False))
    assert np.isfinite(g1).any() or not np.isfinite(g2).any()
    mib = 1 << 20
    assert plain > 12 * mib
    assert saved < plain / 3, f"{saved / mib:.1f} of {plain / mib:.1f} MiB"


def test_checkpoint_in_one_of_two_threads(tt):
    from teletensor.utils.checkpoint import checkpoint

    inside, leave = threading.Event(), threading.Event()
    x = tt.full((3,), 0.5, requires_grad=True)

    def segment(x):
        y = x.sin()
        inside.set()
        leave.wait(HANG)
        return y.cos()

    def other():
        inside.wait(HANG)
        found.append((x.exp().tanh()).sum())
        leave.set()
    found = []
    thread = threading.Thread(target=other)
    thread.start()
    y = checkpoint(segment, x)
    thread.join()
    mine = tt.autograd.grad(y.sum(), x)[0].numpy()
    theirs = tt.autograd.grad(found[0], x)[0].numpy()
    e = math.exp(0.5)
    assert close(mine, -math.sin(math.sin(0.5)) * math.cos(0.5))
    assert close(theirs, e * (1 - math.tanh(e) ** 2), 1e-5)


def test_checkpoint_whose_second_run_differs(tt):
    from teletensor.utils.checkpoint import checkpoint

    runs = []

    def segment(x):
        runs.append(1)
        return x.sin().cos() if len(runs) == 1 else x.sin()
    x = tt.ones(3, requires_grad=True)
    y = checkpoint(segment, x)
    with pytest.raises(RuntimeError, match="A different number of tensors was saved"):
        y.sum().backward()


# ---------------------------------------------------------------- modes

def test_anomaly_mode_points_at_the_forward_line(tt):
    with tt.autograd.detect_anomaly():
        x = tt.tensor([-1.0, 0.0], requires_grad=True)
        y = tt.sqrt(x)  # the line
        with pytest.raises(RuntimeError) as caught:
            y.sum().backward()
    text = str(caught.value)
    assert text.startswith("Function 'SqrtBackward0' returned nan values in its 0th output.")
    line = next(i for i, row in enumerate(open(__file__), 1) if "# the line" in row and "y = " in row)
    assert f"test_autograd.py:{line} in test_anomaly_mode" in text
    assert not tt.autograd.is_anomaly_enabled()
    z = tt.sqrt(x)
    z.sum().backward()  # off again: nothing is raised
    assert np.isnan(x.grad.numpy()[0])


def test_inference_tensors_stay_out_of_the_tape(tt):
    w = tt.ones(3, requires_grad=True)
    with tt.inference_mode():
        z = w * 2
        z.add_(1)
        assert tt.is_inference_mode_enabled()
    assert z.is_inference()
    assert not w.is_inference()
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        w * z
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        z.add_(1)
    with pytest.raises(RuntimeError, match="requires_grad=True on inference tensor"):
        z.requires_grad_()
    assert (w * z.clone()).requires_grad
    assert (w + z).requires_grad  # nothing is saved

    @tt.inference_mode()
    def decorated():
        return w * 1
    assert decorated().is_inference()


def test_grad_of_a_batch_of_vectors(tt):
    x = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    rows = tt.autograd.grad(x ** 2, x, tt.eye(3), is_grads_batched=True)[0]
    assert rows.tolist() == [[2.0, 0, 0], [0, 4.0, 0], [0, 0, 6.0]]
    y = tt.ones(2, requires_grad=True)
    found = tt.autograd.grad((x * x).sum(), [x, y], materialize_grads=True)
    assert found[1].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="Expected allow_unused to be True"):
        tt.autograd.grad((x * x).sum(), [x, y], materialize_grads=True, allow_unused=False)


def test_backward_of_some_inputs(tt):
    x, y = tt.ones(2, requires_grad=True), tt.ones(2, requires_grad=True)
    (x * y).sum().backward(inputs=[x])
    assert x.grad.tolist() == [1.0, 1.0]
    assert y.grad is None


def test_gradcheck_finds_a_wrong_gradient(tt):
    class Wrong(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3
    x = tt.ones(2, dtype=tt.float64).requires_grad_()
    with pytest.raises(tt.autograd.GradcheckError, match="Jacobian mismatch for output 0 with respect"):
        tt.autograd.gradcheck(Wrong.apply, (x,))
    assert tt.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False) is False
    a, b = (tt.randn(2, 3, dtype=tt.float64).requires_grad_() for _ in range(2))
    assert tt.autograd.gradcheck(lambda a, b: (tt.sin(a) * b).cumsum(1), (a, b),
                                 check_forward_ad=True, check_batched_grad=True)
    assert tt.autograd.gradgradcheck(lambda a, b: tt.sin(a) @ b.T, (a, b), check_fwd_over_rev=True)


def test_gradients_as_a_stream(tt):
    model = tt.nn.Sequential(*[m for _ in range(5) for m in (tt.nn.Linear(8, 8), tt.nn.Tanh())])
    x = tt.randn(4, 8)
    model(x).sum().backward()
    want = {name: p.grad.numpy() for name, p in model.named_parameters()}
    model.zero_grad()
    names = []
    for name, g in model(x).sum().backward_stream(model):
        names.append(name)
        assert close(g.numpy(), want[name], 1e-6)
        assert g is dict(model.named_parameters())[name].grad
    assert sorted(names) == sorted(want)
    assert names[0].startswith("8.")
    assert names[-1].startswith("0.")
    for p in model.parameters():
        p.grad.mul_(2)
        assert close(p.grad.numpy(), 2 * want[next(n for n, q in model.named_parameters() if q is p)],
                     1e-6)


def test_gradcheck_of_complex_functions(tt):
    z = tt.tensor([[1 + 2j, -0.5 + 1j], [2 - 1j, 0.3 - 0.2j]], dtype=tt.complex128, requires_grad=True)
    x = tt.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=tt.float64, requires_grad=True)
    for f, args in ((lambda z: z * z.conj().exp(), (z,)), (lambda z: z.abs(), (z,)), (lambda z, x: z @ z * x, (z, x)),
                    (lambda x: tt.complex(x, x * x), (x,))):
        assert tt.autograd.gradcheck(f, args, check_forward_ad=True) and tt.autograd.gradgradcheck(f, args)

    class WithoutConj(tt.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    with pytest.raises(RuntimeError, match="mismatch"):
        tt.autograd.gradcheck(WithoutConj.apply, (z,))


def test_gradient_retained_by_a_view_that_was_written(tt):
    """A backward retains the gradient of a view that was written without recording, with and without
    create_graph; assigning its gradient is refused, as every use of such a view is."""
    for create_graph in (False, True):
        x = tt.ones(2, 1, 3).requires_grad_()
        view = x.unbind(0)[0]
        view.retain_grad()
        z = x * view
        with tt.no_grad():
            view[0:1:2] = -0.95
        z.backward(tt.ones_like(z), retain_graph=True, create_graph=create_graph)
        assert x.grad.tolist() == [[[3.0, 3.0, 3.0]], [[1.0, 1.0, 1.0]]]
        with pytest.raises(RuntimeError, match="one of multiple views"):
            view.grad = tt.ones(1, 3)


@pytest.mark.parametrize("looks", [False, True])
def test_who_looks_at_a_view_gets_the_same_gradients(tt, looks):
    """The node of a view is made again when the view is used, in the client and in the daemon, which run
    nodes in that order."""
    a, b = tt.tensor([1.0, 2, 3], requires_grad=True), tt.tensor([[0.5], [1.0]], requires_grad=True)
    view = a[0:1]
    with tt.no_grad():
        view.fill_(-0.25)
    if looks:
        assert view.grad_fn is not None and "grad_fn" in repr(view)
    e = b.exp()
    (e + view + e * -0.5).backward(tt.tensor([[2.0], [3.0]]))
    np.testing.assert_array_equal(a.grad.numpy(), [5, 0, 0])
    np.testing.assert_allclose(b.grad.numpy(), np.exp([[0.5], [1.0]]) * [[1.0], [1.5]], rtol=1e-6)


def test_a_backward_uses_up_what_no_gradient_leaves(tt):
    """A view of a leaf made in no_grad mode requires gradients, gets none, and its node is used up all the same."""
    leaf = tt.tensor([0.5], requires_grad=True)
    with tt.no_grad():
        view = leaf[0]
    y = view.exp()
    total = y + y
    y.backward()
    assert view.grad is None and leaf.grad is None
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


REPLACED = {
    "larger": (lambda tt: tt.ones(3, 2, 2), None),
    "float64": (lambda tt: tt.ones(2, 2, dtype=tt.float64), None),
    "not broadcastable": (lambda tt: tt.ones(3), "cannot be added in place"),
    "smaller": (lambda tt: tt.ones(2), "cannot be added in place"),
    "integers": (lambda tt: tt.ones(2, 2, dtype=tt.int64), "cannot be added in place"),
    "repeated": (lambda tt: tt.ones(2).expand(2, 2), "more than one element"),
}


@pytest.mark.parametrize("way", ["one leaf", "the leaf itself"])
@pytest.mark.parametrize("data, refused", REPLACED.values(), ids=REPLACED)
def test_a_grad_with_other_data_takes_the_gradient_or_refuses_it(tt, data, refused, way):
    """As in PyTorch. The client refuses it, because the session ends if only the daemon does."""
    kept = tt.ones(2)
    leaf = tt.ones(2, 2, requires_grad=True)
    leaf.sum().backward()
    leaf.grad.data = data(tt)
    before = leaf.grad.numpy()

    def backward():
        if way == "one leaf":
            (leaf * 1).sum().backward()
        else:
            leaf.backward(tt.ones(2, 2))

    if refused:
        with pytest.raises(RuntimeError, match=refused):
            backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), before)
    else:
        backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), before + 1)
        assert leaf.grad.numpy().dtype == before.dtype
    assert kept.tolist() == [1, 1]


def test_with_create_graph_a_grad_with_other_data_is_replaced(tt):
    leaf = tt.ones(2, 2, requires_grad=True)
    leaf.sum().backward()
    leaf.grad.data = tt.ones(2).expand(2, 2)
    (leaf * leaf).sum().backward(create_graph=True)
    assert leaf.grad.tolist() == [[3, 3], [3, 3]]
    leaf.grad = tt.ones(2, 2)
    leaf.grad.data = tt.ones(3)
    with pytest.raises(RuntimeError, match="broadcast"):
        (leaf * leaf).sum().backward(create_graph=True)


@pytest.mark.parametrize("data", ["tt.ones(3)", "tt.ones(3, 2, 2)", "tt.ones(2, 2, dtype=tt.float64)"])
def test_a_retained_grad_with_other_data_is_refused(tt, data):
    leaf = tt.ones(2, 2, requires_grad=True)
    y = leaf * 2
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    y.grad.data = eval(data)
    with pytest.raises(RuntimeError, match="the retained .grad of a tensor has been given data of another shape"):
        y.sum().backward()
    y.grad.data = tt.ones(2, 2)
    y.sum().backward()
    assert y.grad.tolist() == [[2, 2], [2, 2]] and leaf.grad.tolist() == [[4, 4], [4, 4]]


@pytest.mark.parametrize("data", ["tt.ones(3)", "tt.ones(2, 2, dtype=tt.float64)"])
def test_data_of_a_computed_tensor_keeps_its_layout(tt, data):
    """PyTorch refuses most of these programs only in backward(), some not at all."""
    leaf = tt.ones(2, 2, requires_grad=True)
    y = leaf * 2
    y.retain_grad()
    with pytest.raises(RuntimeError, match=r"data: a tensor with a grad_fn keeps its shape, dtype and device"):
        y.data = eval(data)
    y.data = tt.zeros(2, 2)
    (y * y + y).sum().backward()
    assert y.grad.tolist() == [[1, 1], [1, 1]] and leaf.grad.tolist() == [[2, 2], [2, 2]]
    y = (leaf * 2).detach_()
    y.data = eval(data)
    assert y.shape == eval(data).shape


def test_an_optimizer_step_refuses_a_grad_with_other_data(tt):
    leaf = tt.ones(2, 2, requires_grad=True)
    leaf.sum().backward()
    leaf.grad.data = tt.ones(3)
    for optimizer in (tt.optim.SGD([leaf], lr=0.1), tt.optim.Adam([leaf]), tt.optim.RMSprop([leaf])):
        with pytest.raises((RuntimeError, ValueError)):
            optimizer.step()
    assert leaf.tolist() == [[1, 1], [1, 1]]


def test_empty_results_have_the_history_of_their_operands(tt):
    x = tt.ones(1, 3, requires_grad=True)
    for result in (tt.nn.functional.pdist(x), tt.nn.functional.pdist(x[:0]),
                   tt.gather(x, 1, tt.zeros(0, dtype=tt.int64))):
        assert result.shape == (0,) and result.requires_grad
        result.sum().backward()
    assert x.grad.tolist() == [[0, 0, 0]]
