"""Where a bright square is, by a small CNN: a plain PyTorch program whose device alone is another one.

    python clients/python/examples/torch_squares.py [--device tt|cpu] [--epochs N]

Needs torch 2.11 or later; see docs/torch.md.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def load(batch_size):
    """Images of noise with a bright square at one of nine places, which is the label."""
    labels = torch.randint(0, 9, (1797,))
    images = torch.randn(1797, 1, 8, 8)
    for image, label in zip(images, labels.tolist()):
        row, column = 1 + 2 * (label // 3), 1 + 2 * (label % 3)
        image[0, row : row + 2, column : column + 2] += 3
    return (
        DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=batch_size, shuffle=True),
        (images[1500:], labels[1500:]),
    )


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tt")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if options.device == "tt":
        import teletensor.torch  # noqa: F401

    torch.manual_seed(1)
    train_loader, (images, labels) = load(batch_size=64)
    model = network().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        model.train()
        for data, target in train_loader:
            loss = F.cross_entropy(model(data.to(options.device)), target.to(options.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            guess = model(images.to(options.device)).argmax(1).cpu()
        print(f"Epoch {epoch + 1}: accuracy {(guess == labels).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
