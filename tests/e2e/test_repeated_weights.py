"""The gradient of a weight that many small products use, which a backward computes as one product of all their rows."""

import numpy as np
import pytest
from teletensor._tools.admin import Admin

ROWS, WIDE, TIMES = 3, 24, 40  # a product of ROWS rows is kept, and 40 of them are more than the gradient's size


PRODUCTS = {
    "linear": lambda tt, x, w: tt.nn.functional.linear(x, w.t()),
    "matmul": lambda tt, x, w: x @ w,
    "matmul of a batch": lambda tt, x, w: (x.unsqueeze(0) @ w).squeeze(0),
    "addmm": lambda tt, x, w: tt.addmm(tt.zeros((), dtype=w.dtype), x, w, alpha=2) / 2,
}


@pytest.fixture
def parts(tt):
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((ROWS + t % 2, WIDE)) for t in range(TIMES)]
    gs = [rng.standard_normal((len(x), WIDE)) for x in xs]
    weight = rng.standard_normal((WIDE, WIDE))
    return xs, gs, weight, sum(x.T @ g for x, g in zip(xs, gs, strict=True))


def outputs(tt, product, xs, w):
    return [product(tt, tt.tensor(x), w) for x in xs]


@pytest.mark.parametrize("name", PRODUCTS)
def test_one_gradient(tt, parts, name):
    xs, gs, weight, wanted = parts
    w = tt.tensor(weight, requires_grad=True)
    for times in (1, 2):  # the second gradient is added to the first one in place
        tt.autograd.backward(outputs(tt, PRODUCTS[name], xs, w), [tt.tensor(g) for g in gs])
        np.testing.assert_allclose(w.grad.numpy(), times * wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PRODUCTS)
def test_hooks_see_what_they_saw(tt, parts, name):
    """A hook lets the client run the backward, which then computes each product; it sees the whole gradient once."""
    xs, gs, weight, wanted = parts
    w, seen = tt.tensor(weight, requires_grad=True), []
    w.register_hook(lambda g: seen.append(g.numpy()))
    tt.autograd.backward(outputs(tt, PRODUCTS[name], xs, w), [tt.tensor(g) for g in gs])
    assert len(seen) == 1
    np.testing.assert_allclose(seen[0], wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(w.grad.numpy(), seen[0])


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_gradients(tt, parts, name):
    xs, _, weight, _ = parts
    w = tt.tensor(weight, requires_grad=True)
    loss = sum((y ** 2).sum() for y in outputs(tt, PRODUCTS[name], xs, w))
    (g,) = tt.autograd.grad(loss, w, create_graph=True)
    squares = sum(x.T @ x for x in xs)
    np.testing.assert_allclose(g.detach().numpy(), 2 * squares @ weight, rtol=1e-10, atol=1e-10)
    (second,) = tt.autograd.grad((g * g).sum(), w)
    np.testing.assert_allclose(second.numpy(), 8 * squares @ squares @ weight, rtol=1e-9, atol=1e-9)


def test_a_weight_that_is_no_leaf(tt, parts):
    """The sum belongs to a node of the tape, beside gradients that are no products."""
    xs, gs, weight, wanted = parts
    v = tt.tensor(weight / 2, requires_grad=True)
    w = v * 2
    w.retain_grad()
    roots = [*outputs(tt, PRODUCTS["matmul"], xs, w), w.sum()]
    tt.autograd.backward(roots, [*(tt.tensor(g) for g in gs), tt.ones((), dtype=tt.float64)])
    np.testing.assert_allclose(w.grad.numpy(), wanted + 1, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(v.grad.numpy(), 2 * (wanted + 1), rtol=1e-12, atol=1e-12)


def test_a_factor_that_the_backward_overwrites(tt, parts):
    """The gradient of a product is the .grad of another leaf, to which the same backward adds in place before the
    gradient of the weight is complete."""
    xs, gs, weight, _ = parts
    w = tt.tensor(weight, requires_grad=True)
    u = tt.tensor(gs[2], requires_grad=True)
    u.grad = tt.tensor(gs[0])
    roots = [tt.tensor(xs[2]) @ w, u * 3, tt.tensor(xs[0]) @ w]  # the last one runs first
    tt.autograd.backward(roots, [tt.tensor(gs[2]), tt.tensor(gs[4]), u.grad])
    np.testing.assert_allclose(w.grad.numpy(), xs[0].T @ gs[0] + xs[2].T @ gs[2], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(u.grad.numpy(), gs[0] + 3 * gs[4], rtol=1e-12)


def test_the_memory_of_kept_factors(tt):
    """The kept factors are at most as large as the gradient, which would exist instead of them."""
    session = tt.current_session()
    admin = Admin(session._transport)
    w = tt.rand(256, 256, requires_grad=True)
    x = tt.rand(4096, 256)

    def peak(rows):
        session.synchronize()
        admin.holdings(most=1, reset_peaks=True)
        sum((x[i:i + rows] @ w).sum() for i in range(0, 4096, rows)).backward()
        session.synchronize()
        w.grad = None
        return admin.holdings(most=1)["session"]["memory"][0]["peak"]
    whole, parts = peak(4096), peak(16)
    assert parts <= whole + 4 * w.nbytes, (whole, parts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_dtypes(tt, parts, dtype):
    xs, gs, weight, wanted = parts
    kind = getattr(tt, dtype)
    w = tt.tensor(weight, dtype=kind, requires_grad=True)
    tt.autograd.backward([tt.tensor(x, dtype=kind) @ w for x in xs], [tt.tensor(g, dtype=kind) for g in gs])
    assert w.grad.dtype == kind
    found = w.grad.to(tt.complex128 if kind.is_complex else tt.float64).numpy()
    bound = {"float32": 1e-4, "complex64": 1e-4, "float16": 0.1, "bfloat16": 0.6}[dtype]
    np.testing.assert_allclose(found, wanted, atol=bound)
