"""Classifies 8x8 digits by a multilayer perceptron: a PyTorch program in which only the import is changed.

    python clients/python/examples/digits_mlp.py [--address HOST:PORT]
"""

import argparse

import numpy as np
import teletensor as torch
import teletensor.nn as nn
import teletensor.nn.functional as F
import teletensor.optim as optim
from teletensor.utils.data import DataLoader, TensorDataset


class MLP(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.fc1 = nn.Linear(64, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = torch.flatten(x, 1)
        x = self.drop(F.relu(self.fc1(x)))
        x = self.drop(F.relu(self.fc2(x)))
        return F.log_softmax(self.fc3(x), dim=1)


def load(batch_size, seed=1):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=seed
    )
    train_set = TensorDataset(torch.from_numpy(x_train), torch.from_numpy(y_train))
    test_set = TensorDataset(torch.from_numpy(x_test), torch.from_numpy(y_test))
    return (
        DataLoader(train_set, batch_size=batch_size, shuffle=True),
        DataLoader(test_set, batch_size=len(test_set)),
    )


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
    print(f"Train Epoch: {epoch}\tLoss: {loss.item():.6f}")


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    count = len(test_loader.dataset)
    print(
        f"Test set: Average loss: {test_loss / count:.4f}, "
        f"Accuracy: {correct}/{count} ({100.0 * correct / count:.1f}%)"
    )
    return correct / count


def fit(model, epochs, lr=1e-3, batch_size=32, device="cpu"):
    train_loader, test_loader = load(batch_size)
    model = model.to(device)
    optimizer = optim.Adam(model.parameters(), lr=lr)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        train(model, device, train_loader, optimizer, epoch)
        accuracy = test(model, device, test_loader)
        scheduler.step()
    return accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    with torch.connect(args.address):
        torch.manual_seed(1)
        accuracy = fit(MLP(), args.epochs)
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
