"""Compares modules with PyTorch's: text, state, values and gradients, in training and evaluation."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

IMAGE, VOLUME, LINE = (2, 4, 6, 5), (2, 4, 4, 4, 3), (2, 4, 7)
# (class, arguments, keywords, shapes of inputs)
MODULES = [
    ("Conv1d", (4, 6, 3), {"padding": 1, "stride": 2}, [LINE]),
    ("Conv1d", (4, 6, 3), {"padding": "same", "dilation": 2, "bias": False}, [LINE]),
    ("Conv2d", (4, 6, (3, 2)), {"groups": 2, "padding": (1, 0)}, [IMAGE]),
    ("Conv2d", (4, 4, 3), {"padding": 1, "padding_mode": "reflect"}, [IMAGE]),
    ("Conv2d", (4, 4, 3), {"padding": "same", "padding_mode": "circular"}, [IMAGE]),
    ("Conv2d", (4, 4, 2), {"padding": "valid", "padding_mode": "replicate"}, [IMAGE]),
    ("Conv3d", (4, 2, 2), {}, [VOLUME]),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1}, [LINE]),
    ("ConvTranspose2d", (4, 6, 3), {"groups": 2, "padding": 1, "dilation": 2}, [IMAGE]),
    ("ConvTranspose3d", (4, 2, 2), {"bias": False}, [VOLUME]),
    ("BatchNorm1d", (4,), {}, [LINE]),
    ("BatchNorm1d", (3,), {"momentum": 0.3}, [(5, 3)]),
    ("BatchNorm2d", (4,), {"affine": False}, [IMAGE]),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, [IMAGE]),
    ("BatchNorm2d", (4,), {"momentum": None}, [IMAGE]),
    ("BatchNorm3d", (4,), {"bias": False}, [VOLUME]),
    ("InstanceNorm1d", (4,), {}, [LINE]),
    ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, [IMAGE]),
    ("InstanceNorm3d", (4,), {}, [VOLUME]),
    ("GroupNorm", (2, 4), {}, [IMAGE]),
    ("GroupNorm", (4, 4), {"affine": False}, [LINE]),
    ("LayerNorm", ((6, 5),), {}, [IMAGE]),
    ("RMSNorm", (5,), {}, [IMAGE]),
    ("LocalResponseNorm", (3,), {}, [IMAGE]),
    ("MaxPool1d", (2,), {}, [LINE]),
    ("MaxPool2d", ((2, 3),), {"stride": 1, "padding": 1}, [IMAGE]),
    ("MaxPool3d", (2,), {"ceil_mode": True}, [VOLUME]),
    ("AvgPool1d", (2,), {"padding": 1}, [LINE]),
    ("AvgPool2d", (2,), {"divisor_override": 3}, [IMAGE]),
    ("AvgPool3d", (2,), {}, [VOLUME]),
    ("AdaptiveAvgPool1d", (3,), {}, [LINE]),
    ("AdaptiveAvgPool2d", ((None, 2),), {}, [IMAGE]),
    ("AdaptiveAvgPool3d", (2,), {}, [VOLUME]),
    ("AdaptiveMaxPool1d", (3,), {}, [LINE]),
    ("AdaptiveMaxPool2d", ((3, 2),), {}, [IMAGE]),
    ("AdaptiveMaxPool3d", (2,), {}, [VOLUME]),
    ("LPPool1d", (2, 2), {}, [LINE]),
    ("LPPool2d", (2, (2, 3)), {"stride": 1}, [IMAGE]),
    ("LPPool3d", (2, 2), {}, [VOLUME]),
    ("ConstantPad1d", (2, 3.5), {}, [LINE]),
    ("ConstantPad2d", ((1, 0, 2, 1), 1.0), {}, [IMAGE]),
    ("ConstantPad3d", (1, 0.5), {}, [VOLUME]),
    ("ZeroPad1d", (1,), {}, [LINE]),
    ("ZeroPad2d", ((1, 2, 0, 1),), {}, [IMAGE]),
    ("ZeroPad3d", (1,), {}, [VOLUME]),
    ("ReflectionPad1d", (2,), {}, [LINE]),
    ("ReflectionPad2d", (2,), {}, [IMAGE]),
    ("ReflectionPad3d", (1,), {}, [VOLUME]),
    ("ReplicationPad1d", (2,), {}, [LINE]),
    ("ReplicationPad2d", (2,), {}, [IMAGE]),
    ("ReplicationPad3d", (2,), {}, [VOLUME]),
    ("CircularPad1d", (2,), {}, [LINE]),
    ("CircularPad2d", (2,), {}, [IMAGE]),
    ("CircularPad3d", (2,), {}, [VOLUME]),
    ("Upsample", (), {"scale_factor": 2}, [IMAGE]),
    ("Upsample", (), {"size": (3, 9), "mode": "bilinear", "align_corners": True}, [IMAGE]),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, [IMAGE]),
    ("UpsamplingBilinear2d", (), {"size": 4}, [IMAGE]),
    ("PixelShuffle", (2,), {}, [IMAGE]),
    ("PixelUnshuffle", (1,), {}, [IMAGE]),
    ("ChannelShuffle", (2,), {}, [IMAGE]),
    ("Unfold", ((2, 3),), {"padding": 1}, [IMAGE]),
    ("Fold", ((4, 5), (2, 2)), {}, [(2, 8, 12)]),
    ("Bilinear", (3, 2, 4), {}, [(5, 3), (5, 2)]),
    ("CosineSimilarity", (), {"dim": 0}, [(3, 4), (3, 4)]),
    ("PairwiseDistance", (), {"p": 1.0, "keepdim": True}, [(3, 4), (3, 4)]),
    ("Softmax2d", (), {}, [IMAGE]),
    ("Dropout1d", (0.0,), {}, [LINE]),
    ("Dropout2d", (0.0,), {}, [IMAGE]),
    ("Dropout3d", (0.0,), {}, [VOLUME]),
    ("AlphaDropout", (0.0,), {}, [IMAGE]),
    ("FeatureAlphaDropout", (), {"p": 0.0, "inplace": False}, [IMAGE]),
]
LOSSES = [
    ("CTCLoss", (), {"blank": 1}),
    ("MultiLabelMarginLoss", (), {}),
    ("MultiLabelSoftMarginLoss", (), {"reduction": "sum"}),
    ("MultiMarginLoss", (), {"p": 2}),
    ("TripletMarginWithDistanceLoss", (), {"margin": 0.5}),
    ("NLLLoss2d", (), {}),
]


def grads(m, module, values, seed):
    inputs = [m.tensor(v, requires_grad=True) for v in values]
    out = module(*inputs)
    if seed is None:
        seed = np.random.default_rng(3).normal(size=tuple(out.shape))
    out.backward(m.tensor(seed))
    return [out.detach(), *(x.grad for x in inputs), *(p.grad for p in module.parameters())], seed


@pytest.mark.parametrize("name, args, kwargs, shapes", MODULES, ids=[f"{n}{i}" for i, (n, *_) in enumerate(MODULES)])
def test_module(tt, name, args, kwargs, shapes):
    rng = np.random.default_rng(len(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (getattr(m.nn, name)(*args, **kwargs) for m in (tt, torch))
        ours.double(), theirs.double()
        assert repr(ours) == repr(theirs)
        state = theirs.state_dict()
        assert list(ours.state_dict()) == list(state)
        assert [tuple(v.shape) for v in ours.state_dict().values()] == [tuple(v.shape) for v in state.values()]
        ours.load_state_dict(tt.from_torch(state))
        for training in (True, True, False):
            ours.train(training), theirs.train(training)
            values = [rng.normal(size=s) for s in shapes]
            expected, seed = grads(torch, theirs, values, None)
            got, _ = grads(tt, ours, values, seed)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-7, atol=1e-9)
            for key, value in theirs.state_dict().items():
                np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), rtol=1e-9, atol=1e-12)
            for p in theirs.parameters():
                p.grad = None
            ours.zero_grad()


@pytest.mark.parametrize("name, args, kwargs", LOSSES, ids=[n for n, *_ in LOSSES])
def test_loss_module(tt, name, args, kwargs):
    assert repr(getattr(tt.nn, name)(*args, **kwargs)) == repr(getattr(torch.nn, name)(*args, **kwargs))


def test_older_response_norm(tt):
    """Only values are compared: PyTorch's gradient is not that of the function that it computes."""
    x = np.random.default_rng(0).normal(size=(2, 7, 2, 3))
    for size in (1, 3, 5):
        ours, theirs = (m.nn.CrossMapLRN2d(size, 0.3)(m.tensor(x)) for m in (tt, torch))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9)


def test_embedding_bag(tt):
    theirs = torch.nn.EmbeddingBag(6, 3, mode="sum", padding_idx=1).double()
    ours = tt.nn.EmbeddingBag(6, 3, mode="sum", padding_idx=1).double()
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))
    index, offsets = np.array([0, 1, 4, 5, 2]), np.array([0, 3])
    outs = [module(m.tensor(index), m.tensor(offsets)) for m, module in ((tt, ours), (torch, theirs))]
    for out in outs:
        (out * out).sum().backward()
    np.testing.assert_allclose(outs[0].detach().numpy(), outs[1].detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-12)


def test_adaptive_softmax(tt):
    arguments = (6, 12, [3, 5, 8])
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(*arguments, div_value=2.0, head_bias=True).double()
    ours = tt.nn.AdaptiveLogSoftmaxWithLoss(*arguments, div_value=2.0, head_bias=True).double()
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(9, 6)), rng.integers(0, 12, 9)
    results = []
    for m, module in ((tt, ours), (torch, theirs)):
        out = module(m.tensor(x), m.tensor(y))
        out.loss.backward()
        results.append([out.output.detach(), out.loss.detach(), module.log_prob(m.tensor(x)).detach(),
                        module.predict(m.tensor(x)), *(p.grad for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


def test_initial_values(tt):
    """The distributions must be the same: bounds and spread of new parameters."""
    for name, args in (("Conv2d", (8, 500, 3)), ("ConvTranspose2d", (8, 500, 3)), ("EmbeddingBag", (100, 64))):
        ours, theirs = getattr(tt.nn, name)(*args), getattr(torch.nn, name)(*args)
        for (key, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            a, b = a.detach().numpy(), b.detach().numpy()
            assert abs(a).max() == pytest.approx(abs(b).max(), rel=0.2), key
            assert a.std() == pytest.approx(b.std(), rel=0.2), key


def test_dropouts(tt):
    x = tt.ones(64, 32, 3, 3)
    for name in ("dropout2d", "feature_alpha_dropout"):
        y = getattr(tt.nn.functional, name)(x, 0.5, True).numpy().reshape(64 * 32, 9)
        assert (y == y[:, :1]).all()
        assert 0.4 < (y[:, 0] == y[0, 0]).mean() < 0.6
    y = tt.nn.functional.alpha_dropout(tt.randn(200, 200), 0.3, True).numpy()
    assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05
    assert tt.nn.functional.dropout1d(x[:, :, 0], 0.5, False) is not None
    z = tt.nn.functional.gumbel_softmax(tt.zeros(500, 4), hard=True).numpy()
    assert (z.sum(1) == 1).all() and (z.max(1) == 1).all() and (z.mean(0) > 0.15).all()
    r = tt.nn.functional.rrelu(tt.full((1000,), -1.0), training=True).numpy()
    assert (r <= -1 / 8).all() and (r > -1 / 3).all() and r.std() > 0.03
