"""Tensors of the device meta, beside PyTorch's: the samples of its operator database, and nets, have the same
shapes, dtypes, strides and gradients."""

import sys
import warnings
from pathlib import Path

import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from op_db import Ours, flat, fresh, leaves, names

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

# Numbers of samples of a variant: complex dtypes share most rules of layout with float32.
SAMPLES = {torch.float32: 3, torch.complex64: 1}
MORE_SAMPLES = 6  # for names with a listed difference


class Meta(Ours):
    """Converts PyTorch's tensors on the device meta to teletensor's."""

    def convert(self, value):
        if not isinstance(value, torch.Tensor):
            return super().convert(value)
        assert value.is_meta
        made = self.tt.empty_strided(tuple(value.shape), value.stride(), dtype=super().convert(value.dtype),
                                     device="meta")
        return made.requires_grad_(value.requires_grad)


OURS = Meta(teletensor)
DATABASE = names()
HAVE = sorted(n for n in DATABASE if OURS.find(n) is not None)
FFT = "a dense row-major result, as everywhere here; PyTorch's transform has that of its library"
FACTOR = "the layout that the kernel writes"
DIFFERENT = {
    **{name: FFT for name in HAVE if name.startswith("fft.") and "shift" not in name and "freq" not in name},
    **dict.fromkeys(("linalg.eig", "linalg.lu_solve", "linalg.pinv", "nn.functional.grid_sample", "ormqr",
                     "pca_lowrank", "pinverse", "svd_lowrank", "triangular_solve"), FACTOR),
    **dict.fromkeys(("linspace", "logspace"), "the ends are tensors, which are read"),
    "as_strided": "a sample reaches beyond the view that was converted",
    "index_put": "a mask, whose number of true elements is a value",
}
# Samples that PyTorch refuses on the device meta because it has no rule for their shapes.
REFUSED_BY_TORCH = {
    "allclose", "argwhere", "corrcoef", "cov", "equal", "geqrf", "histogram", "istft", "item", "linalg.lstsq",
    "masked_select", "narrow", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "nonzero",
    "repeat_interleave", "tensor_split", "to", "to_sparse", "unique", "unique_consecutive",
}
NOT_COMPLEX = ("logaddexp", "logcumsumexp")  # not defined for complex dtypes, as test_op_db.py lists


def facts(x):
    """What is compared: strides of dimensions with one element have no meaning."""
    strides = [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1] if x.numel() > 1 else None
    return str(x.device.type), str(x.dtype).split(".")[-1], tuple(x.shape), strides, x.requires_grad


def on_meta(value):
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            pytest.skip("the device meta has no sparse tensors")
        return value.to("meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def difference(info, call, sample):
    """None, "refused" if PyTorch refuses the sample, or how the results differ."""
    sample = sample.transform(on_meta)
    kwargs = {key: "meta" if key == "device" else value for key, value in sample.kwargs.items()}
    mine_in = [OURS.convert(fresh(x)) for x in (sample.input, *sample.args)]
    mine_named = OURS.convert(kwargs)
    theirs_in = [fresh(x) for x in (sample.input, *sample.args)]
    try:
        theirs = [x for x in flat(info.op(*theirs_in, **kwargs)) if isinstance(x, torch.Tensor)]
    except Exception:
        return "refused"
    mine = [x for x in flat(call(*mine_in, **mine_named)) if isinstance(x, teletensor.Tensor)]
    got, wanted = list(map(facts, mine)), list(map(facts, theirs))
    if got != wanted:
        return f"{got}, PyTorch {wanted}"
    return gradients_differ((mine_in, mine_named, mine), (theirs_in, kwargs, theirs))


def gradients_differ(mine, theirs):
    found = []
    for library, (inputs, named, results) in ((torch, theirs), (teletensor, mine)):
        wanted, roots = leaves([*inputs, *named.values()]), leaves(results)
        if not wanted or not roots:
            return None
        try:
            total = sum((x.abs() if x.is_complex() else x).sum() for x in roots)
            gradients = library.autograd.grad(total, wanted, allow_unused=True)
        except Exception:
            if library is torch:
                return None
            raise
        found.append([x if x is None else facts(x)[:3] for x in gradients])
    return None if found[0] == found[1] else f"gradients {found[1]}, PyTorch {found[0]}"


def run(name, dtype, samples):
    """The first difference, and the number of samples that PyTorch refuses."""
    refused = 0
    for info in DATABASE[name]:
        if dtype not in info.dtypes:
            continue
        gradients = info.supports_autograd and dtype in info.backward_dtypes
        call = OURS.caller(info)
        inputs = info.sample_inputs("cpu", dtype, requires_grad=gradients)
        for i, sample in zip(range(samples), inputs, strict=False):
            try:
                found = difference(info, call, sample)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found and found != "refused":
                return f"{info.variant_test_name or 'plain'} sample {i}: {found}", refused
            refused += found == "refused"
    return None, refused


@pytest.fixture(scope="module", autouse=True)
def nowhere():
    """There is no daemon: a call that needs one fails."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TELETENSOR_ADDRESS", "127.0.0.1:1")
    yield
    patch.undo()


@pytest.mark.parametrize(("dtype", "name"), [
    pytest.param(dtype, name, id=f"{dtype}-{name}") for dtype in SAMPLES for name in HAVE
    if name not in DIFFERENT and not (dtype.is_complex and name in NOT_COMPLEX)])
def test_name(dtype, name):
    found, refused = run(name, dtype, SAMPLES[dtype])
    assert found is None
    assert not refused or name in REFUSED_BY_TORCH


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_listed_difference_is_still_one(name):
    assert any(run(name, dtype, MORE_SAMPLES)[0] for dtype in SAMPLES), "take it off the list"


# ---------------------------------------------------------------- nets


def convolutions(nn, t):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(36, 5)), (t.randn(2, 3, 16, 16, device="meta"),)


def recurrent(nn, t):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 6, padding_idx=0)
            self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
            self.gru, self.cell = nn.GRU(10, 4, batch_first=True), nn.LSTMCell(4, 3)

        def forward(self, x):
            out, (h, c) = self.lstm(self.embedding(x))
            out, last = self.gru(out)
            return (*self.cell(out[:, -1]), out.mean(), h, c, last)

    return Net(), (t.zeros(2, 7, dtype=t.int64, device="meta"),)


def attention(nn, t):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(t.randn(1, 9, 16))
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(9))
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True, activation="gelu")
            self.encoder, self.norm = nn.TransformerEncoder(layer, 2), nn.LayerNorm(16)
            self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 11, bias=False)

        def forward(self, x):
            x = self.encoder(x + self.position, mask=self.mask, is_causal=True)
            y, weights = self.attention(x, x, x)
            heads = y.view(2, 9, 4, 4).transpose(1, 2)
            z = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return self.head(self.norm(z.transpose(1, 2).reshape(2, 9, 16))), weights

    return Net(), (t.randn(2, 9, 16, device="meta"),)


def mixture(nn, t):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
            self.second, self.bag = nn.Bilinear(8, 8, 4), nn.EmbeddingBag(10, 4)
            self.norm, self.conv = nn.InstanceNorm1d(4, affine=True), nn.Conv1d(4, 4, 3, groups=2, padding="same")

        def forward(self, x):
            x = nn.functional.silu(self.first(x)).half().float()
            y = self.second(x, x[:, :].flip(0)) + self.bag(t.zeros(3, 2, dtype=t.int64, device=x.device))
            z = self.conv(self.norm(y.t().unsqueeze(0).repeat(2, 1, 1)[..., :3]))
            values, order = y.sort(dim=1)
            return (z, values.cumsum(1), order, t.einsum("ij,kj->ik", y, y), t.where(y > 0, y, 0.5),
                    y.topk(2).indices, t.cat([y, y.new_ones(3, 1)], 1).logsumexp(1), y.std(0), t.linalg.norm(y))

    return Net(), (t.randn(3, 6, device="meta"),)


def trained(library, net, optimizer):
    """Trains the net on the device meta for two steps. Returns the facts of each result, gradient, state and
    parameter, by name."""
    found = {}
    with library.device("meta"):
        model, inputs = net(library.nn, library)
        optimizer = getattr(library.optim, optimizer)(model.parameters(), lr=0.1)
    for step in range(2):
        results = model(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        found |= {f"{step} result {i}": facts(x) for i, x in enumerate(results)}
        optimizer.zero_grad()
        sum(x.sum() for x in results if x.requires_grad).backward()
        found[f"{step} norm"] = facts(library.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        found |= {f"{step} gradient {name}": x.grad if x.grad is None else facts(x.grad)
                  for name, x in model.named_parameters()}
        optimizer.step()
    for i, own in optimizer.state_dict()["state"].items():
        found |= {f"state {i} {key}": facts(x)[1:] for key, x in own.items() if key != "step"}
    found |= {name: facts(x) for name, x in model.state_dict().items()}
    found |= {f"half {name}": facts(x) for name, x in model.half().state_dict().items()}
    moved = model.float().to_empty(device="meta")
    return found | {f"moved {name}": facts(x) for name, x in moved.state_dict().items()}


@pytest.mark.parametrize("net", [convolutions, recurrent, attention, mixture], ids=lambda net: net.__name__)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_nets(net, optimizer):
    mine, theirs = trained(teletensor, net, optimizer), trained(torch, net, optimizer)
    assert mine == theirs
