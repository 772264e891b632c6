"""Classifies 8x8 digits by a convolutional network with batch norm, pooling and dropout.

    python clients/python/examples/digits_cnn.py [--address HOST:PORT]
"""

import argparse

import teletensor as torch
import teletensor.nn as nn
import teletensor.nn.functional as F
from digits_mlp import fit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, 1, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    with torch.connect(args.address):
        torch.manual_seed(1)
        accuracy = fit(Net(), args.epochs, lr=2e-3)
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
