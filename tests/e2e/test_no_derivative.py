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
    "floor_divide": (lambda tt, x: x // 2, [1.0, 2]),
    "floor_divide ": (lambda tt, x: 3 // x, [1.0, 2]),
    "floor_divide  ": (lambda tt, x: tt.floor_divide(tt.ones(2), x), [1.0, 2]),
    "heaviside": (lambda tt, x: tt.heaviside(x, tt.ones(2)), [1.0, 2]),
    "heaviside ": (lambda tt, x: tt.heaviside(tt.zeros(2), x), [1.0, 2]),
    "histogram": (lambda tt, x: tt.histogram(x, 3).hist, [1.0, 2]),
    "histogram ": (lambda tt, x: tt.histogram(tt.ones(2), 3, weight=x).hist, [1.0, 2]),
    "histogram  ": (lambda tt, x: tt.histogram(x, 3).bin_edges, [1.0, 2]),
    "histogram   ": (lambda tt, x: tt.histogram(x, 3, range=(0.0, 1.0)).bin_edges, [1.0, 2]),
    "histogram    ": (lambda tt, x: tt.histogram(x, tt.tensor([0.0, 1, 2])).bin_edges, [1.0, 2]),
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
    "airy_ai": (lambda tt, x: tt.special.airy_ai(x), [0.5, 2]),
    **{name: (lambda tt, x, name=name: getattr(tt.special, name)(x, 3), [0.5, 0.25]) for name in (
        *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "uvw"),
        "laguerre_polynomial_l", "legendre_polynomial_p")},
    **{f"{name} by its argument 'n'": (lambda tt, x, name=name: getattr(tt.special, name)(tt.ones(2), x), [2.0, 3])
       for name in ("chebyshev_polynomial_t", "hermite_polynomial_h")},
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
    y //= 2
    with pytest.raises(RuntimeError, match="derivative for floor_divide"):
        y.sum().backward()
    y = x * 1
    y.heaviside_(tt.ones(2))
    with pytest.raises(RuntimeError, match="derivative for heaviside"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_"])
def test_random_numbers_in_place(tt, name):
    """A tensor that random numbers overwrite passes no gradient on."""
    x = tt.tensor([0.5, 0.25], requires_grad=True)
    y = x * 1
    getattr(y, name)()
    assert y.requires_grad
    assert tt.autograd.grad(y.sum(), x)[0].tolist() == [0, 0]
    y = x * 1
    getattr(y[:1], name)()
    assert tt.autograd.grad(y.sum(), x)[0].tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="leaf"):
        getattr(x, name)()
    with tt.no_grad():
        getattr(x, name)()
    assert x.is_leaf and x.requires_grad


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


# Functions of one argument: (derivative at 0, whether only positive arguments are in the domain)
ONE_ARGUMENT = {"spherical_bessel_j0": (0.0, False), "scaled_modified_bessel_k0": (-np.inf, True),
                "scaled_modified_bessel_k1": (-np.inf, True)}


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_derivatives_of_rare_functions(tt, name):
    function, (at_zero, positive) = getattr(tt.special, name), ONE_ARGUMENT[name]
    values = [1e-3, 0.1, 0.4999, 0.5, 0.5001, 1.7, 4.0, 11.0, 40.0]
    x = tt.tensor(values if positive else values + [-v for v in values], dtype=tt.float64, requires_grad=True)
    assert tt.autograd.gradcheck(function, (x[1:],)) and tt.autograd.gradgradcheck(function, (x[1:],))
    zero = tt.zeros(1, requires_grad=True)
    function(zero).sum().backward()
    assert zero.grad.item() == at_zero or np.isnan(zero.grad.item()) and positive


def test_the_derivative_of_spherical_bessel_j0_is_exact_near_0(tt):
    x = tt.tensor([1e-12, 1e-6, 1e-3, 0.2, 0.49, -0.49, 0.51, 3.0], dtype=tt.float64, requires_grad=True)
    tt.special.spherical_bessel_j0(x).sum().backward()
    from decimal import Decimal, getcontext
    getcontext().prec = 60
    for value, found in zip(x.tolist(), x.grad.tolist(), strict=True):
        v, term, total = Decimal(value), Decimal(1), Decimal(0)
        for k in range(1, 60):  # d/dx of the sum of (-1)^k x^2k / (2k + 1)!
            term = -term * v * v / ((2 * k) * (2 * k + 1))
            total += term * 2 * k / v
        assert abs(found - float(total)) <= 4e-15 * abs(float(total)), value


DEGREES = [0, 1, 2, 5, 2.9]


@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "shifted_chebyshev_polynomial_t", "hermite_polynomial_h",
                                  "hermite_polynomial_he"])
@pytest.mark.parametrize("degree", [*DEGREES, -1])
def test_derivatives_of_polynomials(tt, name, degree):
    function = getattr(tt.special, name)
    x = tt.tensor([-1.5, -1.0, -0.3, 0.0, 0.25, 1.0, 2.5], dtype=tt.float64, requires_grad=True)
    (gradient,) = tt.autograd.grad(function(x, degree).sum(), x)
    steps = 1e-6 * (1 + abs(x.detach()))
    differences = (function(x.detach() + steps, degree) - function(x.detach() - steps, degree)) / (2 * steps)
    assert np.allclose(gradient.numpy(), differences.numpy(), rtol=1e-6, atol=1e-6)
    # the degrees as a tensor
    for n in (tt.full((7,), degree), tt.full((7,), int(degree)), tt.full((7,), float(degree), dtype=tt.float64)):
        (found,) = tt.autograd.grad(function(x, n).sum(), x)
        assert np.allclose(found.numpy(), gradient.numpy())


def test_residuals_of_lstsq_require_grad(tt):
    a, b = tt.randn(4, 2, dtype=tt.float64, requires_grad=True), tt.randn(4, 3, dtype=tt.float64)
    for driver in ("gelsy", "gels", "gelsd", "gelss"):
        residuals = tt.linalg.lstsq(a, b, driver=driver).residuals
        assert residuals.requires_grad and residuals.shape == ((0,) if driver == "gelsy" else (3,))
        residuals.sum().backward()
    assert not tt.linalg.lstsq(a.detach(), b).residuals.requires_grad
    assert tt.autograd.gradcheck(lambda a: tt.linalg.lstsq(a, b, driver="gels").residuals, (a,))
    z = tt.randn(4, 2, dtype=tt.complex128, requires_grad=True)
    residuals = tt.linalg.lstsq(z, z.detach()).residuals
    assert residuals.requires_grad and residuals.dtype == tt.float64


def test_steps_have_a_derivative_of_zero(tt):
    x = tt.tensor([0.5, 0.25], requires_grad=True)
    for result, expected in (
            (tt.bernoulli(x), 0), (tt.poisson(x), 0), (tt.normal(x, x), 0), (tt.normal(x, 1.0), 0),
            (tt.normal(0.0, x), 0), (tt.nextafter(x, tt.ones(2)), 1), (tt.nextafter(x, x.detach()), 0),
            (tt.nextafter(tt.ones(2), x), 0), (tt.div(x, 2, rounding_mode="floor"), 0),
            (tt.div(x, x, rounding_mode="trunc"), 0), (tt.div(2, x, rounding_mode="trunc"), 0)):
        (gradient,) = tt.autograd.grad(result.sum(), x)
        assert gradient.tolist() == [expected] * 2
