"""Small models in plain torch.nn train on the device "tt" as on the CPU, without the CPU's help."""

import copy
import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from teletensor import _core as core


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.cells = getattr(nn, kind)(16, 24, 2, batch_first=True)
        self.out = nn.Linear(24, 20)

    def forward(self, x):
        return self.out(self.cells(self.embedding(x))[0]).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.beside = nn.Conv2d(3, 8, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.out = nn.Linear(8, 10)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        y = F.relu(self.norms[1](self.second(y)) + self.beside(x))
        return self.out(self.pool(y).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 20)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x.device)
        return self.out(self.block(self.embedding(x), src_mask=mask, is_causal=True)).flatten(0, 1)


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(),
                         nn.Linear(32, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8), nn.ReflectionPad2d(1),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(8, 10))


def words():
    return torch.randint(0, 20, (4, 7))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(16, 20)),
    "cnn": (cnn, lambda: torch.randn(4, 3, 14, 14)),
    "residual": (Residual, lambda: torch.randn(4, 3, 8, 8)),
    "transformer": (Transformer, words),
    "lstm": (lambda: Recurrent("LSTM"), words),
    "gru": (lambda: Recurrent("GRU"), words),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "fused sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-2,
                                                    nesterov=True, fused=True),
}


def train(model, optimizer, x, steps=4):
    """The losses, still on the device, and the gradients of the last step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        target = torch.arange(len(out), device=x.device) % out.shape[1]
        loss = F.cross_entropy(out, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_is_the_cpus(tt_device, model, optimizer):
    make, data = MODELS[model]
    here, x = make(), data()
    there = copy.deepcopy(here).to("tt")
    losses, gradients = train(here, OPTIMIZERS[optimizer](here.parameters()), x)
    there_x = x.to("tt")
    own = OPTIMIZERS[optimizer](there.parameters())
    tt_device.fallbacks(clear=True)
    with tt_device.strict():
        before = core.torch_session().waits
        found, others = train(there, own, there_x)
        assert core.torch_session().waits == before, "a step has read a value"
    assert tt_device.fallbacks() == {}
    for a, b in zip(losses, found):
        assert abs(a.item() - b.item()) <= 1e-5 * abs(a.item())
    for a, b in zip(gradients, others):
        assert (a - b.cpu()).abs().max() <= 1e-4 * a.abs().max() + 1e-7


def test_the_running_statistics_of_a_batch_norm_are_the_cpus(tt_device):
    here = Residual()
    there = copy.deepcopy(here).to("tt")
    x = torch.randn(4, 3, 8, 8)
    for _ in range(3):
        here(x), there(x.to("tt"))
    torch.testing.assert_close(there.norms[0].running_var.cpu(), here.norms[0].running_var)
    torch.testing.assert_close(there.eval()(x.to("tt")).cpu(), here.eval()(x), rtol=1e-4, atol=1e-5)


def test_dropout_zeroes_its_part_and_scales_the_rest(tt_device):
    x = torch.ones(1000, device="tt", requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = (y != 0).sum().item()
    assert 650 < kept < 850 and torch.allclose(y[y != 0].cpu(), torch.tensor(1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_the_example_learns(tt_device, monkeypatch, capsys):
    example = Path(__file__).resolve().parents[2] / "clients/python/examples/torch_squares.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--epochs", "2"])
    tt_device.fallbacks(clear=True)
    runpy.run_path(str(example), run_name="__main__")
    assert float(capsys.readouterr().out.split()[-1]) > 0.9
    assert tt_device.fallbacks() == {}
