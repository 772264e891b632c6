"""Rows for structure: views and their copies, joining, rearranging, scatter forms, order, sets, einsum."""

import itertools

import numpy as np
from arrays import ALL, FLOATS, INTS, Dt, In, Ins
from rows_structure import LAYOUTS, NUMBERS, index_in, view
from table import Row, Sample, function, method
from teletensor import _core

INT = ("i64",)


def of(op, call, reference, *samples, dtypes=ALL, **options):
    options.setdefault("exact", True)
    return Row(op, call, reference, list(samples), dtypes, gradients=options.pop("gradients", True), **options)


# ---------------------------------------------------------------- views

def as_strided(x, size, stride, offset=0):
    flat = np.ascontiguousarray(x).ravel()
    at = np.full(size, offset)
    for d, (n, s) in enumerate(zip(size, stride)):
        at = at + np.expand_dims(np.arange(n) * s, tuple(i for i in range(len(size)) if i != d))
    return flat[at]


def windows(x, dim, size, step):
    out = np.lib.stride_tricks.sliding_window_view(x, size, axis=dim)
    return np.take(out, range(0, out.shape[dim], step), axis=dim)


def diag_embed(x, offset=0, dim1=-2, dim2=-1):
    n = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], n, n), x.dtype)
    for i in range(x.shape[-1]):
        out[..., i + max(-offset, 0), i + max(offset, 0)] = x[..., i]
    rank = x.ndim + 1
    return np.moveaxis(out, (-2, -1), (dim1 % rank, dim2 % rank)) if dim1 % rank < dim2 % rank else np.moveaxis(
        np.moveaxis(out, -1, dim2 % rank), -1, dim1 % rank)


def require(m, x, condition):
    """PyTorch has this op without a result."""
    if m.__name__ == "torch":
        m._assert_async(condition.all(), "it does not hold")
        return x.clone()
    return _core.ops["require"](x, condition, "it does not hold")


STRIDED = [Sample((In((4, 5)), (2, 3), (5, 2), 1)), Sample((In((12,)), (4, 3), (2, 1))), Sample((In((3, 4)), (), (), 7)),
           Sample((In((6,)), (2, 0), (1, 1))), Sample((In((3, 4)), (3, 3), (0, 1), 2))]
VIEWS = [
    of("as_strided", function("as_strided"), as_strided, *STRIDED),
    view("unfold", method("unfold"), windows, (0, 2, 1), (1, 2, 1), (2, 2, 2), (-1, 3, 1), (1, 3, 5)),
    of("bitcast", lambda m, x: x.view(m.int64), np.copy, Sample((In((3, 4)),)),
       Sample((In((2, 3), layout="transposed"),)), Sample((In(()),)), dtypes=("i64",), gradients=False),
    of("bitcast", lambda m, x: x.view(m.uint8), lambda x: np.ascontiguousarray(x).view(np.uint8), Sample((In((3, 4)),)),
       dtypes=INTS, gradients=False, result="u8"),
    of("bitcast", lambda m, x: x.view(m.int32), lambda x: np.ascontiguousarray(x.astype(np.float32)).view(np.int32),
       Sample((In((3, 4)),)), Sample((In((3, 4), layout="sliced"),)), dtypes=("f32",), gradients=False, result="i32"),
    of("require", require, lambda x, c: np.copy(x),
       Sample((In((3, 4)), In((2,), dtype="bool", data=(True, True)))), Sample((In((4, 3), layout="transposed"), In((0,), dtype="bool"))),
       dtypes=("f32", "i64")),
    view("ravel", function("ravel"), np.ravel, ()),
    view("swapdims", function("swapdims"), np.swapaxes, (0, 2), (-1, 0)),
    view("movedim", function("movedim"), np.moveaxis, (0, 2), ((0, 1), (1, 2)), (-1, 0)),
    view("adjoint", function("adjoint"), lambda x: np.swapaxes(x, -1, -2), ()),
    of("mT", lambda m, x: x.mT, lambda x: np.swapaxes(x, -1, -2), Sample((In((2, 3)),)), Sample((In((2, 0, 3)),))),
    view("flatten", function("flatten"), lambda x, a=0, b=-1: x.reshape(x.shape[:a] + (-1,) + (x.shape[b:][1:] if b != -1 else ())),
         (), (1,), (0, 1)),
    view("unflatten", function("unflatten"), lambda x, d, s: x.reshape(x.shape[:d % 3] + tuple(s) + x.shape[d % 3 + 1:]),
         (2, (2, 2)), (-1, (4, 1)), (0, (1, 2))),
    view("tensor_split", function("tensor_split"), np.array_split, (2, 1), (3, 2), ((1, 2), 2), ((0, 5), 1)),
    view("hsplit", function("hsplit"), np.hsplit, (3,), ((1,),)), view("vsplit", function("vsplit"), np.vsplit, (2,), ((1, 1),)),
    view("dsplit", function("dsplit"), np.dsplit, (2,), ((1, 3),)),
    view("chunk", function("chunk"), np.array_split, (2,), (2, 2)),
    view("unsafe_split", function("unsafe_split"), lambda x, n, d=0: np.split(x, range(n, x.shape[d], n), d), (1,), (2, 1), (3, 2)),
    view("unsafe_chunk", function("unsafe_chunk"), np.array_split, (2, 2)),
    view("narrow_copy", function("narrow_copy"), lambda x, d, s, n: np.take(x, range(s, s + n), d), (0, 1, 1), (2, 1, 2)),
    view("select_copy", function("select_copy"), lambda x, d, i: np.take(x, i, d), (0, 1), (-1, -2)),
    view("slice_copy", function("slice_copy"), lambda x, d, a, b, s: np.take(x, range(a, b, s), d), (2, 0, 4, 2)),
    view("permute_copy", function("permute_copy"), np.transpose, ((2, 0, 1),)),
    view("transpose_copy", function("transpose_copy"), np.swapaxes, (0, 1)),
    view("view_copy", lambda m, x: m.view_copy(x.contiguous(), (6, 4)), lambda x: x.reshape(6, 4), ()),
    view("unsqueeze_copy", function("unsqueeze_copy"), np.expand_dims, (1,)),
    view("squeeze_copy", function("squeeze_copy"), np.squeeze, (1,), shape=(2, 1, 3)),
    view("diagonal_copy", function("diagonal_copy"), np.diagonal, (), (1, 0, 2)),
    view("unfold_copy", function("unfold_copy"), windows, (1, 2, 1)),
    of("expand_copy", function("expand_copy"), np.broadcast_to, Sample((In((3, 1)), (2, 3, 4)))),
    of("broadcast_to", function("broadcast_to"), np.broadcast_to, Sample((In((3, 1)), (2, 3, 4))), Sample((In(()), (2,)))),
    view("unbind_copy", function("unbind_copy"), lambda x, d: [np.take(x, i, d) for i in range(x.shape[d])], (1,)),
    view("split_with_sizes_copy", function("split_with_sizes_copy"), lambda x, s, d: np.split(x, np.cumsum(s)[:-1], d), ((1, 3), 2)),
    view("split_copy", lambda m, x, n, d: m.split_copy(x, n, d), lambda x, n, d: np.split(x, range(n, x.shape[d], n), d), (2, 2),
         torch=False),
    *[of(f"atleast_{n}d", function(f"atleast_{n}d"), getattr(np, f"atleast_{n}d"), *[Sample((In(s),)) for s in (
        (), (3,), (2, 3), (2, 0, 2), (1, 2, 3, 2))]) for n in (1, 2, 3)],
    of("diag_embed", function("diag_embed"), diag_embed, *[Sample((In((2, 3)), *a)) for a in ((), (1,), (-2,), (0, 0, 2), (1, 0, 1))],
       Sample((In((0,)),))),
    of("diagflat", function("diagflat"), lambda x, k=0: np.diagflat(x, k), Sample((In((2, 3)),)), Sample((In((3,)), -1)), Sample((In(()), 2))),
]

# ---------------------------------------------------------------- joining and rearranging


def stacked(op, *shapes):
    samples = [Sample((Ins(tuple(In(s) for s in each)),)) for each in shapes]
    return of(op, function(op), getattr(np, "vstack" if op == "row_stack" else op), *samples)


def block_diag(*blocks):
    blocks = [np.atleast_2d(b) for b in blocks]
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)), blocks[0].dtype)
    r = c = 0
    for b in blocks:
        out[r:r + b.shape[0], c:c + b.shape[1]] = b
        r, c = r + b.shape[0], c + b.shape[1]
    return out


def product(*vectors):
    return np.array(list(itertools.product(*vectors)), vectors[0].dtype).reshape(-1, len(vectors))


def combos(x, r=2, again=False):
    pick = itertools.combinations_with_replacement if again else itertools.combinations
    return np.array(list(pick(x, r)), x.dtype).reshape(-1, r)


def roll(x, shifts, dims=None):
    return np.roll(x, shifts, dims)


TIMES = In((3,), dtype="i64", grad=False, data=(2, 0, 3))
JOINING = [
    stacked("hstack", ((3,), (2,)), ((2, 3), (2, 1)), ((), ()), ((0,), (2,))), stacked("vstack", ((3,), (3,)), ((2, 3), (1, 3)), ((), ())),
    stacked("dstack", ((3,), (3,)), ((2, 3), (2, 3)), ((2, 3, 1), (2, 3, 2))), stacked("row_stack", ((3,), (3,))),
    stacked("column_stack", ((3,), (3,)), ((3,), (3, 2)), ((), ())),
    of("block_diag", function("block_diag"), block_diag, Sample((In((2, 3)), In((1, 2)), In((3,)), In(()))), Sample((In((0, 2)), In((2, 1)))),
       Sample((In((2, 2)),))),
    of("cartesian_prod", function("cartesian_prod"), product, Sample((In((3,)), In((2,)))), Sample((In((2,)), In((0,)), In((3,)))),
       Sample((In((2,)), In((1,)), In((3,))))),
    of("combinations", function("combinations"), combos, *[Sample((In((4,)), *a)) for a in ((), (3,), (2, True), (1,), (5,))],
       Sample((In((0,)),))),
    of("tile", function("tile"), np.tile, *[Sample((In((2, 3), layout=x), r)) for x in LAYOUTS for r in ((2,), (1, 2, 2), (0, 1))],
       Sample((In(()), (3,)))),
    of("repeat", method("repeat"), np.tile, *[Sample((In((2, 3), layout=x), r)) for x in LAYOUTS for r in ((2, 1), (2, 1, 3))]),
    of("repeat_interleave", function("repeat_interleave"), lambda x, n, d=None: np.repeat(x, n, d), *[
        Sample((In((2, 3), layout=x), *a)) for x in LAYOUTS for a in ((2,), (3, 1), (0, 0), (1, 0), (TIMES, 1))],
       Sample((In((3,)), TIMES)), Sample((In(()), 4))),
    of("roll", function("roll"), roll, *[Sample((In((3, 4), layout=x), *a)) for x in LAYOUTS for a in (
        (1,), (-7,), (1, 0), (-2, 1), ((1, 2), (0, 1)), ((5, 1), (1, 1)), (0, 0))], Sample((In((0, 3)), 1, 0))),
    of("flip", function("flip"), np.flip, *[Sample((In((3, 4), layout=x), d)) for x in LAYOUTS for d in ((0,), (1,), (0, -1), ())]),
    of("fliplr", function("fliplr"), np.fliplr, Sample((In((2, 3)),))), of("flipud", function("flipud"), np.flipud, Sample((In((3,)),))),
    of("rot90", function("rot90"), np.rot90, *[Sample((In((2, 3, 2)), k, d)) for k in (-1, 0, 1, 2, 3, 5) for d in ((0, 1), (2, 1))]),
    of("trace", function("trace"), lambda x: np.trace(x), Sample((In((3, 4)),)), Sample((In((4, 2), layout="transposed"),)),
       Sample((In((0, 3)),)), dtypes=("i32", "i64", *FLOATS), exact=False, result=lambda d, s: "i64" if d in INTS else d),
    of("kron", function("kron"), np.kron, Sample((In((2, 3)), In((3, 2)))), Sample((In((2,)), In((2, 3)))), Sample((In(()), In((3,)))),
       Sample((In((2, 1, 2)), In((2, 2)))), dtypes=NUMBERS, exact=False),
    of("vander", function("vander"), lambda x, N=None, increasing=False: np.vander(x, N, increasing), *[
        Sample((In((4,)),), k) for k in ({}, {"N": 2}, {"N": 5, "increasing": True}, {"N": 1})], dtypes=("i64", "f32", "f64"),
       # PyTorch raises an error, because it wrote to the tensor in place
       exact=False, tolerance=4, torch_gradients=False),
    of("meshgrid", lambda m, *a, **k: m.meshgrid(*a, **k), lambda *a, **k: list(np.meshgrid(*a, **k)),
       *[Sample((In((3,)), In((2,)), In((4,))), {"indexing": x}) for x in ("ij", "xy")], Sample((In((3,)), In(())), {"indexing": "xy"})),
]

# ---------------------------------------------------------------- parts replaced


def replaced(key):
    def reference(x, src, *rest):
        out = x.copy()
        out[key(*rest)] = src
        return out
    return reference


def diagonal_scatter(x, src, offset=0):
    out = x.copy()
    for i in range(len(src)):
        out[i + max(-offset, 0), i + max(offset, 0)] = src[i]
    return out


def strided_scatter(x, src, size, stride, offset=0):
    out = np.ascontiguousarray(x).copy()
    flat = out.reshape(-1)
    at = as_strided(np.arange(flat.size), size, stride, offset)
    flat[at] = src
    return out


SCATTERS = [
    of("select_scatter", function("select_scatter"), replaced(lambda d, i: (slice(None),) * d + (i,)),
       *[Sample((In((3, 4), layout=x), In((4,)), 0, 1)) for x in LAYOUTS], Sample((In((3, 4)), In((3,)), 1, -2))),
    of("slice_scatter", function("slice_scatter"), replaced(lambda d, a, b, s: (slice(None),) * d + (slice(a, b, s),)),
       *[Sample((In((3, 4), layout=x), In((3, 2)), 1, 0, 4, 2)) for x in LAYOUTS], Sample((In((3, 4)), In((0, 4)), 0, 2, 2, 1))),
    of("diagonal_scatter", function("diagonal_scatter"), diagonal_scatter, *[
        Sample((In((3, 4), layout=x), In((n,)), k)) for x in LAYOUTS for n, k in ((3, 0), (2, 2), (2, -1))]),
    of("as_strided_scatter", function("as_strided_scatter"), strided_scatter, Sample((In((3, 4)), In((2, 2)), (2, 2), (4, 2), 1)),
       # PyTorch's gradients are wrong where src is used
       Sample((In((5,)), In(()), (), (), 2), gradients=False), torch_gradients=False),
]

# ---------------------------------------------------------------- reductions at the positions of an index


def scatter_reduce(x, dim, index, src, reduce, include_self=True):
    if x.ndim == 0:
        return scatter_reduce(x[None], 0, index[None], src[None], reduce, include_self)[0]
    groups = {}
    for at in np.ndindex(index.shape):
        to = list(at)
        to[dim] = index[at]
        groups.setdefault(tuple(to), []).append(src[at])
    out = x.copy()
    for to, values in groups.items():
        values = np.array([*([x[to]] if include_self else []), *values], x.dtype)
        if reduce == "mean":
            total = values.sum(dtype=x.dtype)
            out[to] = total // len(values) if x.dtype.kind in "iu" else total / len(values)
        else:
            out[to] = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min}[reduce](values)
    return out


def index_reduce(x, dim, index, source, reduce, include_self=True):
    column = np.expand_dims(index, tuple(d for d in range(x.ndim) if d != dim))
    return scatter_reduce(x, dim, np.broadcast_to(column, source.shape), source, reduce, include_self)


ZEROS = In((6,), data=(0, 2, 0, 3, 1, 0))
MODES = ("sum", "prod", "mean", "amax", "amin")
REDUCED = [
    of("scatter_reduce", method("scatter_reduce"), scatter_reduce, *[
        Sample((In((4, 5), layout=x), d, index_in((3, 5), 4, 7), In((3, 5)), r), {"include_self": k})
        for r in MODES for k in (True, False) for x, d in (("plain", 0), ("transposed", 0))],
       *[Sample((In((3,), 1, 2), 0, index_in((6,), 3, 3), ZEROS, "prod"), {"include_self": k}) for k in (True, False)],
       Sample((In(()), 0, In((), dtype="i64", grad=False, data=(0,)), In(()), "sum")), Sample((In((3,)), 0, index_in((0,), 3), In((0,)), "amax")),
       dtypes=("i32", "i64", "f32", "f64"), exact=False, inplace="scatter_reduce_", tolerance=4),
    of("scatter_reduce", method("scatter_reduce"), scatter_reduce, *[
        Sample((In((4, 5)), 1, index_in((2, 7), 5, 8), In((3, 9)), r)) for r in MODES], dtypes=("i64", "f32", "f64"), exact=False,
       tolerance=4, torch_gradients=False),  # PyTorch's gradients require an index of the source's shape
    of("index_reduce", method("index_reduce"), index_reduce, *[
        Sample((In((4, 5)), 0, index_in((6,), 4), In((6, 5)), r), {"include_self": k}) for r in MODES[1:] for k in (True, False)],
       dtypes=("f32", "f64"), exact=False, inplace="index_reduce_", tolerance=4),
    of("put", method("put"), lambda x, i, s: scatter_reduce(x.ravel(), 0, i.ravel() % x.size, s.ravel(), "sum", False).reshape(x.shape),
       *[Sample((In((3, 4), layout=x), In((2, 2), dtype="i64", grad=False, data=(0, -1, 5, 3)), In((2, 2)))) for x in LAYOUTS],
       inplace="put_"),
    of("put", lambda m, x, i, s: x.put(i, s, accumulate=True), lambda x, i, s: scatter_reduce(x, 0, i, s, "sum"),
       Sample((In((5,)), In((4,), dtype="i64", grad=False, data=(0, 4, 0, 3)), In((4,)))), dtypes=NUMBERS, exact=False, tolerance=2),
    of("take_along_dim", function("take_along_dim"), np.take_along_axis, Sample((In((3, 4)), index_in((1, 4), 3), 0)),
       Sample((In((3, 1)), index_in((3, 5), 1), 1)), Sample((In((2, 3)), index_in((4,), 6), None))),
]

# ---------------------------------------------------------------- order and sets


def search(seq, v, right=False):
    if seq.ndim == 1:
        return np.searchsorted(seq, v, "right" if right else "left").astype(np.int64)
    rows = [np.searchsorted(a, b, "right" if right else "left") for a, b in zip(seq.reshape(-1, seq.shape[-1]), v.reshape(-1, v.shape[-1]))]
    return np.array(rows, np.int64).reshape(v.shape)


SORTED = In((6,), data=(-2, -1, -1, 0, 1, 2))
BATCH = In((2, 4), data=(-2, 0, 0, 1, -1, -1, 1, 2))
REPEATED = In((3, 4), data=(1, 0, 2, 1, 1, 0, 2, 1, 0, 0, 1, 2))
SPLIT = ("i32", "i64", "f32", "f64")


def unique(x, dim=None):
    return [a.astype(np.int64) if i else a for i, a in enumerate(np.unique(x, return_inverse=True, return_counts=True, axis=dim))]


def consecutive(x):
    flat = x.ravel()
    new = np.concatenate([[True], flat[1:] != flat[:-1]])
    group = np.cumsum(new) - 1
    return [flat[new], group.reshape(x.shape), np.bincount(group)]


def three(dtype, sample):
    del sample
    return (dtype, "i64", "i64")


ORDER = [
    of("searchsorted", function("searchsorted"), search, *[Sample((SORTED, In(s, layout=x)), k) for s, x in (
        ((3, 4), "plain"), ((3, 4), "transposed"), ((), "plain"), ((0,), "plain")) for k in ({}, {"right": True})],
       *[Sample((BATCH, In((2, 3))), k) for k in ({}, {"right": True})], Sample((In((0,)), In((3,)))), dtypes=("i32", "i64", *FLOATS),
       result="i64", gradients=False),
    of("bucketize", lambda m, x, b, **k: m.bucketize(x, b, **k), lambda x, b, right=False: search(b, x, right),
       Sample((In((3, 4)), SORTED)), Sample((In((3, 4)), SORTED), {"right": True}), dtypes=SPLIT, result="i64", gradients=False),
    of("argsort_rows", lambda m, x: m.argsort_rows(x), lambda x: np.lexsort(x.T[::-1]), Sample((REPEATED,)),
       Sample((In((7, 3), -1, 1, "transposed"),)), Sample((In((50, 2)),)), Sample((In((0, 3)),)), dtypes=SPLIT, result="i64",
       gradients=False, torch=False),
    of("msort", function("msort"), lambda x: np.sort(x, 0), Sample((In((5, 3)),)), dtypes=SPLIT),
    of("unique", lambda m, x, **k: m.unique(x, return_inverse=True, return_counts=True, **k), unique, Sample((REPEATED,)),
       *[Sample((REPEATED,), {"dim": d}) for d in (0, 1)], Sample((In((300,), -9, 9),)), Sample((In((1,)),)), dtypes=SPLIT, result=three,
       gradients=False),
    of("unique_consecutive", lambda m, x: m.unique_consecutive(x, return_inverse=True, return_counts=True), consecutive,
       Sample((REPEATED,)), Sample((In((100,), -1, 1),)), dtypes=SPLIT, result=three, gradients=False),
    of("isin", function("isin"), lambda x, y, invert=False: np.isin(x, y, invert=invert), Sample((REPEATED, In((2,), data=(2, 0)))),
       Sample((REPEATED, In((0,)))), Sample((REPEATED, In((2,), data=(2, 0))), {"invert": True}), dtypes=SPLIT, result="bool",
       gradients=False),
    of("nonzero_static", lambda m, x, **k: m.nonzero_static(x, **k), lambda x, size, fill_value=-1: np.concatenate(
        [np.argwhere(x), np.full((size, x.ndim), fill_value)])[:size].astype(np.int64), *[
            Sample((REPEATED,), {"size": n}) for n in (0, 3, 20)], Sample((REPEATED,), {"size": 12, "fill_value": 7}), dtypes=SPLIT,
       result="i64", gradients=False),
    of("argwhere", function("argwhere"), lambda x: np.argwhere(x).astype(np.int64), Sample((REPEATED,)), dtypes=SPLIT, result="i64",
       gradients=False),
]

# ---------------------------------------------------------------- products over named dimensions


def einsum(equation, *shapes):
    return Sample(tuple(In(s, -1, 1) for s in shapes), {"equation": equation})


PRODUCTS = [
    of("einsum", lambda m, *x, equation: m.einsum(equation, *x), lambda *x, equation: np.einsum(equation, *x),
       einsum("ij,jk->ik", (2, 3), (3, 4)), einsum("ij,jk", (2, 3), (3, 4)), einsum("ij->ji", (2, 3)), einsum("ij->", (2, 3)),
       einsum("ii->i", (3, 3)), einsum("ii", (3, 3)), einsum("iij->j", (2, 2, 3)), einsum("i,j->ij", (3,), (2,)), einsum("i,i->", (3,), (3,)),
       einsum("bij,bjk->bik", (2, 3, 4), (2, 4, 2)), einsum("...ij,...jk->...ik", (2, 3, 4), (4, 2)), einsum("...i,i->...", (2, 3, 4), (4,)),
       einsum("i...->...", (3, 2)), einsum("ab,bc,cd->ad", (2, 3), (3, 4), (4, 2)), einsum("ab,ab,ab->ab", (2, 3), (2, 3), (2, 3)),
       einsum("ij,jk->ik", (2, 0), (0, 4)), einsum("ij,jk->ik", (0, 3), (3, 4)), einsum("i,->i", (3,), ()), einsum(",->", (), ()),
       einsum("bn,anm,bm->ba", (2, 5), (3, 5, 4), (2, 4)), einsum("abc,cd->bd", (2, 3, 4), (4, 2)), einsum("ba,b->a", (2, 3), (2,)),
       einsum("i j , j k -> k i", (2, 3), (3, 4)), einsum("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), dtypes=("i64", "f32", "f64"),
       exact=False, tolerance=16),
    of("einsum", lambda m, x, y: m.einsum(x, [0, 1], y, [1, 2], [0, 2]), np.matmul, Sample((In((2, 3)), In((3, 4)))),
       dtypes=("f32", "f64"), exact=False, tolerance=16),
    of("einsum", lambda m, x, y: m.einsum(x, [..., 0], y, [0, 1], [..., 1]), np.matmul, Sample((In((2, 2, 3)), In((3, 4)))),
       dtypes=("f64",), exact=False, tolerance=16),
    of("einsum", lambda m, x, y: m.einsum("ij,jk->ik", x, y), lambda x, y: np.matmul(np.broadcast_to(x, (2, 3)), y),
       Sample((In((2, 1)), In((3, 4)))), dtypes=("f32", "f64"), exact=False, tolerance=16),
    of("tensordot", function("tensordot"), np.tensordot, *[Sample((In((2, 3, 4), -1, 1), In((3, 4, 5), -1, 1)), {}) if d is None else
        Sample((In((2, 3, 4), -1, 1), In((3, 4, 5), -1, 1), d)) for d in (None, 2, ((1, 2), (0, 1)), ((2, -2), (1, 0)))],
       Sample((In((2, 3)), In((4,)), 0)), Sample((In((2, 0)), In((0, 3)), 1)), dtypes=("i64", "f32", "f64"), exact=False, tolerance=16),
]

# ---------------------------------------------------------------- creation


def per_dtype(*arguments, dtypes):
    return [Sample(a, {"dtype": Dt(d)}) for a in arguments for d in dtypes]


def asked(dtype, sample):
    del dtype
    return sample.kwargs["dtype"].name


CREATION = [
    Row("tril_indices", function("tril_indices"), lambda r, c, k=0, dtype=None: np.stack(np.tril_indices(r, k, c)),
        per_dtype((3, 3), (4, 2), (2, 5, -1), (3, 4, 2), (0, 3), (5, 2), (5, 3, -6), (4, 4, 9), dtypes=("i64", "i32")), ("f64",), asked),
    Row("triu_indices", function("triu_indices"), lambda r, c, k=0, dtype=None: np.stack(np.triu_indices(r, k, c)),
        per_dtype((3, 3), (4, 2), (2, 5, -1), (3, 4, 2), (3, 3, 9), (5, 2), (5, 3, -6), (4, 4, -3), dtypes=("i64", "i32")), ("f64",), asked),
    Row("logspace", function("logspace"), lambda a, b, n, base=10.0, dtype=None: np.logspace(a, b, n, base=base),
        per_dtype((0, 2, 5), (1, -2, 4), (0, 3, 4, 2.0), (1, 2, 1), (1, 2, 0), dtypes=("f32", "f64")), ("f64",), asked, tolerance=4),
]

ROWS = VIEWS + JOINING + SCATTERS + REDUCED + ORDER + PRODUCTS + CREATION
COMPOSITES = {row.op for row in ROWS}
