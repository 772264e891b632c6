"""Complex tensors: parts, numbers, autograd in PyTorch's convention, what is refused."""

import numpy as np
import pytest


def test_parts(tt):
    z = tt.tensor([1 + 2j, 3 - 1j])
    assert z.dtype == tt.complex64 and z.is_complex() and not z.is_floating_point()
    assert z.real.tolist() == [1, 3] and z.imag.tolist() == [2, -1]
    assert z.conj().tolist() == [1 - 2j, 3 + 1j] and z.conj().resolve_conj() is not None
    assert not z.conj().is_conj()
    x = tt.ones(2)
    assert x.real is x and x.conj() is x
    z.real = 7
    z.imag = tt.tensor([0.5, -0.5])
    assert z.tolist() == [7 + 0.5j, 7 - 0.5j]
    m = tt.tensor([[1 + 2j, 3], [4j, 5]])
    assert m.H.tolist() == [[1 - 2j, -4j], [3, 5]] == m.mH.tolist() == m.adjoint().tolist()
    with pytest.raises(RuntimeError, match="2-D"):
        tt.ones(2).H  # noqa: B018
    assert tt.isreal(tt.tensor([1 + 0j, 1j])).tolist() == [True, False]
    assert complex(tt.tensor(2 - 3j)) == 2 - 3j
    with pytest.raises(TypeError):
        float(tt.tensor(2 - 3j))


def test_making_them(tt):
    assert tt.full((2,), 1j).dtype == tt.complex64
    assert tt.eye(2, dtype=tt.complex128).tolist() == [[1, 0], [0, 1]]
    assert np.allclose(tt.linspace(0, 1j, 3).numpy(), [0, 0.5j, 1j])
    assert tt.polar(tt.tensor(2.0), tt.tensor(np.pi / 2)).imag.item() == pytest.approx(2)
    drawn = tt.randn(4000, dtype=tt.complex64).numpy()
    assert abs(drawn.real.var() - 0.5) < 0.06 and abs(drawn.imag.var() - 0.5) < 0.06
    flat = tt.rand(4000, dtype=tt.complex128).numpy()
    assert 0 <= flat.imag.min() and flat.real.max() < 1 and abs(flat.imag.mean() - 0.5) < 0.03
    assert tt.zeros_like(tt.ones(2, dtype=tt.complex64)).dtype == tt.complex64


def test_numbers_as_operands(tt):
    x = tt.tensor([1.0, 2.0])
    assert (x * 1j).tolist() == [1j, 2j] and (1j * x).dtype == tt.complex64
    assert (x.double() + 1j).dtype == tt.complex128
    assert (tt.tensor([1, 2]) - 1j).tolist() == [1 - 1j, 2 - 1j]
    assert (x * np.complex64(2j)).tolist() == [2j, 4j]
    assert (x == 1 + 0j).tolist() == [True, False]
    with pytest.raises(RuntimeError, match="cast"):
        x.add_(1j)


def test_the_gradient_of_a_real_operand_is_real(tt):
    x = tt.tensor([0.5, -1.5], requires_grad=True)
    z = x * (2 - 3j)
    (z * z.conj()).real.sum().backward()
    assert x.grad.dtype == tt.float32 and np.allclose(x.grad.numpy(), 2 * 13 * x.detach().numpy())
    y = tt.tensor([1 + 1j], requires_grad=True)
    tt.abs(y).sum().backward()
    assert np.allclose(y.grad.numpy(), (1 + 1j) / np.sqrt(2))
    w = tt.zeros(1, dtype=tt.complex64, requires_grad=True)
    (w.abs() + w.sgn().real + w.angle()).sum().backward()
    assert w.grad.tolist() == [0]


def test_steepest_descent(tt):
    """z -= rate * z.grad lowers a real function of z: the convention."""
    z = tt.tensor([3 - 4j], requires_grad=True)
    for _ in range(50):
        loss = ((z - (1 + 2j)).abs() ** 2).sum()
        loss.backward()
        with tt.no_grad():
            z -= 0.1 * z.grad
        z.grad = None
    assert abs(z.item() - (1 + 2j)) < 1e-3


def test_backward_of_a_complex_result_is_refused(tt):
    z = tt.tensor([1 + 2j], requires_grad=True)
    with pytest.raises(RuntimeError, match="real scalar outputs"):
        (z * z).sum().backward()
    with pytest.raises(RuntimeError, match="both be complex"):
        (z * z).backward(tt.ones(1))
    (z * z).backward(tt.ones(1, dtype=tt.complex64))
    assert z.grad.tolist() == [2 - 4j]


def test_second_derivatives_and_views(tt):
    z = tt.tensor([1 + 2j, 0.5 - 1j], dtype=tt.complex128, requires_grad=True)
    (g,) = tt.autograd.grad((z ** 3).abs().sum(), z, create_graph=True)
    g.abs().sum().backward()
    assert np.allclose(z.grad.numpy(), 6 * z.detach().numpy())
    base = tt.ones(3, dtype=tt.complex64, requires_grad=True)
    y = base * 2
    y[1:] *= 1j
    y.imag.sum().backward()
    assert base.grad.tolist() == [2j, 2, 2]


def test_reductions_of_nothing_and_specials(tt):
    assert tt.zeros(0, dtype=tt.complex64).sum().item() == 0
    assert np.isnan(tt.zeros(0, dtype=tt.complex64).mean().item())
    z = tt.tensor([complex(np.inf, 0), complex(0, np.nan), 1 + 1j])
    assert z.isinf().tolist() == [True, False, False] and z.isnan().tolist() == [False, True, False]
    assert z.isfinite().tolist() == [False, False, True]
    assert (tt.tensor([0j]) ** 0).item() == 1 and (tt.tensor([0j]) ** tt.tensor([2 + 0j])).item() == 0
    big = tt.tensor([1e30 + 1e30j])
    assert np.allclose((big / big).numpy(), 1) and np.allclose((1 / big).numpy(), 1 / (1e30 + 1e30j))


def test_logsumexp(tt):
    generator = np.random.default_rng(3)
    z = 700 * generator.normal(size=(3, 4, 5)) + 1j * generator.normal(size=(3, 4, 5))
    for dim in (0, -1, (0, 2), (0, 1, 2)):
        top = z.real.max(dim, keepdims=True)
        want = np.log(np.exp(z - top).sum(dim, keepdims=True)) + top
        x = tt.tensor(z, dtype=tt.complex128, requires_grad=True)
        kept = tt.logsumexp(x, dim, True)
        assert kept.shape == want.shape and np.allclose(kept.detach().numpy(), want)
        assert np.allclose(x.logsumexp(dim).detach().numpy(), want.squeeze(dim))
        kept.real.sum().backward()
        assert np.allclose(x.grad.numpy(), np.conj(np.exp(z - want)))
    infinite = tt.logsumexp(tt.tensor([complex(-np.inf, 0), complex(-np.inf, 2)]), 0).item()
    assert infinite.real == -np.inf and tt.zeros(0, 2, dtype=tt.complex64).logsumexp(0).real.tolist() == [-np.inf] * 2


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(tt, transposed):
    """Complex convolution compared with four real convolutions, and its derivative with the definition."""
    generator = np.random.default_rng(4)
    f = tt.nn.functional.conv_transpose2d if transposed else tt.nn.functional.conv2d

    def drawn(*shape):
        array = generator.normal(size=shape) + 1j * generator.normal(size=shape)
        return tt.tensor(array, dtype=tt.complex128, requires_grad=True)

    x, w, b = drawn(2, 4, 6, 5), drawn(4, 3, 3, 2) if transposed else drawn(6, 2, 3, 2), drawn(6)
    out = f(x, w, b, stride=2, padding=1, groups=2)

    def real(p, q):
        return f(p, q, stride=2, padding=1, groups=2).detach().numpy()
    want = (real(x.real, w.real) - real(x.imag, w.imag) + 1j * (real(x.real, w.imag) + real(x.imag, w.real))
            + b.detach().numpy()[:, None, None])
    assert np.allclose(out.detach().numpy(), want)
    assert tt.autograd.gradcheck(lambda x, w, b: f(x, w, b, stride=2, padding=1, groups=2), (x, w, b))
    one = tt.ones(1, 1, 4, dtype=tt.complex64)
    assert tt.nn.functional.conv1d(one * 1j, one[..., :2]).tolist() == [[[2j] * 3]]
    with pytest.raises(RuntimeError, match="different dtypes.*complex128.*float64"):
        f(x, w.real)


@pytest.mark.parametrize("op", ["floor", "sort", "max", "relu", "cummax", "median", "erf"])
def test_refusals_name_op_and_dtype(tt, op):
    call = getattr(tt, op, None) or getattr(tt.nn.functional, op)
    with pytest.raises(RuntimeError, match="complex64"):
        call(tt.ones(2, dtype=tt.complex64), *([0] if op == "cummax" else []))


def test_matrices(tt):
    generator = np.random.default_rng(0)
    a = generator.normal(size=(2, 3, 4)) + 1j * generator.normal(size=(2, 3, 4))
    b = generator.normal(size=(4, 5)) + 1j * generator.normal(size=(4, 5))
    for dtype, tolerance in ((tt.complex64, 1e-5), (tt.complex128, 1e-12)):
        x, y = tt.tensor(a, dtype=dtype), tt.tensor(b, dtype=dtype)
        assert np.allclose((x @ y).numpy(), a @ b, atol=tolerance)
        assert np.allclose((x.mH @ x).numpy(), np.conj(a.transpose(0, 2, 1)) @ a, atol=tolerance)
    with pytest.raises(RuntimeError, match="dtypes differ"):
        tt.ones(2, 2) @ tt.ones(2, 2, dtype=tt.complex64)
