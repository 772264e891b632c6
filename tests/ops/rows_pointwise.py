"""Rows for elementwise ops: unary, binary, ternary, casts."""

import numpy as np
import scipy.special as special
from arrays import ALL, FLOATS, INTS, SPECIALS, Dt, In, quantise
from table import Row, Sample, elementwise, extremes, function, method, specials

NUMBERS = (*INTS, *FLOATS)
SOME = (-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, np.inf, -np.inf, np.nan)


def unary(op, reference, low=-2.0, high=2.0, dtypes=ALL, result="float", gradients=True, extra=(),
          special=True, inplace=True, **options):
    samples = elementwise(1, low, high)
    if special:
        samples.append(specials(1, SPECIALS, FLOATS))
    samples += extra
    if result == "same":
        samples += [s for s in extremes(1) if s.dtypes[0] in dtypes]
    return Row(op, function(op), reference, samples, dtypes, result, gradients,
               inplace=op + "_" if inplace else None, **options)


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + special.erf(x / np.sqrt(2)))


def sign(x):
    return np.where(np.isnan(x), 0.0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def from_zero(reference):
    """For ufuncs that NumPy does not have for bool or unsigned dtypes."""
    return lambda x: reference(x.astype(np.float64)) if x.dtype.kind in "bui" else reference(x)


def nn(name):
    return lambda m, *args, **kwargs: getattr(m.nn.functional, name)(*args, **kwargs)


UNARY = [
    unary("neg", np.negative, dtypes=NUMBERS, result="same"),
    unary("abs", np.abs, 0.1, 2, dtypes=NUMBERS, result="same",
          extra=[Sample((In((9,), -3, 3),), gradients=False)]),
    unary("sign", sign, 0.1, 2, result="same", dtypes=NUMBERS, second=False),
    unary("square", np.square, dtypes=NUMBERS, result="same"),
    unary("exp", from_zero(np.exp), tolerance=2),
    unary("expm1", from_zero(np.expm1)),
    unary("exp2", from_zero(np.exp2)),
    unary("log", from_zero(np.log), 0.2, 4),
    unary("log2", from_zero(np.log2), 0.2, 4),
    unary("log10", from_zero(np.log10), 0.2, 4),
    unary("log1p", from_zero(np.log1p), -0.5, 4),
    unary("sin", from_zero(np.sin), tolerance=2),
    unary("cos", from_zero(np.cos), tolerance=2),
    unary("tan", from_zero(np.tan), -1, 1, special=False),
    unary("asin", from_zero(np.arcsin), -0.9, 0.9),
    unary("acos", from_zero(np.arccos), -0.9, 0.9),
    unary("atan", from_zero(np.arctan)),
    unary("sinh", from_zero(np.sinh)),
    unary("cosh", from_zero(np.cosh)),
    unary("tanh", from_zero(np.tanh), tolerance=2),
    unary("asinh", from_zero(np.arcsinh)),
    unary("acosh", from_zero(np.arccosh), 1.1, 4),
    unary("atanh", from_zero(np.arctanh), -0.9, 0.9),
    unary("sigmoid", from_zero(special.expit), tolerance=2),
    unary("sqrt", from_zero(np.sqrt), 0.2, 4),
    unary("rsqrt", from_zero(lambda x: 1 / np.sqrt(x)), 0.2, 4),
    unary("reciprocal", from_zero(lambda x: 1 / x), 0.2, 4),
    unary("erf", from_zero(special.erf), tolerance=2),
    unary("erfc", from_zero(special.erfc), tolerance=4),
    unary("floor", np.floor, dtypes=NUMBERS, result="same", second=False),
    unary("ceil", np.ceil, dtypes=NUMBERS, result="same", second=False),
    unary("round", np.round, dtypes=NUMBERS, result="same", second=False),
    unary("trunc", np.trunc, dtypes=NUMBERS, result="same", second=False),
    unary("frac", lambda x: x - np.trunc(x), dtypes=FLOATS, result="same", special=False),
    unary("relu", lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)), dtypes=NUMBERS, result="same"),
    unary("logical_not", np.logical_not, result="bool", gradients=False, inplace=False),
    unary("bitwise_not", np.invert, dtypes=("bool", *INTS), result="same", gradients=False,
          special=False),
    unary("positive", np.positive, torch=False, dtypes=NUMBERS, result="same", inplace=False, special=False),
    unary("deg2rad", from_zero(np.deg2rad), special=False),
    unary("rad2deg", from_zero(np.rad2deg), special=False),
    unary("isnan", np.isnan, result="bool", gradients=False, inplace=False),
    unary("isinf", np.isinf, result="bool", gradients=False, inplace=False),
    unary("isfinite", np.isfinite, result="bool", gradients=False, inplace=False),
]


def activation(op, reference, dtypes=FLOATS, low=-2.0, high=2.0, samples=None, **options):
    samples = samples or elementwise(1, low, high)
    return Row(op, nn(op), reference, samples, dtypes, "same", True, **options)


ACTIVATIONS = [
    activation("gelu", gelu, tolerance=4, samples=elementwise(1, others=[
        Sample((In((7, 9), -4, 4),), {"approximate": "tanh"}), Sample((In((7, 9), -6, 6),))])),
    activation("silu", lambda x: x * special.expit(x), tolerance=2),
    activation("softplus", lambda x, beta=1.0, threshold=20.0: np.where(
        x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta), samples=elementwise(1, others=[
            Sample((In((40,), -30, 30),)), Sample((In((40,), -9, 9),), {"beta": 2.0, "threshold": 10.0})])),
    activation("elu", lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
               samples=elementwise(1, others=[Sample((In((9,)),), {"alpha": 0.5})])),
    activation("mish", lambda x: x * np.tanh(np.log1p(np.exp(x))), tolerance=4),
    activation("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
               tolerance=2),
    activation("logsigmoid", lambda x: -np.logaddexp(0, -x), tolerance=2),
    activation("hardtanh", lambda x, min_val=-1, max_val=1: np.clip(x, min_val, max_val), second=False,
               samples=elementwise(1, -3, 3, [Sample((In((9,), -4, 4),), {"min_val": -2.0, "max_val": 0.5})])),
    activation("relu6", lambda x: np.clip(x, 0, 6), low=-3, high=9, second=False),
    activation("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, low=-5, high=5, second=False),
    activation("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6, low=-5, high=5, tolerance=2, second=False),
    activation("leaky_relu", lambda x, negative_slope=0.01: np.where(x > 0, x, x * negative_slope),
               samples=elementwise(1, others=[Sample((In((9,)),), {"negative_slope": 0.3})])),
]


# ---------------------------------------------------------------- binary

def scalars(values, low, high):
    """A tensor and a Python number."""
    return [Sample((In((3, 5), low, high), v)) for v in values]


def promoted(dtype, sample):
    """Python numbers change only the category of the result: bool < integers < floats."""
    number = next((a for a in sample.args if isinstance(a, (int, float))), None)
    if isinstance(number, float) and dtype not in FLOATS:
        return "f32"
    return "i64" if number is not None and dtype == "bool" else dtype


def binary(op, reference, low=-2.0, high=2.0, dtypes=ALL, result=promoted, gradients=True,
           values=(2,), special=True, extra=(), inplace=True, wrap=True, **options):
    samples = elementwise(2, low, high) + scalars(values, low, high)
    if special:
        samples.append(specials(2, SOME, FLOATS))
    if wrap:
        samples += [s for s in extremes(2) if s.dtypes[0] in dtypes]
    return Row(op, function(op), reference, samples + list(extra), dtypes, result, gradients,
               inplace=op + "_" if inplace else None, **options)


def compare(op, reference):
    extra = [Sample((In((4, 4), data=(1, 2, 3, 4) * 4), In((4, 4), data=(1, 3, 2, 4) * 4)))]
    return binary(op, reference, result="bool", gradients=False, extra=extra, inplace=False)


def power(x, y):
    return np.power(x, np.asarray(y, x.dtype) if np.isscalar(y) and x.dtype.kind != "f" else y)


def remainder(x, y):
    """The result has the sign of the divisor, as with Python's %."""
    with np.errstate(all="ignore"):
        r = np.fmod(x, y)
        return np.where((r != 0) & ((r < 0) != (np.asarray(y) < 0)), r + y, r).astype(x.dtype)


def division(op, reference, dtypes=NUMBERS, result="same", **options):
    """Samples of integers never divide by 0 (a separate error), nor MIN by -1."""
    samples = [Sample((In(a, -9, 9, x), In(b, 1, 5, y))) for a, b, x, y in (
        ((3, 4), (3, 4), "plain", "plain"), ((), (), "plain", "plain"), ((0,), (0,), "plain", "plain"),
        ((3, 1), (1, 4), "plain", "plain"), ((5, 3), (5, 3), "transposed", "sliced"),
        ((1025,), (1,), "plain", "plain"), ((4097,), (4097,), "plain", "plain"))]
    samples += [Sample((In((5, 5), -9, 9), 2)), Sample((In((5, 5), -9, 9), -3), {}, ("i32", "i64", "f32"))]
    samples += [Sample((In((6,), data=(-7, 7, -8, 8, 0, 1)), In((6,), data=(3, -3, -3, 3, -5, -1))), {},
                       ("i32", "i64", "f32", "f64"), gradients=False)]
    samples.append(specials(2, SOME, FLOATS))
    gradients = op != "floor_divide"  # tests/e2e/test_no_derivative.py
    return Row(op, function(op), reference, samples, dtypes, result, gradients, False, inplace=op + "_", **options)


def alpha(reference):
    return lambda x, y, alpha=1: reference(x, y * alpha if alpha != 1 else y)


def bool_arithmetic(reference, on_bool):
    def call(x, y, **kwargs):
        both = np.asarray(x).dtype == np.bool_ == np.asarray(y).dtype
        return on_bool(x, y) if both else reference(x, y, **kwargs)
    return call


BITS = ("bool", *INTS)
WITH_ALPHA = [Sample((In((3, 4)), In((4,))), {"alpha": 3}, ("i32", "i64", "f32", "f64"))]
BINARY = [
    binary("add", bool_arithmetic(alpha(np.add), np.logical_or), extra=WITH_ALPHA),
    binary("sub", alpha(np.subtract), dtypes=NUMBERS, extra=WITH_ALPHA),
    binary("mul", bool_arithmetic(np.multiply, np.logical_and), extra=[]),
    Row("div", function("div"), lambda x, y: np.true_divide(x, y), [
        *[Sample((In(a, -9, 9, x), In(b, 0.5, 5, y))) for a, b, x, y in (
            ((3, 4), (3, 4), "plain", "plain"), ((), (), "plain", "plain"),
            ((3, 1), (1, 4), "plain", "plain"), ((5, 3), (5, 3), "transposed", "sliced"),
            ((1025,), (1,), "plain", "plain"), ((0,), (0,), "plain", "plain"))],
        Sample((In((3, 4)), 4)), specials(2, SOME, FLOATS),
        Sample((In((3,), data=(1, 2, -3)), In((3,), data=(0, 0, 0))), {}, ("i32", "f32"), False)],
        ALL, "float", True, inplace="div_"),
    binary("pow", power, 0.3, 2, dtypes=NUMBERS, values=(2, 3), wrap=False, special=False, extra=[
        specials(2, SOME, ("f64", "f32")), Sample((In((7,), -2, 2), 2)), Sample((In((7,), -2, 2), 3)),
        Sample((In((7,), -2, 2), 0), gradients=False), Sample((In((7,), 0.2, 2), 0.5), {}, FLOATS),
        Sample((In((7,), 0.2, 2), -1), {}, FLOATS)], tolerance=4),
    binary("maximum", np.maximum, special=False, values=(), extra=[specials(2, SOME, FLOATS)],
           inplace=False),
    binary("minimum", np.minimum, special=False, values=(), extra=[specials(2, SOME, FLOATS)],
           inplace=False),
    *[binary(op, f, special=False, values=(), wrap=False, inplace=False, extra=[specials(2, SOME, FLOATS)])
      for op, f in (("fmax", np.fmax), ("fmin", np.fmin))],
    binary("hypot", np.hypot, dtypes=FLOATS, wrap=False, values=(), low=0.1, tolerance=2),
    binary("copysign", np.copysign, dtypes=FLOATS, wrap=False, second=False, low=0.1, special=False,
           extra=[specials(2, SOME[:-1], FLOATS)]),
    binary("atan2", lambda x, y: np.arctan2(x, y), 0.2, 2, dtypes=FLOATS, wrap=False, values=()),
    division("floor_divide", np.floor_divide),
    division("remainder", remainder),
    division("fmod", lambda x, y: np.fmod(x, y), tolerance=2),
    compare("eq", np.equal), compare("ne", np.not_equal), compare("lt", np.less),
    compare("le", np.less_equal), compare("gt", np.greater), compare("ge", np.greater_equal),
    *[binary(op, f, result="bool", gradients=False, values=(), inplace=False) for op, f in (
        ("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor))],
    *[Row(op, function(op), f, [
        Sample((In((3, 4), -9, 9), In((3, 4), 0, 5))), Sample((In((5, 3), -9, 9, "transposed"), In((3,), 0, 5))),
        Sample((In((1025,), -99, 99), 3)), Sample((In((4,), data=(0, 1, -1 % 256, 77)), In((4,), data=(7, 1, 3, 0))))],
        INTS, inplace=op + "_") for op, f in (
        ("bitwise_left_shift", np.left_shift), ("bitwise_right_shift", np.right_shift))],
    *[binary(op, f, dtypes=BITS, gradients=False, special=False) for op, f in (
        ("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor))],
]


# ---------------------------------------------------------------- ternary, casts, copies

def clamp(x, min=None, max=None):
    if min is not None:
        x = np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


CONDITION = In((3, 4), dtype="bool", grad=False)
TERNARY = [
    Row("where", function("where"), np.where, [
        Sample((CONDITION, In(), In())), Sample((In((3, 1), dtype="bool", grad=False), In((4,)), In(()))),
        Sample((In((0,), dtype="bool", grad=False), In((0,)), In((0,)))),
        Sample((In((70001,), dtype="bool", grad=False), In((70001,)), In((1,))), {}, ("f32",)),
        Sample((CONDITION, In(layout="transposed"), In(layout="sliced")))], ALL, gradients=True),
    Row("clamp", function("clamp"), clamp, [
        *[Sample((In(s, -3, 3, layout),), k) for s, layout in (((4, 5), "plain"), ((5, 3), "transposed"))
          for k in ({"min": 0, "max": 1}, {"min": 1}, {"max": 1})],
        Sample((In((0,)),), {"min": 0}), Sample((In((4097,)),), {"min": 0, "max": 1}, ("f32",)),
        Sample((In((len(SPECIALS),), data=SPECIALS),), {"min": -1, "max": 2}, FLOATS, False),
    ], NUMBERS, gradients=True, inplace="clamp_"),
    Row("lerp", function("lerp"), lambda x, y, w: x + w * (y - x), [
        Sample((In(), In(), In())), Sample((In(), In((4,)), 0.3)), Sample((In(()), In(()), 0.75)),
        Sample((In((1025,)), In((1025,)), In((1,))))], FLOATS, gradients=True, tolerance=2,
        inplace="lerp_"),
    Row("addcmul", function("addcmul"), lambda x, a, b, value=1: x + value * a * b, [
        Sample((In(), In(), In())), Sample((In(), In((4,)), In((3, 1))), {"value": 2}),
        Sample((In((1025,)), In((1025,)), In(())))], (*INTS, *FLOATS), gradients=True,
        inplace="addcmul_", tolerance=2),
    Row("addcdiv", function("addcdiv"), lambda x, a, b, value=1: x + value * a / b, [
        Sample((In(), In(), In(low=0.5))), Sample((In(), In((4,)), In((3, 1), 0.5)), {"value": 2}),
        Sample((In((1025,)), In((1025,)), In((), 1)))], FLOATS, gradients=True, inplace="addcdiv_",
        tolerance=4),
]


def cast_to(x, to):
    """Floating-point numbers are rounded towards zero when cast to integers. Values that do not fit are not
    tested here."""
    return quantise(x, to.name)


CASTS = [
    Row("cast", method("to"), cast_to, [
        *[Sample((In((3, 5), 0, 9, layout), Dt(to)), gradients=to == "f64")
          for to in ALL for layout in ("plain", "transposed")],
        *[Sample((In((4097,), 0, 100), Dt(to)), {}, ("f32", "i64", "u8")) for to in ALL],
    ], ALL, lambda dtype, sample: sample.args[1].name, True, exact=True),
    Row("clone", method("clone"), np.copy, elementwise(1), ALL, gradients=True, exact=True),
    Row("copy", lambda m, x, y: x.clone().copy_(y), lambda x, y: np.broadcast_to(y, x.shape).astype(x.dtype), [
        Sample((In((3, 4), layout=x), In(shape, 0, 9, y))) for x in ("plain", "transposed") for shape, y in (
            ((3, 4), "plain"), ((3, 4), "transposed"), ((4,), "plain"), ((), "plain"))] + [
        Sample((In((3, 4), 0, 5), In((3, 4), 0, 5, dtype=d, grad=d == "f64"))) for d in ALL], ALL, exact=True,
        gradients=True),
    Row("fill", lambda m, x, v: x.clone().fill_(v), lambda x, v: np.full(x.shape, v).astype(x.dtype), [
        Sample((In((3, 4), layout=x), v), gradients=False) for x in ("plain", "transposed") for v in (0, 1)] + [
        Sample((In((3, 4)), In(()))), Sample((In((70001,)), 1), {}, ("f32", "bool"))], ALL, exact=True,
        gradients=True),
    Row("contiguous", method("contiguous"), np.copy,
        [Sample((In((5, 3), layout=x),)) for x in ("plain", "transposed", "sliced", "expanded")], ALL,
        gradients=True, exact=True),
]
ROWS = UNARY + ACTIVATIONS + BINARY + TERNARY + CASTS
