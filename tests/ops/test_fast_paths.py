"""Where a kernel has a separate loop for contiguous operands, its result must be that of the general loops,
bit by bit."""

import numpy as np
import pytest

RNG = np.random.default_rng(5)


def same(a, b):
    a, b = a.numpy(), b.numpy()
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


def strided(tt, x):
    """The same tensor with twice the stride."""
    return tt.stack([x, x], -1).flatten(-2)[..., ::2]


@pytest.mark.parametrize("op", ["cummax", "cummin"])
@pytest.mark.parametrize("lines", [1, 3, 4, 7, 9])
def test_running_extrema_of_several_lines(tt, op, lines):
    array = RNG.integers(-5, 5, (lines, 700)).astype(np.float32)
    array[lines // 2, 300] = np.nan
    x = tt.tensor(array)
    together, one = getattr(x, op)(1), [getattr(row, op)(0) for row in x]
    same(together.values, tt.stack([r.values for r in one]))
    same(together.indices, tt.stack([r.indices for r in one]))
    assert together.indices[lines // 2, -1].item() == 300
    running = np.maximum if op == "cummax" else np.minimum
    np.testing.assert_array_equal(together.values.numpy(), running.accumulate(array, axis=1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_of_parts(tt, dtype):
    re, im = (tt.tensor(RNG.normal(size=(37, 41)).astype(dtype)) for _ in range(2))
    z = tt.complex(re, im)
    same(z, tt.complex(strided(tt, re), im))
    np.testing.assert_array_equal(z.numpy(), re.numpy() + 1j * im.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outer_product(tt, dtype):
    x = tt.tensor(np.array([-0.0, 0.0, 1.5, -3.0, np.inf], dtype))
    y = tt.tensor(RNG.normal(size=1000).astype(dtype))
    y[:3] = tt.tensor(np.array([0.0, -0.0, np.nan], dtype))
    same(tt.outer(x, y), tt.outer(strided(tt, x), strided(tt, y)))


def test_nll_loss_of_matrices(tt):
    f = tt.nn.functional
    x = tt.tensor(RNG.normal(size=(50, 30)).astype(np.float32))
    target = RNG.integers(0, 30, 50)
    target[7] = -100
    weight = tt.rand(30)
    for reduction in ("none", "mean", "sum"):
        plain = f.nll_loss(x, tt.tensor(target), weight, reduction=reduction)
        same(plain, f.nll_loss(x.t().contiguous().t(), strided(tt, tt.tensor(target)), weight,
                               reduction=reduction))
        wide = f.nll_loss(x.unsqueeze(-1), tt.tensor(target).unsqueeze(-1), weight, reduction=reduction)
        same(plain, wide.squeeze(-1) if reduction == "none" else wide)


@pytest.mark.parametrize("shapes", [((4, 5), (6, 7)), ((2, 3), (9, 2)), ((5, 3, 2), (4, 7)), ((4, 1), (5, 300))])
def test_kron_with_short_and_long_rows(tt, shapes):
    a, b = (tt.tensor(RNG.normal(size=s), requires_grad=True) for s in shapes)
    out = tt.kron(a, b)
    np.testing.assert_array_equal(out.detach().numpy(), np.kron(a.detach().numpy(), b.detach().numpy()))
    ga, gb = tt.autograd.grad((out * out).sum(), (a, b))
    na, nb = a.detach().numpy(), b.detach().numpy()
    np.testing.assert_allclose(ga.numpy(), 2 * na * (nb ** 2).sum(), rtol=1e-12)
    np.testing.assert_allclose(gb.numpy(), 2 * nb * (na ** 2).sum(), rtol=1e-12)


def test_gathers_of_many_short_rows(tt):
    x = tt.tensor(RNG.normal(size=(7, 11, 13)).astype(np.float32))
    at = RNG.integers(0, 13, 29)
    np.testing.assert_array_equal(x.index_select(2, tt.tensor(at)).numpy(), x.numpy()[:, :, at])
    np.testing.assert_array_equal(x.index_select(1, tt.tensor(at[at < 11])).numpy(),
                                  x.numpy()[:, at[at < 11]])
    # large enough to be computed in several parts
    large = tt.tensor(RNG.normal(size=(3000, 400)).astype(np.float32))
    at = RNG.integers(0, 400, 501)
    np.testing.assert_array_equal(large.index_select(1, tt.tensor(at)).numpy(), large.numpy()[:, at])
