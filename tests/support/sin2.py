"""The sin^2 network of the examples in the documentation, written once for teletensor and PyTorch."""

import json
from pathlib import Path

import numpy as np

STORED = Path(__file__).parent / "sin2.json"
EPOCHS, RATE = 10, 0.001


def data():
    x = np.arange(0, 20.2, 0.4, dtype=np.float32)[:51].reshape(51, 1)
    return x, (np.sin(x) ** 2).astype(np.float32)


def weights(seed=11):
    """Uniform(-1, 1) for Linear(1, 10), Linear(10, 1)."""
    rng = np.random.default_rng(seed)
    shapes = {"0.weight": (10, 1), "0.bias": (10,), "2.weight": (1, 10), "2.bias": (1,)}
    return {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()}


def train(m, momentum, device="cpu", epochs=EPOCHS):
    """The usual training loop; returns the mean loss of each epoch. `m` is teletensor or torch."""
    model = m.nn.Sequential(m.nn.Linear(1, 10), m.nn.Sigmoid(), m.nn.Linear(10, 1)).to(device)
    model.load_state_dict({k: m.tensor(v) for k, v in weights().items()})
    optimizer = m.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    criterion = m.nn.MSELoss()
    xs, ys = data()
    xs, ys = m.tensor(xs), m.tensor(ys)
    history = []
    for _ in range(epochs):
        losses = []
        for i in range(len(xs)):
            x, y = xs[i].to(device), ys[i].to(device)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        history.append(m.stack(losses).mean())
    return [h.item() for h in history]


def stored():
    """Momentum -> the losses of each epoch that PyTorch gave."""
    return json.loads(STORED.read_text(encoding="utf-8"))["losses"]


def main():
    import torch

    torch.set_num_threads(1)
    losses = {str(p): train(torch, p) for p in (0, 0.9)}
    made_by = f"python -m support.sin2 (in tests/, PyTorch {torch.__version__})"
    STORED.write_text(json.dumps({"made_by": made_by, "losses": losses}, indent=1) + "\n")


if __name__ == "__main__":
    main()
