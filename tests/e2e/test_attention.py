"""Attention without a stored score matrix, compared with the composed form."""

import math

import numpy as np
import pytest


def parts(tt, shape, keys, inner, values, dtype):
    rng = np.random.default_rng(sum(shape) + keys + inner)
    lead = shape[:-1]
    return [tt.tensor(rng.standard_normal(s).astype(dtype), requires_grad=True)
            for s in ((*lead, shape[-1], inner), (*lead, keys, inner), (*lead, keys, values))]


CASES = [((2, 3, 5), 7, 4, 6), ((1, 70), 130, 8, 8), ((2, 129), 129, 16, 24), ((65,), 1, 3, 1), ((2, 2, 1), 200, 5, 5)]


def composed(tt, q, k, v, mask):
    scores = q @ k.transpose(-2, -1) * 0.7
    scores = tt.where(mask, scores, float("-inf")) if mask.dtype == tt.bool else scores + mask
    return tt.softmax(scores, -1) @ v


def masks(tt, case):
    """For each name, the arguments of attention and the mask of the composed form."""
    (*lead, length), keys = case[:2]
    rng = np.random.default_rng(length * keys)
    seen = rng.random((length, keys)) < 0.5
    seen[:, 0] = True
    numbers = rng.standard_normal((*lead, length, keys))
    half = np.where(rng.random((*lead[:-1], 1, 1, keys)) < 0.3, -np.inf, 1.5)
    half[..., 0] = 0
    every = tt.ones(length, keys, dtype=tt.bool)
    return {"none": ({}, every), "causal": ({"is_causal": True}, tt.tril(every)),
            **{name: ({"attn_mask": tt.tensor(m)}, tt.tensor(m))
               for name, m in (("bools", seen), ("numbers", numbers), ("keys", half if lead else half[0, 0]))}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["none", "causal", "bools", "numbers", "keys"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_composed_form(tt, case, name, dtype):
    sdpa = tt.nn.functional.scaled_dot_product_attention
    given, mask = masks(tt, case)[name]
    mask = mask if mask.dtype == tt.bool else mask.to(getattr(tt, dtype))
    found = []
    for call in (lambda *qkv: sdpa(*qkv, scale=0.7, **given), lambda *qkv: composed(tt, *qkv, mask)):
        qkv = parts(tt, *case, dtype)
        y = call(*qkv)
        weights = tt.arange(y.numel(), dtype=y.dtype).reshape(y.shape) / y.numel()
        first = tt.autograd.grad((y * weights).sum(), qkv, create_graph=True)
        second = tt.autograd.grad(sum((g * g).sum() for g in first), qkv)
        found.append([t.detach().numpy() for t in (y, *first, *second)])
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max()))


def test_masks_have_gradients_and_rows_that_see_nothing_are_zero(tt):
    sdpa = tt.nn.functional.scaled_dot_product_attention
    q, k, v = parts(tt, (2, 3, 4), 5, 3, 3, "float64")
    numbers = np.random.default_rng(1).standard_normal((3, 1, 5))
    mask = tt.tensor(numbers, requires_grad=True)
    assert tt.autograd.gradcheck(lambda m: sdpa(q, k, v, m), mask)
    assert tt.autograd.gradgradcheck(lambda *a: sdpa(*a[:3], a[3]), (q, k, v, mask))
    blind = tt.zeros(4, 5, dtype=tt.float64)
    blind[2] = float("-inf")
    y = sdpa(q, k, v, blind)
    assert (y[..., 2, :] == 0).all() and tt.autograd.gradcheck(lambda *a: sdpa(*a, blind), (q, k, v))
    y = sdpa(q, k, v, blind == 0, dropout_p=0.5)
    y.sum().backward()
    assert (y[..., 2, :] == 0).all() and q.grad.isfinite().all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_of_16_bits_are_float32(tt, dtype):
    """Large scores that were rounded to 16 bits would be wrong by a half."""
    q, k, v = (5 * t.detach() for t in parts(tt, (2, 3, 40), 50, 8, 8, "float32"))
    small = [t.to(getattr(tt, dtype)) for t in (q, k, v)]
    sdpa = tt.nn.functional.scaled_dot_product_attention
    wanted = sdpa(*(t.to(tt.float64) for t in small)).numpy()
    y = sdpa(*small)
    assert y.dtype == small[0].dtype
    np.testing.assert_allclose(y.to(tt.float64).numpy(), wanted, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_have_the_derivatives_of_float64(tt, dtype):
    sdpa = tt.nn.functional.scaled_dot_product_attention
    numbers = [t.detach().to(getattr(tt, dtype)) for t in parts(tt, (2, 3, 40), 50, 8, 8, "float32")]
    added = tt.tensor(np.random.default_rng(2).standard_normal((3, 40, 50)).astype(np.float32))
    found = []
    for wide in (None, tt.float64):
        q, k, v = (t.to(wide or t.dtype).requires_grad_() for t in numbers)
        mask = added.to(wide or tt.float32).requires_grad_()
        y = sdpa(q, k, v, mask)
        weights = (tt.arange(y.numel(), dtype=tt.float32).reshape(y.shape) % 7).to(y.dtype)
        first = tt.autograd.grad((y * weights).sum(), (q, k, v, mask), create_graph=True)
        second = tt.autograd.grad(sum((g.to(tt.float64) ** 2).sum() for g in first), (q, k, v, mask))
        if wide is None:
            assert [g.dtype for g in (*first, *second)] == [q.dtype] * 3 + [mask.dtype] + [q.dtype] * 3 + [mask.dtype]
        found.append([t.detach().to(tt.float64).numpy() for t in (*first, *second)])
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=0.05, atol=0.02 * np.abs(wanted).max())


def test_heads_of_one_product_are_read_where_they_lie(tt):
    x = tt.tensor(np.random.default_rng(0).standard_normal((2, 100, 3 * 32)).astype(np.float32))
    q, k, v = (t.reshape(2, 100, 4, 8).transpose(1, 2) for t in x.split(32, dim=2))
    sdpa = tt.nn.functional.scaled_dot_product_attention
    strided, packed = sdpa(q, k, v), sdpa(q.contiguous(), k.contiguous(), v.contiguous())
    np.testing.assert_allclose(strided.numpy(), packed.numpy(), rtol=1e-6, atol=1e-6)
    # The heads are contiguous again, so later operations need no copy.
    assert strided.transpose(1, 2).is_contiguous() and packed.is_contiguous()
    scores = q.numpy() @ np.swapaxes(k.numpy(), -1, -2) / math.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(strided.numpy(), weights @ v.numpy(), rtol=1e-4, atol=1e-5)


def test_the_score_matrix_never_exists(tt, start_daemon):
    """8 heads of 1536 x 1536 scores are 75 MB; the session may hold 48."""
    with tt.connect(start_daemon().unix, memory=48 << 20):
        q, k, v = (tt.ones(8, 1536, 32, requires_grad=True) for _ in range(3))
        y = tt.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.sum().backward()
        assert np.allclose(v.grad.sum().item(), 8 * 1536 * 32, rtol=1e-3)
        v.grad = None
        tt.nn.functional.scaled_dot_product_attention(q, k, v, tt.ones(1536, 1536)).sum().backward()
        assert np.allclose(v.grad.sum().item(), 8 * 1536 * 32, rtol=1e-3)
        del y
        with pytest.raises(tt.OutOfMemoryError):
            (q @ k.transpose(1, 2)).sum().item()


def test_transforms_go_through_it(tt):
    rng = np.random.default_rng(3)
    q, k, v = (tt.tensor(rng.standard_normal((4, 9, 5))) for _ in range(3))
    sdpa = tt.nn.functional.scaled_dot_product_attention
    whole = sdpa(q, k, v, is_causal=True)
    mapped = tt.func.vmap(lambda a, b, c: sdpa(a, b, c, is_causal=True))(q, k, v)
    np.testing.assert_allclose(mapped.numpy(), whole.numpy(), rtol=1e-12)
    mask = tt.tensor(rng.standard_normal((9, 9)))
    mapped = tt.func.vmap(lambda a, b, c: sdpa(a, b, c, mask))(q, k, v)
    np.testing.assert_allclose(mapped.numpy(), sdpa(q, k, v, mask).numpy(), rtol=1e-12)
    step = 1e-6
    _, tangent = tt.func.jvp(lambda a: sdpa(a, k, v), (q,), (k,))
    wanted = (sdpa(q + step * k, k, v) - sdpa(q - step * k, k, v)) / (2 * step)
    np.testing.assert_allclose(tangent.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-8)


def test_the_way_can_be_chosen(tt, start_daemon):
    from teletensor.nn.attention import SDPBackend, sdpa_kernel

    flags = tt.backends.cuda
    sdpa = tt.nn.functional.scaled_dot_product_attention
    with tt.connect(start_daemon().unix, memory=48 << 20):
        q, k, v = (tt.ones(8, 1536, 32) for _ in range(3))
        with sdpa_kernel(SDPBackend.MATH):
            assert flags.math_sdp_enabled() and not flags.flash_sdp_enabled()
            with pytest.raises(tt.OutOfMemoryError):  # the scores
                sdpa(q, k, v).sum().item()
            with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
                assert sdpa(q, k, v).sum().item() == pytest.approx(8 * 1536 * 32, rel=1e-3)
                with pytest.raises(RuntimeError, match="EFFICIENT_ATTENTION.*dropout_p 0.5"):
                    sdpa(q, k, v, dropout_p=0.5)
            assert flags.math_sdp_enabled() and not flags.mem_efficient_sdp_enabled()
        assert flags.flash_sdp_enabled()
        assert sdpa(q, k, v).sum().item() == pytest.approx(8 * 1536 * 32, rel=1e-3)
        with flags.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_cudnn=False):
            assert flags.math_sdp_enabled() and not flags.cudnn_sdp_enabled()
    with pytest.raises(AssertionError, match="got str"), sdpa_kernel("flash"):
        pass
