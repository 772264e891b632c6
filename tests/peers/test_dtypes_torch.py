"""Compares the dtypes with PyTorch's: repr, Python numbers, conversions, from_torch and to_torch."""

import itertools

import numpy as np
import pytest

NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
         "bfloat16", "float32", "float64", "complex64", "complex128")
VALUES = [0, 1, 3, 100]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", NAMES)
def test_torch_and_back(tt, torch, name):
    theirs = torch.tensor([[0, 1, 3], [7, 100, 2]]).to(getattr(torch, name))
    if theirs.is_complex():
        theirs = theirs * (1 - 2j)
    ours = tt.from_torch(theirs)
    assert ours.dtype.name == name and ours.shape == theirs.shape
    assert ours.tolist() == theirs.tolist()
    back = tt.to_torch(ours)
    assert back.dtype == theirs.dtype and torch.equal(back, theirs)
    assert repr(ours).replace("teletensor.", "torch.") == repr(theirs)
    assert ours.dtype.itemsize == theirs.element_size()
    assert ours.dtype.is_complex == theirs.is_complex()
    assert ours.dtype.is_floating_point == theirs.is_floating_point()
    assert ours.dtype.is_signed == theirs.is_signed()
    assert type(ours[0, 0].item()) is type(theirs[0, 0].item())


def test_casts(tt, torch):
    for a, b in itertools.product(NAMES, NAMES):
        theirs = torch.tensor(VALUES).to(getattr(torch, a)).to(getattr(torch, b))
        ours = tt.tensor(VALUES).to(getattr(tt, a)).to(getattr(tt, b))
        assert ours.tolist() == theirs.tolist(), (a, b)


def test_promotion_where_torch_defines_it(tt, torch):
    for a, b in itertools.product(NAMES, NAMES):
        try:
            want = torch.promote_types(getattr(torch, a), getattr(torch, b))
        except RuntimeError:
            continue
        x = tt.ones(2, dtype=getattr(tt, a))
        y = tt.ones(2, dtype=getattr(tt, b))
        got = (x * y).dtype.name
        # teletensor has no complex32.
        assert got == str(want).rpartition(".")[2].replace("complex32", "complex64"), (a, b)


REPRS = [
    [1 + 2j, 3 - 1j], [1.5e-9 + 2e9j], 1 + 2j, [complex(1, float("nan")), 2j], [[0j, -0.25j], [1e5, 2]],
    [float("inf"), 1 + 1j], [], [1e-3 + 1j, 1000 - 0.5j], [complex(0, -0.0)],
]


@pytest.mark.parametrize("data", REPRS, ids=str)
def test_repr_of_complex(tt, torch, data):
    for name in ("complex64", "complex128"):
        theirs = torch.tensor(data, dtype=getattr(torch, name))
        ours = tt.tensor(data, dtype=getattr(tt, name))
        assert repr(ours).replace("teletensor.", "torch.") == repr(theirs)


@pytest.mark.parametrize("seed", range(3))
def test_repr_of_many(tt, torch, seed):
    generator = np.random.default_rng(seed)
    for shape in ((7,), (3, 4), (40, 50), (2, 3, 4), (1200,)):
        for name in ("complex64", "float32", "int8", "uint32", "bool"):
            scale = 10.0 ** generator.integers(-3, 4)
            values = generator.normal(size=shape) * scale
            if name == "complex64":
                values = values + 1j * generator.normal(size=shape)
            if name == "uint32":
                values = abs(values)
            array = (values > 0) if name == "bool" else values.astype(name)
            assert repr(tt.tensor(array)).replace("teletensor.", "torch.") == \
                repr(torch.tensor(array)), (shape, name, scale)
    for data in ([1.0, float("nan")], [float("inf"), 0.0], [0.0], [float("-inf"), 1e-7, 5]):
        assert repr(tt.tensor(data)) == repr(torch.tensor(data))


def test_python_numbers(tt, torch):
    for value in (True, 3, 2.5, 1 - 2j):
        for name in NAMES:
            ours = tt.tensor([1, 2]).to(getattr(tt, name)) * value
            if name.endswith("float16") and isinstance(value, complex):
                assert ours.dtype == tt.complex64  # PyTorch has complex32
                continue
            if name in ("uint16", "uint32", "uint64"):
                continue  # PyTorch does not have such products
            theirs = torch.tensor([1, 2]).to(getattr(torch, name)) * value
            assert ours.dtype.name == str(theirs.dtype).rpartition(".")[2], (name, value)
            assert ours.tolist() == theirs.tolist(), (name, value)
    assert complex(tt.tensor(1 + 2j)) == 1 + 2j
    with pytest.raises(TypeError):
        tt.tensor([1j], dtype=tt.float32)
    assert tt.tensor([2**64 - 1], dtype=tt.uint64).tolist() == [2**64 - 1]
    with pytest.raises(ValueError, match="uint64"):
        tt.tensor([2**63])


FORWARD = {
    "mul": lambda m, x: x * x * (2 - 1j), "div": lambda m, x: 1j / x, "exp": lambda m, x: m.exp(x),
    "pow": lambda m, x: x ** 3, "abs": lambda m, x: m.abs(x), "angle": lambda m, x: m.angle(x),
    "sgn": lambda m, x: m.sgn(x), "parts": lambda m, x: x.real * x.imag, "conj": lambda m, x: x.conj() * x,
    "matmul": lambda m, x: x @ x.mH, "sum": lambda m, x: (x * 1j).sum(0), "sqrt": lambda m, x: m.sqrt(x),
    "where": lambda m, x: m.where(x.real > 0.5, x * 2, x.conj()), "tanh": lambda m, x: m.tanh(x),
    "cat": lambda m, x: m.cat([x, x * 1j]), "polar": lambda m, x: m.polar(x.real, x.imag),
    "prod": lambda m, x: m.prod(x, 0), "cumsum": lambda m, x: m.cumsum(x, 0), "norm": lambda m, x: m.norm(x),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_of_complex(tt, torch, name):
    generator = np.random.default_rng(3)
    x, t = generator.uniform(0.2, 0.9, (2, 3, 3)) + 1j * generator.uniform(0.2, 0.9, (2, 3, 3))
    f = FORWARD[name]
    ours = tt.func.jvp(lambda z: f(tt, z), (tt.tensor(x),), (tt.tensor(t),))
    theirs = torch.func.jvp(lambda z: f(torch, z), (torch.tensor(x),), (torch.tensor(t),))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype.name == str(b.dtype).rpartition(".")[2]
        assert np.allclose(a.numpy(), b.resolve_conj().numpy(), rtol=1e-10, atol=1e-12)
