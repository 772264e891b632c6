"""Functions whose derivative is not implemented report that: their results require grad, and a backward
through them raises. None of them silently becomes a constant."""

import numpy as np
import pytest

A = [[2.0, 1.0], [1.0, 3.0]]


def first(results):
    return results if not isinstance(results, tuple) else results[0]


def ldl(tt):
    return tt.linalg.ldl_factor(tt.tensor(A))


# Maps the name in the error to (function of the argument in question, its value).
REFUSED = {
    "bincount": (lambda tt, x: tt.bincount(tt.tensor([0, 1]), weights=x), [1.0, 2]),
    "heaviside": (lambda tt, x: tt.heaviside(x, tt.ones(2)), [1.0, 2]),
    "heaviside ": (lambda tt, x: tt.heaviside(tt.zeros(2), x), [1.0, 2]),
    "histogram": (lambda tt, x: tt.histogram(x, 3).hist, [1.0, 2]),
    "histogram ": (lambda tt, x: tt.histogram(tt.ones(2), 3, weight=x).hist, [1.0, 2]),
    "histogram  ": (lambda tt, x: tt.histogram(x, 3).bin_edges, [1.0, 2]),
    "histogramdd": (lambda tt, x: tt.histogramdd(x, [2, 2]).hist, A),
    "histogramdd ": (lambda tt, x: tt.histogramdd(tt.tensor(A), [2, 2], weight=x).hist, [1.0, 2]),
    "histogramdd  ": (lambda tt, x: tt.histogramdd(x, [2, 2]).bin_edges[0], A),
    "unique": (lambda tt, x: tt.unique(x), [1.0, 2]),
    "unique ": (lambda tt, x: tt.unique(x, dim=0, return_inverse=True), A),
    "unique_consecutive": (lambda tt, x: tt.unique_consecutive(x), [1.0, 2]),
    "unique_consecutive ": (lambda tt, x: x.unique_consecutive(dim=1), A),
    "geqrf": (lambda tt, x: tt.geqrf(x).a, A),
    "geqrf ": (lambda tt, x: tt.geqrf(x).tau, A),
    "linalg_ldl_factor_ex": (lambda tt, x: tt.linalg.ldl_factor(x), A),
    "linalg_ldl_factor_ex ": (lambda tt, x: tt.linalg.ldl_factor_ex(x), A),
    "linalg_ldl_solve": (lambda tt, x: tt.linalg.ldl_solve(*ldl(tt), x), A),
    "linalg_ldl_solve ": (lambda tt, x: tt.linalg.ldl_solve(x, ldl(tt).pivots, tt.ones(2, 1)), A),
    "linalg.qr": (lambda tt, x: tt.linalg.qr(x, "r").R, A),
    "linalg.qr ": (lambda tt, x: tt.linalg.qr(x, "complete").Q, [[1.0, 2], [3, 4], [5, 7]]),
    "binomial": (lambda tt, x: tt.binomial(x, tt.ones(2) / 2), [1.0, 2]),
    "binomial ": (lambda tt, x: tt.binomial(tt.ones(2), x), [0.25, 0.5]),
    "igamma by its argument 'x'": (lambda tt, x: tt.igamma(x, tt.ones(2)), [1.0, 2]),
    "igammac by its argument 'x'": (lambda tt, x: tt.special.gammaincc(x, tt.ones(2)), [1.0, 2]),
    "zeta by its argument 'x'": (lambda tt, x: tt.special.zeta(x, tt.ones(2)), [2.0, 3]),
}
WAYS = pytest.mark.parametrize(("name", "call", "value"), [(n, *w) for n, w in REFUSED.items()], ids=REFUSED)


@WAYS
def test_backward_raises(tt, name, call, value):
    x = tt.tensor(value, requires_grad=True)
    kept = tt.ones((), requires_grad=True)
    result = first(call(tt, x))
    assert result.requires_grad
    text = f"^derivative for {name.strip()} is not implemented"
    with pytest.raises(NotImplementedError, match=text):
        (kept * 2 + result.sum()).backward()
    with pytest.raises(RuntimeError, match=text):
        tt.autograd.grad((x * x).sum() + result.sum(), x)
    assert x.grad is None and kept.grad is None
    # A gradient that does not pass through the function is computed.
    (gradient,) = tt.autograd.grad(kept * 2 + result.sum(), kept)
    assert gradient.item() == 2
    with tt.no_grad():
        assert not first(call(tt, x)).requires_grad
    assert not first(call(tt, x.detach())).requires_grad
    assert result.sum().item() == result.sum().item()  # the session continues


@WAYS
def test_transforms_raise(tt, name, call, value):
    x = tt.tensor(value)
    with pytest.raises(RuntimeError, match="is not implemented"):
        tt.func.grad(lambda x: first(call(tt, x)).sum())(x)
    with pytest.raises(RuntimeError, match="is not implemented"):
        tt.func.jvp(lambda x: first(call(tt, x)).sum(), (x,), (tt.ones_like(x),))


def test_a_backward_that_is_captured_raises(tt):
    def step(x):
        tt.heaviside(x, x).sum().backward()

    with pytest.raises(RuntimeError, match="derivative for heaviside"):
        tt.compile(step)(tt.ones(2, requires_grad=True))


def test_the_other_argument_has_its_derivative(tt):
    a, y = tt.tensor([1.0, 2.0], requires_grad=True), tt.tensor([0.5, 1.5], requires_grad=True)
    (gradient,) = tt.autograd.grad(tt.igamma(a, y).sum(), y)
    assert np.allclose(gradient.numpy(), [np.exp(-0.5), 1.5 * np.exp(-1.5)])
    (gradient,) = tt.autograd.grad(tt.special.zeta(a + 1, y).sum(), y)
    assert gradient.numpy().all()


def test_written_in_place(tt):
    x = tt.ones(2, requires_grad=True)
    y = x * 1
    y.heaviside_(tt.ones(2))
    with pytest.raises(RuntimeError, match="derivative for heaviside"):
        y.sum().backward()


def test_derivatives_that_end(tt):
    """Derivatives of derivatives that are not implemented raise, too."""
    x = tt.log_softmax(tt.randn(3, 1, 4), 2).requires_grad_()
    loss = tt.nn.functional.ctc_loss(x, tt.tensor([[1, 2]]), [3], [2])
    (gradient,) = tt.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for ctc_loss_backward"):
        (gradient**2).sum().backward()


BESSEL = {
    "bessel_j0": [-0.24226844310760498, -0.12402597814798355], "bessel_j1": [0.4539329409599304, 0.488332062959671],
    "bessel_y0": [1.4714723825454712, 2.7041051387786865], "bessel_y1": [2.4984259605407715, 9.884847640991211]}


@pytest.mark.parametrize("name", BESSEL)
def test_bessel_functions_have_derivatives(tt, name):
    function = getattr(tt.special, name)
    x = tt.tensor([0.5, 0.25], requires_grad=True)
    function(x).sum().backward()
    assert np.allclose(x.grad.numpy(), BESSEL[name], rtol=1e-6)
    y = tt.tensor([0.3, 1.7, 4.0, 11.0], dtype=tt.float64, requires_grad=True)
    assert tt.autograd.gradcheck(function, (y,)) and tt.autograd.gradgradcheck(function, (y,))
    zero = tt.zeros(1, requires_grad=True)
    function(zero).sum().backward()
    assert zero.grad.item() == {"bessel_j0": 0, "bessel_j1": 0.5}.get(name, float("inf"))


def test_steps_have_a_derivative_of_zero(tt):
    x = tt.tensor([0.5, 0.25], requires_grad=True)
    for result, expected in ((tt.bernoulli(x), 0), (tt.poisson(x), 0), (tt.nextafter(x, tt.ones(2)), 1),
                             (tt.nextafter(tt.ones(2), x), 0)):
        (gradient,) = tt.autograd.grad(result.sum(), x)
        assert gradient.tolist() == [expected] * 2
