"""PyTorch's DistributedDataParallel with models on the device "tt", in several processes of one daemon.

    torchrun --nproc-per-node 2 clients/python/examples/torch_ddp.py [--epochs N]

Each process learns from its part of the data to tell whether two numbers have the same sign; DDP averages
the gradients on the daemon. Needs torch 2.11 or later; see docs/torch.md.
"""

import argparse

import teletensor.torch  # noqa: F401  (adds the device)
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group()  # the device's backend, and gloo for tensors of the CPU
    torch.manual_seed(1)
    x = torch.randn(2048, 2)
    data = TensorDataset(x, (x.prod(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to("tt")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device="tt")  # of losses, and of samples
        for x, y in loader:
            loss = F.cross_entropy(model(x.to("tt")), y.to("tt"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach() * len(x), loss.new_tensor(len(x))])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            loss, samples = total.tolist()
            print(f"Epoch {epoch + 1}: loss {loss / samples:.3f} of {samples:.0f} samples")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
