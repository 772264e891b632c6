"""Attention without its score matrix against the composed form, which an explicit mask asks for."""

import math

import numpy as np
import pytest


def parts(tt, shape, keys, inner, values, dtype):
    rng = np.random.default_rng(sum(shape) + keys + inner)
    lead = shape[:-1]
    return [tt.tensor(rng.standard_normal(s).astype(dtype), requires_grad=True)
            for s in ((*lead, shape[-1], inner), (*lead, keys, inner), (*lead, keys, values))]


CASES = [((2, 3, 5), 7, 4, 6), ((1, 70), 130, 8, 8), ((2, 129), 129, 16, 24), ((65,), 1, 3, 1), ((2, 2, 1), 200, 5, 5)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_composed_form(tt, case, causal, dtype):
    sdpa = tt.nn.functional.scaled_dot_product_attention
    shape, keys, inner, values = case
    mask = tt.ones(shape[-1], keys, dtype=tt.bool)
    if causal:
        mask = tt.tril(mask)
    found = []
    for options in ({"is_causal": causal}, {"attn_mask": mask}):
        qkv = parts(tt, shape, keys, inner, values, dtype)
        y = sdpa(*qkv, scale=0.7, **options)
        weights = tt.arange(y.numel(), dtype=y.dtype).reshape(y.shape) / y.numel()
        first = tt.autograd.grad((y * weights).sum(), qkv, create_graph=True)
        second = tt.autograd.grad(sum((g * g).sum() for g in first), qkv)
        found.append([t.detach().numpy() for t in (y, *first, *second)])
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max()))


def test_heads_of_one_product_are_read_where_they_lie(tt):
    x = tt.tensor(np.random.default_rng(0).standard_normal((2, 100, 3 * 32)).astype(np.float32))
    q, k, v = (t.reshape(2, 100, 4, 8).transpose(1, 2) for t in x.split(32, dim=2))
    sdpa = tt.nn.functional.scaled_dot_product_attention
    strided, packed = sdpa(q, k, v), sdpa(q.contiguous(), k.contiguous(), v.contiguous())
    np.testing.assert_allclose(strided.numpy(), packed.numpy(), rtol=1e-6, atol=1e-6)
    # The heads lie side by side again: what follows needs no copy.
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
        with pytest.raises(tt.OutOfMemoryError):
            (q @ k.transpose(1, 2)).sum().item()


def test_transforms_go_through_it(tt):
    rng = np.random.default_rng(3)
    q, k, v = (tt.tensor(rng.standard_normal((4, 9, 5))) for _ in range(3))
    sdpa = tt.nn.functional.scaled_dot_product_attention
    whole = sdpa(q, k, v, is_causal=True)
    mapped = tt.func.vmap(lambda a, b, c: sdpa(a, b, c, is_causal=True))(q, k, v)
    np.testing.assert_allclose(mapped.numpy(), whole.numpy(), rtol=1e-12)
    step = 1e-6
    _, tangent = tt.func.jvp(lambda a: sdpa(a, k, v), (q,), (k,))
    wanted = (sdpa(q + step * k, k, v) - sdpa(q - step * k, k, v)) / (2 * step)
    np.testing.assert_allclose(tangent.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-8)
