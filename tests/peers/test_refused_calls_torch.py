"""Compares calls at the border of what PyTorch accepts: both libraries refuse them, or both give the same
result."""

import warnings

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
NAN = float("nan")


def flipped(m, function, array):
    return getattr(m, function)(array[..., ::-1])


def gradients(m, x):
    return m.func.grad(lambda x: (x * 1.0).sum())(x)


def ints(m, dtype="int64"):
    return m.tensor([1, 2], dtype=getattr(m, dtype))


def full(m, value, dtype="float32", shape=(2,)):
    return m.full(shape, value, dtype=getattr(m, dtype))


def istft(m, window, **options):
    return m.istft(m.ones(5, 3, dtype=m.complex64), 8, window=window, **options)


# Calls that both refuse, each a function of the library.
REFUSED = {
    "variances": lambda m: m.nn.functional.gaussian_nll_loss(m.ones(2), m.ones(2), m.tensor([1.0, -1])),
    "variance": lambda m: m.nn.functional.gaussian_nll_loss(m.ones(2), m.ones(2), -1.0),
    "std": lambda m: m.normal(0.0, NAN, (2,)),
    "std of a mean": lambda m: m.normal(m.ones(2), NAN),
    "stds": lambda m: m.normal(0.0, m.tensor([1.0, NAN])),
    "isclose": lambda m: m.isclose(m.ones(1), full(m, 1, "float64")),
    "isclose of numbers": lambda m: m.isclose(m.ones(1), full(m, 1, "float64", ())),
    "allclose": lambda m: m.allclose(m.ones(1), ints(m)[:1]),
    "isclose of complex": lambda m: m.ones(1).isclose(full(m, 1, "complex64")),
    "rtol": lambda m: m.isclose(m.ones(1), m.ones(1), NAN),
    "atol": lambda m: m.allclose(m.ones(1), m.ones(1), 1e-5, NAN),
    "randint": lambda m: m.randint(0, 2**17, (1,), dtype=m.float16),
    "random_": lambda m: full(m, 0, "float16").random_(-2**17, 3),
    "from_numpy": lambda m: flipped(m, "from_numpy", np.ones(3)),
    "tensor": lambda m: flipped(m, "tensor", np.ones((2, 3))),
    "as_tensor": lambda m: flipped(m, "as_tensor", np.ones(1)),
    "asarray": lambda m: flipped(m, "asarray", np.ones(3)),
    "strides": lambda m: m.from_numpy(np.zeros(4, [("a", "u1"), ("b", "f4")])["b"]),
    "grad": lambda m: gradients(m, ints(m)),
    "grad of bool": lambda m: gradients(m, ints(m, "bool")),
    "grad of a dict": lambda m: m.func.grad(lambda d: d["a"].sum() * d["b"].sum())({"a": m.ones(1), "b": ints(m)}),
    "vjp": lambda m: m.func.vjp(lambda x: x * 1.0, ints(m)),
    "jvp": lambda m: m.func.jvp(lambda x: x * 1.0, (ints(m),), (m.ones(2),)),
    "jvp of a direction": lambda m: m.func.jvp(lambda x: x * 1.0, (m.ones(2),), (ints(m),)),
    "jacrev": lambda m: m.func.jacrev(lambda x: x * 1.0)(ints(m)),
    "jacfwd": lambda m: m.func.jacfwd(lambda x: x * 1.0)(ints(m)),
    "hessian": lambda m: m.func.hessian(lambda x: (x * 1.0).sum())(ints(m)),
    "linearize": lambda m: m.func.linearize(lambda x: x * 1.0, ints(m)),
    **{f"functional.{name}": lambda m, name=name, more=more: getattr(m.autograd.functional, name)(
        lambda x: (x * 1.0).sum(), ints(m), *(m.ones(2) for _ in range(more)))
       for name, more in (("jacobian", 0), ("hessian", 0), ("hvp", 1), ("vhp", 1))},
    **{f"linspace {ends}": lambda m, ends=ends: m.linspace(*ends[1:], 4, dtype=getattr(m, ends[0])) for ends in (
        ("int8", 0, 300), ("int8", 300.0, 0), ("uint8", -1.0, 3), ("uint8", -300, 3), ("int32", 0, 2**40),
        ("float16", 0, 1e6), ("float32", 0, 1e40))},
    "linspace of one number": lambda m: m.linspace(300, 0, 1, dtype=m.int8),
    "logspace": lambda m: m.logspace(0, 300, 2, dtype=m.int8),
    "logspace of bool": lambda m: m.logspace(0, 3, 4, dtype=m.bool),
    "arange of bool": lambda m: m.arange(0, 3, 1, dtype=m.bool),
    "where": lambda m: m.where(m.tensor([True]), ints(m, "int8"), 300),
    "istft without a window": lambda m: istft(m, m.zeros(8)),
    "istft of a gap": lambda m: istft(m, m.hann_window(8), hop_length=8),
    "istft of a small window": lambda m: istft(m, full(m, 1e-6, shape=(8,))),
    "istft of wide hops": lambda m: istft(m, m.ones(8), hop_length=9),
    **{f"addr of {dtype}, {factors}": lambda m, dtype=dtype, factors=factors: m.addr(
        full(m, 1, dtype, (2, 2)), full(m, 1, dtype), full(m, 1, dtype), **factors) for dtype, factors in (
        ("int8", {"beta": True}), ("int8", {"beta": 1.0}), ("int8", {"alpha": 2.5}), ("bool", {"alpha": 1.0}),
        ("float32", {"beta": False}), ("float16", {"alpha": True}))},
    "vecdot": lambda m: m.linalg.vecdot(ints(m), ints(m)),
}


@pytest.mark.filterwarnings("ignore:.*out of bounds:UserWarning")
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_both_refuse(tt, call):
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        call(torch)
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        found = call(tt)
        found.tolist()  # errors that depend on values come when a value is read


def integers(m, equation, *shapes, dtype="int8"):
    return m.einsum(equation, *(full(m, 1, dtype, shape) for shape in shapes))


# Calls that both accept.
ACCEPTED = {
    "nan variance": lambda m: m.nn.functional.gaussian_nll_loss(m.ones(2), m.ones(2), m.tensor([1.0, NAN])),
    "one stride of an empty array": lambda m: m.from_numpy(np.ones(0)[::-1]),
    "grad of the other argument": lambda m: m.func.grad(lambda a, b: (a * b).sum())(m.ones(2), ints(m)),
    "vjp of complex": lambda m: m.autograd.functional.vjp(
        lambda x: x * 1.0, m.tensor([1j, 2]), m.tensor([1j, 1]))[1],
    "istft": lambda m: istft(m, m.hann_window(8), hop_length=2),
    **{f"linspace {ends}": lambda m, ends=ends: m.linspace(*ends[1:], dtype=getattr(m, ends[0])) for ends in (
        ("uint8", -1, 1, 4), ("uint8", -200, 3, 4), ("uint8", 3, -200, 4), ("int8", 0, 127.9, 4),
        ("int8", 0, 300, 0), ("int8", 0, 300, 1))},
    **{f"logspace {ends}": lambda m, ends=ends: m.logspace(*ends[1:], dtype=getattr(m, ends[0])) for ends in (
        ("int8", 0, 2.7, 7), ("int8", 0, 3, 4), ("uint8", 0, 3, 4), ("int8", 0, 300, 1), ("int16", 0, 6.5, 9, 2))},
    "logspace of a negative base": lambda m: m.logspace(-2, 2, 9, -2, dtype=m.complex64),
    "where of a negative number": lambda m: m.where(m.tensor([False]), full(m, 1, "uint8"), -1),
    **{f"einsum {equation} {shapes} {dtype}": lambda m, equation=equation, shapes=shapes, dtype=dtype: integers(
        m, equation, *shapes, dtype=dtype) for dtype in ("int8", "uint8", "int32", "float16", "bool")
        for equation, *shapes in (
            ("ij,kl->jl", (2, 3), (3, 2)), ("ij,kl->", (2, 3), (3, 2)), ("ij,j->j", (2, 3), (3,)),
            ("i,j,k->k", (3,), (3,), (3,)), ("ij,ij->i", (2, 3), (2, 1)), ("ij,ij->", (1, 3), (2, 1)),
            ("ij->i", (2, 3)), ("i,j->ij", (2,), (3,)), ("i,i->i", (2,), (2,)))},
    **{f"einsum {equation} of products": lambda m, equation=equation, shapes=shapes: integers(m, equation, *shapes)
       for equation, *shapes in (("ij,jk->ik", (2, 3), (3, 2)), ("ij,ij->j", (2, 3), (2, 3)),
                                 ("ij,jk->", (2, 3), (3, 2)))},
    **{f"addr of {dtypes}, {factors}": lambda m, dtypes=dtypes, factors=factors: m.addr(
        full(m, 1, dtypes[0], (2, 2)), full(m, 1, dtypes[1]), full(m, 1, dtypes[2]), **factors)
        for dtypes, factors in (
            (("bool",) * 3, {"beta": 2}), (("bool",) * 3, {"beta": False, "alpha": 0}), (("int32", "bool", "bool"),
            {"alpha": 2}), (("int8",) * 3, {"beta": 2, "alpha": 3}), (("int32", "float32", "bool"), {"alpha": 2.5}))},
    **{f"{name} {factor}": lambda m, name=name, factor=factor, shapes=shapes: getattr(m, name)(
        *(full(m, 1, "int8", shape) for shape in shapes), **{factor: 1.5})
       for factor in ("beta", "alpha") for name, shapes in (
        ("addmm", ((2, 2),) * 3), ("addmv", ((2,), (2, 2), (2,))), ("addbmm", ((2, 2), (1, 2, 2), (1, 2, 2))),
        ("baddbmm", ((1, 2, 2),) * 3))},
}


def described(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(str(x.dtype).split(".")[-1], tuple(x.shape)) for x in results], [x.tolist() for x in results]


@pytest.mark.parametrize("call", ACCEPTED.values(), ids=ACCEPTED)
def test_both_accept(tt, call):
    (kinds, values), (theirs, wanted) = described(call(tt)), described(call(torch))
    assert kinds == theirs
    np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8), ("float32", 24), ("float64", 53)])
def test_random_integers_that_a_dtype_rounds(tt, dtype, bits):
    """Integers above the exact ones are allowed, with a warning."""
    for m in (tt, torch):
        kind = getattr(m, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            m.randint(0, 2**bits + 1, (1,), dtype=kind)
        for call in (lambda m=m, kind=kind: m.randint(0, 2**bits + 2, (1,), dtype=kind),
                     lambda m=m, kind=kind: m.randint_like(m.zeros(1, dtype=kind), -2**bits - 1, 3),
                     lambda m=m, kind=kind: m.zeros(1, dtype=kind).random_(0, 2**bits + 2)):
            with pytest.warns(UserWarning, match="out of bounds"):
                value = call().item()
            assert -2**bits - 1 <= value <= 2 ** (bits + 1) and value == int(value)


DIVISIONS = {
    "//": lambda m, x, y: x // y, "floor": lambda m, x, y: m.div(x, y, rounding_mode="floor"),
    "trunc": lambda m, x, y: m.div(x, y, rounding_mode="trunc"), "%": lambda m, x, y: x % y,
    "fmod": lambda m, x, y: m.fmod(x, y) if isinstance(x, m.Tensor) else m.fmod(m.tensor(x), y),
    "floor_divide_": lambda m, x, y: (x + m.zeros(200).to(x.dtype)).floor_divide_(y) if (
        isinstance(x, m.Tensor) and x.is_floating_point()) else m.ones(1),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("call", DIVISIONS.values(), ids=DIVISIONS)
def test_division_of_16_bit_floats(tt, call, dtype):
    """A number or a 0-d tensor of float32 that divides is not rounded to 16 bits first, except in %."""
    values = np.random.default_rng(3).normal(size=200) * 5
    others = {"number": lambda m: 0.1, "negative": lambda m: -0.3, "integer": lambda m: 3,
              "0-d": lambda m: m.tensor(0.1), "0-d of 16 bits": lambda m: m.tensor(0.3, dtype=getattr(m, dtype)),
              "0-d of integers": lambda m: m.tensor(3), "1-d": lambda m: m.tensor([0.1], dtype=getattr(m, dtype)),
              "whole": lambda m: m.tensor(values[::-1].copy()).to(getattr(m, dtype))}
    for name, other in others.items():
        for turned in (False, True):
            found = []
            for m in (tt, torch):
                operands = [m.tensor(values).to(getattr(m, dtype)), other(m)]
                found.append(call(m, *(operands[::-1] if turned else operands)).double().numpy())
            np.testing.assert_array_equal(*found, err_msg=f"{name}, turned: {turned}")
