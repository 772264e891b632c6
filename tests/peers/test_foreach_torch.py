"""Compares the functions of lists of tensors (`_foreach_add`, ...) with PyTorch's."""

import pytest

torch = pytest.importorskip("torch")

from teletensor._names import foreach as _foreach  # noqa: E402

UNARY = [*_foreach._UNARY, "clone", "max"]
CALLS = [
    *((name, lambda m, a, b: (2.0,)) for name in _foreach._BINARY),
    *((name, lambda m, a, b: (b,)) for name in [*_foreach._BINARY, "pow"]),
    *((name, lambda m, a, b: ([1.5, 2.5],)) for name in [*_foreach._BINARY, "pow"]),
    *((name, lambda m, a, b: (m.tensor(3.0),)) for name in ("add", "mul", "div")),
    ("pow", lambda m, a, b: (2.0,)), ("lerp", lambda m, a, b: (b, 0.25)), ("lerp", lambda m, a, b: (b, [0.5, 1.0])),
    ("lerp", lambda m, a, b: (b, a)), ("mm", lambda m, a, b: (b,)), ("norm", lambda m, a, b: ()),
    ("norm", lambda m, a, b: (1,)), ("copy", lambda m, a, b: (b,)), ("addcmul", lambda m, a, b: (a, b)),
    ("addcmul", lambda m, a, b: (a, b, 2.0)), ("addcdiv", lambda m, a, b: (a, b, [2.0, 3.0])),
    ("addcdiv", lambda m, a, b: (a, b, m.tensor([2.0, 3.0]))),
    *((name, lambda m, a, b: ()) for name in UNARY),
]  # fmt: skip


def lists(m):
    return ([m.tensor([[0.25, 0.5], [0.75, 0.125]]), m.tensor([[0.5, 0.25], [0.5, 0.5]])],
            [m.tensor([[1.0, 2.0], [0.5, 4.0]]), m.tensor([[3.0, 1.0], [1.0, 2.0]])])


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_values(tt, number):
    name, arguments = CALLS[number]
    for suffix in ("", "_"):
        if not hasattr(torch, f"_foreach_{name}{suffix}"):
            assert not hasattr(tt, f"_foreach_{name}{suffix}")
            continue
        seen = []
        for m in (tt, torch):
            a, b = lists(m)
            result = getattr(m, f"_foreach_{name}{suffix}")(a, *arguments(m, [x.clone() for x in a], b))
            assert isinstance(result, (list, tuple))
            seen.append(a if suffix else list(result))
            assert [x is y for x, y in zip(result, a, strict=True)] == [bool(suffix)] * 2
        for ours, theirs in zip(*seen, strict=True):
            torch.testing.assert_close(tt.to_torch(ours), theirs)


def test_keywords_and_faults(tt):
    for m in (tt, torch):
        a, b = lists(m)
        assert m._foreach_add(a, b, alpha=2)[0].tolist() == [[2.25, 4.5], [1.75, 8.125]]
        assert m._foreach_addcmul(a, a, tensor2=b, value=0.0)[1].tolist() == a[1].tolist()
        assert m._foreach_pow(2.0, b)[1].tolist() == [[8, 2], [2, 4]]
        with pytest.raises(RuntimeError):
            m._foreach_add(a, b[:1])
        with pytest.raises(TypeError):
            m._foreach_add(a, b, beta=2)
