"""A variational autoencoder for 8x8 digits (Kingma, Welling 2013), as in PyTorch's example.

    python clients/python/examples/vae.py [--address HOST:PORT]
"""

import argparse

import numpy as np
import teletensor as torch
from teletensor import nn, optim
from teletensor.nn import functional as F
from teletensor.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, hidden=64, latent=8):
        super().__init__()
        self.latent = latent
        self.fc1 = nn.Linear(64, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    """The reconstruction loss and the KL divergence, summed over elements and batch."""
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(model, optimizer, loader, epochs):
    """Trains for some epochs; returns the mean loss of each."""
    model.train()
    history = []
    for epoch in range(1, epochs + 1):
        train_loss = torch.zeros(())
        for (data,) in loader:
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.detach()
            optimizer.step()
        history.append(train_loss.item() / len(loader.dataset))
        print(f"====> Epoch: {epoch} Average loss: {history[-1]:.4f}", flush=True)
    return history


def main():
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    with torch.connect(args.address):
        torch.manual_seed(1)
        images = torch.from_numpy((load_digits().images / 16.0).astype(np.float32))
        loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
        model = VAE()
        history = train(model, optim.Adam(model.parameters(), lr=2e-3), loader, args.epochs)
        with torch.no_grad():
            sample = model.decode(torch.randn(4, model.latent)).view(4, 8, 8).tolist()
    for rows in zip(*sample, strict=True):
        print("  ".join("".join(" .:-=+*#%@"[int(v * 9.99)] for v in row) for row in rows))
    print(f"loss {history[0]:.2f} -> {history[-1]:.2f}")


if __name__ == "__main__":
    main()
