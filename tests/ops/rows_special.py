"""Rows for special functions and rare pointwise ops, compared with SciPy."""

import numpy as np
import scipy.special as special
from arrays import ALL, FLOATS, INTS, SPECIALS, In
from rows_pointwise import binary, from_zero, unary
from table import Row, Sample, elementwise, function, method, specials

WIDE = ("f32", "f64")


def at(name):
    """tt.special.name, or torch.special.name."""
    return lambda m, *args, **kwargs: getattr(m.special, name)(*args, **kwargs)


def one(op, reference, low=-2.0, high=2.0, values=(), gradients=True, special_values=True, name=None, **options):
    """A function of one number; `values` are further arguments for which f64 results must be accurate to
    1e-12."""
    samples = elementwise(1, low, high)
    if special_values:
        samples.append(specials(1, (np.nan, np.inf, -np.inf, 0.0, -0.0), FLOATS))
    if values:
        samples.append(Sample((In((len(values),), data=tuple(values)),), {}, ("f64",), False))
    dtypes = options.pop("dtypes", ALL)
    inplace = options.pop("inplace", None if op.startswith("special_") else op + "_")
    call = at(name or op.removeprefix("special_")) if op.startswith("special_") else function(op)
    return Row(op, call, reference, samples, dtypes, "float", gradients, inplace=inplace, **options)


SPREAD = (1e-8, 1e-3, 0.3, 0.9, 1.0, 1.7, 5.0, 9.9, 10.1, 24.0, 29.9, 30.1, 80.0, 300.0)
BOTH = tuple(s * v for v in SPREAD for s in (1, -1))
HALVES = tuple(v + 0.37 for v in range(-9, 30, 3))

# torch=False: PyTorch's float64 results have only 8 to 10 correct digits there.
ONE = [
    one("lgamma", from_zero(lambda x: np.where(x == -np.inf, np.inf, special.gammaln(x))), 0.3, 4, HALVES + SPREAD),
    one("digamma", from_zero(lambda x: np.where(x == 0, np.copysign(np.inf, -x), special.digamma(x))), 0.3, 4,
        HALVES + SPREAD, special_values=False, tolerance=4),
    one("erfinv", from_zero(special.erfinv), -0.9, 0.9, (0.999999, -1 + 1e-15, 1e-20, 0.5, -0.49), tolerance=4),
    one("special_erfcx", from_zero(special.erfcx), -2, 2, BOTH[:20], tolerance=2),
    one("special_ndtr", from_zero(special.ndtr), -2, 2, BOTH[:16], tolerance=2),
    one("special_ndtri", from_zero(special.ndtri), 0.1, 0.9, (1e-300, 1e-20, 0.2499, 0.7501, 1 - 1e-12), tolerance=4),
    one("special_log_ndtr", from_zero(special.log_ndtr), -3, 3, BOTH, tolerance=2),
    one("i0", from_zero(special.i0), -2, 2, BOTH),
    one("special_i0e", from_zero(special.i0e), 0.1, 2, BOTH),
    one("special_i1", from_zero(special.i1), 0.1, 2, BOTH),
    one("special_i1e", from_zero(special.i1e), 0.1, 2, BOTH),
    one("sinc", from_zero(np.sinc), -2, 2, HALVES, special_values=False),
    one("special_entr", from_zero(special.entr), 0.1, 2, SPREAD),
    one("special_bessel_j0", from_zero(special.j0), -9, 9, BOTH, torch=False),
    one("special_bessel_j1", from_zero(special.j1), -9, 9, BOTH, torch=False),
    one("special_bessel_y0", from_zero(special.y0), 0.1, 9, SPREAD, special_values=False, torch=False),
    one("special_bessel_y1", from_zero(special.y1), 0.1, 9, SPREAD, special_values=False, tolerance=2, torch=False),
    one("special_modified_bessel_k0", from_zero(special.k0), 0.1, 9, SPREAD, special_values=False),
    one("special_modified_bessel_k1", from_zero(special.k1), 0.1, 9, SPREAD, special_values=False, tolerance=2),
    one("special_scaled_modified_bessel_k0", from_zero(special.k0e), 0.1, 9, SPREAD, False, special_values=False),
    one("special_scaled_modified_bessel_k1", from_zero(special.k1e), 0.1, 9, SPREAD, False, special_values=False,
        tolerance=2),
    one("special_spherical_bessel_j0", from_zero(lambda x: np.sinc(x / np.pi)), -9, 9, BOTH, False,
        special_values=False),
    one("special_airy_ai", lambda x: special.airy(x)[0], -9, 5, (-60.5, -10.51, -10.49, -3.3, 0.0, 3.49, 3.51, 20.0, 100.0), False,
        special_values=False, dtypes=FLOATS, torch=False),
]


def logit(x, eps=None):
    return special.logit(x if eps is None else np.clip(x, eps, 1 - eps))


def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf) if x.dtype.kind == "f" else x


MORE = [
    Row("logit", function("logit"), logit, elementwise(1, 0.1, 0.9, [
        Sample((In((40,), -0.5, 1.5),), {"eps": 0.25}), specials(1, (np.nan, 0.0, 1.0, 2.0, -1.0), FLOATS)]),
        FLOATS, gradients=True, inplace="logit_", tolerance=2),
    *[Row("polygamma", lambda m, x, n: m.polygamma(n, x), lambda x, n: special.polygamma(n, x),
          [Sample((In(shape, 0.3, 4, layout), n), {}, None if n < 3 else WIDE)
           for shape, layout in (((3, 4), "plain"), ((5, 3), "transposed"), ((0,), "plain"), ((), "plain"))]
          + [Sample((In((len(HALVES),), data=HALVES), n), {}, ("f64",), False)], FLOATS, gradients=n < 3,
          tolerance=8, torch=n != 1) for n in (0, 1, 2, 5)],
    Row("nan_to_num", function("nan_to_num"), nan_to_num, elementwise(1, others=[
        Sample((In((len(SPECIALS),), data=SPECIALS),), {"nan": 2.0, "posinf": 3.0, "neginf": -4.0}, FLOATS, False),
        Sample((In((3,), data=(np.inf, -np.inf, np.nan)),), {}, ("f64",), False)]), ALL,
        gradients=True, inplace="nan_to_num_"),
    Row("frexp", function("frexp"), lambda x: tuple(np.frexp(x)), [
        Sample((In((3, 4)),)), Sample((In((5, 3), layout="transposed"),)), Sample((In(()),)), Sample((In((0,)),)),
        Sample((In((4097,)),), {}, ("f32",)), specials(1, (0.0, -0.0, 1.0, -8.0, 0.5, 6e-8), FLOATS)], FLOATS,
        lambda dtype, sample: (dtype, "i32"), True),
    unary("signbit", np.signbit, dtypes=(*INTS[1:], *FLOATS), result="bool", gradients=False, inplace=False,
          special=False, extra=[specials(1, (0.0, -0.0, np.inf, -np.inf), FLOATS)]),
]


def polynomial(name, reference, low=-2.0, high=2.0):
    def call(x, n):
        return reference(np.trunc(np.asarray(n, np.float64)).astype(int), np.asarray(x, np.float64))
    orders = tuple(range(12))
    samples = [Sample((In((12,), low, high), In((12,), data=orders))),
               Sample((In((12,), -0.95, 0.95), In((12,), data=orders)), {}, WIDE),
               Sample((In((5, 3), low, high, "transposed"), 4), {}, FLOATS),
               Sample((In((3, 1), low, high), In((4,), data=(0, 1, 2, 5))), {}, FLOATS),
               Sample((1.0, In((4,), data=(0, 1, 2, 9))), {}, FLOATS),
               Sample((In((0,)), In((0,))), {}, FLOATS)]
    return Row("special_" + name, at(name), call, samples, FLOATS, tolerance=20)


def by_recurrence(second):
    """Chebyshev's polynomials of the third and fourth kind, from their second polynomial."""
    def call(n, x):
        table = [np.ones_like(x), second(x)]
        for _ in range(12):
            table.append(2 * x * table[-1] - table[-2])
        return np.select([n == k for k in range(13)], table[:13])
    return call


third, fourth = by_recurrence(lambda x: 2 * x - 1), by_recurrence(lambda x: 2 * x + 1)


def shifted(f):
    return lambda n, x: f(n, 2 * x - 1)


TWO = [
    binary("xlogy", special.xlogy, 0.1, 2, FLOATS, "float", wrap=False, tolerance=2, extra=[
        Sample((2.0, In((4,), 0.1, 2)), {}, WIDE), Sample((In((3, 4), 0, 3), In((3, 4), 1, 4)), {}, INTS)]),
    binary("logaddexp", np.logaddexp, dtypes=FLOATS, wrap=False, values=(), inplace=False, tolerance=2),
    binary("logaddexp2", np.logaddexp2, dtypes=FLOATS, wrap=False, values=(), inplace=False, tolerance=2),
    Row("special_xlog1py", at("xlog1py"), special.xlog1py, elementwise(2, 0.1, 2), FLOATS, gradients=True, tolerance=2),
    Row("special_zeta", at("zeta"), special.zeta, [
        Sample((In((3, 4), 1.5, 9, grad=False), In((3, 4), 0.5, 9))),
        Sample((In((5, 3), 1.5, 9, "transposed", grad=False), In((3,), 0.5, 9))), Sample((2, In((4,), 0.5, 9))),
        Sample((In((6,), data=(1, 0.5, 2, 3, 2, 4), grad=False), In((6,), data=(2, 3, 0, -1, -0.5, -2.25))), {}, WIDE,
               False)],
        FLOATS, gradients=True, tolerance=4),
    *[Row(op, function(op), f, [
        Sample((In((3, 4), 0.2, 6, grad=False), In((3, 4), 0.2, 6))),
        Sample((In((5, 3), 0.2, 6, "transposed", grad=False), In((3,), 0.2, 6))),
        Sample((In((8,), data=(0, 0, 1, -1, np.inf, 1, np.nan, 2), grad=False),
                In((8,), data=(1, 0, 0, 1, 1, np.inf, 1, -1))), {}, FLOATS, False)], FLOATS, gradients=True,
        inplace=op + "_", tolerance=20) for op, f in (("igamma", special.gammainc), ("igammac", special.gammaincc))],
    *[Row(op, function(op), f, [
        Sample((In((60,), 0.01, 90), In((60,), 0.01, 90))),
        Sample((In((4,), data=(2e5, 1e6, 1e7, 99999.0)), In((4,), data=(2.001e5, 1.0003e6, 9.999e6, 99900.0))))],
        ("f64",), tolerance=20, torch=False)
      for op, f in (("igamma", special.gammainc), ("igammac", special.gammaincc))],
    Row("nextafter", function("nextafter"), lambda x, y: np.nextafter(x, y), [
        Sample((In((3, 4)), In((3, 4)))), Sample((In((5, 3), layout="transposed"), In((3,))))], ("f64",), exact=True,
        inplace="nextafter_"),
    Row("nextafter", function("nextafter"),
        lambda x, y: np.nextafter(x.astype(np.float32), y.astype(np.float32)).astype(np.float64), [
            Sample((In((3, 4)), In((3, 4)))), specials(2, (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan), ("f32",))],
        ("f32",), exact=True),
    Row("nextafter", function("nextafter"),
        lambda x, y: np.nextafter(x.astype(np.float16), y.astype(np.float16)).astype(np.float64), [
            Sample((In((3, 4)), In((3, 4)))),
            specials(2, (0.0, -0.0, 1.0, -1.0, 65504.0, np.inf, -np.inf, np.nan), ("f16",))],
        ("f16",), exact=True, torch=False),
    Row("heaviside", function("heaviside"), lambda x, y: np.where(x == 0, y, (x > 0).astype(x.dtype)), [
        *elementwise(2)[:5], specials(2, (0.0, -0.0, 1.0, -1.0, np.inf, np.nan), FLOATS)], ALL, exact=True,
        inplace="heaviside_"),
    *[Row(op, function(op), f, [
        Sample((In((3, 4), -60, 60), In((3, 4), -60, 60))), Sample((In((5, 3), -60, 60, "transposed"), In((3,), 0, 9))),
        Sample((In((1025,), -99, 99), In((1,), 12, 12))), Sample((In((5,), data=(0, 0, 4, -6, 12)), In((5,), data=(0, 5, 0, 9, -8))),
                                                   {}, ("i32", "i64"))], INTS, inplace=op + "_")
      for op, f in (("gcd", np.gcd), ("lcm", lambda x, y: np.lcm(x, np.asarray(y, x.dtype)).astype(x.dtype)))],
    polynomial("chebyshev_polynomial_t", special.eval_chebyt), polynomial("chebyshev_polynomial_u", special.eval_chebyu),
    polynomial("chebyshev_polynomial_v", third), polynomial("chebyshev_polynomial_w", fourth),
    polynomial("shifted_chebyshev_polynomial_t", shifted(special.eval_chebyt), -0.5, 1.5),
    polynomial("shifted_chebyshev_polynomial_u", shifted(special.eval_chebyu), -0.5, 1.5),
    polynomial("shifted_chebyshev_polynomial_v", shifted(third), -0.5, 1.5),
    polynomial("shifted_chebyshev_polynomial_w", shifted(fourth), -0.5, 1.5),
    polynomial("hermite_polynomial_h", special.eval_hermite, -1, 1),
    polynomial("hermite_polynomial_he", special.eval_hermitenorm, -1, 1),
    polynomial("laguerre_polynomial_l", special.eval_laguerre), polynomial("legendre_polynomial_p", special.eval_legendre),
]


# ---------------------------------------------------------------- scans

def cumulative(reference):
    def call(x, dim):
        if x.ndim == 0:
            return x, np.int64(0)
        values = reference.accumulate(x, axis=dim)
        places = np.arange(x.shape[dim]).reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])
        hit = np.where((x == values) | (np.isnan(values) if x.dtype.kind == "f" else False) & (x != x), places, 0)
        return values, np.maximum.accumulate(hit, axis=dim).astype(np.int64)
    return call


def logcumsumexp(x, dim):
    return x if x.ndim == 0 else np.logaddexp.accumulate(x, axis=dim)


LINES = [Sample((In((3, 4, 5), layout=x), d)) for x in ("plain", "transposed") for d in (0, 1, -1)]
LINES += [Sample((In(()), 0)), Sample((In((0, 3)), 0)), Sample((In((2, 0)), 0)), Sample((In((1500,)), 0), {}, WIDE, False)]
SCANS = [
    *[Row(op, lambda m, x, dim, op=op: tuple(getattr(m, op)(x, dim)), cumulative(f), [
        *LINES, Sample((In((6,), data=(1.0, 3.0, 3.0, np.nan, 5.0, np.nan)), 0), {}, FLOATS, False)], ALL,
        lambda dtype, sample: (dtype, "i64"), True, torch_gradients=False)
      for op, f in (("cummax", np.maximum), ("cummin", np.minimum))],
    Row("logcumsumexp", method("logcumsumexp"), logcumsumexp, [
        *LINES, Sample((In((5,), data=(-np.inf, -np.inf, 1.0, 700.0, np.inf)), 0), {}, FLOATS, False),
        Sample((In((4,), data=(-800.0, 800.0, np.nan, 0.0)), 0), {}, WIDE, False)], FLOATS, gradients=True, tolerance=4),
    # The derivatives of products at zeros, up to second order.
    Row("cumprod", method("cumprod"), lambda x, dim: np.cumprod(x, axis=dim), [
        Sample((In((5,), data=z), 0)) for z in ((1.5, 0.0, 0.7, 2.0, -1.0), (0.0, 0.5, 0.0, 2.0, 1.2), (0.0,) * 5)],
        ("f64",), gradients=True),
    Row("prod", method("prod"), lambda x, dim: np.prod(x, axis=dim), [
        Sample((In((5,), data=z), 0)) for z in ((1.5, 0.0, 0.7, 2.0, -1.0), (0.0, 0.5, 0.0, 2.0, 1.2), (0.0,) * 5,
                                                 (1.1, 2.0, 3.0, -1.0, 0.3))], ("f64",), gradients=True),
]
ROWS = ONE + MORE + TWO + SCANS
