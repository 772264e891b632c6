"""Compares functions that PyTorch also has at its top level, and fused layers, with PyTorch's."""

import numpy as np
import pytest
import teletensor
import torch

RNG = np.random.default_rng(0)
X, H = RNG.normal(size=(4, 6)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)
W, U = RNG.normal(size=(12, 6)).astype(np.float32), RNG.normal(size=(12, 3)).astype(np.float32)
B, C = RNG.normal(size=(2, 12)).astype(np.float32)
GRID = RNG.uniform(-1, 1, (1, 3, 4, 2)).astype(np.float32)


def parts(m, rows):
    return [m.tensor(a[:rows]) for a in (W, U, B, C)]


CALLS = {
    "lstm_cell": lambda m: m.lstm_cell(m.tensor(X), (m.tensor(H), m.tensor(H)), *parts(m, 12)),
    "gru_cell": lambda m: m.gru_cell(m.tensor(X), m.tensor(H), *parts(m, 9)),
    "rnn_tanh_cell": lambda m: m.rnn_tanh_cell(m.tensor(X), m.tensor(H), *parts(m, 3)),
    "rnn_relu_cell": lambda m: m.rnn_relu_cell(m.tensor(X), m.tensor(H), *parts(m, 3)),
    "range": lambda m: m.range(1, 4, 0.5), "range of ints": lambda m: m.range(0, 5),
    "numbers": lambda m: tuple(getattr(m, f)(a, b) for f in ("add", "mul", "div", "floor_divide")
                               for a, b in ((2, 3), (2.5, 2), (-7, 2), (True, 3))),
    "whole ranges": lambda m: tuple(m.arange(*ends, dtype=getattr(m, dtype))
                                    for ends in ((-0.9, 2.1, 2.0), (5.5,), (0.2, 7.9, 1.5), (0, 3, 0.5))
                                    for dtype in ("int64", "int32", "int8", "float64")),
    "whole spaces": lambda m: tuple(getattr(m, f)(0.9, 9.9, 7, dtype=m.int32) for f in ("linspace", "logspace")),
    "outer of bools": lambda m: m.outer(m.tensor([True, False]), m.tensor([True, True])),
    "outer of two dtypes": lambda m: m.outer(m.tensor([1.5, 2.0]), m.tensor([2, 3])),
    "exp2 of infinity": lambda m: m.exp2(m.tensor([complex(-np.inf, np.inf), complex(np.inf, 0)])),
    "clamp of bools": lambda m: m.clamp_max(m.tensor([True, False]), m.tensor(False)),
    "sum of a bool": lambda m: m.tensor(True).sum_to_size(()),
    "asarray": lambda m: m.asarray([1.0, 2.0]), "from_dlpack": lambda m: m.from_dlpack(X),
    "frombuffer": lambda m: m.frombuffer(bytearray(X.tobytes()), dtype=m.float32, count=5, offset=8),
    "frobenius_norm": lambda m: m.frobenius_norm(m.tensor(X), (0, 1)),
    "nuclear_norm": lambda m: m.nuclear_norm(m.tensor(X)), "float_power": lambda m: m.tensor(X).float_power(2),
    "grid_sampler": lambda m: m.grid_sampler(m.tensor(X.reshape(1, 1, 4, 6)), m.tensor(GRID), 0, 0, False),
    "hardshrink": lambda m: m.hardshrink(m.tensor(X)), "prelu": lambda m: m.tensor(X).prelu(m.tensor([0.2])),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_values(tt, name):
    ours, theirs = CALLS[name](tt), CALLS[name](torch)
    for a, b in zip(*[x if isinstance(x, tuple) else (x,) for x in (ours, theirs)]):
        assert str(a.dtype).split(".")[1] == str(b.dtype).split(".")[1]
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("layer", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_fused_layers(tt, layer):
    tt.manual_seed(0)
    own = tt.nn.Linear(2, 3) if layer == "Linear" else getattr(tt.nn, layer)(2, 3, 3)
    norm = tt.nn.BatchNorm1d(3) if layer == "Linear" else tt.nn.BatchNorm2d(3)
    x = tt.randn(5, 2) if layer == "Linear" else tt.randn(2, 2, 6, 6)
    norm(own(x))
    own.eval()
    norm.eval()
    if layer == "Linear":
        fused = tt.nn.utils.fuse_linear_bn_eval(own, norm)
    else:
        fused = tt.nn.utils.fuse_conv_bn_eval(own, norm, layer == "ConvTranspose2d")
    np.testing.assert_allclose(fused(x).detach().numpy(), norm(own(x)).detach().numpy(), 1e-4, 1e-5)
    with pytest.raises(RuntimeError, match="eval"):
        tt.nn.utils.fuse_conv_bn_eval(own.train(), norm)


def test_refusals(tt):
    for m in (teletensor, torch):
        with pytest.raises(ValueError, match="min_val cannot be greater"):
            m.nn.functional.hardtanh(m.ones(2), 1.0, -1.0)
        with pytest.raises(RuntimeError, match="without overflow"):
            m.ones(2, dtype=m.int8).masked_fill(m.tensor([True, False]), 300)
        with pytest.raises(RuntimeError, match="stride"):
            m.nn.functional.max_unpool3d(m.ones(1, 1, 2, 2, 2), m.zeros(1, 1, 2, 2, 2, dtype=m.int64), 2, stride=0)
    with pytest.warns(FutureWarning, match="deprecated"):
        assert tt.nn.init.constant(tt.ones(2), 3.0).tolist() == [3, 3]
