"""Elastic worlds: a rank is lost in the middle of a training, and the remaining ranks continue."""

import json
import subprocess

import pytest
from support.clients import client, finish, wait_line
from support.daemons import start_daemons
from support.ranks import groups, wait_in_collective

pytestmark = pytest.mark.usefixtures("invariants")

BEGIN = """
    import json
    dist = tt.distributed
    R, N = {rank}, {ranks}
    dist.init_process_group(rank=R, world_size=N, init_method="tcp://elastic:1", timeout=600, elastic=True)
    def tell(*values):
        print(json.dumps(values), flush=True)
"""


def start_rank(address, rank, ranks, code):
    """Starts a process that runs `code` as this rank; go() ends its input()."""
    lines = "\n".join("    " + line for line in code.strip().splitlines())
    return client(BEGIN.format(rank=rank, ranks=ranks) + lines, address, stdin=subprocess.PIPE)


def start(addresses, ranks, code):
    return [start_rank(addresses[rank % len(addresses)], rank, ranks, code) for rank in range(ranks)]


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def told(process):
    """The values of the process's last line, and what it has written to stderr."""
    status, out, err = finish(process)
    assert status == 0, err
    return json.loads(out.splitlines()[-1]), err


@pytest.mark.parametrize("daemons", (1, 3))
@pytest.mark.parametrize("victim", (0, 1))
def test_training_continues_without_a_killed_rank(start_daemon, daemons, victim):
    """One of three programs is killed in the middle of a training. The others end with equal bits, are warned
    once, and average over two ranks."""
    grace = ("--rank-grace", "0.3")
    started = start_daemons(start_daemon, daemons, *grace) if daemons > 1 else [start_daemon(*grace)]
    processes = start([daemon.unix for daemon in started], 3, """
tt.manual_seed(R)
net = tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.BatchNorm1d(40), tt.nn.ReLU(), tt.nn.Linear(40, 3))
net = tt.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
step, after, i = tt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), 0, 0
while after < 10:
    step.zero_grad()
    data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
    (net(data) - 1).square().mean().backward()
    step.step()
    i += 1
    mean = tt.tensor([float(R)])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    after += len(dist.members()) < 3
    print("step", i, flush=True)
mean = tt.tensor([2.0 ** R])
dist.all_reduce(mean, dist.ReduceOp.AVG)
weights = [p.detach().numpy().tobytes().hex() for p in net.parameters()]
tell(weights, dist.members(), dist.get_rank(), dist.get_world_size(), mean.item())
""")
    wait_line(processes[victim], "step 3")
    processes[victim].kill()
    finish(processes[victim])
    left = [rank for rank in range(3) if rank != victim]
    results = [told(processes[rank]) for rank in left]
    for rank, ((weights, members, own, size, mean), err) in zip(left, results, strict=True):
        assert weights == results[0][0][0]
        assert (members, own, size) == (left, rank, 3)
        assert mean == sum(2.0 ** each for each in left) / 2
        assert err.count(f"rank {victim} has had no client for") == 1, err
        assert "the group continues with the ranks " + ", ".join(map(str, left)) in err


@pytest.mark.parametrize("daemons", (1, 2))
def test_a_session_that_ends_in_the_middle_of_a_collective(start_daemon, daemons):
    """A rank ends its session while the others wait for it. They get the result without it; its row of an
    all_gather is zero, its object None, and its broadcast an error that ends nothing."""
    started = start_daemons(start_daemon, daemons) if daemons > 1 else [start_daemon()]
    processes = start([daemon.unix for daemon in started], 3, """
x = tt.tensor([1.0 + R])
dist.all_reduce(x)
first = x.item()
if R == 2:
    print("summed", flush=True)
    input()
    s.close()
    tell(first)
else:
    x = tt.tensor([1.0 + R])
    dist.all_reduce(x)
    rows = [tt.ones(2) * 9 for _ in range(N)]
    dist.all_gather(rows, tt.ones(2) * (R + 1))
    objects = [None] * N
    dist.all_gather_object(objects, {"rank": R})
    dist.barrier()
    y = tt.ones(1)
    try:
        dist.broadcast(y, 2)
        y.item()
        text = ""
    except tt.RankLostError as e:
        text = str(e)
    dist.broadcast(y, 0)
    tell(first, x.item(), [row.tolist() for row in rows], objects, text, y.item(), dist.members())
""")
    wait_line(processes[2], "summed")
    wait_in_collective(started[0], 0, 2)
    go(processes[2])
    assert told(processes[2])[0] == [6.0]
    for process in processes[:2]:
        (first, second, rows, objects, text, y, members), err = told(process)
        assert (first, second, y, members) == (6.0, 3.0, 1.0, [0, 1])
        assert rows == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
        assert objects == [{"rank": 0}, {"rank": 1}, None]
        assert "rank 2 is lost" in text and "broadcast(src=2" in text, text
        assert err.count("rank 2 has ended its session; the group continues with the ranks 0, 1") == 1, err


def test_other_operations_are_refused(start_daemon):
    """An elastic world has only operations whose results are equal on all ranks; the others are errors at
    their lines, and change nothing."""
    daemon = start_daemon()
    for (texts, total), _ in map(told, start([daemon.unix], 2, """
x, texts = tt.ones(2), []
for name, call in (("reduce", lambda: dist.reduce(x, 0)),
                   ("reduce_scatter", lambda: dist.reduce_scatter_tensor(tt.zeros(1), x)),
                   ("all_to_all", lambda: dist.all_to_all_single(tt.zeros(2), x)),
                   ("send", lambda: dist.send(x, 1 - R)), ("recv", lambda: dist.recv(x, 1 - R))):
    try:
        call()
        texts.append(f"{name}: nothing")
    except RuntimeError as e:
        texts.append("" if "elastic=True has only" in str(e) and name in str(e) else str(e))
dist.all_reduce(x)
tell(texts, x.sum().item())
""")):
        assert texts == [""] * 5
        assert total == 4.0


def test_a_lost_rank_cannot_come_back(start_daemon):
    """A program that joins under a lost rank is refused, and the others are not disturbed."""
    daemon = start_daemon("--rank-grace", "0.3")
    processes = start([daemon.unix], 2, """
while True:
    x = tt.ones(1)
    dist.all_reduce(x)
    if x.item() == 1.0:
        break
    print("summed", flush=True)
print("alone", flush=True)
input()
dist.all_reduce(x)
tell(x.item())
""")
    wait_line(processes[1], "summed")
    processes[1].kill()
    finish(processes[1])
    wait_line(processes[0], "alone")
    status, _, err = finish(start_rank(daemon.unix, 1, 2, "tell()"))
    assert status != 0
    assert "rank 1 is lost, and the other ranks continue without it" in err
    assert [member["rank"] for member in groups(daemon)[0]["members"]] == [0]
    go(processes[0])
    assert told(processes[0])[0] == [1.0]


def test_all_programs_give_elastic(start_daemon):
    """One program of a world is elastic and the other is not: both get an error that says so."""
    daemon = start_daemon()
    code = """
    try:
        tt.distributed.init_process_group(rank={rank}, world_size=2, init_method="tcp://e:1", timeout=60,
                                          elastic={elastic})
        print("joined")
    except tt.RankLostError as e:
        print(e)
"""
    both = [client(code.format(rank=rank, elastic=rank == 0), daemon.unix) for rank in range(2)]
    for process in both:
        status, out, err = finish(process)
        assert status == 0, err
        assert "one is elastic, and the other is not" in out
