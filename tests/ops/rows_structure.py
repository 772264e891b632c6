"""Rows for products, views, joining, indexing, creation."""

import numpy as np
from arrays import ALL, FLOATS, INTS, Dt, In, Ins
from table import Row, Sample, function, method

NUMBERS = (*INTS, *FLOATS)


def nn(name):
    return lambda m, *args, **kwargs: getattr(m.nn.functional, name)(*args, **kwargs)


def linear(x, w, b=None):
    y = x @ w.T
    return y if b is None else y + b


def pairs(shapes, low=-1.0):
    return [Sample((In(a, low, 1), In(b, low, 1))) for a, b in shapes]


MATRICES = pairs([((3, 4), (4, 5)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4, 5)),
                  ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (3, 4, 5)), ((3, 0), (0, 4)),
                  ((0, 3), (3, 4)), ((2, 0, 3), (3, 2)), ((1, 1), (1, 1)), ((17, 33), (33, 65))])
MATRICES += [Sample((In((4, 3), -1, 1, x), In((3, 5), -1, 1, y)))
             for x, y in (("transposed", "plain"), ("plain", "transposed"), ("sliced", "transposed"), ("expanded", "plain"))]
MATRICES += [Sample((In((2, 3, 4), -1, 1, "transposed"), In((2, 4, 5), -1, 1, "transposed"))),
             Sample((In((257, 129), -1, 1), In((129, 65), -1, 1)), {}, ("f32", "f64"))]
PRODUCTS = [
    Row("matmul", function("matmul"), np.matmul, MATRICES, NUMBERS, gradients=True, tolerance=16),
    Row("mm", function("mm"), np.matmul, pairs([((3, 4), (4, 5)), ((0, 4), (4, 5)), ((65, 33), (33, 17))]), NUMBERS, gradients=True,
        tolerance=16),
    Row("bmm", function("bmm"), np.matmul, pairs([((2, 3, 4), (2, 4, 5)), ((0, 3, 4), (0, 4, 5))]), NUMBERS, gradients=True, tolerance=16),
    Row("mv", function("mv"), np.matmul, pairs([((3, 4), (4,)), ((129, 65), (65,))]), NUMBERS, gradients=True, tolerance=16),
    Row("dot", function("dot"), np.dot, pairs([((4,), (4,)), ((0,), (0,)), ((1025,), (1025,))]), NUMBERS, gradients=True, tolerance=64),
    Row("outer", function("outer"), np.outer, pairs([((4,), (3,)), ((0,), (3,))]), NUMBERS, gradients=True, tolerance=2),
    Row("addmm", function("addmm"), lambda x, a, b, beta=1, alpha=1: beta * x + alpha * (a @ b), [
        Sample((In((3, 5)), In((3, 4)), In((4, 5)))), Sample((In((5,)), In((3, 4)), In((4, 5))), {"beta": 2, "alpha": 3})], NUMBERS,
        gradients=True, tolerance=16),
    Row("linear", nn("linear"), linear, [
        Sample((In((3, 4)), In((5, 4)), In((5,)))), Sample((In((3, 4)), In((5, 4)))), Sample((In((4,)), In((5, 4)), In((5,)))),
        Sample((In((2, 3, 4)), In((5, 4)), In((5,)))), Sample((In((0, 4)), In((5, 4)), In((5,)))),
        Sample((In((4, 3), layout="transposed"), In((5, 3), layout="transposed"), In((5,), layout="sliced"))),
        Sample((In((128, 300), -1, 1), In((65, 300), -1, 1), In((65,))), {}, ("f32",))], FLOATS, gradients=True, tolerance=16),
]

# ---------------------------------------------------------------- views

LAYOUTS = ("plain", "transposed", "sliced")


def view(op, call, reference, *arguments, shape=(2, 3, 4), **options):
    """A row with one sample for each argument tuple and layout."""
    samples = [Sample((In(shape, layout=x), *a)) for a in arguments for x in LAYOUTS]
    return Row(op, call, reference, samples, ALL, gradients=True, exact=True, **options)


def index_expression(key):
    return lambda m, x: x[key]


VIEWS = [
    view("select", method("select"), lambda x, d, i: np.take(x, i, d), (0, 1), (1, 0), (-1, -2)),
    view("slice", method("narrow"), lambda x, d, s, n: np.take(x, range(s, s + n), d), (0, 1, 1), (1, 0, 3), (2, 1, 2),
         (-1, 4, 0)),
    view("transpose", method("transpose"), lambda x, a, b: np.swapaxes(x, a, b), (0, 1), (0, -1), (1, 1)),
    view("permute", method("permute"), lambda x, d: np.transpose(x, d), ((2, 0, 1),), ((0, 1, 2),), ((-1, 0, 1),)),
    Row("expand", method("expand"), np.broadcast_to, [Sample((In((3, 1), layout=x), s)) for x in LAYOUTS
        for s in ((4, 3, 5), (3, 1), (3, 7))] + [Sample((In(()), (2, 3))), Sample((In((1,)), (0,)))], ALL, gradients=True, exact=True),
    Row("view", method("view"), np.reshape, [Sample((In((2, 3, 4)), s)) for s in ((6, 4), (24,), (2, -1), (1, 24, 1), (2, 3, 2, 2))]
        + [Sample((In((0, 3)), (3, 0))), Sample((In(()), (1, 1)))], ALL, gradients=True, exact=True),
    view("reshape", method("reshape"), np.reshape, ((6, 4),), ((-1,),), ((4, 3, 2),)),
    view("squeeze", method("squeeze"), lambda x, d=None: np.squeeze(x, d), (), (1,), (-1,), shape=(2, 1, 3, 1)),
    view("unsqueeze", method("unsqueeze"), np.expand_dims, (0,), (2,), (-1,)),
    view("diagonal", method("diagonal"), lambda x, o=0, a=0, b=1: np.diagonal(x, o, a, b), (), (1, 0, 2), (-1, 1, 2), (5,)),
    view("unbind", method("unbind"), lambda x, d=0: [np.take(x, i, d) for i in range(x.shape[d])], (), (1,), (-1,)),
    view("split_with_sizes", method("split"), lambda x, s, d=0: np.split(x, np.cumsum(s)[:-1], d), ((1, 1),), ((2, 0, 1), 1),
         ((1, 3), 2)),
    view("detach", method("detach"), np.copy, ()),
    view("alias", lambda m, x: x.view(x.shape) if x.is_contiguous() else x.transpose(0, 0), np.copy, ()),
]
for row in VIEWS:
    if row.op == "detach":
        row.gradients = False

# ---------------------------------------------------------------- joining, triangles, indexing


def joined(shapes, dim, layouts=("plain",)):
    return [Sample((Ins(tuple(In(s, layout=x) for s in shapes)), dim)) for x in layouts]


def gather(x, dim, index):
    return np.take_along_axis(x, index, dim)


def index_in(shape, high, seed=5):
    numbers = np.random.default_rng(seed).integers(0, high, shape)
    return In(shape, dtype="i64", data=tuple(int(n) for n in numbers.ravel()), grad=False)


def scatter_add(x, dim, index, source):
    out = x.copy()
    for at in np.ndindex(index.shape):
        to = list(at)
        to[dim] = index[at]
        out[tuple(to)] = out[tuple(to)] + source[at] if out.dtype != bool else out[tuple(to)] | source[at]
    return out


def index_add(x, dim, index, source):
    out = np.moveaxis(x.copy(), dim, 0)
    for i, j in enumerate(index):
        out[j] += np.moveaxis(source, dim, 0)[i]
    return np.moveaxis(out, 0, dim)


def put_along(x, dim, index, value):
    out = x.copy()
    np.put_along_axis(out, index, np.asarray(value).astype(x.dtype), dim)
    return out


def put_slices(x, dim, index, value):
    out = x.copy()
    key = (slice(None),) * (dim % x.ndim) + (index,)
    out[key] = np.asarray(value).astype(x.dtype)
    return out


def masked_scatter(x, mask, source):
    out, mask = x.copy(), np.broadcast_to(mask, x.shape)
    out[mask] = source.ravel()[:mask.sum()]
    return out


UNIQUE = In((3, 5), dtype="i64", grad=False, data=(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 3, 0, 1, 2, 2))
ORDER = [In((3,), dtype="i64", grad=False, data=(2, 0, 3))]


def one_hot(index, num_classes):
    return np.eye(num_classes, dtype=np.int64)[index]


JOINING = [
    Row("cat", function("cat"), np.concatenate, [
        *joined(((2, 3), (4, 3)), 0, LAYOUTS), *joined(((2, 3), (2, 1), (2, 0)), -1), *joined(((1025,), (3,)), 0),
        *joined(((2, 3),), 1), *joined(((0, 3), (0, 3)), 0)], ALL, gradients=True, exact=True),
    Row("stack", function("stack"), np.stack, [
        *joined(((2, 3), (2, 3)), 0, LAYOUTS), *joined(((2, 3), (2, 3), (2, 3)), -1), *joined(((), ()), 0),
        *joined(((0,), (0,)), 1)], ALL, gradients=True, exact=True),
    Row("tril", function("tril"), np.tril, [Sample((In(s, layout=x), k)) for s in ((4, 5), (2, 3, 3)) for k in (0, 1, -2)
                                            for x in ("plain", "transposed")], ALL, gradients=True, exact=True),
    Row("triu", function("triu"), np.triu, [Sample((In(s, layout=x), k)) for s in ((4, 5), (2, 3, 3)) for k in (0, 1, -2)
                                            for x in ("plain", "transposed")], ALL, gradients=True, exact=True),
    Row("gather", function("gather"), gather, [
        Sample((In((4, 5)), 0, index_in((3, 5), 4))), Sample((In((4, 5), layout="transposed"), 1, index_in((4, 7), 5))),
        Sample((In((2, 3, 4)), -1, index_in((2, 3, 2), 4))), Sample((In((4,)), 0, index_in((0,), 4)))], ALL, gradients=True,
        exact=True),
    Row("index_select", function("index_select"), lambda x, d, i: np.take(x, i, d), [
        Sample((In((4, 5), layout=x), d, index_in((3,), 4))) for d in (0, 1, -1) for x in LAYOUTS] +
        [Sample((In((4, 5)), 0, index_in((0,), 4))), Sample((In((100, 37)), 0, index_in((300,), 100)), {}, ("f32",))], ALL,
        gradients=True, exact=True),
    Row("embedding", lambda m, w, i: m.nn.functional.embedding(i, w), lambda w, i: w[i], [
        Sample((In((7, 3)), index_in((4,), 7))), Sample((In((7, 3)), index_in((2, 5), 7))), Sample((In((7, 3)), index_in((), 7))),
        Sample((In((7, 3), layout="transposed"), index_in((0,), 7)))], FLOATS, gradients=True, exact=True),
    Row("one_hot", lambda m, i, n: m.nn.functional.one_hot(i, n), one_hot, [
        Sample((index_in((4,), 5), 5)), Sample((index_in((2, 3), 5), 6)), Sample((index_in((), 5), 5))], ("i64",), "i64"),
    Row("scatter_add", method("scatter_add"), scatter_add, [
        Sample((In((4, 5)), 0, index_in((3, 5), 4), In((3, 5)))), Sample((In((4, 5)), 1, index_in((4, 2), 5), In((4, 2))))],
        NUMBERS, gradients=True, inplace="scatter_add_", tolerance=2),
    Row("index_add", method("index_add"), index_add, [
        Sample((In((4, 5)), 0, index_in((3,), 4), In((3, 5)))), Sample((In((4, 5)), 1, index_in((6,), 5), In((4, 6))))],
        NUMBERS, gradients=True, inplace="index_add_", tolerance=4),
    Row("scatter", method("scatter"), lambda x, d, i, v: put_along(x, d, i, v), [
        Sample((In((4, 5)), 0, UNIQUE, In((3, 5)))), Sample((In((4, 5), layout="transposed"), 0, UNIQUE, 1))], ALL, gradients=True,
        inplace="scatter_", exact=True),
    Row("index_copy", method("index_copy"), lambda x, d, i, v: put_slices(x, d, i, v), [
        Sample((In((4, 5)), 0, ORDER[0], In((3, 5)))), Sample((In((5, 4), layout="sliced"), 1, ORDER[0], In((5, 3))))], ALL,
        gradients=True, inplace="index_copy_", exact=True),
    Row("index_fill", method("index_fill"), lambda x, d, i, v: put_slices(x, d, i, v), [
        Sample((In((4, 5)), 0, ORDER[0], 1)), Sample((In((5, 4)), -1, ORDER[0], 0))], ALL, gradients=True, inplace="index_fill_",
        exact=True),
    Row("take", function("take"), lambda x, i: x.ravel()[i], [
        Sample((In((4, 5), layout=x), index_in((2, 3), 20))) for x in LAYOUTS] + [Sample((In((4,)), index_in((0,), 4)))], ALL,
        gradients=True, exact=True),
    Row("diag", function("diag"), np.diag, [Sample((In((4,)), k)) for k in (0, 1, -2)] + [
        Sample((In((4, 3), layout=x), k)) for k in (0, 1, -1) for x in LAYOUTS], ALL, gradients=True, exact=True),
    Row("masked_scatter", method("masked_scatter"), masked_scatter, [
        Sample((In((3, 4)), In((3, 4), dtype="bool", grad=False), In((12,)))), Sample((In((3, 4)), In((4,), dtype="bool", grad=False),
        In((15,))))], ALL, gradients=True, inplace="masked_scatter_", exact=True),
    Row("masked_fill", method("masked_fill"), lambda x, mask, v: np.where(mask, np.asarray(v, x.dtype), x), [
        Sample((In((3, 4), layout=x), In((3, 4), dtype="bool", grad=False), 1)) for x in LAYOUTS] +
        [Sample((In((3, 4)), In((4,), dtype="bool", grad=False), 0))], ALL, gradients=True, inplace="masked_fill_", exact=True),
]

# ---------------------------------------------------------------- indexing expressions


def getitem(key):
    """x[key], where the arrays in the key are converted to tensors of the library."""
    def call(m, x):
        return x[tensors(m, key)]
    return call


def tensors(m, key):
    def one(k):
        return m.tensor(k) if isinstance(k, np.ndarray) else k
    return tuple(one(k) for k in key) if isinstance(key, tuple) else one(key)


def setitem(key):
    def call(m, x, v):
        y = x.clone()
        y[tensors(m, key)] = v
        return y
    return call


def assigned(key):
    def call(x, v):
        y = x.copy()
        y[key] = np.asarray(v).astype(y.dtype)
        return y
    return call


ROWS_INDEX = np.array([2, 0, 2])
MASK = np.array([[True, False, True, False]] * 3)
KEYS = [
    0, -1, slice(1, None), (slice(None), 1), (slice(None, None, 2), slice(1, 3)), (Ellipsis, 0), None,
    (0, slice(None), None), (None, Ellipsis), ROWS_INDEX, (ROWS_INDEX, np.array([1, 3, 0])), (slice(None), ROWS_INDEX),
    (ROWS_INDEX[:, None], np.array([[1, 2]])), np.array([True, False, True]), MASK, (slice(0, 0),), (slice(None), MASK[0]),
]
SET_KEYS = [0, (slice(1, None),), (slice(None), 1), (slice(None, None, 2), slice(1, 3)), Ellipsis, (ROWS_INDEX[:2],),
            (np.array([0, 2]), np.array([1, 3])), (slice(None), np.array([3, 0])), MASK]


def taken(key):
    def reference(x):
        return x[key]
    return reference


def nonzero(x):
    if x.ndim == 0:
        return np.zeros((int(bool(x)), 0), np.int64)
    return np.stack(np.nonzero(x), 1).astype(np.int64)


INDEXING = [Row("index", getitem(k), taken(k), [Sample((In((3, 4), layout=x),)) for x in LAYOUTS], ALL, gradients=True, exact=True)
            for k in KEYS]
INDEXING += [Row("index_put", setitem(k), assigned(k), [Sample((In((3, 4)), In(()))), Sample((In((3, 4), layout="transposed"), 1))],
                 ALL, gradients=True, exact=True) for k in SET_KEYS]
INDEXING += [Row("index_put", lambda m, x, v: x.index_put((m.tensor([1, 1, 0]),), v, accumulate=True),
                 lambda x, v: index_add(x, 0, [1, 1, 0], v), [Sample((In((3, 4)), In((3, 4))))], NUMBERS, gradients=True, tolerance=4)]
INDEXING += [Row("nonzero", lambda m, x: x.nonzero(), nonzero, [
    Sample((In((3, 4), -0.5, 0.9, layout=x),)) for x in LAYOUTS] + [Sample((In(()),)), Sample((In((0,)),))], ("bool", "i64", "f32"),
    "i64")]

# ---------------------------------------------------------------- creation


def created(name):
    """Dt arguments set the dtype, which the result must have."""
    return lambda m, *args, **kwargs: getattr(m, name)(*args, **kwargs)


def asked(dtype, sample):
    del dtype
    return sample.kwargs["dtype"].name


def filled(value):
    return lambda shape, dtype: np.full(shape, value, np.float64)


def per_dtype(*arguments, dtypes=ALL):
    return [Sample(a, {"dtype": Dt(d)}) for a in arguments for d in dtypes]


def row(op, reference, *arguments, name=None, dtypes=ALL, **options):
    return Row(op, created(name or op), lambda *a, dtype: reference(*a).astype(np.float64), per_dtype(*arguments, dtypes=dtypes),
               ("f64",), asked, **options)


SHAPES = (((2, 3),), ((),), ((0,),), ((5000,),))
CREATION = [
    row("full", lambda s, v: np.full(s, v), *[(s[0], 3) for s in SHAPES], exact=True, dtypes=NUMBERS),
    row("zeros", np.zeros, *SHAPES, exact=True), row("ones", np.ones, *SHAPES, exact=True),
    row("arange", np.arange, (7,), (2, 9), (1, 10, 3), (0, 5000), dtypes=("i32", "i64", "f32", "f64")),
    row("arange", np.arange, (0, 1, 0.25), (5, 2, -0.5), dtypes=("f32", "f64")),
    row("linspace", np.linspace, (0, 1, 5), (3, -2, 7), (1, 2, 1), (0, 9, 0), (-1, 1, 2000), dtypes=("f32", "f64"), tolerance=2),
    row("eye", np.eye, (3,), (2, 4), (0,), exact=True),
]
ROWS = PRODUCTS + VIEWS + JOINING + INDEXING + CREATION
