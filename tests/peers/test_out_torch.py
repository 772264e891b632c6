"""Compares the parameter out= with PyTorch's: values, dtypes, shapes, errors."""

import numpy as np
import pytest
import teletensor
import torch
from teletensor._calls import out as _out

X = np.random.default_rng(2).uniform(0.2, 0.9, (3, 3))
CALLS = {
    "add": lambda m, x, **k: m.add(x, 2.0, **k),
    "exp": lambda m, x, **k: m.exp(x, **k),
    "sum": lambda m, x, **k: m.sum(x, 0, **k),
    "mean": lambda m, x, **k: m.mean(x, 1, **k),
    "matmul": lambda m, x, **k: m.matmul(x, x, **k),
    "cat": lambda m, x, **k: m.cat([x, x], 0, **k),
    "stack": lambda m, x, **k: m.stack([x, x], **k),
    "where": lambda m, x, **k: m.where(x > 0.5, x, x + 1, **k),
    "arange": lambda m, x, **k: m.arange(5, **k),
    "clamp": lambda m, x, **k: m.clamp(x, 0.3, 0.5, **k),
    "cumsum": lambda m, x, **k: m.cumsum(x, 0, **k),
    "gather": lambda m, x, **k: m.gather(x, 0, m.tensor([[1, 0, 2]]), **k),
    "norm": lambda m, x, **k: m.norm(x, **k),
    "linalg.inv": lambda m, x, **k: m.linalg.inv(x, **k),
    "linalg.norm": lambda m, x, **k: m.linalg.norm(x, **k),
    "fft.rfft": lambda m, x, **k: m.fft.rfft(x, **k),
    "special.erfinv": lambda m, x, **k: m.special.erfinv(x, **k),
    "zeros": lambda m, x, **k: m.zeros(2, 2, **k),
    "nonzero": lambda m, x, **k: m.nonzero(x > 0.5, **k),
    "masked_select": lambda m, x, **k: m.masked_select(x, x > 0.5, **k),
    "eq": lambda m, x, **k: m.eq(x, x, **k),
    "std": lambda m, x, **k: m.std(x, 0, **k),
    "round": lambda m, x, **k: m.round(x, **k),
    "kron": lambda m, x, **k: m.kron(x, x, **k),
    "quantile": lambda m, x, **k: m.quantile(x, 0.5, **k),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_values(tt, name):
    results = []
    for m in (tt, torch):
        x = m.tensor(X)
        want = CALLS[name](m, x)
        given = m.full(tuple(want.shape), 7, dtype=want.dtype)
        view = given.view(-1)
        assert CALLS[name](m, x, out=given) is given
        assert view.tolist() == want.reshape(-1).tolist()  # written into the same memory
        for shape in ((0,), (2, 5)):
            other = m.empty(*shape, dtype=want.dtype)
            assert CALLS[name](m, x, out=other) is other and tuple(other.shape) == tuple(want.shape)
            assert other.tolist() == want.tolist()
        results.append(given)
    np.testing.assert_allclose(*[np.asarray(r) for r in results], 1e-9)


def test_tuples(tt):
    for m in (tt, torch):
        x = m.tensor(X)
        values, indices = m.empty(0, dtype=m.float64), m.empty(0, dtype=m.int64)
        got = m.max(x, 0, out=(values, indices))
        assert got[0] is values and got.indices is indices
        assert values.tolist() == X.max(0).tolist() and indices.tolist() == X.argmax(0).tolist()
        q, r = m.empty(0, dtype=m.float64), m.empty(0, dtype=m.float64)
        m.linalg.qr(x, out=(q, r))
        np.testing.assert_allclose((q @ r).numpy(), X, 1e-9)


def test_dtypes_and_refusals(tt):
    for m in (tt, torch):
        x = m.tensor(X)
        wide = m.empty(3, 3, dtype=m.complex128)
        assert m.add(x, 1, out=wide).dtype == m.complex128 and wide.real.tolist() == (X + 1).tolist()
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            m.add(x, 1, out=m.empty(3, 3, dtype=m.int64))
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            m.add(x.clone().requires_grad_(), 1, out=m.empty(3, 3, dtype=m.float64))
        with m.no_grad():
            m.add(x.clone().requires_grad_(), 1, out=m.empty(3, 3, dtype=m.float64))
        with pytest.warns(UserWarning, match="was resized since it had shape"):
            m.add(x, 1, out=m.ones(2, dtype=m.float64))
        assert m.add(x, 1, out=None).tolist() == (X + 1).tolist()
    with pytest.raises(TypeError, match="must be Tensor"):
        tt.add(tt.ones(2), 1, out=3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        tt.ones(2).add_(1, out=tt.ones(2))


def test_every_name_takes_it():
    for names, space in (
        (_out.FUNCTIONS, teletensor),
        (_out.LINALG, teletensor.linalg),
        (_out.FFT, teletensor.fft),
        (_out.SPECIAL, teletensor.special),
    ):
        for name in names:
            function = getattr(space, name)
            assert not hasattr(function, "__code__") or "out" in (
                *function.__code__.co_varnames,
                *function.__code__.co_names,
            ), name
