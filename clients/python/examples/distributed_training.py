"""Trains the same network in several places and compares the times: threads, processes, and a slow network.

    sudo python clients/python/examples/distributed_training.py [--epochs N] [--plot FILE]

Three daemons with one lane each represent three machines (three_boxes.py). The same convolutional network
learns the 8x8 digits on one of them, on two by threads of one process, and by two and three processes that
average their gradients (DistributedDataParallel). Without root privileges the slow network is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import teletensor as tt
import teletensor.distributed as dist
import teletensor.nn as nn
import teletensor.nn.functional as F
from three_boxes import Boxes

BATCH = 120  # images per step, of all processes together
SLOW = "50mbit"
ONE, THREADS, TOGETHER, TWO, THREE, FAR = (
    "one process",
    "threads over two sessions",
    "two processes, one daemon",
    "two processes",
    "three processes",
    "three processes, slow network",
)
# The daemons of the ranks (or of the sessions, for the threads).
PLACES = {ONE: "a", THREADS: "ab", TOGETHER: "aa", TWO: "ab", THREE: "abc", FAR: "abc"}
SAME_BITS = ((TOGETHER, TWO), (THREE, FAR))  # rows with the same number of ranks in different places


def network():
    tt.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def write_digits(path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    np.savez(path, images=images, labels=digits.target.astype(np.int64))


def batches(folder, rank, ranks):
    """The part of the batch for this rank in each step."""
    with np.load(folder / "digits.npz") as file:
        images, labels = tt.from_numpy(file["images"]), tt.from_numpy(file["labels"])
    size = BATCH // ranks
    for first in range(rank * size, len(labels) - BATCH + 1, BATCH):
        yield images[first : first + size], labels[first : first + size]


# ---------------------------------------------------------------- two ways of training


def train(model, steps, epochs):
    """Returns the seconds of an epoch, the loss of the last step, and the parameters."""
    optimizer = tt.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    # work that is done only once is not measured
    F.cross_entropy(model(steps[0][0]), steps[0][1]).backward()
    optimizer.zero_grad()
    if dist.is_initialized():
        dist.barrier()
    start = time.monotonic()
    for _ in range(epochs):
        for images, labels in steps:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
    last = loss.item()
    return (time.monotonic() - start) / epochs, last, list(model.parameters())


def train_by_threads(sessions, folder, epochs):
    """As train(), with the whole batch: each session has a part of it in a separate thread. In each step
    the parameters are sent to the second session, and its gradients are sent back."""
    models, parts = [], []
    for rank, session in enumerate(sessions):
        with session.as_current():
            models.append(network())
            parts.append(list(batches(folder, rank, len(sessions))))
    optimizer = tt.optim.SGD(models[0].parameters(), lr=0.02, momentum=0.9)
    gradients, losses = [None] * len(models), [None] * len(models)

    def run(rank, step, values):
        with sessions[rank].as_current():
            if rank > 0:
                with tt.no_grad():
                    for parameter, value in zip(models[rank].parameters(), values, strict=True):
                        parameter.copy_(tt.from_numpy(value))
                models[rank].zero_grad()
            images, labels = parts[rank][step]
            loss = F.cross_entropy(models[rank](images), labels, reduction="sum") / BATCH
            loss.backward()
            losses[rank] = loss.item()
            gradients[rank] = [p.grad.numpy() for p in models[rank].parameters()] if rank > 0 else None

    start = time.monotonic()
    for _ in range(epochs):
        for step in range(len(parts[0])):
            with sessions[0].as_current():
                optimizer.zero_grad()
                values = [p.detach().numpy() for p in models[0].parameters()]
            threads = [threading.Thread(target=run, args=(i, step, values)) for i in range(len(models))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with sessions[0].as_current(), tt.no_grad():
                for parameter, *others in zip(models[0].parameters(), *gradients[1:], strict=True):
                    for other in others:
                        parameter.grad += tt.from_numpy(other)
                optimizer.step()
    return (time.monotonic() - start) / epochs, sum(losses), list(models[0].parameters())


def work(row, addresses, epochs, folder):
    """The process of one row: writes its parameters into the folder, and prints its time and loss."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with tt.connect(addresses[rank]) as session:
        if row == THREADS:
            with tt.connect(addresses[1]) as other:
                seconds, loss, parameters = train_by_threads([session, other], folder, epochs)
        elif ranks == 1:
            seconds, loss, parameters = train(network(), list(batches(folder, 0, 1)), epochs)
        else:
            dist.init_process_group()
            model = nn.parallel.DistributedDataParallel(network())
            seconds, loss, parameters = train(model, list(batches(folder, rank, ranks)), epochs)
            dist.destroy_process_group()
        np.savez(folder / f"{rank}.npz", *(p.detach().numpy() for p in parameters))
    print(json.dumps({"seconds": seconds, "loss": loss}))


# ---------------------------------------------------------------- the rows of the table


def run_row(row, boxes, epochs, folder):
    """Runs the processes of a row; returns the seconds of an epoch, the mean of their losses, and the
    parameters of each."""
    addresses = [boxes.addresses["abc".index(place)] for place in PLACES[row]]
    ranks = 1 if row in (ONE, THREADS) else len(addresses)
    processes = []
    for rank in range(ranks):
        command = [sys.executable, __file__, "--worker", row, "--epochs", str(epochs)]
        command += ["--folder", str(folder), *addresses]
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "boxes"}
        environment = {**os.environ, **variables, "MASTER_PORT": "1"}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{row}: a process has failed")
    results = [json.loads(text.splitlines()[-1]) for text in told]
    parameters = []
    for rank in range(ranks):
        with np.load(folder / f"{rank}.npz") as file:
            parameters.append([file[name] for name in file.files])
    seconds = max(each["seconds"] for each in results)
    return seconds, float(np.mean([each["loss"] for each in results])), parameters


def check(found):
    """Checks the parameters of the rows: they must be bitwise equal on all ranks, and in all rows with the
    same number of ranks; compared with the single process they must agree within rounding. Returns the
    differences."""
    bits = {}
    for row, (_, _, parameters) in found.items():
        ranks = [b"".join(value.tobytes() for value in each) for each in parameters]
        bits[row] = ranks[0]
        if any(each != ranks[0] for each in ranks):
            return f"{row}: the ranks have different parameters"
        far = max(np.abs(a - b).max() for a, b in zip(parameters[0], found[ONE][2][0], strict=True))
        if far > 1e-2:
            return f"{row}: the parameters differ from those of one process by {far:.2g}"
    for one, other in SAME_BITS:
        if other in bits and bits[one] != bits[other]:
            return f"{one}; {other}: the parameters have different bits"
    return ""


def plot(found, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    axes.barh(list(found), [seconds for seconds, _, _ in found.values()])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of an epoch")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--plot", help="file for a bar chart of the times")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("addresses", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.addresses, args.epochs, args.folder)
        return
    found = {}
    with Boxes() as boxes, tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder) / "digits.npz")
        for row in PLACES:
            if row == FAR:
                if boxes.why_no_network:
                    continue
                boxes.slow_down(SLOW)
            found[row] = run_row(row, boxes, args.epochs, Path(folder))
            seconds, loss, _ = found[row]
            relative = seconds / found[ONE][0]
            print(f"{row:30} {seconds:8.3f} s an epoch  x{relative:5.2f}  loss {loss:.4f}", flush=True)
        if boxes.why_no_network:
            print(f"{FAR:30} skipped: {boxes.why_no_network}")
    if problem := check(found):
        raise SystemExit(problem)
    print("parameters: equal bits on all ranks, and for equal numbers of ranks in other places")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores")
    if cores < 6:  # the lane of a daemon and a program for each of three machines
        print(f"three daemons and three programs share {cores} cores: more processes need not be faster")
    if args.plot:
        plot(found, args.plot)
        print(f"wrote {args.plot}")


if __name__ == "__main__":
    main()
