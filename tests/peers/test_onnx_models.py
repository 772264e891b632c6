"""Compares whole models that PyTorch exports with onnxruntime: run directly, with another batch size, and
saved as a program."""

import numpy as np
import onnxruntime
import pytest
import teletensor
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the exporter about tracing


class Residual(nn.Module):
    """Convolutions with norms and a shortcut, pooling, and a classifier, as in ResNet."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                                   nn.Conv2d(16, 16, 3, 1, 1))
        self.short = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.block(x) + self.short(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Upsampling(nn.Module):
    """Downsampling and upsampling, as in segmentation networks."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 3, 2, 1), nn.ConvTranspose2d(6, 4, 4, 2, 1)
        self.norm, self.out = nn.GroupNorm(2, 6), nn.Conv2d(7, 2, 1)

    def forward(self, x):
        deep = nn.functional.gelu(self.norm(self.down(x)))
        wide = nn.functional.interpolate(deep, scale_factor=2.0, mode="bilinear")[:, :3]
        return torch.sigmoid(self.out(torch.cat([self.up(deep), wide], 1)))


class Decoder(nn.Module):
    """Embeddings, causal attention and a perceptron, twice, as in GPT."""

    def __init__(self, words=50, width=16, heads=2):
        super().__init__()
        self.heads, self.words, self.places = heads, nn.Embedding(words, width), nn.Embedding(12, width)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "a": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "o": nn.Linear(width, width),
            "b": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})
            for _ in range(2))

    def forward(self, tokens):
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length))
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["a"](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["o"](y.transpose(1, 2).reshape(batch, length, -1))
            x = x + layer["down"](nn.functional.gelu(layer["up"](layer["b"](x)), approximate="tanh"))
        return x @ self.words.weight.t()


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(5, 7, batch_first=True, **options)
        self.head = nn.Linear(7 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x):
        return self.head(self.layer(x)[0])


IMAGE = torch.Generator().manual_seed(0)
MODELS = {
    "residual": (Residual, lambda n: torch.randn(n, 3, 32, 32, generator=IMAGE)),
    "upsampling": (Upsampling, lambda n: torch.randn(n, 3, 16, 16, generator=IMAGE)),
    "decoder": (Decoder, lambda n: torch.randint(0, 50, (n, 9), generator=IMAGE)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), lambda n: torch.randn(n, 6, 5)),
    "both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), lambda n: torch.randn(n, 6, 5)),
    "gru": (lambda: Recurrent(nn.GRU), lambda n: torch.randn(n, 6, 5)),
    "rnn": (lambda: Recurrent(nn.RNN), lambda n: torch.randn(n, 6, 5)),
}


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize(("name", "version"), [
    *((name, 17) for name in MODELS), *((name, version) for name in ("residual", "upsampling", "lstm")
                                        for version in (9, 11, 13, 20) if (name, version) != ("upsampling", 9))])
def test_model(session, tmp_path, name, version):
    make, example = MODELS[name]
    torch.manual_seed(1)
    path, inputs = str(tmp_path / "m.onnx"), example(2)
    torch.onnx.export(make().eval(), (inputs,), path, dynamo=False, opset_version=version, input_names=["x"],
                      output_names=["y"], dynamic_axes={"x": {0: "n"}})
    theirs, ours = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), teletensor.onnx.load(path)
    for batch in (2, 3, 3):
        x = example(batch).numpy()
        wanted = theirs.run(None, {"x": x})[0]
        np.testing.assert_allclose(ours(x).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert ours._captures
    ours.save(tmp_path / "p.safetensors", x)
    assert teletensor.jit.load(tmp_path / "p.safetensors")(teletensor.tensor(x)).tolist() == ours(x).tolist()
