"""Predicts sine waves by an LSTM trained by LBFGS: PyTorch's example "time sequence prediction".
Two LSTMCells read a wave step by step; after its end they are fed their own predictions.

    python clients/python/examples/sine_lstm.py [--address HOST:PORT] [--steps 8]
"""

import argparse
import time

import numpy as np
import teletensor as torch
import teletensor.nn as nn
import teletensor.optim as optim


class Sequence(nn.Module):
    def __init__(self, hidden=51):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), self.hidden, dtype=torch.double)
        c_t = torch.zeros(input.size(0), self.hidden, dtype=torch.double)
        h_t2 = torch.zeros(input.size(0), self.hidden, dtype=torch.double)
        c_t2 = torch.zeros(input.size(0), self.hidden, dtype=torch.double)

        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):  # to predict the future
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def waves(count, length, period=20, seed=2):
    """Sine waves of the same period, each with a random start."""
    shift = np.random.default_rng(seed).integers(-4 * period, 4 * period, (count, 1))
    return np.sin((np.arange(length) + shift) / 1.0 / period).astype("float64")


def train(seq, data, steps, lr=0.8, report=True):
    """Returns (the loss before each step, the loss on the held-out waves after it)."""
    input = torch.from_numpy(data[3:, :-1])
    target = torch.from_numpy(data[3:, 1:])
    test_input = torch.from_numpy(data[:3, :-1])
    test_target = torch.from_numpy(data[:3, 1:])
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=lr)
    history = []
    for i in range(steps):

        def closure():
            optimizer.zero_grad()
            out = seq(input)
            loss = criterion(out, target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        with torch.no_grad():
            future = 20
            pred = seq(test_input, future=future)
            held_out = criterion(pred[:, :-future], test_target)
        history.append((loss.item(), held_out.item()))
        if report:
            print(f"STEP {i} loss: {history[-1][0]:.6f} test loss: {history[-1][1]:.6f}", flush=True)
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--waves", type=int, default=30)
    parser.add_argument("--length", type=int, default=150)
    args = parser.parse_args()
    begin = time.monotonic()
    with torch.connect(args.address):
        torch.manual_seed(0)
        seq = Sequence().double()
        history = train(seq, waves(args.waves, args.length), args.steps)
    print(f"test loss {history[-1][1]:.6f} after {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
