"""Compares properties of `teletensor.array_api` with array-api-strict, over the whole namespace.

Each function gets arrays that Hypothesis draws (every dtype of its kind, 0 to 3 axes, sizes 0 to 4); dtype,
shape and values must be those of array-api-strict. The public test suite of the standard is run by hand
(docs/array_api.md).
"""

import inspect

import array_api_strict as strict
import numpy as np
import pytest
import teletensor.array_api as xp
from hypothesis import HealthCheck, given, settings, strategies as st

strict.set_array_api_strict_flags(api_version="2025.12")
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                    suppress_health_check=list(HealthCheck))
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
KINDS = {
    "bool": ("bool",), "integer": INTEGERS, "real": REALS, "complex": COMPLEX, "bits": ("bool", *INTEGERS),
    "ordered": (*INTEGERS, *REALS), "floating": (*REALS, *COMPLEX), "numeric": (*INTEGERS, *REALS, *COMPLEX),
    "any": ("bool", *INTEGERS, *REALS, *COMPLEX),
}  # fmt: skip

UNARY = {
    "floating": ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log",
                 "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "reciprocal"),
    "numeric": ("abs", "negative", "positive", "square", "sign", "isfinite", "isinf", "isnan", "round", "conj", "real"),
    "ordered": ("ceil", "floor", "trunc"),
    "real": ("signbit",),
    "complex": ("imag",),
    "bits": ("bitwise_invert",),
    "bool": ("logical_not",),
}  # fmt: skip
BINARY = {
    "numeric": ("add", "subtract", "multiply"),
    "floating": ("divide",),
    "real": ("atan2", "copysign", "hypot", "logaddexp", "nextafter", "remainder", "floor_divide", "pow"),
    "ordered": ("maximum", "minimum", "less", "less_equal", "greater", "greater_equal"),
    "any": ("equal", "not_equal"),
    "bits": ("bitwise_and", "bitwise_or", "bitwise_xor"),
    "bool": ("logical_and", "logical_or", "logical_xor"),
}  # fmt: skip
REDUCTIONS = {
    "numeric": ("sum", "prod"),
    "floating": ("mean",),
    "real": ("var", "std"),
    "ordered": ("max", "min"),
    "any": ("all", "any", "count_nonzero"),
}
ELSEWHERE = {"linalg", "fft"}  # tested by the rows of tests/ops and by the public suite
NAMES = {name for table in (UNARY, BINARY, REDUCTIONS) for names in table.values() for name in names}


def arrays(kind, min_dims=0, max_dims=3, min_side=0):
    """NumPy arrays of a drawn dtype and shape."""
    def fill(spec):
        dtype, shape, seed = spec
        rng = np.random.default_rng(seed)
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype in INTEGERS:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            extreme = rng.random() < 0.2
            return (rng.integers(low, high, shape, dtype=dtype, endpoint=True) if extreme else
                    rng.integers(max(low, -9), 9, shape).astype(dtype))
        values = rng.standard_normal(shape) * 3
        if dtype in COMPLEX:
            values = values + 1j * rng.standard_normal(shape)
        elif values.size and rng.random() < 0.3:
            flat = values.reshape(-1)
            flat[rng.integers(flat.size)] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
        return np.asarray(values, dtype=dtype)
    shapes = st.lists(st.integers(min_side, 4), min_size=min_dims, max_size=max_dims).map(tuple)
    return st.tuples(st.sampled_from(KINDS[kind]), shapes, st.integers(0, 2**31)).map(fill)


def pairs(kind):
    """Two arrays of one dtype whose shapes broadcast."""
    def pair(drawn):
        a, cut, ones, seed = drawn
        b = np.random.default_rng(seed).permutation(a.reshape(-1)).reshape(a.shape)
        b = b[(slice(0, 1),) * min(ones, b.ndim)]
        return a, b.reshape(b.shape[min(cut, ones, b.ndim):] if all(
            s == 1 for s in b.shape[:min(cut, ones, b.ndim)]) else b.shape)
    return st.tuples(arrays(kind), st.integers(0, 2), st.integers(0, 3), st.integers(0, 99)).map(pair)


def both(call, *hosts):
    """The results of teletensor and of array-api-strict as NumPy arrays with the names of their dtypes; an
    error for either."""
    sides = []
    for space in (xp, strict):
        try:
            with np.errstate(all="ignore"):
                result = call(space, *(space.asarray(h) for h in hosts))
        except (ValueError, IndexError, TypeError, RuntimeError) as error:
            sides.append(type(error).__name__)
            continue
        parts = result if isinstance(result, tuple | list) else (result,)
        sides.append([np.asarray(part) for part in parts])
    return sides


def check(call, *hosts):
    ours, theirs = both(call, *hosts)
    if isinstance(theirs, str):
        return  # array-api-strict refuses the call; teletensor may accept more than the standard requires
    assert not isinstance(ours, str), f"{ours}, where array-api-strict answers"
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind in "fc":
            wide = 1e-4 if b.dtype in (np.float32, np.complex64) else 1e-10
            np.testing.assert_allclose(a, b, rtol=wide, atol=wide * 10)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.fixture(autouse=True)
def session(tt):
    """New arrays are created on the shared daemon."""


def rows(table):
    return [pytest.param(name, kind, id=name) for kind, names in table.items() for name in names]


@pytest.mark.parametrize(("name", "kind"), rows(UNARY))
def test_unary(name, kind):
    @SETTINGS
    @given(arrays(kind))
    def holds(x):
        check(lambda space, a: getattr(space, name)(a), x)
    holds()


@pytest.mark.parametrize(("name", "kind"), rows(BINARY))
def test_binary(name, kind):
    @SETTINGS
    @given(pairs(kind))
    def holds(xs):
        if name in ("remainder", "floor_divide") and not (
                all(np.isfinite(x).all() for x in xs) and np.all(xs[1] != 0)):
            return  # NumPy differs from the standard there; the public suite tests the special cases
        check(lambda space, a, b: getattr(space, name)(a, b), *xs)
    holds()


@pytest.mark.parametrize(("name", "kind"), rows(REDUCTIONS))
def test_reduction(name, kind):
    @SETTINGS
    @given(arrays(kind), st.booleans(), st.data())
    def holds(x, keep, data):
        axis = data.draw(st.one_of(st.none(), st.sets(st.integers(0, 2)).map(
            lambda s: tuple(sorted(i for i in s if i < x.ndim)))))
        count = x.size if axis is None else int(np.prod([x.shape[i] for i in axis], dtype=int))
        if (name in ("max", "min") and count == 0) or (name in ("mean", "var", "std") and count == 0):
            return
        check(lambda space, a: getattr(space, name)(a, axis=axis, keepdims=keep), x)
    holds()


STRUCTURE = {
    "argmax": ("ordered", lambda s, x: s.argmax(x, axis=0)),
    "argmin": ("ordered", lambda s, x: s.argmin(x, axis=-1, keepdims=True)),
    "argsort": ("integer", lambda s, x: s.argsort(x, axis=-1, descending=True)),
    "astype": ("numeric", lambda s, x: s.astype(x, s.complex128)),
    "broadcast_arrays": ("any", lambda s, x: s.broadcast_arrays(x, x[:1])),
    "broadcast_to": ("any", lambda s, x: s.broadcast_to(x, (2, *x.shape))),
    "clip": ("ordered", lambda s, x: s.clip(x, 1, 3)),
    "concat": ("any", lambda s, x: (s.concat([x, x], axis=-1), s.concat([x, x], axis=None))),
    "cumulative_prod": ("numeric", lambda s, x: s.cumulative_prod(x, axis=0)),
    "cumulative_sum": ("numeric", lambda s, x: s.cumulative_sum(x, axis=0, include_initial=True)),
    "diff": ("numeric", lambda s, x: s.diff(x, axis=0)),
    "expand_dims": ("any", lambda s, x: s.expand_dims(x, 1)),
    "flip": ("any", lambda s, x: (s.flip(x), s.flip(x, axis=0))),
    "full_like": ("numeric", lambda s, x: s.full_like(x, 7)),
    "getitem": ("any", lambda s, x: (x[::-1], x[None, ..., :2], x[..., 1::2])),
    "isin": ("integer", lambda s, x: s.isin(x, x[:1])),
    "matmul": ("numeric", lambda s, x: s.matmul(x, s.matrix_transpose(x)) if x.ndim > 1 else s.matmul(x, x)),
    "matrix_transpose": ("any", lambda s, x: s.matrix_transpose(x)),
    "meshgrid": ("numeric", lambda s, x: s.meshgrid(s.reshape(x, (-1,)), s.reshape(x, (-1,)))),
    "moveaxis": ("any", lambda s, x: s.moveaxis(x, 0, -1)),
    "nonzero": ("any", lambda s, x: s.nonzero(x)),
    "ones_like": ("numeric", lambda s, x: (s.ones_like(x), s.zeros_like(x))),
    "permute_dims": ("any", lambda s, x: s.permute_dims(x, tuple(range(x.ndim))[::-1])),
    "repeat": ("any", lambda s, x: s.repeat(x, 2, axis=0)),
    "reshape": ("any", lambda s, x: s.reshape(x, (-1,))),
    "roll": ("any", lambda s, x: (s.roll(x, 1), s.roll(x, -2, axis=0))),
    "searchsorted": ("integer", lambda s, x: searched(s, s.reshape(x, (-1,)))),
    "sort": ("ordered", lambda s, x: (s.sort(x, axis=0), s.sort(x, descending=True))),
    "squeeze": ("any", lambda s, x: s.squeeze(x[:1], 0)),
    "stack": ("any", lambda s, x: s.stack([x, x], axis=1)),
    "take": ("any", lambda s, x: s.take(x, s.asarray([0, 0]), axis=0)),
    "take_along_axis": ("integer", lambda s, x: s.take_along_axis(x, s.argsort(x, axis=0), axis=0)),
    "tensordot": ("numeric", lambda s, x: s.tensordot(x, x, axes=([0], [0]))),
    "tile": ("any", lambda s, x: s.tile(x, (2, 1))),
    "tril": ("any", lambda s, x: (s.tril(x, k=1), s.triu(x, k=-1))),
    "unique_all": ("integer", lambda s, x: (s.unique_all(x).values, s.unique_all(x).counts)),
    "unique_counts": ("integer", lambda s, x: tuple(s.unique_counts(x))),
    "unique_inverse": ("integer", lambda s, x: tuple(s.unique_inverse(x))),
    "unique_values": ("integer", lambda s, x: s.unique_values(x)),
    "unstack": ("any", lambda s, x: s.unstack(x, axis=0)),
    "vecdot": ("numeric", lambda s, x: s.vecdot(x, x)),
    "where": ("numeric", lambda s, x: s.where(x == x, x, x)),
    "bitwise_left_shift": ("integer", lambda s, x: s.bitwise_left_shift(x, s.full_like(x, 3))),
    "bitwise_right_shift": ("integer", lambda s, x: s.bitwise_right_shift(x, s.full_like(x, 2))),
    "setitem": ("any", lambda s, x: written(s, x)),
}  # fmt: skip
CREATION = {
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "linspace", "ones", "zeros",
    "zeros_like", "triu", "broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype", "result_type",
}  # fmt: skip


def searched(space, x):
    return space.searchsorted(space.sort(x), x, side="right")


def written(space, x):
    y = space.asarray(x, copy=True)
    y[::2] = y[:1]
    return y


@pytest.mark.parametrize("name", sorted(STRUCTURE))
def test_structure(name):
    kind, call = STRUCTURE[name]

    @SETTINGS
    @given(arrays(kind, min_dims=1, min_side=1))
    def holds(x):
        check(call, x)
    holds()


def test_creation():
    for call in (
        lambda s: s.arange(7), lambda s: s.arange(1, 8, 2, dtype=s.int16), lambda s: s.arange(5.0, 1.0, -1.5),
        lambda s: s.eye(3, 4, k=1), lambda s: s.full((2, 3), 5, dtype=s.uint8), lambda s: s.full((), True),
        lambda s: s.linspace(0, 1, 5, dtype=s.float64), lambda s: s.linspace(0, 1, 4, dtype=s.float64, endpoint=False),
        lambda s: s.ones((2, 0)), lambda s: s.zeros(3, dtype=s.complex64), lambda s: s.asarray([1, 2, 3]),
        lambda s: s.asarray([[True], [False]]), lambda s: s.asarray(3, dtype=s.uint64),
    ):  # fmt: skip
        ours, theirs = both(call)
        assert ours[0].shape == theirs[0].shape
        # the default floating-point dtype of teletensor is float32
        assert ours[0].dtype.kind == theirs[0].dtype.kind
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    assert np.from_dlpack(xp.arange(3)).tolist() == [0, 1, 2]
    assert xp.from_dlpack(np.arange(3)).dtype == xp.int64
    assert xp.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.int16, xp.int8)
    assert xp.finfo(xp.float32).bits == 32 and xp.iinfo(xp.uint64).max == 2**64 - 1
    assert xp.isdtype(xp.int8, ("bool", "integral")) and not xp.isdtype(xp.float32, "integral")
    assert xp.result_type(xp.int8, xp.uint8) == xp.int16


def test_every_name_of_the_standard_is_tested_and_has_its_signature():
    public = {n for n in strict.__all__ if n.islower() and callable(getattr(strict, n)) and not n.startswith("_")}
    public -= set(KINDS["any"]) | {"get_array_api_strict_flags", "set_array_api_strict_flags",
                                   "reset_array_api_strict_flags"}
    for name in sorted(public):
        assert hasattr(xp, name), name
        mine, theirs = (list(inspect.signature(getattr(s, name)).parameters) for s in (xp, strict))
        assert mine == theirs, name
    assert public <= NAMES | set(STRUCTURE) | CREATION | ELSEWHERE


def test_small_arrays_answer_without_a_round_trip(tt):
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    s = tt.current_session()
    before = s._core.last_seq
    assert float(x[1, 0]) == 3.0 and [float(v) for v in x[0]] == [1.0, 2.0]
    y = x[1]
    x[1, 0] = 9.0
    assert float(y[0]) == 9.0 and float(x[1, 0]) == 9.0  # the view sees the write
    assert s._core.last_seq > before
