"""Compares corner cases of structure, order, set and index functions with PyTorch: the same calls must give
equal results."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nan, inf = float("nan"), float("inf")
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
          "complex128")
SPECIAL = [nan, 1.0, inf, nan, -inf, -0.0, 0.0, 1.0]


@pytest.fixture(scope="session")
def tt(shared_daemon):
    import teletensor

    with teletensor.connect(shared_daemon.unix):
        yield teletensor


def plain(x):
    if isinstance(x, tuple | list):
        return [plain(each) for each in x]
    return x.tolist() if hasattr(x, "tolist") else str(x).split(".")[-1] if "type" in type(x).__name__ else x


def answer(call, m):
    """The values, or the type of the error."""
    try:
        return str(plain(call(m)))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return "refused"


def set_columns(m):
    x = m.zeros(3, 4)
    x[:, [True, False, True, False]] = m.tensor([1.0, 2.0])
    x[1] = m.arange(4)
    x[..., -1:] = 9
    x[[0, 2]] += 1
    x[0, [1, 1]] += 1
    return x


def set_all(m):
    x = m.zeros(3, 4)
    x[x == 0] = m.arange(12.0)
    return x


CALLS = {
    "set_columns": set_columns,
    "set_all": set_all,
    "unique": lambda m: m.unique(m.tensor(SPECIAL), return_inverse=True, return_counts=True),
    "uc": lambda m: m.unique_consecutive(m.tensor([nan, nan, 1., 1.]), return_inverse=True, return_counts=True),
    "unique_bool": lambda m: m.unique(m.tensor([True, False, True]), return_counts=True),
    "unique0": lambda m: m.unique(m.tensor([])),
    "unique0i": lambda m: m.unique(m.tensor([]), return_inverse=True, return_counts=True),
    "unique_0d": lambda m: m.unique(m.tensor(3.), return_inverse=True),
    "unique_dim_2": lambda m: m.unique(m.tensor([[[0., 1.], [0., 0.]], [[1., 0.], [0., 0.]]]), dim=2,
                                       return_inverse=True, return_counts=True),
    "unique_dim_c": lambda m: m.unique_consecutive(m.ones(2, 3, 4).cumsum(1), dim=-1, return_counts=True),
    "unique_dim_e": lambda m: m.unique(m.zeros(0, 3), dim=0, return_inverse=True, return_counts=True),
    "ss_nan": lambda m: m.searchsorted(m.tensor([1., 2., nan]), m.tensor([nan, 0., inf])),
    "ss_nan_r": lambda m: m.searchsorted(m.tensor([1., 2., nan]), m.tensor([nan, 0., inf]), right=True),
    "ss_scalar": lambda m: m.searchsorted(m.tensor([1, 2, 5]), 3),
    "ss_scalarf": lambda m: m.searchsorted(m.tensor([1, 2, 5]), 2.5),
    "ss_mism": lambda m: m.searchsorted(m.tensor([1, 2, 5]), m.tensor([2.5])),
    "ss_sorter": lambda m: m.searchsorted(m.tensor([5, 1, 2]), m.tensor([2, 3]), sorter=m.tensor([1, 2, 0])),
    "bucket": lambda m: m.bucketize(3, m.tensor([1, 3, 5]), right=True),
    "isin": lambda m: m.isin(m.tensor([nan, 1.]), m.tensor([nan, 1.])),
    "isin_s": lambda m: m.isin(m.tensor([2, 1]), 2),
    "isin_s2": lambda m: m.isin(2, m.tensor([2, 1])),
    "isin_mix": lambda m: m.isin(m.tensor([1, 2]), m.tensor([1.5, 2.0])),
    "einsum_int": lambda m: str(m.einsum("i->", m.tensor([1, 2], dtype=m.int32)).dtype)[-5:],
    "trace": lambda m: str(m.trace(m.ones(2, 2, dtype=m.int32)).dtype)[-5:],
    "blockdiag": lambda m: m.block_diag(m.ones(1, 2), m.ones(2, 1, dtype=m.int64)),
    "rep": lambda m: m.repeat_interleave(m.tensor([2, 0, 1])),
    "rep2": lambda m: m.repeat_interleave(m.tensor([[1, 2], [3, 4]]), m.tensor([2]), dim=0),
    "rep3": lambda m: m.repeat_interleave(m.tensor([1, 2]), m.tensor([1, -2])),
    "rep4": lambda m: m.tensor([1, 2, 3]).repeat_interleave(2),
    "view_dt": lambda m: m.tensor([1., 2.]).view(m.int32),
    "view_dt2": lambda m: m.tensor([1, 2]).view(m.int32).view(m.int64),
    "type": lambda m: m.ones(1).type().split(".")[1],
    "type2": lambda m: str(m.ones(1).type("torch.DoubleTensor").dtype)[-5:],
    "comb": lambda m: m.combinations(m.tensor([1, 2, 3]), 0),
    "fill_diag": lambda m: m.zeros(7, 3).fill_diagonal_(5, wrap=True),
    "fill_diag2": lambda m: m.zeros(3, 7).fill_diagonal_(5, wrap=True),
    "fill_diag3": lambda m: m.zeros(2, 2, 2).fill_diagonal_(5),
    "dim_order": lambda m: m.zeros(2, 3, 4).permute(2, 0, 1).dim_order(),
    "seq": lambda m: m.arange(12).view(3, 4)[[0, 1], [1, 2]],
    "seq2": lambda m: m.arange(12).view(3, 4)[(0, 1), ],
    "seq3": lambda m: m.arange(12).view(3, 4)[range(2)],
    "seq4": lambda m: m.arange(12).view(3, 4)[[[0, 1], [1, 2]]],
    "seq5": lambda m: m.arange(12).view(3, 4)[[True, False, True]],
    "neg": lambda m: m.arange(12)[::-1],
    "u8": lambda m: m.arange(3)[m.tensor([1, 0, 1], dtype=m.uint8)],
    "0dm": lambda m: m.arange(3)[m.tensor(True)],
    "0dm2": lambda m: m.tensor(3)[m.tensor(False)],
    "True": lambda m: m.arange(3)[True].shape,
    "np": lambda m: m.arange(3)[np.int64(1)],
    "where1": lambda m: m.where(m.tensor([[True, False], [True, True]])),
    "nz": lambda m: m.nonzero(m.tensor(3.), as_tuple=True),
    "tolist": lambda m: m.tensor([[True]]).tolist(),
    "unravel": lambda m: m.unravel_index(m.tensor([5, 11]), (3, 4)),
    "scat": lambda m: m.zeros(3).scatter_(0, m.tensor([0, 0]), m.tensor([1., 2.]), reduce="add"),
    "scat2": lambda m: m.ones(3).scatter_(0, m.tensor([0, 1]), 3., reduce="multiply"),
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.filterwarnings("ignore")
def test_answers(tt, name):
    assert answer(CALLS[name], tt) == answer(CALLS[name], torch)


def test_dtypes(tt):
    def pairs(m, f):
        return [str(f(getattr(m, a), getattr(m, b))).split(".")[-1] for a in DTYPES for b in DTYPES]

    def results(m):
        values = [True, 3, 2.5, *(m.ones(s, dtype=getattr(m, n)) for s in ((), (2,)) for n in DTYPES)]
        return [str(m.result_type(a, b)).split(".")[-1] for a in values for b in values]

    assert pairs(tt, tt.promote_types) == pairs(torch, torch.promote_types)
    assert pairs(tt, tt.can_cast) == pairs(torch, torch.can_cast)
    # teletensor has no complex numbers of half precision
    wrong = [(a, b) for a, b in zip(results(tt), results(torch)) if a != b and b not in ("complex32", "bcomplex32")]
    assert not wrong
    for name in ("float16", "bfloat16", "float32", "float64"):
        for fact in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution"):
            assert getattr(tt.finfo(getattr(tt, name)), fact) == getattr(torch.finfo(getattr(torch, name)), fact)
    for name in ("uint8", "int8", "int16", "int32", "int64"):
        for fact in ("bits", "max", "min"):
            assert getattr(tt.iinfo(getattr(tt, name)), fact) == getattr(torch.iinfo(getattr(torch, name)), fact)


def test_a_repeat_owns_its_memory(tt):
    x = tt.ones(1, 3)
    for copy in (x.repeat(2, 1), x.repeat_interleave(1, dim=0), tt.tile(x, (1, 1)), tt.roll(x, 0, 0)):
        copy.zero_()
    assert x.tolist() == [[1.0, 1.0, 1.0]]


def test_is_set_to(tt):
    for m in (tt, torch):
        x = m.arange(4.0)
        assert x.is_set_to(x[:]) and not x.is_set_to(x[1:]) and not x.is_set_to(x.clone())
