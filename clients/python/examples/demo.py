"""Trains two networks on a teletensor daemon: `make demo`, or demo.py --address HOST:PORT.

(a) learns sin(x)^2 from one number, by plain SGD without and with momentum, one sample per step; (b) trains
a classifier of scikit-learn's 8x8 digits and tests it on a fifth of the images, which are held out.

Prints losses and accuracy, and writes a plot. Without --address a private daemon is started, which ends
with the last program that uses it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import teletensor as tt
from teletensor import nn
from teletensor.utils.data import DataLoader, TensorDataset

GOAL = 0.97  # accuracy on the held-out images


def progress(done: int, total: int, text: str) -> None:
    """Shows a bar that is redrawn on a terminal; prints a few lines if the output is not a terminal."""
    if sys.stdout.isatty():
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        end = "\n" if done == total else ""
        print(f"\r  [{bar}] {done:3d}/{total}  {text}", end=end, flush=True)
    elif done == total or done % max(1, total // 5) == 0:
        print(f"  {done:3d}/{total}  {text}", flush=True)


# ---------------------------------------------------------------- (a) sin(x)^2


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 10)
        self.sigmoid = nn.Sigmoid()
        self.output = nn.Linear(10, 1)

    def forward(self, x: tt.Tensor) -> tt.Tensor:
        return self.output(self.sigmoid(self.hidden(x)))


def train_wave(momentum: float, epochs: int, device: str) -> list[float]:
    """Trains the network; returns the mean loss of each epoch."""
    tt.manual_seed(1)
    model = Wave().to(device)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1.0, 1.0)
    criterion = nn.MSELoss()
    optimizer = tt.optim.SGD(model.parameters(), lr=0.001, momentum=momentum)

    values = np.arange(51, dtype=np.float32) * np.float32(0.4)
    inputs = tt.tensor(values, device=device).reshape(51, 1, 1)
    targets = tt.tensor(np.sin(values) ** 2, device=device).reshape(51, 1, 1)

    history = []
    for epoch in range(epochs):
        losses = []
        for x, target in zip(inputs, targets, strict=True):
            loss = criterion(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        history.append(tt.stack(losses).mean().item())  # the only wait of the epoch
        progress(epoch + 1, epochs, f"loss {history[-1]:.4f}")
    return history


# ---------------------------------------------------------------- (b) digits


def load_digits(seed: int) -> tuple[np.ndarray, ...]:
    """Images [n, 1, 8, 8] in 0..1 and labels [n]: those for training, and those held out."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    digits = load()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_images, test_images, train_labels, test_labels = split
    return train_images, train_labels, test_images, test_labels


def train_digits(
    epochs: int, device: str, seed: int
) -> tuple[list[float], list[float], np.ndarray, tuple[np.ndarray, ...]]:
    """Trains the classifier; returns the losses and accuracies of each epoch, the last predictions, and the
    data."""
    data = load_digits(seed)
    train_images, train_labels, test_images, test_labels = (
        tt.tensor(part, device=device) for part in data
    )
    tt.manual_seed(seed)
    loader = DataLoader(TensorDataset(train_images, train_labels), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(256, 10),
    ).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = tt.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = tt.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)

    losses, accuracies = [], []
    for epoch in range(epochs):
        model.train()
        batch_losses = []
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch_losses.append(loss.detach())
        scheduler.step()

        model.eval()
        with tt.no_grad():
            predictions = model(test_images).argmax(1)
            accuracy = (predictions == test_labels).float().mean()
        losses.append(tt.stack(batch_losses).mean().item())
        accuracies.append(accuracy.item())
        progress(epoch + 1, epochs, f"loss {losses[-1]:.4f}  held out {accuracies[-1]:.1%}")
    return losses, accuracies, predictions.numpy(), data


# ---------------------------------------------------------------- the plot


def plot(
    path: Path,
    waves: dict[str, list[float]],
    losses: list[float],
    accuracies: list[float],
    predictions: np.ndarray,
    data: tuple[np.ndarray, ...],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(15, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for label, history in waves.items():
        left.plot(range(1, len(history) + 1), history, marker="o", label=label)
    left.set(title="sin(x)^2", xlabel="epoch", ylabel="mean squared error", yscale="log")
    left.legend()

    epochs = range(1, len(losses) + 1)
    middle.plot(epochs, losses, color="tab:blue")
    middle.set(title="digits", xlabel="epoch", yscale="log")
    middle.set_ylabel("cross-entropy (training)", color="tab:blue")
    other = middle.twinx()
    other.plot(epochs, [100 * accuracy for accuracy in accuracies], color="tab:orange")
    other.set_ylabel("accuracy, held out (%)", color="tab:orange")

    images, labels = data[2][:, 0], data[3]
    wrong = np.flatnonzero(predictions != labels)
    shown = np.concatenate([wrong, np.flatnonzero(predictions == labels)])[:24]
    tiles = np.ones((3 * 10, 8 * 10))
    for place, i in enumerate(shown):
        row, column = divmod(place, 8)
        tiles[row * 10 + 1 : row * 10 + 9, column * 10 + 1 : column * 10 + 9] = 1 - images[i]
        right.text(
            column * 10 + 1, row * 10 + 1.6, str(predictions[i]), fontsize=9,
            color="tab:green" if predictions[i] == labels[i] else "tab:red",
        )  # fmt: skip
    right.imshow(tiles, cmap="gray", vmin=0, vmax=1)
    right.set(title=f"held out: {len(wrong)} of {len(labels)} wrong (red, first)")
    right.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--device", default="cpu", help="device of the daemon (default: cpu)")
    parser.add_argument("--wave-epochs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30, help="epochs over the digits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("build/demo.png"))
    arguments = parser.parse_args()

    begin = time.monotonic()
    with tt.connect(arguments.address):
        waves = {}
        for momentum in (0.0, 0.9):
            label = f"SGD, momentum {momentum}" if momentum else "SGD"
            print(f"sin(x)^2 by {label}", flush=True)
            waves[label] = train_wave(momentum, arguments.wave_epochs, arguments.device)
        print("8x8 digits by AdamW", flush=True)
        losses, accuracies, predictions, data = train_digits(
            arguments.epochs, arguments.device, arguments.seed
        )
    plot(arguments.output, waves, losses, accuracies, predictions, data)
    right, count = int((predictions == data[3]).sum()), len(predictions)
    print(
        f"accuracy {right / count:.2%} ({right} of {count} held out) after "
        f"{time.monotonic() - begin:.1f} s; plot in {arguments.output}"
    )
    if right / count < GOAL:
        print(f"below the goal of {GOAL:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
