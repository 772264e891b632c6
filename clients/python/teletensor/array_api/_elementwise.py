"""The elementwise functions of the standard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._array import Array, operands, require, unwrap, wrap
from ._dtypes import isdtype, kind_of

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1",
    "floor", "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf",
    "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip

_FLOATING = ("real floating", "complex floating")
_REAL = ("integral", "real floating")
_BITS = ("bool", "integral")

Function1 = Callable[[Tensor], Any]
Function2 = Callable[[Tensor, Tensor], Any]


def _unary(
    name: str,
    kinds: str | tuple[str, ...],
    doc: str,
    function: Function1 | None = None,
    real_integers: bool = False,
) -> Any:
    """Makes a function of one array; with `real_integers` integers are returned unchanged."""

    def call(x: Array, /) -> Array:
        tensor = unwrap(x, name)
        require(x.dtype, name, kinds)
        if real_integers and isdtype(x.dtype, "integral"):
            return wrap(tensor.clone())
        return wrap(function(tensor) if function else getattr(tt, name)(tensor))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _binary(
    name: str, kinds: str | tuple[str, ...], doc: str, function: Function2 | None = None
) -> Any:
    """Makes a function of two arrays, or of an array and a Python scalar."""

    def call(x1: Array | Any, x2: Array | Any, /) -> Array:
        a, b = operands(x1, x2, name, kinds)
        return wrap(function(a, b) if function else getattr(tt, name)(a, b))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _sign(x: Tensor) -> Any:
    if x.dtype.is_complex:
        return tt.sgn(x)
    if x.dtype.is_floating_point:
        return tt.where(tt.isnan(x), x, tt.sign(x))
    return tt.sign(x)


def _expm1(x: Tensor) -> Any:
    if not x.dtype.is_complex:
        return tt.expm1(x)
    re, im, power = tt.real(x), tt.imag(x), tt.exp(x)
    finite = tt.isfinite(re) & tt.isfinite(im)
    near = tt.expm1(re) * tt.cos(im) - 2 * tt.sin(im / 2) ** 2
    return tt.complex(tt.where(finite, near, tt.real(power) - 1), tt.imag(power))


acos = _unary("acos", _FLOATING, "The inverse cosine.")
acosh = _unary("acosh", _FLOATING, "The inverse hyperbolic cosine.")
asin = _unary("asin", _FLOATING, "The inverse sine.")
asinh = _unary("asinh", _FLOATING, "The inverse hyperbolic sine.")
atan = _unary("atan", _FLOATING, "The inverse tangent.")
atanh = _unary("atanh", _FLOATING, "The inverse hyperbolic tangent.")
cos = _unary("cos", _FLOATING, "The cosine.")
cosh = _unary("cosh", _FLOATING, "The hyperbolic cosine.")
exp = _unary("exp", _FLOATING, "e to the power x.")
expm1 = _unary("expm1", _FLOATING, "exp(x) - 1, exact near 0.", _expm1)
log = _unary("log", _FLOATING, "The natural logarithm.")
log10 = _unary("log10", _FLOATING, "The logarithm to base 10.")
log1p = _unary("log1p", _FLOATING, "log(1 + x), exact near 0.")
log2 = _unary("log2", _FLOATING, "The logarithm to base 2.")
sin = _unary("sin", _FLOATING, "The sine.")
sinh = _unary("sinh", _FLOATING, "The hyperbolic sine.")
sqrt = _unary("sqrt", _FLOATING, "The square root.")
tan = _unary("tan", _FLOATING, "The tangent.")
tanh = _unary("tanh", _FLOATING, "The hyperbolic tangent.")
reciprocal = _unary("reciprocal", _FLOATING, "1 / x.")

abs = _unary("abs", "numeric", "The absolute value; of complex numbers the modulus.")
negative = _unary("negative", "numeric", "-x.", lambda x: -x)
positive = _unary("positive", "numeric", "x as a new array.", lambda x: x.clone())
square = _unary("square", "numeric", "x * x.", lambda x: x * x)
sign = _unary("sign", "numeric", "-1, 0 or 1; NaN for NaN; z / abs(z) of complex numbers.", _sign)
ceil = _unary("ceil", _REAL, "Rounded up.", real_integers=True)
floor = _unary("floor", _REAL, "Rounded down.", real_integers=True)
trunc = _unary("trunc", _REAL, "Rounded towards 0.", real_integers=True)
signbit = _unary("signbit", "real floating", "Is the sign bit set (also of -0 and NaN)?")
isfinite = _unary("isfinite", "numeric", "Is it neither infinite nor NaN?")
isinf = _unary("isinf", "numeric", "Is it (in one of its parts) infinite?")
isnan = _unary("isnan", "numeric", "Is it (in one of its parts) NaN?")
logical_not = _unary("logical_not", "bool", "Not x.")
bitwise_invert = _unary(
    "bitwise_invert", _BITS, "All bits inverted; of bool its negation.", lambda x: tt.bitwise_not(x)
)
imag = _unary("imag", "complex floating", "The imaginary part.", lambda x: tt.imag(x).clone())


def _round(x: Tensor) -> Any:
    if x.dtype.is_complex:
        return tt.complex(tt.round(tt.real(x)), tt.round(tt.imag(x)))
    return tt.round(x)


round = _unary(
    "round", "numeric", "To the nearest integer, halves to even.", _round, real_integers=True
)


def conj(x: Array, /) -> Array:
    """The complex conjugate; a real array is returned itself."""
    tensor = unwrap(x, "conj")
    require(x.dtype, "conj", "numeric")
    return wrap(tt.conj_physical(tensor) if x.dtype.is_complex else tensor.clone())


def real(x: Array, /) -> Array:
    """The real part; a real array is returned itself."""
    tensor = unwrap(x, "real")
    require(x.dtype, "real", "numeric")
    return wrap(tt.real(tensor).clone() if x.dtype.is_complex else tensor.clone())


add = _binary("add", "numeric", "x1 + x2.")
subtract = _binary("subtract", "numeric", "x1 - x2.")
multiply = _binary("multiply", "numeric", "x1 * x2.")
divide = _binary("divide", _FLOATING, "x1 / x2.")
pow = _binary("pow", "numeric", "x1 to the power x2.")
atan2 = _binary("atan2", "real floating", "The angle of the point (x2, x1).")
copysign = _binary("copysign", "real floating", "x1 with the sign of x2.")
hypot = _binary("hypot", "real floating", "sqrt(x1 ** 2 + x2 ** 2) without overflow on the way.")
logaddexp = _binary("logaddexp", "real floating", "log(exp(x1) + exp(x2)).")
nextafter = _binary("nextafter", "real floating", "The next number after x1 towards x2.")
maximum = _binary("maximum", _REAL, "The larger one; NaN if one is NaN.")
minimum = _binary("minimum", _REAL, "The smaller one; NaN if one is NaN.")
equal = _binary("equal", (), "x1 == x2.", lambda a, b: tt.eq(a, b))
not_equal = _binary("not_equal", (), "x1 != x2.", lambda a, b: tt.ne(a, b))
less = _binary("less", _REAL, "x1 < x2.", lambda a, b: tt.lt(a, b))
less_equal = _binary("less_equal", _REAL, "x1 <= x2.", lambda a, b: tt.le(a, b))
greater = _binary("greater", _REAL, "x1 > x2.", lambda a, b: tt.gt(a, b))
greater_equal = _binary("greater_equal", _REAL, "x1 >= x2.", lambda a, b: tt.ge(a, b))
logical_and = _binary("logical_and", "bool", "x1 and x2.")
logical_or = _binary("logical_or", "bool", "x1 or x2.")
logical_xor = _binary("logical_xor", "bool", "Exactly one of both.")
bitwise_and = _binary("bitwise_and", _BITS, "Bits set in both.")
bitwise_or = _binary("bitwise_or", _BITS, "Bits set in one of both.")
bitwise_xor = _binary("bitwise_xor", _BITS, "Bits set in exactly one of both.")
bitwise_left_shift = _binary("bitwise_left_shift", "integral", "x1 shifted left by x2 bits.")
bitwise_right_shift = _binary(
    "bitwise_right_shift", "integral", "x1 shifted right by x2 bits, with the sign."
)


def _floor_divide(a: Tensor, b: Tensor) -> Any:
    if not a.dtype.is_floating_point:
        return tt.floor_divide(a, b)
    regular = tt.isfinite(a) & tt.isfinite(b) & (a != 0) & (b != 0)
    exact = tt.floor(tt.true_divide(a - tt.remainder(a, b), b).round())
    return tt.where(regular, exact, tt.floor(tt.true_divide(a, b)))


def _remainder(a: Tensor, b: Tensor) -> Any:
    result = tt.remainder(a, b)
    if not a.dtype.is_floating_point:
        return result
    return tt.where(result == 0, tt.copysign(result, b), result)


floor_divide = _binary("floor_divide", _REAL, "x1 / x2 rounded down.", _floor_divide)
remainder = _binary(
    "remainder", _REAL, "x1 - floor(x1 / x2) * x2: it has x2's sign, also where it is 0.", _remainder
)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """x clamped to [min, max]; the bounds are scalars or arrays that broadcast. NaN stays NaN."""
    tensor = unwrap(x, "clip")
    require(x.dtype, "clip", _REAL)
    for bound, function in ((min, tt.maximum), (max, tt.minimum)):
        if bound is None:
            continue
        if isinstance(bound, Array):
            if kind_of(bound.dtype) != kind_of(x.dtype) and not (
                isdtype(bound.dtype, "integral") and isdtype(x.dtype, "integral")
            ):
                raise TypeError(
                    f"clip: bounds of {bound.dtype} do not mix with an array of {x.dtype}"
                )
            limit = bound._tensor.to(x.dtype) if bound.dtype != x.dtype else bound._tensor
        else:
            limit = operands(x, bound, "clip", _REAL)[1]
        tensor = function(tensor, limit)
    return wrap(tensor if tensor is not x._tensor else tensor.clone())
