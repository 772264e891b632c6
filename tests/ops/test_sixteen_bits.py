"""Tests arithmetic of 16-bit floating-point numbers: intermediate results are float32, and only the result
is rounded.

Most values are small multiples of 1/64, so that float32 represents every sum exactly: the expected result
is that of NumPy in float64, rounded to 16 bits.
"""

import numpy as np
import pytest

HALVES = ("float16", "bfloat16")


def rounded(x, dtype):
    """The nearest values of a 16-bit dtype, as float64; ties are rounded to even."""
    x = np.asarray(x, np.float64)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32).astype(
        np.float64)


def values_of(t):
    return t.double().numpy()


class Case:
    """x and sources that are multiples of 1/64 and exact in 16 bits, and indices of which many are
    equal."""

    def __init__(self, tt, dtype, shape, count, seed=0):
        self.tt, self.random = tt, np.random.default_rng(seed)
        self.dtype = getattr(tt, dtype)
        self.name = dtype
        self.x = self.draw(shape)
        self.places = self.random.integers(0, min(shape[0], 3), count)
        self.sources = self.draw((count, *shape[1:]))

    def draw(self, shape):
        return self.random.integers(-20, 100, shape) / 64

    def tensor(self, x):
        dtype = self.tt.int64 if np.asarray(x).dtype == np.int64 else self.dtype
        return self.tt.tensor(x, dtype=dtype)

    def same(self, got, want):
        assert got.dtype == self.dtype
        assert np.array_equal(values_of(got), rounded(want, self.name), equal_nan=True)


def added(case, alpha=1.0):
    want = case.x.copy()
    np.add.at(want, case.places, alpha * case.sources)
    return want


def columns(case):
    return case.tensor(np.broadcast_to(case.places.reshape(-1, *[1] * (case.x.ndim - 1)),
                                       case.sources.shape).copy())


def in_place(name):
    def run(tt, x, *more, **options):
        y = x.clone()
        getattr(y, name)(*more, **options)
        return y
    return run


# (number of additions, shape of x): a few in a large tensor are sorted, and many are added in a copy of it.
SIZES = [((7,), 3000), ((7, 5), 900), ((40_000,), 900), ((3000, 4), 700), ((2, 300), 11)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape, count", SIZES)
class TestSumsByIndex:
    def test_scatter_add(self, tt, dtype, shape, count):
        case = Case(tt, dtype, shape, count)
        x, at, src = case.tensor(case.x), columns(case), case.tensor(case.sources)
        case.same(tt.scatter_add(x, 0, at, src), added(case))
        case.same(tt.scatter_reduce(x, 0, at, src, "sum"), added(case))
        case.same(in_place("scatter_add_")(tt, x, 0, at, src), added(case))

    def test_scatter_reduce_mean_and_index_reduce(self, tt, dtype, shape, count):
        case = Case(tt, dtype, shape, count)
        x, at, src = case.tensor(case.x), columns(case), case.tensor(case.sources)
        counts = np.bincount(case.places, minlength=shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        whole = (added(case) / (counts + 1)).astype(np.float32)
        case.same(tt.scatter_reduce(x, 0, at, src, "mean"), whole)
        case.same(tt.index_reduce(x, 0, case.tensor(case.places), src, "mean"), whole)
        without = added(case) - case.x
        want = np.where(counts > 0, (without / np.maximum(counts, 1)).astype(np.float32), case.x)
        case.same(tt.scatter_reduce(x, 0, at, src, "mean", include_self=False), want)

    def test_products(self, tt, dtype, shape, count):
        case = Case(tt, dtype, shape, count)
        # Powers of two together with a few other factors: exact in float32, but not always in 16 bits.
        case.sources = np.exp2(case.random.integers(-1, 2, case.sources.shape))
        case.sources[:3] = 1 + 1 / 64
        case.x = np.sign(case.x) * (1 + 1 / 128)
        x, at, src = case.tensor(case.x), columns(case), case.tensor(case.sources)
        want = case.x.copy()
        np.multiply.at(want, case.places, case.sources)
        with np.errstate(over="ignore"):
            case.same(tt.scatter_reduce(x, 0, at, src, "prod"), want)
            case.same(tt.index_reduce(x, 0, case.tensor(case.places), src, "prod"), want)

    def test_index_add_and_index_put(self, tt, dtype, shape, count):
        case = Case(tt, dtype, shape, count)
        x, at, src = case.tensor(case.x), case.tensor(case.places), case.tensor(case.sources)
        case.same(tt.index_add(x, 0, at, src), added(case))
        case.same(tt.index_add(x, 0, at, src, alpha=3), added(case, 3.0))
        case.same(tt.index_put(x, (at,), src, accumulate=True), added(case))
        case.same(in_place("index_put_")(tt, x, (at,), src, accumulate=True), added(case))
        want = case.x.copy()
        np.add.at(want, case.places, 1 / 64)
        case.same(tt.index_put(x, (at,), tt.tensor(1 / 64, dtype=case.dtype), accumulate=True), want)
        if len(shape) == 1:
            case.same(in_place("put_")(tt, x, at, src, accumulate=True), added(case))

    def test_into_a_view(self, tt, dtype, shape, count):
        """The elements around those of the view must not change."""
        case = Case(tt, dtype, shape, count)
        base = tt.full((*shape, 3), 7.0, dtype=case.dtype)
        view = base[..., 1]
        view.copy_(case.tensor(case.x))
        view.index_add_(0, case.tensor(case.places), case.tensor(case.sources))
        case.same(view, added(case))
        assert (base[..., 0] == 7).all().item() and (base[..., 2] == 7).all().item()
        turned = case.tensor(case.x).movedim(0, -1).contiguous().movedim(-1, 0)
        turned.scatter_add_(0, columns(case), case.tensor(case.sources))
        case.same(turned, added(case))

    def test_gradients(self, tt, dtype, shape, count):
        case = Case(tt, dtype, shape, count)
        at, src = case.tensor(case.places), case.tensor(case.sources)
        case.x[:] = 0
        for take in (lambda x: tt.index_select(x, 0, at), lambda x: x[at],
                     lambda x: tt.gather(x, 0, columns(case)),
                     lambda x: tt.take_along_dim(x, columns(case), 0),
                     lambda x: tt.take(x, at) if len(shape) == 1 else x[at]):
            x = case.tensor(case.x).requires_grad_()
            take(x).backward(src)
            case.same(x.grad, added(case))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_sum_of_many_small_ones(tt, dtype):
    """3,000 times 0.1; a sum in 16 bits would stop growing at 32 or 256."""
    d = getattr(tt, dtype)
    tenth = float(rounded(0.1, dtype))
    want = rounded(3000 * tenth, dtype)
    z, v = tt.zeros(3000, dtype=tt.int64), tt.full((3000,), 0.1, dtype=d)
    x = tt.zeros(1, dtype=d, requires_grad=True)
    tt.nn.functional.pad(x.reshape(1, 1, 1), (3000, 0), mode="replicate").sum().backward()
    assert x.grad.item() == rounded(3001, dtype)
    for got in (tt.zeros(1, dtype=d).scatter_add(0, z, v), tt.zeros(1, dtype=d).index_add(0, z, v),
                tt.zeros(1, 2, dtype=d).index_add(0, z, v[:, None].expand(3000, 2))[0, 1],
                tt.zeros(1, dtype=d).index_put((z,), v, accumulate=True)):
        assert abs(got.item() - want) <= want / 100, got
    mean = tt.zeros(1, dtype=d).scatter_reduce(0, z, v, "mean", include_self=False)
    assert mean.item() == tenth


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_embedding_bags(tt, dtype, mode):
    case = Case(tt, dtype, (5, 3), 2000)
    weight, i = case.tensor(case.x), case.places
    F = tt.nn.functional
    ends = [0, 1900, 2000]
    rows = case.x[i]
    want = np.stack([getattr(rows[a:b], mode)(0) for a, b in zip(ends, ends[1:], strict=False)])
    offsets = tt.tensor(ends[:2])
    case.same(F.embedding_bag(case.tensor(i), weight, offsets, mode=mode), want.astype(np.float32))
    case.same(F.embedding_bag(case.tensor(i.reshape(2, 1000)), weight, mode=mode),
              getattr(rows.reshape(2, 1000, 3), mode)(1).astype(np.float32))
    if mode == "sum":
        each = case.draw((2000,))
        weighed = case.x[i] * each[:, None]
        want = np.stack([weighed[:1900].sum(0), weighed[1900:].sum(0)])
        case.same(F.embedding_bag(case.tensor(i), weight, offsets, mode=mode,
                                  per_sample_weights=case.tensor(each)), want)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_mean_whose_sum_16_bits_do_not_hold(tt, dtype):
    d = getattr(tt, dtype)
    i, w = tt.zeros(3000, dtype=tt.int64), tt.full((1, 1), 60.0, dtype=d)
    assert tt.nn.functional.embedding_bag(i, w, tt.tensor([0]), mode="mean").item() == 60
    assert tt.nn.functional.embedding_bag(i.reshape(1, 3000), w, mode="mean").item() == 60
    assert tt.segment_reduce(tt.full((3000,), 60.0, dtype=d), "mean", lengths=tt.tensor([3000])).item() == 60
    x = tt.zeros(1, dtype=d).scatter_reduce(0, i, tt.full((3000,), 60.0, dtype=d), "mean", include_self=False)
    assert x.item() == 60


@pytest.mark.parametrize("dtype", HALVES)
def test_windows_that_overlap(tt, dtype):
    """The gradient of unfold and of as_strided: up to 300 windows share an element."""
    case = Case(tt, dtype, (500,), 1)
    x = case.tensor(case.x).requires_grad_()
    weights = case.draw((201, 300))
    x.unfold(0, 300, 1).backward(case.tensor(weights))
    want = np.zeros(500)
    for i in range(201):
        want[i:i + 300] += weights[i]
    case.same(x.grad, want)
    y = case.tensor(case.x).requires_grad_()
    tt.as_strided(y, (201, 300), (1, 1)).backward(case.tensor(weights))
    case.same(y.grad, want)


# ---------------------------------------------------------------- 0-d operands

SCALARS = ("float32", "float64", "float16", "bfloat16", "int64")


def scalar_cases(scalar):
    if scalar == "int64":
        return [131072.0, 65536.0, 3.0]
    if scalar == "float16":
        return [1.0009765625, 0.333251953125, 4096.0]
    if scalar == "bfloat16":
        return [1.0078125, 131072.0]
    return [131072.0, 65536.0, 1.1, 1e-6, 0.3, 1.0 + 2.0**-12]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
def test_a_0d_operand_is_not_rounded(tt, dtype, scalar, op):
    """The result has the dtype of the other operand; it is that of float32 arithmetic, rounded once."""
    if scalar == dtype:
        return
    d = getattr(tt, dtype)
    x = rounded([5e4, 0.01, -1.5, 3.0, 1.0, 0.0], dtype)
    run = {"mul": np.multiply, "div": np.divide, "add": np.add, "sub": np.subtract}[op]
    t = tt.tensor(x, dtype=d)
    captured = tt.compile(lambda a, b: getattr(tt, op)(a, b))
    for number in scalar_cases(scalar):
        s = tt.tensor(number, dtype=getattr(tt, scalar))
        exact = np.float32(s.double().item())
        with np.errstate(all="ignore"):
            want = rounded(run(x.astype(np.float32), exact), dtype)
            swapped = rounded(run(exact, x.astype(np.float32)), dtype)
        results = [(getattr(tt, op)(t, s), want), (getattr(t.clone(), op + "_")(s), want),
                   (getattr(tt, op)(t, s.reshape(1)[0]), want), (getattr(tt, op)(s, t), swapped)]
        results += [(captured(t, s), want) for _ in range(3)]
        wide = tt.stack([t, t]).t()
        results.append((getattr(tt, op)(wide, s)[:, 1], want))
        for got, expected in results:
            assert got.dtype == d
            assert np.array_equal(values_of(got), expected, equal_nan=True), (number, got, expected)


def test_division_by_a_norm(tt):
    x = tt.tensor([5e4, 5e4], dtype=tt.float16)
    norm = tt.linalg.vector_norm(tt.tensor([5e4, 5e4, 6e4]))
    assert values_of(x / norm).tolist() == [0.5390625] * 2


@pytest.mark.parametrize("dtype", HALVES)
def test_comparisons_and_integers_convert_a_0d_operand(tt, dtype):
    """Operands are converted to the dtype of the other operand, as in PyTorch."""
    d = getattr(tt, dtype)
    x = tt.tensor([0.1], dtype=d)
    assert (x == tt.tensor(0.1)).item() is True
    assert (x == 0.1).item() is True
    y = tt.tensor([100], dtype=tt.int8)
    assert (y + tt.tensor(300)).tolist() == [-112]


# ---------------------------------------------------------------- products with something added

@pytest.mark.parametrize("dtype", HALVES)
def test_products_that_16_bits_do_not_hold(tt, dtype):
    d = getattr(tt, dtype)

    def c(v, *shape):
        return tt.full(shape, v, dtype=d)
    want = float(rounded(float(rounded(-6e4, dtype)) + 300.0 * 300.0, dtype))
    assert tt.baddbmm(c(-6e4, 1, 1, 1), c(300.0, 1, 1, 1), c(300.0, 1, 1, 1)).item() == want
    assert tt.addbmm(c(-6e4, 1, 1), c(300.0, 1, 1, 1), c(300.0, 1, 1, 1)).item() == want
    assert tt.addr(c(-6e4, 1, 1), c(300.0, 1), c(300.0, 1)).item() == want
    x = c(-6e4, 1, 1, 1)
    x.baddbmm_(c(300.0, 1, 1, 1), c(300.0, 1, 1, 1))
    assert x.item() == want
    with tt.autocast("cpu", dtype=d):
        assert tt.baddbmm(c(-6e4, 1, 1, 1), c(300.0, 1, 1, 1), c(300.0, 1, 1, 1)).item() == want
    a = c(2.0, 1, 2, 3).requires_grad_()
    out = tt.baddbmm(c(1.0, 1, 2, 2), a, c(3.0, 1, 3, 2), beta=0.5, alpha=2)
    assert out.dtype == d and out.flatten().tolist() == [36.5] * 4
    out.sum().backward()
    assert a.grad.dtype == d and a.grad.flatten().tolist() == [12.0] * 6


@pytest.mark.parametrize("dtype", HALVES)
def test_the_weight_of_lerp(tt, dtype):
    d = getattr(tt, dtype)
    x, end = tt.tensor([1.0, 2.0], dtype=d), tt.tensor([-2.0, 0.0], dtype=d)
    for weight in (0.3, 0.7, 1 / 3):
        # Computed from the nearer end, in float32.
        w, a, b = np.float32(weight), np.float32([1, 2]), np.float32([-2, 0])
        want = rounded(a + w * (b - a) if w < 0.5 else b - (b - a) * (np.float32(1) - w), dtype)
        assert values_of(tt.lerp(x, end, weight)).tolist() == want.tolist()
        y = x.clone()
        y.lerp_(end, weight)
        assert values_of(y).tolist() == want.tolist()
