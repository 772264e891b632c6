"""Rows for reductions, normalisations, losses, sorting and scans."""

import numpy as np
import scipy.special as special
from arrays import ALL, FLOATS, INTS, In
from table import Row, Sample, function, method

NUMBERS = (*INTS, *FLOATS)
NN = FLOATS


def nn(name):
    return lambda m, *args, **kwargs: getattr(m.nn.functional, name)(*args, **kwargs)


def sizes(low=-2.0, high=2.0, empty=True):
    """Samples of whole-tensor reductions: shapes, layouts, block boundaries."""
    samples = [Sample((In(s, low, high, layout),)) for s, layout in (
        ((3, 4), "plain"), ((), "plain"), ((5, 3), "transposed"), ((2, 3, 4), "transposed"),
        ((4, 3), "expanded"), ((3, 5), "sliced"), ((1025,), "plain"))]
    samples += [Sample((In((n,), low, high),), {}, ("f32", "f64", "i64", "bool")) for n in (4097, 70001)]
    return samples + ([Sample((In((0,), low, high),)), Sample((In((2, 0),), ))] if empty else [])


def dims(low=-2.0, high=2.0, several=True, empty=True):
    """Samples of reductions over chosen dimensions."""
    samples = []
    for keepdim in (False, True):
        samples += [Sample((In((3, 4, 5), low, high, layout), dim), {"keepdim": keepdim})
                    for dim, layout in ((0, "plain"), (1, "transposed"), (-1, "sliced"))]
    samples += [Sample((In((), low, high), 0)), Sample((In((257, 129), low, high), 0), {}, ("f32", "i64")),
                Sample((In((129, 257), low, high), 1), {}, ("f32", "i64")),
                Sample((In((3, 1), low, high), 1)), Sample((In((0, 3), low, high), 1))]
    if empty:
        samples += [Sample((In((3, 0), low, high), 1)), Sample((In((2, 0, 3), low, high), 1))]
    if several:
        samples += [Sample((In((2, 3, 4, 5), low, high), d), {"keepdim": k})
                    for d, k in (((0, 2), False), ((1, 3), True), ((-1, 0), False))]
    return samples


def numpy_dims(reference):
    def call(x, dim=None, keepdim=False, **kwargs):
        if x.ndim == 0:
            return reference(x, axis=None, keepdims=False, **kwargs)
        return reference(x, axis=dim, keepdims=keepdim, **kwargs)
    return call


def integers_widen(dtype, sample):
    del sample
    return dtype if dtype in FLOATS else "i64"


def total(x, axis=None, keepdims=False):
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=None if x.dtype.kind == "f" else np.int64)


def product(x, axis=None, keepdims=False):
    return np.prod(x, axis=axis, keepdims=keepdims, dtype=None if x.dtype.kind == "f" else np.int64)


def variance(x, dim=None, keepdim=False, correction=1, root=False):
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    n = int(np.prod([x.shape[a] for a in axes])) if x.ndim else 1
    with np.errstate(all="ignore"):
        mean = x.mean(axis=axes or None, keepdims=True)
        squares = ((x - mean) ** 2).sum(axis=axes or None, keepdims=keepdim)
        result = squares / max(n - correction, 0) if n > correction else squares * np.nan + np.nan
    return np.sqrt(result) if root else result


def extreme(reference, arg):
    """(values, indices) along dim; samples have no ties, so it is not tested that the first index is
    returned."""
    def call(x, dim, keepdim=False):
        if x.ndim == 0:
            return x, np.int64(0)
        return (reference(x, axis=dim, keepdims=keepdim),
                arg(x, axis=dim, keepdims=keepdim).astype(np.int64))
    return call


def indexed(dtype, sample):
    del sample
    return (dtype, "i64")


def p_norm(x, p=2, dim=None, keepdim=False):
    axis = None if x.ndim == 0 or dim is None else dim
    a, keep = np.abs(x), keepdim and axis is not None
    if p == np.inf:
        return a.max(axis=axis, keepdims=keep)
    if p == 0:
        return (a != 0).sum(axis=axis, keepdims=keep).astype(np.float64)
    return (a**p).sum(axis=axis, keepdims=keep) ** (1 / p)


def distinct(shape, seed=3):
    """Values without ties, which every dtype in which they fit represents exactly."""
    n = int(np.prod(shape))
    return In(shape, data=tuple(int(v) for v in np.random.default_rng(seed).permutation(n) % 251))


NO_TIES = [Sample((distinct((3, 4, 5)), d), {"keepdim": k}) for d in (0, 1, -1) for k in (False, True)]
NO_TIES += [Sample((In((7,), data=(1.0, 2.0, np.nan, 4.0, 3.0, 0.0, -1.0)), 0), {}, FLOATS, False),
            Sample((distinct((200,)), 0)), Sample((In(()), 0)), Sample((distinct((2, 3)).with_layout("sliced"), 1))]
WITH_NAN = Sample((In((5,), data=(1.0, np.nan, 3.0, -np.inf, np.inf)),), {}, FLOATS, False)


def arg(reference):
    def call(x, dim=None, keepdim=False):
        if x.ndim == 0:
            return np.int64(0)
        return np.asarray(reference(x, axis=dim, keepdims=keepdim)).astype(np.int64)
    return call


def kth(x, k, dim, keepdim):
    """The k-th smallest (from 1) along dim and its index."""
    order = np.argsort(x, axis=dim, kind="stable")
    at = np.take(order, [k - 1], dim)
    values = np.take_along_axis(x, at, dim)
    return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))


FLAT = [Sample((distinct((3, 4)),)), Sample((distinct((5, 3)).with_layout("transposed"),)), Sample((In(()),))]
WHOLE = [s for s in sizes(empty=False)]
REDUCTIONS = [
    Row("sum", function("sum"), numpy_dims(total), sizes() + dims() + [WITH_NAN], ALL, integers_widen, True,
        tolerance=4),
    Row("mean", function("mean"), numpy_dims(np.mean), sizes(empty=False) + dims(empty=False), FLOATS,
        gradients=True, tolerance=2),
    Row("prod", function("prod"), numpy_dims(product), [Sample((In((3, 4), 0.5, 1.5),)), Sample((In((0,)),)),
        Sample((In((), 1, 2),)), *dims(0.5, 1.5, several=False)], ALL, integers_widen, True, tolerance=8),
    Row("amax", function("amax"), numpy_dims(np.max), [Sample((distinct((3, 4)), 1)),
        Sample((distinct((2, 3, 4)), (0, 2)), {"keepdim": True})], ALL, gradients=True, second=False),
    Row("amin", function("amin"), numpy_dims(np.min), [Sample((distinct((3, 4)), 1)),
        Sample((distinct((2, 3, 4)), (0, 2)), {"keepdim": True})], ALL, gradients=True, second=False),
    Row("max", function("max"), np.max, [*WHOLE, WITH_NAN], ALL, gradients=True, second=False),
    Row("min", function("min"), np.min, [*WHOLE, WITH_NAN], ALL, gradients=True, second=False),
    Row("max_dim", function("max"), extreme(np.max, np.argmax), NO_TIES, NUMBERS, indexed, True, False),
    Row("min_dim", function("min"), extreme(np.min, np.argmin), NO_TIES, NUMBERS, indexed, True, False),
    Row("argmax", function("argmax"), arg(np.argmax), FLAT + NO_TIES, NUMBERS, "i64"),
    Row("count_nonzero", function("count_nonzero"), lambda x, dim=None: np.asarray(np.count_nonzero(x, axis=dim)), [
        Sample((In((3, 4), -0.5, 0.9),)), Sample((In((3, 4), -0.5, 0.9), 1)), Sample((In((0,)),)), Sample((In(()),)),
        Sample((In((2, 3, 4), -0.5, 0.9, "transposed"), (0, 2)))], ALL, "i64"),
    Row("median", function("median"), lambda x: np.sort(x.ravel())[(x.size - 1) // 2], [
        Sample((distinct((3, 4)),)), Sample((distinct((5, 3)).with_layout("transposed"),)), Sample((In(()),))], NUMBERS,
        gradients=True, second=False),
    Row("median_dim", function("median"), lambda x, d, keepdim=False: kth(x, (x.shape[d] + 1) // 2, d, keepdim), [
        Sample((distinct((3, 4, 5)), d), {"keepdim": k}) for d in (0, 1, -1) for k in (False, True)], NUMBERS, indexed, True, False),
    Row("kthvalue", function("kthvalue"), lambda x, k, d=-1, keepdim=False: kth(x, k, d, keepdim), [
        Sample((distinct((3, 4, 5)), k, d)) for d in (0, 1, -1) for k in (1, 3)], NUMBERS, indexed, True, False),
    Row("argmin", function("argmin"), arg(np.argmin), FLAT + NO_TIES, NUMBERS, "i64"),
    Row("any", function("any"), numpy_dims(np.any), sizes(-0.3, 0.9) + dims(-0.3, 0.9, several=False), ALL,
        lambda d, s: "u8" if d == "u8" else "bool"),
    Row("all", function("all"), numpy_dims(np.all), sizes(-0.3, 2) + dims(0.1, 2, several=False), ALL,
        lambda d, s: "u8" if d == "u8" else "bool"),
    Row("var", function("var"), variance, [Sample((In((3, 4)),)), Sample((In((5, 3), layout="transposed"),)),
        Sample((In((70001,)),), {}, ("f32",)), Sample((In((33, 65)), 1), {}, ("f32",)),
        *[Sample((In((3, 4, 5)), d), k) for d in (0, -1, (0, 2)) for k in (
            {}, {"correction": 0}, {"keepdim": True})]], FLOATS, gradients=True, tolerance=4),
    Row("std", function("std"), lambda x, *a, **k: variance(x, *a, **k, root=True), [
        Sample((In((3, 4)),)), *[Sample((In((3, 4, 5)), d), k) for d in (0, -1, (0, 2)) for k in (
            {}, {"correction": 0}, {"keepdim": True})]], FLOATS, gradients=True, tolerance=4),
    Row("norm", function("norm"), p_norm, [Sample((In((3, 4)),)), Sample((In((3, 4)), 1)), Sample((In((3, 4)), 3)),
        Sample((In((3, 4)), np.inf)), Sample((In((3, 4)), 2, 1), {"keepdim": True}), Sample((In((70001,)),), {}, ("f32",)),
        Sample((In((2, 3, 4)), 2, (0, 2)))], FLOATS, gradients=True, tolerance=4),
    Row("logsumexp", function("logsumexp"), lambda x, dim, keepdim=False: special.logsumexp(
        x, axis=dim if x.ndim else None, keepdims=keepdim and x.ndim > 0), [
        *dims(empty=False), Sample((In((3, 4), 80, 120), 1)),
        Sample((In((3,), data=(-np.inf,) * 3), 0), {}, FLOATS, False)], FLOATS, gradients=True, tolerance=4),
]

# ---------------------------------------------------------------- softmax, layer_norm


def softmax(x, dim):
    return special.softmax(x, axis=dim) if x.size and x.ndim else np.exp(x - x)


def log_softmax(x, dim):
    return special.log_softmax(x, axis=dim) if x.size and x.ndim else x - x


SOFT = [Sample((In(s, -3, 3, layout), d)) for s, d, layout in (
    ((3, 4), 1, "plain"), ((3, 4), 0, "plain"), ((2, 3, 4), -2, "transposed"), ((3, 5), -1, "sliced"), ((), 0, "plain"),
    ((0, 3), 1, "plain"), ((2, 1000), 1, "plain"))] + [Sample((In((2, 3), 500, 600), 1), {}, ("f32", "f64"))]


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


NORMALIZE = [
    Row("softmax", function("softmax"), softmax, SOFT, FLOATS, gradients=True, tolerance=2),
    Row("log_softmax", function("log_softmax"), log_softmax, SOFT, FLOATS, gradients=True, tolerance=4),
    Row("layer_norm", nn("layer_norm"), layer_norm, [
        Sample((In((3, 8)), (8,), In((8,), 0.5, 1.5), In((8,)))), Sample((In((3, 8)), (8,))),
        Sample((In((2, 3, 4)), (3, 4), In((3, 4), 0.5, 1.5), In((3, 4)))),
        Sample((In((8, 3), layout="transposed"), (3,), In((3,), 0.5, 1.5), None)),
        Sample((In((5, 1030)), (1030,), In((1030,)), In((1030,))), {}, ("f32",))], FLOATS, gradients=True,
        tolerance=8),
]

# ---------------------------------------------------------------- losses


def reduced(x, reduction):
    return {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction](x)


def loss(elementwise):
    def call(x, y, reduction="mean", **kwargs):
        return reduced(elementwise(x, y, **kwargs), reduction)
    return call


def huber(x, y, beta=1.0):
    d = np.abs(x - y)
    return np.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)


def bce(x, y, weight=None, reduction="mean"):
    value = -(y * np.maximum(np.log(x), -100) + (1 - y) * np.maximum(np.log(1 - x), -100))
    return reduced(value if weight is None else value * weight, reduction)


def bce_logits(x, y, weight=None, reduction="mean", pos_weight=None):
    log_weight = 1 if pos_weight is None else 1 + (pos_weight - 1) * y
    value = (1 - y) * x + log_weight * np.logaddexp(0, -x)
    return reduced(value if weight is None else value * weight, reduction)


def nll(x, target, weight=None, ignore_index=-100, reduction="mean"):
    x = x[None] if x.ndim == 1 else x
    target = np.atleast_1d(target)
    flat = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    keep = target.ravel() != ignore_index
    picks = np.where(keep, target.ravel(), 0)
    w = keep * (1.0 if weight is None else weight[picks])
    value = -flat[np.arange(len(picks)), picks] * w
    if reduction == "mean":
        return value.sum() / w.sum()
    return value.sum() if reduction == "sum" else value.reshape(target.shape)


def cross_entropy(x, target, weight=None, label_smoothing=0.0, **kwargs):
    axis = 0 if x.ndim == 1 else 1
    logs = special.log_softmax(x, axis=axis)
    if target.dtype.kind == "f":
        return reduced(-(target * logs).sum(axis), "mean")
    value = nll(logs, target, weight, **kwargs)
    if label_smoothing:
        value = (1 - label_smoothing) * value + label_smoothing * -logs.mean(axis).mean()
    return value


PAIR = [Sample((In((3, 4)), In((3, 4))), {"reduction": r}) for r in ("mean", "sum", "none")]
PAIR += [Sample((In((5, 3), layout="transposed"), In((5, 3), layout="sliced"))), Sample((In((2000,)), In((2000,))))]
ODDS = [Sample((In((3, 4), 0.1, 0.9), In((3, 4), 0, 1)), {"reduction": r}) for r in ("mean", "sum", "none")]
LOGITS = [Sample((In((3, 4)), In((3, 4), 0, 1)), {"reduction": r}) for r in ("mean", "sum", "none")]
TARGETS = In((4,), dtype="i64", data=(2, 0, 4, 1))
IMAGE = In((2, 3, 3), dtype="i64", data=tuple(range(3)) * 6)
CLASS = [Sample((In((4, 5)), TARGETS), {"reduction": r}) for r in ("mean", "sum", "none")]
CLASS += [Sample((In((4, 5)), TARGETS, In((5,), 0.5, 1.5, grad=False))), Sample((In((4, 5)), TARGETS), {"ignore_index": 4}),
          Sample((In((2, 3, 3, 3)), IMAGE)), Sample((In((5,)), In((), dtype="i64", data=(3,))))]
LOSSES = [
    Row("mse_loss", nn("mse_loss"), loss(lambda x, y: (x - y) ** 2), PAIR, NN, gradients=True, tolerance=4),
    Row("l1_loss", nn("l1_loss"), loss(lambda x, y: np.abs(x - y)), PAIR, NN, gradients=True, second=False, tolerance=4),
    Row("smooth_l1_loss", nn("smooth_l1_loss"), loss(huber), [*PAIR, Sample((In(), In()), {"beta": 0.5})], NN,
        gradients=True, second=False, tolerance=4),
    Row("huber_loss", nn("huber_loss"), loss(lambda x, y, delta=1.0: np.where(
        np.abs(x - y) <= delta, 0.5 * (x - y) ** 2, delta * (np.abs(x - y) - 0.5 * delta))), [*PAIR, Sample((In(), In()), {"delta": 0.5})],
        NN, gradients=True, second=False, tolerance=4),
    Row("kl_div", nn("kl_div"), loss(lambda x, y, log_target=False: np.exp(y) * (y - x) if log_target else special.xlogy(y, y) - y * x), [
        Sample((In((3, 4)), In((3, 4), 0.1, 1)), {"reduction": r}) for r in ("mean", "sum", "none")] + [
        Sample((In((3, 4)), In((3, 4))), {"log_target": True}), Sample((In((2,)), In((2,), data=(0.0, 1.0), grad=False)))], NN,
        gradients=True, tolerance=8),
    Row("binary_cross_entropy", nn("binary_cross_entropy"), bce, [*ODDS, Sample((In((3, 4), 0.1, 0.9), In((3, 4), 0, 1),
        In((4,), 0.5, 1, grad=False))), Sample((In((2,), data=(0.0, 1.0)), In((2,), data=(1.0, 0.0), grad=False)), {}, None, False)],
        NN, gradients=True, tolerance=8),
    Row("binary_cross_entropy_with_logits", nn("binary_cross_entropy_with_logits"), bce_logits, [
        *LOGITS, Sample((In((3, 4)), In((3, 4), 0, 1, grad=False)), {}),
        Sample((In((3,), data=(-90.0, 90.0, 0.0)), In((3,), data=(0.0, 1.0, 0.5), grad=False)))], NN, gradients=True, tolerance=8),
    # the op itself, which nn.functional uses only for 16-bit floating-point dtypes
    Row("binary_cross_entropy_with_logits",
        lambda m, x, y: m._names.ops.binary_cross_entropy_with_logits(x, y, None, None, "mean"), bce_logits, [
            Sample((In((3, 4)), In((3, 4), 0, 1))), Sample((In((4, 3), layout="transposed"), In((4, 3), 0, 1)))],
        NN, gradients=True, tolerance=8, torch=False),
    Row("nll_loss", nn("nll_loss"), nll, CLASS, NN, gradients=True, tolerance=4),
    Row("cross_entropy", nn("cross_entropy"), cross_entropy, [*CLASS, Sample((In((4, 5)), TARGETS), {"label_smoothing": 0.1}),
        Sample((In((4, 5)), In((4, 5), 0, 1, grad=False)))], NN, gradients=True, tolerance=8),
]

# ---------------------------------------------------------------- order, scans


def sort(x, dim=-1, descending=False):
    if x.ndim == 0:
        return x, np.int64(0)
    key = -x.astype(np.float64) if descending else x
    order = np.argsort(key, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


def topk(x, k, dim=-1, largest=True):
    values, order = sort(x, dim, largest)
    take = (slice(None),) * (dim % x.ndim) + (slice(k),)
    return values[take], order[take]


def scan(reference):
    def call(x, dim):
        if x.ndim == 0:
            return x if x.dtype.kind == "f" else x.astype(np.int64)
        return reference(x, axis=dim, dtype=None if x.dtype.kind == "f" else np.int64)
    return call


SORTS = [Sample((distinct((3, 4, 5)), d), {"descending": r}) for d in (0, 1, -1) for r in (False, True)]
SORTS += [Sample((distinct((200,)).with_layout("sliced"),)), Sample((In((0,)),)), Sample((In(()),)),
          Sample((In((3000,)),), {}, ("f32", "f64"), False), Sample((In((3, 2), layout="transposed"), 0), {}, ("f32", "f64"))]
ORDER = [
    Row("sort", function("sort"), sort, SORTS, NUMBERS, indexed, True, False),
    Row("argsort", function("argsort"), lambda *a, **k: sort(*a, **k)[1], SORTS, NUMBERS, "i64"),
    Row("topk", function("topk"), topk, [Sample((distinct((3, 40)), 4)), Sample((distinct((7, 5)), 3, 0), {"largest": False}),
        Sample((distinct((200,)), 0)), Sample((distinct((200,)), 200))], NUMBERS, indexed, True, False),
    Row("cumsum", function("cumsum"), scan(np.cumsum), [Sample((In((3, 4, 5), layout=x), d)) for d, x in (
        (0, "plain"), (1, "transposed"), (-1, "sliced"))] + [Sample((In(()), 0)), Sample((In((0, 3)), 0)),
        Sample((In((3000,)), 0), {}, ("f32", "f64"))], ALL, integers_widen, True, tolerance=32),
    Row("cumprod", function("cumprod"), scan(np.cumprod), [Sample((In((3, 4), 0.5, 1.5, layout=x), d)) for d, x in (
        (0, "plain"), (1, "transposed"))] + [Sample((In((), 1, 2), 0))], ALL, integers_widen, True, tolerance=8),
    Row("flip", method("flip"), lambda x, d: np.flip(x, d), [Sample((In((3, 4)), (0,))), Sample((In((3, 4)), (0, 1)))], ALL,
        gradients=True),
]
ROWS = REDUCTIONS + NORMALIZE + LOSSES + ORDER
