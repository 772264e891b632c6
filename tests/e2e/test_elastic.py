"""Elastic worlds: a rank is lost in the middle of a training, and the remaining ranks continue."""

import json
import subprocess

import pytest
from support.clients import client, finish, wait_line
from support.daemon import wait_until
from support.daemons import start_daemons
from support.ranks import groups, wait_in_collective

pytestmark = pytest.mark.usefixtures("invariants")

BEGIN = """
    import json
    dist = tt.distributed
    R, N = {rank}, {ranks}
    dist.init_process_group(rank=R, world_size=N, init_method="tcp://elastic:1", timeout=600, {kind})
    def tell(*values):
        print(json.dumps(values), flush=True)
"""


def start_rank(address, rank, ranks, code, kind="elastic=True"):
    """Starts a process that runs `code` as this rank; go() ends its input()."""
    lines = "\n".join("    " + line for line in code.strip().splitlines())
    return client(BEGIN.format(rank=rank, ranks=ranks, kind=kind) + lines, address, stdin=subprocess.PIPE)


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


TRAINING = """
    net = tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.BatchNorm1d(40), tt.nn.ReLU(), tt.nn.Linear(40, 3))

    def loss(net, rank, step):
        return (net(tt.arange(8 * 6.0).reshape(8, 6).sin() * (rank + 1) + step) - 1).square().mean()

    def texts(tensors):
        return [each.detach().numpy().tobytes().hex() for each in tensors]

    def momenta(optimizer):
        return texts(each["momentum_buffer"] for each in optimizer.state_dict()["state"].values())
"""

# The victim is killed before the collectives of step 3. The others wait after step 4 until it is back, and end
# three steps after it has entered.
COMING_BACK = """
BACK, VICTIM = {back}, {victim}
tt.manual_seed(R)
TRAINING
net = tt.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005, static_graph={static})
optimizer = tt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
state = {{"net": net, "optimizer": optimizer, "step": 0, "left": None, "seen": tt.zeros(2)}}
history, came, random = [], None, None
while state["left"] != 0:
    entered = dist.admit(state)
    if entered:
        came, random, state["left"] = entered, list(tt.random.get_rng_state()), 3
    if R == VICTIM and not BACK and state["step"] == 3:
        print("step 3", flush=True)
        input()
    optimizer.zero_grad()
    loss(net, R, state["step"]).backward()
    optimizer.step()
    state["seen"] += 1
    state["step"] += 1
    history.append(dist.members())
    if state["left"] is not None:
        state["left"] -= 1
    if state["step"] == 5:
        print("step 5", flush=True)
        input()
tell(history, texts(net.parameters()), momenta(optimizer), texts(net.buffers()), came, random, state["seen"].tolist(),
     state["step"], dist.members())
"""

# One process that computes what the ranks of each step compute, and adds their gradients in the order of the tree.
REFERENCE = """
    import json
    tt.manual_seed(0)
TRAINING
    optimizer = tt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    initial = [each.clone() for each in net.buffers()]
    buffers, members = dict.fromkeys(range(3), initial), [0, 1, 2]
    for step, present in enumerate({history}):
        for rank in set(present) - set(members):
            buffers[rank] = buffers[members[0]]
        members, before, total = present, buffers[present[0]], None
        for rank in members:
            with tt.no_grad():
                for each, value in zip(net.buffers(), before):
                    each.copy_(value)
            optimizer.zero_grad()
            loss(net, rank, step).backward()
            gradients = [each.grad.clone() for each in net.parameters()]
            total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
            buffers[rank] = [each.clone() for each in net.buffers()]
        with tt.no_grad():
            for each, value in zip(net.parameters(), total):
                each.grad = value / len(members)
        optimizer.step()
    print(json.dumps([texts(net.parameters()), momenta(optimizer), texts(buffers[members[0]])]))
"""


def coming_back(back, victim, static=False):
    code = COMING_BACK.format(back=back, victim=victim, static=static)
    return code.replace("TRAINING", "\n".join(line[4:] for line in TRAINING.splitlines()))


@pytest.mark.parametrize("daemons,victim,place,static", (
    (1, 1, 0, False), (1, 0, 0, True), (3, 1, 1, False), (3, 0, 0, False), (3, 2, 0, True)))
def test_a_killed_rank_comes_back(start_daemon, daemons, victim, place, static):
    """A program of a training is killed, and started again, on the same daemon or another one. It enters with the
    state of the others, and all ranks continue with the bits of a reference with the same ranks in each step."""
    grace = ("--rank-grace", "0.3")
    started = start_daemons(start_daemon, daemons, *grace) if daemons > 1 else [start_daemon(*grace)]
    processes = start([daemon.unix for daemon in started], 3, coming_back(False, victim, static))
    wait_line(processes[victim], "step 3")
    processes[victim].kill()
    finish(processes[victim])
    left = [rank for rank in range(3) if rank != victim]
    for rank in left:
        wait_line(processes[rank], "step 5")
    processes[victim] = start_rank(started[place].unix, victim, 3, coming_back(True, victim, static))
    wait_until(lambda: any(member["rank"] == victim and member["waits"] for group in groups(started[place])
                           for member in group["members"]), what="the program is back")
    for rank in left:
        go(processes[rank])
    results = [told(process)[0] for process in processes]
    history = results[left[0]][0]
    steps = len(history)
    assert history[:3] == [[0, 1, 2]] * 3 and history[-3:] == [[0, 1, 2]] * 3
    assert history[3:-3] == [left] * (steps - 6)
    for rank, (own, weights, momenta, _, came, random, seen, step, members) in enumerate(results):
        assert own == (history[-3:] if rank == victim else history)
        assert (came, members, step, seen) == ([victim], [0, 1, 2], steps, [steps, steps])
        assert weights == results[0][1] and momenta == results[0][2]
        if rank == victim:
            assert random == results[left[0]][5]
    reference = REFERENCE.format(history=history).replace("TRAINING", TRAINING)
    status, out, err = finish(client(reference, started[0].unix))
    assert status == 0, err
    assert json.loads(out) == [results[0][1], results[0][2], results[0][3]]


WAITING = """
state = {{"net": tt.nn.Linear({width}, 2), {more}"step": 0}}
entered = dist.admit(state)
while not entered:
    state["step"] += 1
    x = tt.tensor([2.0 ** R])
    dist.all_reduce(x)
    if state["step"] == 3:
        print("step 3", flush=True)
    entered = dist.admit(state)
x = tt.tensor([2.0 ** R])
dist.all_reduce(x)
tell(entered, x.item(), state["step"], state["net"].weight.tolist(), dist.members())
"""


@pytest.mark.parametrize("daemons", (1, 3))
def test_what_fails_while_a_rank_comes_back(start_daemon, daemons):
    """A program that comes back is killed, has another state, is of another kind, or is not alone: it gets an
    error, and the others continue. The next one enters."""
    grace = ("--rank-grace", "0.3")
    started = start_daemons(start_daemon, daemons, *grace) if daemons > 1 else [start_daemon(*grace)]
    place = started[-1]
    right = WAITING.format(width=3, more="")

    def back(code, kind="elastic=True"):
        return start_rank(place.unix, 2, 3, code, kind)

    def failure(process):
        status, _, err = finish(process)
        assert status != 0
        return err

    processes = start([daemon.unix for daemon in started], 3, "if R == 2: s.close(); raise SystemExit\n" + right)
    finish(processes[2])
    for process in processes[:2]:
        wait_line(process, "step 3")
    killed = back("print('in', flush=True); input()")
    wait_line(killed, "in")
    killed.kill()
    finish(killed)
    assert "net' does not fit that of the world" in failure(back(WAITING.format(width=4, more="")))
    assert "the state has the keys" in failure(back(WAITING.format(width=3, more="'other': 1, ")))
    assert "one is elastic, and the other is not" in failure(back(right, "elastic=False"))
    first = "dist.all_reduce(tt.ones(1))"
    assert "admit must be its first call, before all_reduce" in failure(back(first))
    results = [told(process)[0] for process in (*processes[:2], back(right))]
    assert [result[:2] for result in results] == [[[2], 7.0]] * 3
    assert results[0] == results[1] == results[2]


def test_admit_of_a_world_that_cannot(start_daemon):
    """admit names what is wrong: a world that is not elastic, a state that cannot be sent."""
    daemon = start_daemon()
    code = """
texts = []
for state in ([1], {"f": print}, {"step": 1}):
    try:
        texts.append(dist.admit(state))
    except (TypeError, RuntimeError) as e:
        texts.append(str(e))
tell(texts)
"""
    for elastic, last in ((True, []), (False, "admit: the world is not elastic; give elastic=True to")):
        kind = f"elastic={elastic}"
        ranks = [start_rank(daemon.unix, rank, 2, code, kind) for rank in range(2)]
        for ((first, second, third),), _ in map(told, ranks):
            assert third == last if elastic else third.startswith(last)
            assert not elastic or "state must be a dict, not list" in first
            assert not elastic or "objects travel without pickle" in second


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
