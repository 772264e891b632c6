"""Rows for convolutions, pooling, norms, padding and resampling; the references are plain loops."""

import itertools

import numpy as np
import table
from arrays import ALL, FLOATS, INTS, In
from table import Row

NUMBERS = (*(d for d in INTS if d != "u64"), *FLOATS)


def Sample(args, kwargs=None, dtypes=None):
    """A sample in which lists are attributes (the tester takes lists for lists of arrays)."""
    return table.Sample(tuple(tuple(a) if isinstance(a, list) else a for a in args), kwargs or {}, dtypes)


def nn(name):
    return lambda m, *args, **kwargs: getattr(m.nn.functional, name)(*args, **kwargs)


# ---------------------------------------------------------------- convolutions


def convolution(x, w, b, stride, padding, dilation, transposed, extra, groups):
    n = w.ndim - 2
    outs = w.shape[1] * groups if transposed else w.shape[0]
    span = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    if transposed:
        size = [(i - 1) * s + k + e for i, s, k, e in zip(x.shape[2:], stride, span, extra)]
    else:
        x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
        size = [(i - k) // s + 1 for i, s, k in zip(x.shape[2:], stride, span)]
    y = np.zeros((x.shape[0], outs, *size), x.dtype)
    each = (w.shape[0] if transposed else outs) // groups
    for g, tap in itertools.product(range(groups), itertools.product(*map(range, w.shape[2:]))):
        begin = [t * d for t, d in zip(tap, dilation)]
        many = x.shape[2:] if transposed else size
        window = tuple(slice(a, a + s * (m - 1) + 1, s) for a, s, m in zip(begin, stride, many))
        part = w[(slice(g * each, (g + 1) * each), slice(None), *tap)]
        if transposed:
            at = slice(g * w.shape[1], (g + 1) * w.shape[1])
            y[(slice(None), at, *window)] += np.einsum("nc...,co->no...", x[:, g * each:(g + 1) * each], part)
        else:
            seen = x[(slice(None), slice(g * w.shape[1], (g + 1) * w.shape[1]), *window)]
            y[:, g * each:(g + 1) * each] += np.einsum("nc...,oc->no...", seen, part)
    if transposed:
        y = y[(slice(None), slice(None), *(slice(p, s - p) for p, s in zip(padding, size)))]
    return y if b is None else y + b.reshape(1, -1, *[1] * n)


def conv(x, w, bias, stride, padding, dilation, transposed=False, extra=None, groups=1, dtypes=None, layout="plain"):
    n = len(w) - 2
    outs = w[1] * groups if transposed else w[0]
    return Sample((In(x, layout=layout), In(w), In((outs,)) if bias else None, stride, padding, dilation, transposed,
                   extra or [0] * n, groups), {}, dtypes)


CONV_DTYPES = ("i64", "f16", "bf16", "f32", "f64")
CONV = [Row("convolution", lambda m, *args: m.convolution(*args), convolution, [
    conv((2, 3, 9), (4, 3, 3), True, [1], [0], [1]), conv((2, 4, 9), (6, 2, 3), False, [2], [1], [2], groups=2),
    conv((2, 3, 6, 5), (4, 3, 3, 2), True, [1, 2], [1, 0], [1, 1]),
    conv((1, 4, 5, 5), (4, 1, 3, 3), True, [1, 1], [1, 1], [1, 1], groups=4, layout="transposed"),
    conv((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), True, [1, 2, 1], [0, 1, 0], [1, 1, 2]),
    conv((0, 2, 5), (3, 2, 3), True, [1], [0], [1], dtypes=("f32",)),
    conv((2, 4, 4), (4, 3, 3), True, [2], [1], [1], True, [1]),
    conv((2, 4, 3, 4), (4, 2, 2, 3), True, [2, 1], [0, 1], [1, 2], True, [1, 0], 2),
    conv((1, 2, 2, 3, 2), (2, 3, 2, 2, 2), False, [1, 2, 2], [0, 0, 1], [1, 1, 1], True),
    conv((4, 16, 20, 20), (32, 16, 3, 3), True, [1, 1], [1, 1], [1, 1], dtypes=("f32", "bf16")),
    conv((1, 1, 3), (1, 1, 2), False, [1], [3], [1], dtypes=("f32", "f64"))],
    CONV_DTYPES, gradients=True, tolerance=30)]

# ---------------------------------------------------------------- pooling


def windows(size, kernel, stride, padding, dilation=1, ceil=False):
    """The indices of each window of one dimension, and its number of elements including the padding."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = room // stride + 1
    if ceil and room % stride and count * stride < size + padding:
        count += 1
    for i in range(count):
        first = i * stride - padding
        seen = [first + j * dilation for j in range(kernel)]
        yield [s for s in seen if 0 <= s < size], min(first + kernel, size + padding) - first


def adaptive(size, count):
    for i in range(count):
        begin, end = i * size // count, -(-(i + 1) * size // count)
        yield list(range(begin, end)), end - begin


def pool(x, axes, reduce):
    axes = [list(a) for a in axes]
    shape = x.shape[:2] + tuple(len(a) for a in axes)
    out = None
    for at in np.ndindex(*shape[2:]):
        chosen = [a[i] for a, i in zip(axes, at)]
        values = x[np.ix_(range(shape[0]), range(shape[1]), *(c[0] for c in chosen))]
        values = values.reshape(*shape[:2], int(np.prod(values.shape[2:])))
        results = reduce(values, chosen)
        out = out or [np.zeros(shape, r.dtype) for r in results]
        for o, r in zip(out, results):
            o[(slice(None), slice(None), *at)] = r
    return out


def largest(sizes):
    def reduce(values, chosen):
        flat = np.ravel_multi_index(np.meshgrid(*(c[0] for c in chosen), indexing="ij"), sizes).ravel()
        where = np.argmax(values, -1)
        return values.max(-1), flat[where].astype(np.int64)
    return reduce


def max_pool(x, kernel, stride, padding, dilation, ceil):
    axes = [windows(*a, ceil) for a in zip(x.shape[2:], kernel, stride, padding, dilation)]
    return pool(x, axes, largest(x.shape[2:]))


def adaptive_max_pool(x, size):
    return pool(x, [adaptive(*a) for a in zip(x.shape[2:], size)], largest(x.shape[2:]))


def avg_pool(x, kernel, stride, padding, ceil, include, divisor=None):
    def mean(values, chosen):
        count = divisor or int(np.prod([c[1] if include else len(c[0]) for c in chosen]))
        total = values.sum(-1)
        return (total / count if values.dtype.kind == "f" else np.trunc(total / count).astype(values.dtype),)
    return pool(x, [windows(*a, 1, ceil) for a in zip(x.shape[2:], kernel, stride, padding)], mean)[0]


def adaptive_avg_pool(x, size):
    return pool(x, [adaptive(*a) for a in zip(x.shape[2:], size)], lambda v, c: (v.mean(-1),))[0]


def max_unpool(x, index, size, accumulate=False):
    out = np.zeros((*x.shape[:2], int(np.prod(size))), x.dtype)
    for n, c in np.ndindex(*x.shape[:2]):
        for v, i in zip(x[n, c].ravel(), index[n, c].ravel()):
            out[n, c, i] = out[n, c, i] + v if accumulate else v
    return out.reshape(*x.shape[:2], *size)


def distinct(*shape, layout="plain"):
    n = int(np.prod(shape))
    return In(shape, layout=layout, data=tuple(int(v) for v in np.random.default_rng(n).permutation(n) - n // 2))


def values_and_places(dtype, sample):
    del sample
    return (dtype, "i64")


def internal(name):
    """An op that functions of nn.functional call with all its arguments."""
    return lambda m, *args, **kwargs: getattr(m._names.ops, name)(*args, **kwargs)


PLACES = In((1, 2, 2, 2), dtype="i64", grad=False, data=(0, 3, 8, 11, 5, 2, 9, 10))
POOLING = [
    Row("max_pool", internal("max_pool"), max_pool, [
        Sample((distinct(2, 2, 9), [3], [2], [1], [1], False)), Sample((distinct(2, 2, 7), [2], [2], [0], [2], True)),
        Sample((distinct(1, 2, 5, 6, layout="transposed"), [2, 3], [1, 2], [1, 1], [1, 1], True)),
        Sample((distinct(1, 1, 3, 4, 4), [2, 2, 2], [1, 2, 2], [0, 1, 0], [1, 1, 1], False)),
        Sample((In((0, 2, 5)), [2], [2], [0], [1], False), {}, ("f32",))],
        NUMBERS, values_and_places, gradients=True, torch=False),
    Row("adaptive_max_pool", internal("adaptive_max_pool"), adaptive_max_pool, [
        Sample((distinct(2, 2, 7), [3])), Sample((distinct(2, 2, 5, 4, layout="sliced"), [2, 6])),
        Sample((distinct(1, 1, 3, 4, 4), [2, 1, 3]))], FLOATS, values_and_places, gradients=True, torch=False),
    Row("fractional_max_pool", internal("fractional_max_pool"), None, [
        Sample((distinct(2, 2, 7, 6), In((2, 2, 2), 0, 1, grad=False), [2, 2], [3, 2])),
        Sample((distinct(1, 2, 5, 5, 5), In((1, 2, 3), 0, 1, grad=False), [2, 2, 2], [2, 3, 2]))],
        FLOATS, values_and_places, gradients=True, torch=False,
        check=lambda lib, case, results: None if all(
            float(v) == float(x) for x, v in zip(
                np.take_along_axis(case.arrays[0].reshape(*case.arrays[0].shape[:2], -1).astype(np.float64),
                                   lib.numpy(results[1]).reshape(*case.arrays[0].shape[:2], -1), -1).ravel(),
                lib.numpy(results[0]).ravel())) else "a value is not the element at its place"),
    Row("max_unpool", internal("max_unpool"), max_unpool, [
        Sample((In((1, 2, 2, 2)), PLACES, [3, 4], False)), Sample((In((1, 2, 2, 2), layout="transposed"), PLACES, [4, 3], True))],
        NUMBERS, gradients=True, torch=False, exact=True),
    Row("avg_pool", internal("avg_pool"), avg_pool, [
        Sample((In((2, 2, 9)), [3], [2], [1], False, True)), Sample((In((2, 2, 8)), [3], [2], [1], True, False)),
        Sample((In((1, 2, 5, 6), layout="transposed"), [2, 3], [1, 2], [1, 1], True, True)),
        Sample((In((1, 2, 5, 6)), [2, 2], [2, 2], [0, 0], False, False, 3)),
        Sample((In((1, 1, 3, 4, 4)), [2, 2, 2], [1, 2, 2], [0, 1, 0], False, True))],
        ("i64", *FLOATS), gradients=True, torch=False, tolerance=4),
    Row("adaptive_avg_pool", internal("adaptive_avg_pool"), adaptive_avg_pool, [
        Sample((In((2, 2, 7)), [3])), Sample((In((2, 2, 5, 4), layout="sliced"), [2, 6])),
        Sample((In((1, 1, 3, 4, 4)), [2, 1, 3]))], FLOATS, gradients=True, torch=False, tolerance=4),
]

# ---------------------------------------------------------------- norms


def batch_norm(x, w=None, b=None, eps=1e-5):
    axes = tuple(d for d in range(x.ndim) if d != 1)
    wide = [1, -1] + [1] * (x.ndim - 2)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    y = (x - mean) / np.sqrt(var + eps)
    y = y if w is None else y * w.reshape(wide)
    y = y if b is None else y + b.reshape(wide)
    return [y, mean.ravel(), 1 / np.sqrt(var + eps).ravel(), var.ravel()]


def first_result(name):
    return lambda m, *args: getattr(m._names.ops, name)(*args)[0]


NORMS = [
    Row("batch_norm", first_result("batch_norm"), lambda *a: batch_norm(*a)[0], [
        Sample((In((6, 3)), In((3,), 0.5, 1.5), In((3,)), 1e-5)), Sample((In((2, 3, 5)), None, None, 1e-3)),
        Sample((In((2, 3, 4, 5), layout="transposed"), In((3,), 0.5, 1.5), None, 1e-5)),
        Sample((In((2, 2, 3, 2, 4)), None, In((2,)), 1e-5)),
        Sample((In((3, 2, 50, 50)), In((2,)), In((2,)), 1e-5), {}, ("f32", "bf16"))],
        FLOATS, gradients=True, torch=False, tolerance=10),
]

# ---------------------------------------------------------------- padding, windows, resampling


def constant_pad(x, pad, value=0):
    for i in range(len(pad) // 2):
        d = x.ndim - 1 - i
        x = np.take(x, range(max(0, -pad[2 * i]), x.shape[d] - max(0, -pad[2 * i + 1])), d)
        around = [(0, 0)] * x.ndim
        around[d] = (max(0, pad[2 * i]), max(0, pad[2 * i + 1]))
        x = np.pad(x, around, constant_values=value)
    return x


def im2col(x, kernel, dilation, padding, stride):
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    size = [(i - d * (k - 1) - 1) // s + 1 for i, k, d, s in zip(x.shape[2:], kernel, dilation, stride)]
    rows = [x[:, :, i * dilation[0]:i * dilation[0] + stride[0] * (size[0] - 1) + 1:stride[0],
              j * dilation[1]:j * dilation[1] + stride[1] * (size[1] - 1) + 1:stride[1]]
            for i in range(kernel[0]) for j in range(kernel[1])]
    return np.stack(rows, 2).reshape(x.shape[0], -1, size[0] * size[1])


def col2im(x, size, kernel, dilation, padding, stride):
    channels = x.shape[1] // (kernel[0] * kernel[1])
    places = np.arange(channels * size[0] * size[1]).reshape(1, channels, *size) + 1
    seen = im2col(places, kernel, dilation, padding, stride)[0]
    out = np.zeros((x.shape[0], places.size + 1), x.dtype)
    for n in range(x.shape[0]):
        np.add.at(out[n], seen.ravel(), x[n].ravel())
    return out[:, 1:].reshape(x.shape[0], channels, *size)


def resample(x, dim, size, mode, align=False, antialias=False, scale=None):
    del antialias, scale
    n = x.shape[dim]
    step = (n - 1) / (size - 1) if align and size > 1 else 0.0 if align else n / size
    parts = []
    for i in range(size):
        if mode.startswith("nearest"):
            parts.append(np.take(x, min(int((i + (mode != "nearest") * 0.5) * step), n - 1), dim))
            continue
        place = i * step if align else (i + 0.5) * step - 0.5
        if mode == "linear":
            place = max(place, 0.0)
            low = min(int(place), n - 1)
            part = place - low
            parts.append(np.take(x, low, dim) * (1 - part) + np.take(x, min(low + 1, n - 1), dim) * part)
            continue
        low = int(np.floor(place))
        t = place - low
        weights = [np.polyval(p, v) for p, v in (((-0.75, 3.75, -6, 3), t + 1), ((1.25, -2.25, 0, 1), t),
                                                 ((1.25, -2.25, 0, 1), 1 - t), ((-0.75, 3.75, -6, 3), 2 - t))]
        parts.append(sum(w * np.take(x, min(max(low - 1 + j, 0), n - 1), dim) for j, w in enumerate(weights)))
    return np.stack(parts, dim)


SPATIAL = [
    Row("constant_pad_nd", nn("pad"), lambda x, pad, value=0: constant_pad(x, pad, value), [
        Sample((In((3, 4), layout=layout), (1, 2)), {"value": 1}) for layout in ("plain", "transposed", "sliced")] + [
        Sample((In((2, 3, 4)), (1, -1, -1, 2, 0, 1))), Sample((In((2, 3)), (-2, -1))), Sample((In((0, 3)), (1, 1, 2, 0))),
        Sample((In(()), ()))], ALL, gradients=True, exact=True),
    Row("im2col", nn("unfold"), im2col, [
        Sample((In((2, 3, 5, 4), layout=layout), [2, 3], [1, 1], [1, 0], [2, 1])) for layout in ("plain", "transposed")] + [
        Sample((In((1, 2, 6, 6)), [2, 2], [2, 3], [0, 1], [1, 2]))], FLOATS, gradients=True, exact=True),
    Row("col2im", nn("fold"), col2im, [
        Sample((In((2, 12, 9)), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])),
        Sample((In((1, 8, 12), layout="transposed"), [6, 6], [2, 2], [2, 3], [0, 1], [1, 2]))], FLOATS, gradients=True, tolerance=2),
    Row("resample", internal("resample"), resample, [
        Sample((In((2, 3, 5), layout=layout), d, size, mode, align)) for layout, d, size, mode, align in (
            ("plain", 2, 8, "linear", False), ("transposed", 1, 2, "linear", True), ("plain", -1, 7, "cubic", False),
            ("sliced", 1, 6, "cubic", True), ("plain", 0, 4, "linear", False), ("plain", 2, 1, "linear", True))] + [
        Sample((In((2, 3, 5)), 2, size, mode)) for size, mode in ((8, "nearest"), (2, "nearest"), (7, "nearest-exact"))],
        FLOATS, gradients=True, torch=False, tolerance=8),
]

# ---------------------------------------------------------------- ctc_loss


def ctc_loss(x, targets, sizes, lengths):
    """The sum over all alignments, which are enumerated."""
    x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    losses = []
    for n in range(x.shape[1]):
        total = 0.0
        for path in itertools.product(range(x.shape[2]), repeat=int(sizes[n])):
            seen = [c for c, _ in itertools.groupby(path) if c != 0]
            if seen == list(targets[n, :lengths[n]]):
                total += np.exp(sum(x[t, n, c] for t, c in enumerate(path)))
        with np.errstate(divide="ignore"):
            losses.append(-np.log(total))
    return np.array(losses)


def whole(*values, shape=None):
    return In(shape or (len(values),), dtype="i64", grad=False, data=values)


CTC = [Row("ctc_loss", lambda m, x, *args: m.nn.functional.ctc_loss(m.log_softmax(x, -1), *args, reduction="none"), ctc_loss, [
    Sample((In((5, 3, 3)), whole(1, 2, 0, 1, 1, 0, 2, 2, 2, shape=(3, 3)), whole(5, 4, 5), whole(2, 2, 3))),
    Sample((In((4, 2, 3), layout="transposed"), whole(1, 2, 2, 1, shape=(2, 2)), whole(4, 3), whole(0, 1)))],
    ("f32", "f64"), gradients=True, second=False, tolerance=10)]

ROWS = [*CONV, *POOLING, *NORMS, *SPATIAL, *CTC]
