"""Runs the example programs and the same source with PyTorch, from equal weights, and compares the
results."""

import importlib.util
import re
import sys
import types

import numpy as np
import pytest
from support.daemon import ROOT

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

EXAMPLES = ROOT / "clients/python/examples"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def load(name, library):
    """The example as a module; for torch only the imports are changed."""
    if library == "teletensor":
        spec = importlib.util.spec_from_file_location(f"ours_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    source = (EXAMPLES / f"{name}.py").read_text()
    lines = [re.sub(r"\bteletensor\b", "torch", line) if re.match(r"(import|from) ", line) else line
             for line in source.splitlines()]
    module = types.ModuleType(f"theirs_{name}")
    sys.modules[module.__name__] = module
    exec(compile("\n".join(lines), f"{name}.py", "exec"), module.__dict__)
    return module


def equal(tt, ours, theirs):
    """Copies the same weights to both models."""
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))


def test_char_gpt(tt):
    """Fifty steps: every loss within a thousandth."""
    torch.manual_seed(1)
    programs = load("char_gpt", "teletensor"), load("char_gpt", "torch")
    models = [p.GPT(12, 8, pdrop=0.0) for p in programs]
    equal(tt, *models)
    losses = [p.train(model, p.Sums(2), 50, report=0) for p, model in zip(programs, models)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_sine_lstm(tt):
    torch.manual_seed(1)
    programs = load("sine_lstm", "teletensor"), load("sine_lstm", "torch")
    models = [p.Sequence(8).double() for p in programs]
    equal(tt, *models)
    data = programs[0].waves(8, 30)
    assert np.array_equal(data, programs[1].waves(8, 30))
    losses = [p.train(model, data, 2, report=False) for p, model in zip(programs, models)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_vae(tt):
    """One step without noise: the loss and every gradient."""
    torch.manual_seed(1)
    programs = load("vae", "teletensor"), load("vae", "torch")
    models = [p.VAE() for p in programs]
    equal(tt, *models)
    images = np.random.default_rng(0).random((16, 8, 8)).astype("f4")
    results = []
    for m, p, model in zip((tt, torch), programs, models):
        model.reparameterize = lambda mu, logvar, m=m: mu + m.exp(0.5 * logvar)
        x = m.tensor(images)
        loss = p.loss_function(model(x)[0], x, *model(x)[1:])
        loss.backward()
        results.append([loss.detach().numpy(), *(q.grad.numpy() for q in model.parameters())])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "kind"), [("digits_mlp", "MLP"), ("digits_cnn", "Net")])
def test_digits(tt, name, kind):
    """Twenty steps of Adam in evaluation mode (no dropout)."""
    torch.manual_seed(1)
    programs = load(name, "teletensor"), load(name, "torch")
    models = [getattr(p, kind)().eval() for p in programs]
    equal(tt, *models)
    losses = []
    for m, model in zip((tt, torch), models):
        rng = np.random.default_rng(2)
        optimizer = m.optim.Adam(model.parameters(), lr=1e-3)
        history = []
        for _ in range(20):
            x = m.tensor(rng.random((16, 1, 8, 8)).astype("f4"))
            loss = m.nn.functional.nll_loss(model(x), m.tensor(rng.integers(0, 10, 16)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses.append(history)
    np.testing.assert_allclose(*losses, rtol=1e-4)
