"""Compares nn.utils' weight_norm and spectral_norm (hooks), low-rank decompositions and print options with
PyTorch's."""

import re

import numpy as np
import pytest
import teletensor as tt
import torch

MAKERS = {
    "linear": (lambda m: m.nn.Linear(5, 4), (3, 5)),
    "conv": (lambda m: m.nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "transposed": (lambda m: m.nn.ConvTranspose1d(3, 4, 3), (2, 3, 6)),
}


def pair(make, wrap):
    torch.manual_seed(0)
    ours, theirs = wrap(tt, make(tt)), wrap(torch, make(torch))
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict({k: tt.from_torch(v) for k, v in state.items()})
    return ours, theirs


def same(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("norm", ["spectral_norm", "weight_norm"])
def test_state_training_and_removal_follow_pytorchs(kind, norm):
    make, shape = MAKERS[kind]
    ours, theirs = pair(make, lambda m, layer: getattr(m.nn.utils, norm)(layer))
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    optimizers = [m.optim.SGD(net.parameters(), 0.1) for m, net in ((tt, ours), (torch, theirs))]
    for _ in range(3):
        losses = []
        for m, net, optimizer in zip((tt, torch), (ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            loss = (net(m.tensor(x)) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        same(*losses)
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        same(a.grad, b.grad), same(a, b), name
    ours.eval(), theirs.eval()
    same(ours(tt.tensor(x)), theirs(torch.tensor(x)))
    for m, net in ((tt, ours), (torch, theirs)):
        getattr(m.nn.utils, f"remove_{norm}")(net)
    assert {*ours.state_dict()} == {*theirs.state_dict()} == {"weight", "bias"}
    same(ours(tt.tensor(x)), theirs(torch.tensor(x)))
    for m, net in ((tt, ours), (torch, theirs)):
        with pytest.raises(ValueError, match=f"{norm} of 'weight' not found"):
            getattr(m.nn.utils, f"remove_{norm}")(net)


@pytest.mark.parametrize("m", [tt, torch], ids=["ours", "theirs"])
def test_a_norm_is_applied_once(m):
    layer = m.nn.utils.spectral_norm(m.nn.Linear(3, 2))
    with pytest.raises((RuntimeError, KeyError)):
        m.nn.utils.spectral_norm(layer)
    with pytest.raises(ValueError, match="n_power_iterations to be positive"):
        m.nn.utils.spectral_norm(m.nn.Linear(3, 2), n_power_iterations=0)


@pytest.mark.parametrize("shape", [(12, 7), (7, 12), (2, 9, 9)])
def test_lowrank_finds_the_whole_of_what_has_low_rank(shape):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(*shape[:-1], 3)) @ rng.normal(size=(*shape[:-2], 3, shape[-1]))
    U, S, V = tt.svd_lowrank(tt.tensor(a), 4)
    np.testing.assert_allclose((U * S.unsqueeze(-2) @ V.mH).numpy(), a, atol=1e-9)
    theirs = torch.svd_lowrank(torch.tensor(a), 4)
    assert [tuple(t.shape) for t in (U, S, V)] == [tuple(t.shape) for t in theirs]
    np.testing.assert_allclose(S.numpy(), theirs[1].numpy(), atol=1e-9)
    ours, theirs = tt.pca_lowrank(tt.tensor(a), 3), torch.pca_lowrank(torch.tensor(a), 3)
    np.testing.assert_allclose(ours[1].numpy(), theirs[1].numpy(), atol=1e-9)
    np.testing.assert_allclose(abs(ours[2].numpy()), abs(theirs[2].numpy()), atol=1e-7)


def test_print_options_are_pytorchs():
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=(3, 4)), rng.normal(size=(40, 50)) * 1e5, np.arange(20),
              rng.normal(size=7).astype(np.complex128) * (1 + 2j), np.array([1.0, np.nan, np.inf, 0.0])]
    every = [{"precision": 2}, {"threshold": 5}, {"edgeitems": 2, "threshold": 3}, {"linewidth": 40},
             {"profile": "short"}, {"profile": "full"}, {"sci_mode": True}, {"sci_mode": False}]
    try:
        for options in every:
            for m in (tt, torch):
                m.set_printoptions(profile="default")
                m.set_printoptions(**options)
            for array in arrays:
                texts = [repr(m.tensor(array)) for m in (tt, torch)]
                ours, theirs = (re.sub(r",\s+dtype=\w+", ", dtype=m", t) for t in texts)
                assert ours == theirs, options
        with pytest.raises(ValueError, match="no profile 'tiny'"):
            tt.set_printoptions(profile="tiny")
    finally:
        for m in (tt, torch):
            m.set_printoptions(profile="default")
