"""One rank of the rows about collectives: python rank.py LIBRARY RANK RANKS METHOD [ADDRESS].

LIBRARY is teletensor, torch, or tt for PyTorch with its tensors on the device "tt".

Reads a line of JSON, {"work": name, "elements": n, "times": n}, and prints the seconds of one call until
this rank has its results. All ranks of a world get the same lines.
"""

import json
import os
import sys
import time

library, rank, ranks, method = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if library in ("torch", "tt"):
    import torch as m

    m.set_num_threads(1)
    if library == "tt":
        os.environ["TELETENSOR_ADDRESS"] = sys.argv[5]
        import teletensor.torch
else:
    import teletensor as m

    session = m.connect(sys.argv[5])
    session.__enter__()
dist, nn = m.distributed, m.nn
backend = "cpu:gloo,tt:teletensor" if library == "tt" else "gloo"
dist.init_process_group(backend, init_method=method, rank=rank, world_size=ranks)


def all_reduce(elements, times):
    """Calls all_reduce repeatedly, each time on the result of the previous call."""
    x = m.full((elements,), 0.5)

    def run():
        for _ in range(times):
            dist.all_reduce(x, dist.ReduceOp.AVG if library == "teletensor" else dist.ReduceOp.SUM)
        return x[0].item()
    return run


def mlp(elements, times, wrap=None, captured=False):
    """Training steps with a batch of 128 on each rank."""
    m.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y = m.randn(128, 784), m.randint(0, 10, (128,))
    if library == "tt":
        net, x, y = net.to("tt"), x.to("tt"), y.to("tt")
    net = wrap(net) if wrap else net
    optimizer = m.optim.Adam(net.parameters(), **({"capturable": True} if captured else {}))

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if captured:
        step = teletensor.torch.capture(step)

    def run():
        for _ in range(times):
            loss = step(x, y)
        return loss.item()
    return run


def ddp(elements, times):
    return mlp(elements, times, nn.parallel.DistributedDataParallel)


def captured_ddp(elements, times):
    return mlp(elements, times, nn.parallel.DistributedDataParallel, True)


made = {}
for line in sys.stdin:
    wanted = json.loads(line)
    key = tuple(wanted.values())
    if key not in made:
        work = {"all_reduce": all_reduce, "mlp": mlp, "ddp": ddp, "captured ddp": captured_ddp}[wanted["work"]]
        made[key] = work(wanted["elements"], wanted["times"])
        made[key]()
    dist.barrier()
    begin = time.perf_counter()
    made[key]()
    print((time.perf_counter() - begin) / wanted["times"], flush=True)
