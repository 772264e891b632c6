"""Compares whole training runs with PyTorch, from equal weights."""

import numpy as np
import pytest
from support import sin2

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sin2(tt, momentum):
    ours, theirs = sin2.train(tt, momentum), sin2.train(torch, momentum)
    assert np.abs(np.array(ours) - theirs).max() <= 1e-5
    assert np.abs(np.array(theirs) - sin2.stored()[str(momentum)]).max() <= 1e-6


def classifier(m, kind, options, steps=40):
    """LayerNorm, GELU and cross entropy on fixed random data. Returns the losses of all steps."""
    rng = np.random.default_rng(9)
    x = m.tensor(rng.standard_normal((96, 20)).astype(np.float32))
    y = m.tensor(rng.integers(0, 5, 96))
    model = m.nn.Sequential(m.nn.Linear(20, 32), m.nn.LayerNorm(32), m.nn.GELU(), m.nn.Linear(32, 32), m.nn.Tanh(),
                            m.nn.Linear(32, 5))
    state = {k: m.tensor(rng.uniform(-0.3, 0.3, tuple(v.shape)).astype(np.float32))
             for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    optimizer = getattr(m.optim, kind)(model.parameters(), **options)
    losses = []
    for step in range(steps):
        rows = slice(step % 3 * 32, step % 3 * 32 + 32)
        loss = m.nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [v.item() for v in losses]


@pytest.mark.parametrize(("kind", "options"), [
    ("SGD", {"lr": 0.05}), ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}), ("Adam", {"lr": 0.003}),
    ("AdamW", {"lr": 0.003, "weight_decay": 0.05})], ids=str)
def test_classifier(tt, kind, options):
    ours, theirs = classifier(tt, kind, options), classifier(torch, kind, options)
    assert np.abs(np.array(ours) - theirs).max() < 5e-4
    assert ours[-1] < ours[0]


def embedding_model(m, steps=20):
    rng = np.random.default_rng(2)
    tokens = m.tensor(rng.integers(0, 11, (16, 6)))
    target = m.tensor(rng.integers(0, 11, (16,)))
    emb, head = m.nn.Embedding(11, 8), m.nn.Linear(48, 11)
    for p in [*emb.parameters(), *head.parameters()]:
        p.data = m.tensor(rng.uniform(-0.5, 0.5, tuple(p.shape)).astype(np.float32))
    optimizer = m.optim.Adam([*emb.parameters(), *head.parameters()], lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = m.nn.functional.nll_loss(m.log_softmax(head(emb(tokens).flatten(1)), 1), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_embedding(tt):
    assert np.abs(np.array(embedding_model(tt)) - embedding_model(torch)).max() < 1e-4
