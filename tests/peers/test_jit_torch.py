"""Compares second derivatives through captured functions with torch.func's of the function itself."""

import pytest
import teletensor as tt
import torch

X = [[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]]
W = [[0.5, 0.2, -0.9], [-0.3, 0.8, 0.1]]


def layers(m, x, w):
    h = m.nn.functional.gelu(x @ w.T)
    return (m.nn.functional.layer_norm(h, (2,)) * h.sigmoid()).sum() + (h.softmax(1) * x[:, :2]).square().mean()


def views(m, x, w):
    a = (x * w).reshape(3, 2).transpose(0, 1)
    return (a[:, 1:] * a[:, :1]).tanh().sum() + m.logsumexp(x - w, 1).prod()


@pytest.mark.parametrize("function", [layers, views], ids=lambda f: f.__name__)
@pytest.mark.parametrize("loaded", [False, True])
def test_second_derivatives(function, loaded, tmp_path):
    x, w = (torch.tensor(v, dtype=torch.float64) for v in (X, W))
    hessian = torch.func.hessian(lambda x, w: function(torch, x, w), argnums=(0, 1))(x, w)

    def given():
        return [tt.tensor(v, dtype=tt.float64).requires_grad_() for v in (X, W)]

    compiled = tt.jit.trace(lambda x, w: function(tt, x, w), *given())
    if loaded:
        tt.jit.save(compiled, tmp_path / "f.safetensors")
        compiled = tt.jit.load(tmp_path / "f.safetensors")
    inputs = given()
    firsts = tt.autograd.grad(compiled(*inputs), inputs, create_graph=True)
    for first, rows in zip(firsts, hessian, strict=True):
        for i in range(2):
            for j in range(3):
                found = tt.autograd.grad(first[i, j], inputs, retain_graph=True)
                for f, right in zip(found, rows, strict=True):
                    torch.testing.assert_close(torch.tensor(f.tolist(), dtype=torch.float64), right[i, j],
                                               rtol=1e-8, atol=1e-10)
