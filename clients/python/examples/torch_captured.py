"""A small language model of PyTorch whose whole training step is one command of the daemon.

    python clients/python/examples/torch_captured.py [--steps N]

It learns to continue sequences that count upwards. Needs torch 2.11 or later; see docs/torch.md.
"""

import argparse

import teletensor.torch
import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, LENGTH = 32, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32), nn.Embedding(LENGTH, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x):
        x = self.words(x) + self.places.weight
        return self.out(self.block(x, src_mask=self.mask, is_causal=True))


def batch():
    """Sequences from random starts, and what comes next at each place."""
    counted = torch.randint(0, WORDS, (16, 1)) + torch.arange(LENGTH + 1)
    return counted[:, :-1] % WORDS, counted[:, 1:] % WORDS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = Model().to("tt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)

    @teletensor.torch.capture
    def step(x, y):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for i in range(options.steps):
        loss = step(*batch())
        if (i + 1) % 100 == 0 or i + 1 == options.steps:
            print(f"Step {i + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
