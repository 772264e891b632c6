"""Rows for complex dtypes: every op that accepts them."""

import numpy as np
from arrays import COMPLEX, In, Ins
from table import Row, Sample, function, method

# Away from branch cuts and poles: the parts are within (0.2, 0.9).
LOW, HIGH = 0.2, 0.9


def row(op, call, reference, samples, result="same", gradients=True, **options):
    return Row(op, call, reference, samples, COMPLEX, result, gradients, **options)


def shapes(count, low=LOW, high=HIGH):
    def same(shape, layout="plain"):
        return Sample(tuple(In(shape, low, high, layout) for _ in range(count)))
    return [same((3, 4)), same(()), same((0,)), same((5, 3), "transposed"), same((3, 5), "sliced"),
            same((4, 3), "expanded"), same((1025,)), same((70001,))]


def unary(op, reference, result="same", low=LOW, high=HIGH, inplace=True, **options):
    return row(op, function(op), reference, shapes(1, low, high), result,
               inplace=op + "_" if inplace else None, **options)


def binary(op, reference, extra=(), low=LOW, high=HIGH, **options):
    pairs = [((3, 1), (1, 4)), ((), (3,)), ((2, 3), (3,)), ((1,), (0,))]
    samples = shapes(2, low, high) + [Sample((In(a, low, high), In(b, low, high))) for a, b in pairs]
    samples += [Sample((In((3, 4), low, high), In((4,), low, high, dtype="f64"))),
                Sample((In((3, 4), low, high, dtype="f64"), In((4,), low, high)))]
    return row(op, function(op), reference, samples + list(extra), mixed, inplace=None, **options)


def mixed(dtype, sample):
    wide = any(isinstance(a, In) and a.dtype == "f64" and a.shape for a in sample.args)
    return "c128" if wide else dtype


def numbers(*values):
    return [Sample((In((3, 5), LOW, HIGH), v)) for v in values]


def sgn(x):
    size = np.abs(x)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size))


def axis(reference, **fixed):
    def call(x, dim=None, keepdim=False, **kwargs):
        return reference(x, axis=dim, keepdims=keepdim, **fixed, **kwargs)
    return call


def spread(reference):
    return lambda x, dim=None, correction=1: reference(x, axis=dim, ddof=correction)


def total_norm(x, p=2, dim=None):
    return (np.abs(x)**p).sum(axis=dim)**(1 / p)


UNARY = [
    unary("neg", np.negative), unary("positive", np.positive, inplace=False, torch=False),
    unary("abs", np.abs, "real", inplace=False), unary("square", np.square),
    unary("sgn", sgn), unary("reciprocal", lambda x: 1 / x), unary("sqrt", np.sqrt),
    unary("rsqrt", lambda x: 1 / np.sqrt(x)), unary("exp", np.exp), unary("exp2", np.exp2),
    unary("expm1", np.expm1), unary("log", np.log), unary("log2", np.log2), unary("log10", np.log10),
    unary("log1p", np.log1p), unary("sin", np.sin), unary("cos", np.cos), unary("tan", np.tan, tolerance=4),
    unary("asin", np.arcsin), unary("acos", np.arccos), unary("atan", np.arctan, tolerance=2),
    unary("sinh", np.sinh), unary("cosh", np.cosh), unary("tanh", np.tanh, tolerance=2),
    unary("asinh", np.arcsinh), unary("acosh", np.arccosh), unary("atanh", np.arctanh, tolerance=2),
    unary("sigmoid", lambda x: 1 / (1 + np.exp(-x)), tolerance=2),
    row("silu", lambda m, x: m.nn.functional.silu(x), lambda x: x / (1 + np.exp(-x)), shapes(1),
        torch_gradients=False, tolerance=2),
    unary("angle", np.angle, "real", inplace=False),
    unary("conj", np.conj, inplace=False), unary("real", np.real, "real", inplace=False, exact=True),
    unary("imag", np.imag, "real", inplace=False, exact=True),
    *[unary(op, f, "bool", inplace=False, gradients=False) for op, f in (
        ("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite), ("logical_not", np.logical_not))],
    row("view_as_real", function("view_as_real"), lambda x: np.stack([x.real, x.imag], -1), [
        Sample((In(s, layout=layout),)) for s, layout in (
            ((3, 4), "plain"), ((), "plain"), ((0,), "plain"), ((5, 3), "transposed"))], "real", exact=True),
]
PARTS = [
    Row("view_as_complex", function("view_as_complex"), lambda x: x[..., 0] + 1j * x[..., 1], [
        Sample((In((3, 4, 2)),)), Sample((In((2,)),)), Sample((In((5, 2, 3, 2)),))],
        ("f32", "f64"), lambda dtype, sample: {"f32": "c64", "f64": "c128"}[dtype], True, exact=True),
    Row("complex", function("complex"), lambda a, b: a + 1j * b, [
        Sample((In((3, 4)), In((3, 4)))), Sample((In((3, 1)), In((4,)))), Sample((In(()), In(()))),
        Sample((In((5, 3), layout="transposed"), In((5, 3)))), Sample((In((0,)), In((0,))))],
        ("f32", "f64"), lambda dtype, sample: {"f32": "c64", "f64": "c128"}[dtype], True, exact=True),
    Row("polar", function("polar"), lambda a, b: a * np.exp(1j * b), [
        Sample((In((3, 4), 0.3), In((3, 4)))), Sample((In((3, 1), 0.3), In((4,)))),
        Sample((In((), 0.3), In(())))],
        ("f32", "f64"), lambda dtype, sample: {"f32": "c64", "f64": "c128"}[dtype], True),
]
BINARY = [
    binary("add", np.add, numbers(2, 1.5, 2 - 1j)), binary("sub", np.subtract, numbers(2, 2 - 1j)),
    binary("mul", np.multiply, numbers(2, 1.5, 1j, 2 - 1j)), binary("div", np.divide, numbers(4, 2 - 1j)),
    binary("pow", np.power, [*numbers(0, 1, 2, 3, 0.5, -1, -0.5, 1.5, 1 + 2j),
                             Sample((2.0, In((3, 4), LOW, HIGH))), Sample((1 + 1j, In((3, 4), LOW, HIGH)))],
           tolerance=4),
    *[row(op, function(op), f, [
        *shapes(2), *([Sample((In((3, 4)), 1)), Sample((In((3, 4)), 1 + 0j))] if op in ("eq", "ne") else []),
        Sample((In((5,), data=(1, 1j, 0, 1 + 1j, 2)), In((5,), data=(1, 1, 0, 1 + 1j, 2j))))],
        "bool", False) for op, f in (
        ("eq", np.equal), ("ne", np.not_equal), ("logical_and", np.logical_and),
        ("logical_or", np.logical_or), ("logical_xor", np.logical_xor))],
]
CONDITION = In((3, 4), dtype="bool", grad=False)
TERNARY = [
    row("where", function("where"), np.where, [
        Sample((CONDITION, In(), In())), Sample((CONDITION, In((4,)), In(()))),
        Sample((CONDITION, In(layout="transposed"), In(layout="sliced")))]),
    row("lerp", function("lerp"), lambda x, y, w: x + w * (y - x), [
        Sample((In(), In(), In())), Sample((In(), In((4,)), 0.3)), Sample((In(()), In(()), 0.75))], tolerance=2),
    row("addcmul", function("addcmul"), lambda x, a, b, value=1: x + value * a * b, [
        Sample((In(), In(), In())), Sample((In(), In((4,)), In((3, 1))), {"value": 2})], tolerance=2),
    row("addcdiv", function("addcdiv"), lambda x, a, b, value=1: x + value * a / b, [
        Sample((In(), In(), In(low=LOW))), Sample((In(), In((4,)), In((3, 1), LOW)), {"value": 2})], tolerance=4),
    row("masked_fill", method("masked_fill"), lambda x, m, v: np.where(m, v, x), [
        Sample((In(), CONDITION, 2 - 1j)), Sample((In(), CONDITION, In(())))]),
]
DIMS = [Sample((In((3, 4, 5)),), {"dim": 1}), Sample((In((3, 4, 5), layout="transposed"),), {"dim": 0}),
        Sample((In((300, 7)),), {"dim": 0}), Sample((In((7, 3000)),), {"dim": 1})]
WHOLE = [Sample((In((3, 4)),)), Sample((In(()),)), Sample((In((5, 3), layout="transposed"),)),
         Sample((In((4, 3), layout="expanded"),)), Sample((In((70001,)),))]
EMPTY = [Sample((In((0,)),)), Sample((In((3, 0)),), {"dim": 1})]
REDUCTIONS = [
    row("sum", function("sum"), axis(np.sum), WHOLE + DIMS + EMPTY, tolerance=4),
    row("mean", function("mean"), axis(np.mean), WHOLE + DIMS, tolerance=4),
    row("prod", function("prod"), axis(np.prod), [
        Sample((In((3, 4), LOW),)), Sample((In((3, 4, 2), LOW),), {"dim": 1}), Sample((In((0,)),)),
        Sample((In((4,), data=(1, 2j, 0, 3)),), gradients=False)], tolerance=4),
    row("var", function("var"), spread(np.var), WHOLE[:1] + WHOLE[2:] + DIMS, "real", tolerance=8),
    row("std", function("std"), spread(np.std), WHOLE[:1] + WHOLE[2:] + DIMS, "real", tolerance=8),
    row("norm", lambda m, x, p=2, dim=None: m.norm(x, p=p, dim=dim), total_norm, [
        *WHOLE, *DIMS, *[Sample((In((3, 4), LOW),), {"p": p}) for p in (1, 3, 2.5)],
        Sample((In((3, 4), LOW),), {"p": 1, "dim": 1})], "real", tolerance=8),
    *[row(op, function(op), axis(f), WHOLE + EMPTY[:1] + [
        Sample((In((4,), data=(0, 1j, 0, 1)),)), Sample((In((2, 2), data=(0, 0, 1j, 1)),), {"dim": 0})],
        "bool", False) for op, f in (("any", np.any), ("all", np.all))],
    row("count_nonzero", function("count_nonzero"), lambda x, dim=None: np.count_nonzero(x, axis=dim), [
        Sample((In((4,), data=(0, 1j, 0, 1)),)), Sample((In((3, 4)),), {"dim": 1})], "i64", False),
    row("cumsum", function("cumsum"), lambda x, d: np.cumsum(x, axis=d), [
        Sample((In((3, 4)), 1)), Sample((In((30, 7)), 0)), Sample((In((1025,)), 0))], tolerance=8),
    row("cumprod", function("cumprod"), lambda x, d: np.cumprod(x, axis=d), [
        Sample((In((3, 4), LOW), 1)), Sample((In((5, 7), LOW), 0)),
        Sample((In((4,), data=(1, 2j, 0, 3)), 0), gradients=False)], tolerance=8),
    row("nonzero", lambda m, x: m.nonzero(x), lambda x: np.argwhere(x), [
        Sample((In((4,), data=(0, 1j, 0, 1)),))], "i64", False),
]
MATRICES = [
    row("matmul", function("matmul"), np.matmul, [
        Sample((In(a, layout=x), In(b, layout=y))) for a, b, x, y in (
            ((3, 4), (4, 5), "plain", "plain"), ((4,), (4,), "plain", "plain"), ((3, 4), (4,), "transposed", "plain"),
            ((4,), (4, 5), "plain", "sliced"), ((2, 3, 4), (2, 4, 5), "plain", "plain"),
            ((2, 1, 3, 4), (3, 4, 2), "plain", "transposed"), ((2, 3, 4), (4, 5), "plain", "plain"),
            ((3, 0), (0, 5), "plain", "plain"), ((70, 80), (80, 90), "plain", "transposed"))], tolerance=20),
    row("mm", function("mm"), np.matmul, [Sample((In((3, 4)), In((4, 5))))], tolerance=8),
    row("bmm", function("bmm"), np.matmul, [Sample((In((2, 3, 4)), In((2, 4, 5))))], tolerance=8),
    row("mv", function("mv"), np.matmul, [Sample((In((3, 4)), In((4,))))], tolerance=8),
    row("dot", function("dot"), np.dot, [Sample((In((7,)), In((7,))))], tolerance=8),
    row("outer", function("outer"), np.multiply.outer, [Sample((In((3,)), In((4,))))]),
    row("addmm", function("addmm"), lambda x, a, b, beta=1, alpha=1: beta * x + alpha * (a @ b), [
        Sample((In((3, 5)), In((3, 4)), In((4, 5)))),
        Sample((In((5,)), In((3, 4)), In((4, 5))), {"beta": 2, "alpha": 0.5}),
        Sample((In((3, 1)), In((3, 4)), In((4, 5))), {"beta": 0})], tolerance=8),
    row("linear", lambda m, *args: m.nn.functional.linear(*args), lambda x, w, b=0: x @ w.T + b, [
        Sample((In((3, 4)), In((5, 4)), In((5,)))), Sample((In((2, 3, 4)), In((5, 4)))),
        Sample((In((4,)), In((5, 4)), In((5,))))], tolerance=8),
]
INDEX = In((3,), data=(0, 2, 2), dtype="i64", grad=False)
STRUCTURE = [
    row("cat", lambda m, ts, d: m.cat(ts, d), lambda ts, d: np.concatenate(ts, d), [
        Sample((Ins((In((3, 4)), In((2, 4), layout="sliced"))), 0)),
        Sample((Ins((In((3, 4)), In((3, 1), dtype="f32", grad=False))), 1))], exact=True),
    row("stack", lambda m, ts, d: m.stack(ts, d), lambda ts, d: np.stack(ts, d), [
        Sample((Ins((In((3, 4)), In((3, 4), layout="transposed"))), 1))], exact=True),
    row("index_select", function("index_select"), lambda x, d, i: np.take(x, i, d), [
        Sample((In((4, 3)), 0, INDEX)), Sample((In((2, 4)), 1, INDEX))], exact=True),
    row("index_add", method("index_add"), lambda x, d, i, s: np.add.at(y := x.copy(), i, s) or y, [
        Sample((In((4, 3)), 0, INDEX, In((3, 3))))]),
    row("gather", function("gather"), lambda x, d, i: np.take_along_axis(x, i, d), [
        Sample((In((3, 3)), 1, In((3, 2), data=(0, 2, 1, 1, 2, 0), dtype="i64", grad=False)))], exact=True),
    row("flip", lambda m, x: m.flip(x, (0,)), lambda x: np.flip(x, 0), [Sample((In((3, 4)),))], exact=True),
    row("select", lambda m, x: x[1], lambda x: x[1], [Sample((In((3, 4)),))], exact=True),
    row("expand", lambda m, x: x.expand(4, 3), lambda x: np.broadcast_to(x, (4, 3)), [
        Sample((In((3,)),)), Sample((In((1, 3)),))], exact=True),
    row("tril", function("tril"), np.tril, [Sample((In((4, 3)),))], exact=True),
    row("diag", function("diag"), np.diag, [Sample((In((4, 3)),)), Sample((In((4,)),))], exact=True),
    row("cast", lambda m, x: x.to(m.complex64), lambda x: x.astype(np.complex64), [
        Sample((In((3, 4)),)), Sample((In((3, 4), dtype="f64"),)), Sample((In((4,), 0, 9, dtype="u8"),))],
        "c64", False, exact=True),
    row("clone", method("clone"), np.copy, shapes(1), exact=True),
    row("copy", lambda m, x, y: x.clone().copy_(y), lambda x, y: np.broadcast_to(y, x.shape).astype(x.dtype), [
        Sample((In((3, 4)), In((4,)))), Sample((In((3, 4)), In((4,), dtype="f64")))], exact=True),
    row("fill", lambda m, x, v: x.clone().fill_(v), lambda x, v: np.full(x.shape, v).astype(x.dtype), [
        Sample((In((3, 4)), 1 - 2j), gradients=False), Sample((In((3, 4)), In(())))], exact=True),
]
ROWS = UNARY + PARTS + BINARY + TERNARY + REDUCTIONS + MATRICES + STRUCTURE
