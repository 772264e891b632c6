"""Tests linear algebra beyond the rows: error classes, info, and derivatives for repeated values."""

import numpy as np
import pytest


@pytest.fixture
def tt(lib):
    return lib.m


@pytest.mark.parametrize(("call", "element"), [
    (lambda tt, x: tt.linalg.cholesky(x), "Batch element 1"), (lambda tt, x: tt.linalg.inv(x), "Batch element 1"),
    (lambda tt, x: tt.linalg.solve(x, x), "Batch element 1"),
    (lambda tt, x: tt.linalg.lu_factor(x).LU, "Batch element 1"),
    (lambda tt, x: tt.linalg.eigvalsh(x / 0), "failed to converge"),
    (lambda tt, x: tt.linalg.svdvals(x / x.sum()), "non-finite")])
def test_a_linalg_error_names_the_matrix(tt, call, element):
    singular = np.zeros((2, 2))
    x = tt.tensor(np.array([singular] * 3 if element == "non-finite" else [np.eye(2), singular, np.eye(2)]))
    with pytest.raises(tt.linalg.LinAlgError, match=element):
        call(tt, x)
    assert issubclass(tt.linalg.LinAlgError, RuntimeError)


NAN = float("nan")


@pytest.mark.parametrize("call", [
    lambda tt, x: tt.linalg.cholesky(x), lambda tt, x: tt.cholesky(x),
    lambda tt, x: tt.linalg.cholesky_ex(x, check_errors=True),
    lambda tt, x: tt.linalg.inv(x), lambda tt, x: tt.inverse(x), lambda tt, x: x.inverse(),
    lambda tt, x: tt.linalg.inv_ex(x, check_errors=True), lambda tt, x: tt.linalg.solve(x, x),
    lambda tt, x: tt.linalg.solve(x, x[0]), lambda tt, x: tt.linalg.solve_ex(x, x, check_errors=True),
    lambda tt, x: tt.linalg.lu_factor(x), lambda tt, x: tt.linalg.lu_factor_ex(x, check_errors=True),
    lambda tt, x: tt.linalg.ldl_factor(x), lambda tt, x: tt.linalg.ldl_factor_ex(x, check_errors=True),
    lambda tt, x: tt.linalg.matrix_power(x, -1), lambda tt, x: tt.linalg.tensorinv(x, 1),
    lambda tt, x: tt.linalg.tensorsolve(x, x[0]),
    lambda tt, x: tt.vmap(tt.linalg.cholesky)(x.unsqueeze(0)),
    lambda tt, x: tt.distributions.MultivariateNormal(x[0], x, validate_args=False),
    lambda tt, x: tt.linalg.svd(x * NAN), lambda tt, x: tt.svd(x * NAN), lambda tt, x: tt.linalg.svdvals(x * NAN),
    lambda tt, x: tt.linalg.svdvals((x * NAN).requires_grad_()), lambda tt, x: tt.linalg.eigh(x * NAN),
    lambda tt, x: tt.linalg.eigvalsh(x * NAN), lambda tt, x: tt.linalg.eig(x * NAN),
    lambda tt, x: tt.linalg.eigvals(x * NAN), lambda tt, x: tt.linalg.pinv(x * NAN),
    lambda tt, x: tt.linalg.matrix_rank(x * NAN), lambda tt, x: tt.linalg.cond(x * NAN),
    lambda tt, x: tt.linalg.matrix_norm(x * NAN, 2), lambda tt, x: tt.linalg.matrix_norm(x * NAN, "nuc")])
def test_a_program_can_catch_the_error_of_a_matrix_at_its_line(tt, call):
    x = tt.zeros(2, 2)
    with pytest.raises(RuntimeError):
        call(tt, x)
    assert tt.ones(2).prod().item() == 1  # no error remains for another line


def test_jitter_until_the_matrix_is_positive_definite(tt):
    matrix = tt.tensor([[1.0, 3.0], [3.0, 1.0]])
    for power in range(-3, 3):
        try:
            factor = tt.linalg.cholesky(matrix + 10.0**power * tt.eye(2))
            break
        except tt.linalg.LinAlgError:
            continue
    assert power == 1 and np.allclose(factor.numpy() @ factor.numpy().T, [[11, 3], [3, 11]])


def test_captured_and_scripted_functions_do_not_wait(tt):
    def factor(x):
        return tt.linalg.cholesky(x)

    for made in (tt.compile(factor), tt.jit.script(factor)):
        assert made(tt.eye(2) * 4).tolist() == [[2, 0], [0, 2]]
        result = made(-tt.eye(2))
        with pytest.raises(tt.linalg.LinAlgError):
            result.numpy()


def test_info_instead_of_errors(tt):
    x = tt.tensor(np.array([np.eye(3), np.diag([1.0, 0.0, 1.0])]))
    assert tt.linalg.cholesky_ex(x).info.tolist() == [0, 2]
    assert tt.linalg.inv_ex(x).info.tolist() == [0, 2]
    assert tt.linalg.lu_factor_ex(x).info.tolist() == [0, 2]
    assert tt.linalg.solve_ex(x, x).info.tolist() == [0, 2]
    assert tt.linalg.inv_ex(x).inverse[0].tolist() == np.eye(3).tolist()
    with pytest.raises(tt.linalg.LinAlgError):
        tt.linalg.inv_ex(x, check_errors=True).info.numpy()


def test_det_of_singular_matrices_has_a_gradient(tt):
    """The gradient consists of the cofactors: for rank n - 1 they are not 0, and for lower ranks they
    are."""
    x = np.array([[[1.0, 2], [2, 4]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]])
    a = tt.tensor(x, requires_grad=True)
    tt.linalg.det(a).sum().backward()
    want = np.stack([[[m[1, 1], -m[1, 0]], [-m[0, 1], m[0, 0]]] for m in x])
    assert np.allclose(a.grad.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("name", ["svdvals", "eigvalsh"])
def test_repeated_values_have_a_gradient(tt, name):
    a = tt.tensor(np.eye(3) * 2, requires_grad=True)
    (getattr(tt.linalg, name)(a) ** 2).sum().backward()
    assert np.allclose(a.grad.numpy(), np.eye(3) * 4)


def test_the_nuclear_norm_of_repeated_values(tt):
    a = tt.tensor(np.eye(4, 3), requires_grad=True)
    tt.linalg.matrix_norm(a, "nuc").backward()
    assert np.allclose(a.grad.numpy(), np.eye(4, 3))


def test_one_triangle_is_read(tt):
    x = np.array([[4.0, np.nan], [1.0, 3.0]])
    lower, full = tt.tensor(x), np.array([[4.0, 1.0], [1.0, 3.0]])
    assert np.allclose(tt.linalg.cholesky(lower).numpy(), np.linalg.cholesky(full))
    assert np.allclose(tt.linalg.eigvalsh(lower).numpy(), np.linalg.eigvalsh(full))
    assert np.allclose(tt.linalg.eigvalsh(lower.mT, "U").numpy(), np.linalg.eigvalsh(full))
    b = tt.ones(2, 1, dtype=tt.float64)
    assert np.allclose(tt.linalg.solve_triangular(lower, b, upper=False).numpy().ravel(), [0.25, 0.25])


def test_lu_unpack_and_old_names(tt):
    a = tt.randn(2, 4, 3, dtype=tt.float64)
    factor, pivots, info = tt.lu(a, get_infos=True)
    p, lower, upper = tt.lu_unpack(factor, pivots)
    assert np.allclose((p @ lower @ upper).numpy(), a.numpy()) and info.tolist() == [0, 0]
    assert [x.numel() for x in tt.lu_unpack(factor, pivots, unpack_data=False)] == [32, 0, 0]
    u, s, v = tt.svd(a)
    assert np.allclose(((u * s.unsqueeze(-2)) @ v.mT).numpy(), a.numpy())
    q, r = tt.qr(a)
    assert np.allclose((q @ r).numpy(), a.numpy())
    square = tt.randn(3, 3, dtype=tt.float64)
    assert np.allclose(square.inverse().numpy(), np.linalg.inv(square.numpy()))
    assert np.allclose(square.det().item(), np.linalg.det(square.numpy()))
    chain = tt.chain_matmul(square, square, a[0].mT)
    assert np.allclose(chain.numpy(), square.numpy() @ square.numpy() @ a[0].numpy().T)


def test_large_norms_of_matrix_exp(tt):
    x = np.diag([300.0, -300.0, 0.0])
    got = tt.linalg.matrix_exp(tt.tensor(x)).numpy()
    assert np.allclose(np.diag(got), np.exp(np.diag(x)), rtol=1e-12)
    assert np.isnan(tt.linalg.matrix_exp(tt.tensor(x) * float("inf")).numpy()).any()


def test_many_small_matrices_run_in_parts(tt):
    x = np.random.default_rng(0).standard_normal((3000, 8, 8))
    assert np.allclose((tt.linalg.inv(tt.tensor(x)) @ tt.tensor(x)).numpy(), np.eye(8), atol=1e-8)


def test_the_power_zero_has_a_gradient(tt):
    x = tt.tensor(np.full((2, 2, 2), np.nan), requires_grad=True)
    power = tt.linalg.matrix_power(x, 0)
    assert np.array_equal(power.detach().numpy(), [np.eye(2)] * 2)
    power.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.zeros((2, 2, 2)))
