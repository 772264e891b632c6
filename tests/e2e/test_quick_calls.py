"""The native code that performs frequent calls of Python functions (_core/quick.h) gives what the functions give: the
same tensors, and the same errors."""

import inspect
import random
import sys

import numpy as np
import pytest

SEEDS = range(8)


def plain(function):
    """The Python function behind a public function or a method."""
    return inspect.unwrap(getattr(function, "__func__", function))


def result(function, *args, **keywords):
    """Returns the result or the error of a call in a form that can be compared."""
    try:
        made = function(*args, **keywords)
        return made if made is None else (made.dtype, str(made.device), tuple(made.shape), made.stride(),
                                          made.requires_grad, made.detach().numpy().tobytes())
    except Exception as error:
        return type(error), str(error).split("\n")[0]  # the next line names the line of the program


def number(rng):
    return rng.choice([
        lambda: rng.randint(-300, 300), lambda: rng.random(), lambda: rng.random() < 0.5, lambda: float("nan"),
        lambda: rng.choice([2**31, -2**31, 2**40 + 1, 2**53 + 1, 2**63 - 1, -2**63, 2**63, 2**64 - 1, 2**70]),
        lambda: rng.choice([1e300, -1e300, 3.4028235e38, 1e-45, float("inf"), -0.0]),
        lambda: rng.choice([np.float32(0.1), np.float64(0.1), np.int64(3), np.uint8(7), np.bool_(True)]),
        lambda: 1 + 2j])()


def data(rng, usual):
    """Numbers and nested lists; if not `usual`, also of unequal lengths, with arrays, or with other objects."""
    kinds = rng.choice([[int], [float], [bool], [int, float], [bool, int], [bool, int, float]])

    def leaf():
        if not usual and rng.random() < 0.2:
            return rng.choice([number(rng), None, "1", np.arange(2), [], (1,)])
        kind = rng.choice(kinds)
        return rng.randint(-300, 300) if kind is int else rng.random() if kind is float else rng.random() < 0.5

    def nested(shape):
        if not shape:
            return leaf()
        size = shape[0] if usual or rng.random() < 0.9 else rng.randint(0, 3)
        return rng.choice([list, tuple])(nested(shape[1:]) for _ in range(size))
    return nested([rng.randint(0 if not usual else 1, 4) for _ in range(rng.randint(0, 4))])


def test_frequent_calls_run_none_of_the_functions(tt):
    x, i = tt.zeros(4, 3), tt.tensor(2)
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        tt.tensor([1.0, 2.0])
        tt.tensor([[1, 2], [3, 4]], dtype=tt.int32)
        tt.tensor(True, device="cpu")
        tt.zeros(2, 3)
        tt.ones((2,), dtype=tt.long)
        tt.full((), 0.5)
        tt.empty([2])
        (x[1], x[i], x[1:], x[:, 1], x[-1, ::2], x[:])
        x[0] = 1.0
        x[1:3, 0] = 2
        x[i] = x[0]
        x[:] = x[0, 1]
    finally:
        sys.setprofile(None)
    # To find the current session is a call of a Python function.
    assert not {"tensor", "make", "zeros", "ones", "full", "empty", "getitem", "setitem"} & set(called), called


@pytest.mark.parametrize("seed", SEEDS)
def test_tensor_of_numbers(tt, seed):
    rng = random.Random(seed)
    dtypes = [None, None, None, tt.float32, tt.float64, tt.float16, tt.int64, tt.int32, tt.int16, tt.int8,
              tt.uint8, tt.bool, tt.complex64, tt.uint64, float, int, bool, complex]
    own = plain(tt.tensor)
    for _ in range(150):
        given = number(rng) if rng.random() < 0.3 else data(rng, rng.random() < 0.6)
        keywords = {} if (dtype := rng.choice(dtypes)) is None else {"dtype": dtype}
        keywords |= rng.choice([{}, {}, {"device": "cpu"}, {"device": None}, {"requires_grad": False},
                                {"requires_grad": True}, {"device": "cuda:9"}, {"device": "cpu:1"},
                                {"pin_memory": True}])
        with np.errstate(all="ignore"):
            assert result(tt.tensor, given, **keywords) == result(own, given, **keywords), (given, keywords)


def test_tensor_of_wide_integers_and_floats(tt):
    """Among floats an integer is rounded to double first, as in NumPy."""
    own = plain(tt.tensor)
    for given in ([2**53 + 1, 0.5], [2**62 + 2**38 + 1, 0.5], [2**62 + 2**38 + 1], [-2**63, True], [255, -255], [-256],
                  [1e39], [3.4028235677973366e38], 2**63 - 1, [[1, 2], [3]], [[1], 2], [1, [2]], [[], []], []):
        for dtype in (None, tt.float32, tt.float64, tt.int64, tt.uint8, tt.int8, tt.bool):
            with np.errstate(all="ignore"):
                assert result(tt.tensor, given, dtype=dtype) == result(own, given, dtype=dtype), (given, dtype)


def test_tensor_uses_the_default_dtype_and_the_current_session(tt, start_daemon):
    before = tt.get_default_dtype()
    try:
        tt.set_default_dtype(tt.float64)
        assert tt.tensor([1.5]).dtype == tt.zeros(1).dtype == tt.full((1,), 0.5).dtype == tt.float64
        tt.set_default_dtype(tt.float16)
        assert tt.tensor([1.5]).dtype == tt.zeros(1).dtype == tt.empty(1).dtype == tt.float16
    finally:
        tt.set_default_dtype(before)
    outer = tt.current_session()
    with tt.connect(start_daemon().unix) as other:
        for session in (other, outer):
            with session.as_current():
                assert all(x._session is session._core for x in (tt.tensor([1, 2]), tt.zeros(2), tt.empty(2)))


def test_a_list_that_contains_itself(tt):
    given = [1.0]
    given.append(given)
    with pytest.raises(TypeError, match="the list contains itself"):
        tt.tensor(given)


@pytest.mark.parametrize("seed", SEEDS)
def test_constructors_with_sizes(tt, seed):
    rng = random.Random(seed)
    for _ in range(80):
        name = rng.choice(["zeros", "ones", "full", "empty"])
        sizes = [0, 1, 2, 3, 3, 3, True, -1, 2.0, np.int64(2), tt.tensor(2)] if rng.random() < 0.3 else [1, 2, 3]
        size = [rng.choice(sizes) for _ in range(rng.randint(0, 4))]
        way = rng.randint(0, 3)
        args = (tuple(size),) if way == 0 else (size,) if way == 1 else tuple(size) if way == 2 else (tt.Size((2, 3)),)
        if name == "full":
            args = (args[0] if args else (), number(rng))
        keywords = rng.choice([{}, {}, {"dtype": tt.int64}, {"dtype": tt.bool}, {"dtype": float}, {"dtype": None},
                               {"device": "cpu"}, {"device": "cpu:1"}, {"requires_grad": True}, {"dtype": tt.float16},
                               {"layout": "x"}, {"dtype": 3}, {"pin_memory": False}, {"size": (2,)},
                               {"out": tt.zeros(0)}])
        found = [result(f, *args, **keywords) for f in (getattr(tt, name), _factory(tt, name))]
        if name == "empty":
            found = [each[:5] for each in found]
        assert found[0] == found[1], (name, args, keywords)


def _factory(tt, name):
    return tt.__dict__[name].__wrapped__ if hasattr(tt.__dict__[name], "__wrapped__") else tt.__dict__[name]


def index(rng, tt, shape):
    """An index, which may be out of range or of another kind."""
    def bound(size):
        return rng.choice([None, rng.randint(-size - 2, size + 2), rng.randint(0, size)])

    def item(size):
        return rng.choice([
            lambda: rng.randint(-size, size), lambda: rng.randint(-size, size - 1) if size else 0,
            lambda: slice(bound(size), bound(size)),
            lambda: slice(bound(size), bound(size), rng.choice([1, 2, 3, None])),
            lambda: slice(None), lambda: tt.tensor(rng.randint(-size, size)),
            lambda: rng.choice([None, ..., True, np.int64(0), [0], slice(0, 1, 0), slice(0, 2, -1), 2**70, 1.5,
                                slice(tt.tensor(0), None), slice(np.int64(0), 2), tt.tensor(0, dtype=tt.int32),
                                tt.arange(2) * 1, tt.tensor(True), slice(-2**70, 2**70)])])()
    items = [item(size) for size in shape]
    chosen = tuple(items[:rng.randint(0, len(items))]) if rng.random() < 0.6 else (items or [0])[0]
    return (*chosen, 0) if isinstance(chosen, tuple) and rng.random() < 0.05 else chosen


@pytest.mark.parametrize("seed", SEEDS)
def test_an_index(tt, seed):
    rng = random.Random(seed)
    own = plain(tt.Tensor.__getitem__)
    for _ in range(100):
        shape = tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 3)))
        x = tt.arange(int(np.prod(shape))).reshape(shape)
        at = index(rng, tt, shape)
        found, expected = [], result(own, x, at)
        assert result(lambda x, at: x[at], x, at) == expected, (shape, at)
        assert result(tt.Tensor.__getitem__, x, at) == result(x.__getitem__, at) == expected, (shape, at)
        if isinstance(expected[0], tt.dtype):
            found = [each(x, at) for each in (lambda x, at: x[at], own)]
            assert found[0]._is_view() == found[1]._is_view() and found[0] is not x
            assert found[0].storage_offset() == found[1].storage_offset()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_assignment_to_an_index(tt, seed):
    rng = random.Random(seed)
    own = plain(tt.Tensor.__setitem__)
    for _ in range(80):
        shape = tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 3)))
        at = index(rng, tt, shape)
        kind = rng.choice([tt.int64, tt.float32])
        part = result(lambda x, at: x[at], tt.zeros(shape), at)
        sizes = list(part[2]) if isinstance(part[0], tt.dtype) else [2]
        if sizes and rng.random() < 0.3:
            sizes = rng.choice([sizes[1:], [1, *sizes], [1] * len(sizes), [*sizes, 2]])
        value = rng.choice([number(rng), rng.randint(-9, 9), tt.ones(sizes, dtype=kind), tt.tensor(3, dtype=kind),
                            np.ones(sizes), [1] * 2])
        found = []
        for write in (lambda x, at, value: x.__setitem__(at, value), own):
            x = tt.arange(int(np.prod(shape))).reshape(shape).clone()
            y = x.clone()
            found.append((result(write, x, at, value), result(lambda x: x, x)))
            assert y.tolist() == tt.arange(int(np.prod(shape))).reshape(shape).tolist()
        assert found[0] == found[1], (shape, at, value)


def test_indices_record_their_gradients(tt):
    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (x[1] * x[0, 1:] * x[:, tt.tensor(1)].sum()).sum().backward()
    expected = x.grad.tolist()
    x.grad = None
    own = plain(tt.Tensor.__getitem__)
    (own(x, 1) * own(x, (0, slice(1, None))) * own(x, (slice(None), tt.tensor(1))).sum()).sum().backward()
    assert x.grad.tolist() == expected
    with pytest.raises(RuntimeError, match="leaf"):
        x[0] = 1.0
    y = x * 2
    y[0] = x[1]
    y[1, 0] = 5.0
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [1.0, 3.0]]


def test_a_captured_function_indexes_and_makes_tensors_anew(tt):
    @tt.compile
    def f(x, n):
        y = tt.zeros(2, 3)
        y[0] = x[1:]
        y[1, :2] = tt.tensor([7.0, 8.0])
        return y[:, 1:] + n, x[0], tt.full((2,), 0.5)

    for first in (1.0, 5.0):
        x = tt.tensor([first, 2.0, 3.0, first])
        whole, element, half = f(x, first)
        assert whole.tolist() == [[3.0 + first, 2 * first], [8.0 + first, first]]
        assert element.item() == first and half.tolist() == [0.5, 0.5]


def test_an_index_within_vmap(tt):
    x = tt.arange(6.0).reshape(2, 3) + 0
    i = tt.tensor(1)
    assert tt.vmap(lambda row: row[1])(x).tolist() == [1.0, 4.0]
    assert tt.vmap(lambda row: row[1:])(x).tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert tt.vmap(lambda row: row[i])(x).tolist() == [1.0, 4.0]
    assert tt.vmap(lambda row, at: row[at])(x, tt.tensor([0, 2])).tolist() == [0.0, 5.0]

    def written(row):
        new = tt.zeros_like(row)
        new[1] = row[0]
        new[2:] = row[:1]
        return new
    assert tt.vmap(written)(x).tolist() == [[0.0, 0.0, 0.0], [0.0, 3.0, 3.0]]


def test_a_tensor_without_contents_is_refused(tt):
    class Half(tt.Tensor):
        def __init__(self):
            pass

    gone = [tt.ones(2) + i for i in range(8)]
    del gone  # their memory is used again
    for empty in (tt.Tensor.__new__(tt.Tensor), Half()):
        for use in (lambda x: x[0], lambda x: x[0:1], lambda x: tt.ones(2)[x], lambda x: x + 1, lambda x: 1 - x,
                    lambda x: -x, lambda x: x.__iadd__(1), lambda x: x == x, tt.exp, lambda x: tt.stack([x, x]),
                    lambda x: x.__setitem__(0, 1.0), lambda x: tt.ones(2).__setitem__(0, x), lambda x: x.item(),
                    lambda x: tt.add(1, tt.ones(2), alpha=x)):
            with pytest.raises((TypeError, RuntimeError, IndexError)):
                use(empty)
