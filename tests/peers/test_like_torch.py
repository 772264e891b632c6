"""Checks that new tensors like other tensors have PyTorch's strides, for any strides of the other
tensor."""

import pytest

MAKERS = [("zeros_like",), ("ones_like",), ("full_like", 2), ("empty_like",), ("rand_like",), ("randn_like",),
          ("randint_like", 9)]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def sources(t):
    ones = t.ones
    return [
        ones(3, 4), ones(3, 4).t(), ones(2, 3, 4, 5).permute(0, 2, 3, 1), ones(5, 3, 1, 2).permute(3, 1, 0, 2),
        ones(2, 1, 3).permute(2, 1, 0), ones(1, 1, 4, 4).permute(0, 2, 3, 1), ones(6, 6)[::2], ones(6, 6).t()[1:],
        ones(3, 4)[:, :2].t(), ones(6, 4, 5).transpose(0, 2)[:, ::2], ones(4).expand(4, 4), ones(4, 1).expand(4, 4).t(),
        ones(4, 1, 3).expand(4, 5, 3).permute(1, 2, 0), ones(4, 5, 1).expand(4, 5, 3).permute(1, 2, 0),
        ones(1, 5, 3)[:, ::2].expand(4, 3, 3).permute(2, 0, 1), ones(0, 3).t(), ones(()),
        ones(2, 3, 4, 5).to(memory_format=t.channels_last), ones(3, 4).t().requires_grad_() * 2,
    ]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker[0])
def test_strides(tt, torch, maker):
    name, *rest = maker
    for ours, theirs in zip(sources(tt), sources(torch), strict=True):
        made, expected = getattr(tt, name)(ours, *rest), getattr(torch, name)(theirs, *rest)
        assert (tuple(made.shape), made.stride()) == (tuple(expected.shape), expected.stride()), ours.stride()
        assert not made._shares_storage(ours) and made._base is None and not made.requires_grad


def results(t):
    x = t.ones(2, 3, 4, 5).permute(0, 2, 3, 1)
    for each in (t.preserve_format, t.contiguous_format, t.channels_last):
        yield t.zeros_like(x, memory_format=each).stride(), t.rand_like(x, memory_format=each).stride()
    filled = t.full_like(x, 3, dtype=t.int32)
    filled += 1
    yield str(filled.dtype).split(".")[1], filled.tolist()
    leaf = t.zeros_like(x, requires_grad=True)
    (leaf * x).sum().backward()
    yield leaf.is_leaf, leaf.grad.stride(), leaf.grad.sum().item()
    yield t.func.vmap(lambda v: t.zeros_like(v.t()) + v.t())(t.arange(24.0).reshape(2, 3, 4)).tolist()
    drawn = t.func.vmap(lambda v: t.rand_like(v.t()), randomness="different")(t.ones(2, 3, 4))
    yield tuple(drawn.shape), bool((drawn[0] != drawn[1]).any())
    yield t.func.hessian(lambda v: (t.ones_like(v.t()) * v.t() ** 3).sum())(t.ones(2, 2)).tolist()
    yield t.jit.trace(lambda v: t.ones_like(v.t()) + v.t(), (t.ones(2, 3),))(t.full((2, 3), 2.0)).tolist()


def test_values_and_formats(tt, torch):
    assert list(results(tt)) == list(results(torch))
