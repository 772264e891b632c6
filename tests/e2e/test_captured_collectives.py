"""Collectives in captured functions: results, waits and errors."""

import signal

import numpy as np
import pytest
from support.clients import wait_asleep, wait_line
from support.daemons import start_daemons
from support.ranks import start, start_rank, told, wait_in_collective

pytestmark = pytest.mark.usefixtures("invariants")

# A rank reports with `said` that it has reached a line.
STORE = 'store = dist.FileStore({path!r}, N); said = lambda key: store.set(key, "yes"); hear = store.get\n'


def addresses(start_daemon, daemons):
    if daemons == 1:
        return [start_daemon().unix]
    return [daemon.unix for daemon in start_daemons(start_daemon, daemons)]


@pytest.mark.parametrize(("ranks", "daemons"), ((2, 1), (3, 1), (3, 2)))
def test_every_collective_in_one_program(start_daemon, ranks, daemons):
    rounds = 3
    found = told(start(addresses(start_daemon, daemons), ranks, f"""
@tt.compile
def every(x):
    parts = [tt.zeros(4) for _ in range(N)]
    total, most, least, mean = x.clone(), x.clone(), x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.PRODUCT)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    first, last = x + 1, x * 2
    dist.broadcast(first, 0)
    dist.reduce(last, N - 1)
    dist.all_gather(parts, x)
    rows = tt.zeros(N, 4)
    dist.all_gather_into_tensor(rows, x)
    row = tt.zeros(4)
    dist.reduce_scatter_tensor(row, rows + x)
    swapped = tt.zeros(N)
    dist.all_to_all_single(swapped, x[:1].repeat(N) + tt.arange(float(N)))
    gathered = [tt.zeros(4) for _ in range(N)] if R == 0 else None
    dist.gather(x, gathered, 0)
    mine = tt.zeros(4)
    dist.scatter(mine, [x + i for i in range(N)] if R == 0 else None, 0)
    dist.send(x, (R + 1) % N)
    before = tt.zeros(4)
    dist.recv(before, (R - 1) % N)
    return total, most, least, mean, first, last, tt.stack(parts), rows, row, swapped, mine, before

kept = [[each.tolist() for each in every(tt.arange(4.0) + R * 10 + i)] for i in range({rounds})]
tell(kept, every._entries)
"""))
    for rank, (kept, programs) in enumerate(found):
        assert programs == 1
        for i, values in enumerate(kept):
            x = np.stack([np.arange(4.0) + r * 10 + i for r in range(ranks)])
            total = x.sum(0)
            last = total * 2 if rank == ranks - 1 else x[rank] * 2
            wanted = [total, x.max(0), x.prod(0), total / ranks, x[0] + 1, last, x, x,
                      x[rank] * ranks + total, x[:, 0] + rank, x[0] + rank, x[(rank - 1) % ranks]]
            for value, want in zip(values, wanted, strict=True):
                np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.mark.parametrize("daemons", (1, 2))
def test_random_programs_are_what_the_lines_compute(start_daemon, daemons):
    ranks = 3
    found = told(start(addresses(start_daemon, daemons), ranks, """
import random
ops = [
    lambda a, b: a + b, lambda a, b: a * 0.5 - b, lambda a, b: a.add_(1.0), lambda a, b: tt.relu(a - b),
    lambda a, b: a[:2].mul_(2.0), lambda a, b: (a.reshape(2, 2) @ b.reshape(2, 2)).reshape(4) * 0.1,
    lambda a, b: dist.all_reduce(a), lambda a, b: dist.all_reduce(a, dist.ReduceOp.MAX),
    lambda a, b: dist.broadcast(a, 1), lambda a, b: dist.reduce(a, 2), lambda a, b: dist.all_reduce(a[1:3]),
    lambda a, b: dist.all_reduce(b.clone()), lambda a, b: dist.all_gather([a, b, a.clone()], b.clone()),
]
def program(seed):
    chosen = random.Random(seed)
    lines = [(chosen.choice(ops), chosen.randrange(4), chosen.randrange(4)) for _ in range(14)]
    def run(*xs):
        have = list(xs)
        for op, i, j in lines:
            made = op(have[i], have[j])
            if isinstance(made, tt.Tensor) and made.shape == (4,):
                have[i] = made
        return tuple(have)
    return run
different = []
for seed in range(40):
    line_by_line, captured = program(seed), tt.compile(program(seed))
    for call in range(2):
        start = [tt.arange(4.0) * (k + 1) + R + call for k in range(4)]
        again = [each.clone() for each in start]
        one, two = line_by_line(*start), captured(*again)
        a = [each.tolist() for each in (*one, *start)]
        b = [each.tolist() for each in (*two, *again)]
        if repr(a) != repr(b):
            different.append((seed, call))
tell(different)
"""))
    assert found == [[[]]] * ranks


def test_gradients_of_functional_collectives_in_a_captured_step(start_daemon):
    found = told(start(start_daemon().unix, 2, """
import teletensor.distributed.nn.functional as F
def step(w, x):
    rows = F.all_gather(w * x)
    mean = F.all_reduce(rows[0] * rows[1], dist.ReduceOp.AVG)
    loss = (F.broadcast(mean, 1) * (R + 1)).sum()
    loss.backward()
    return loss
captured, gradients, losses = tt.compile(step), [], []
for function in (step, captured):
    w = (tt.arange(3.0) + R + 1).requires_grad_()
    for call in range(3):
        w.grad = None
        losses.append(function(w, tt.ones(3) * (call + 1)).item())
        gradients.append(w.grad.tolist())
tell(losses[:3] == losses[3:], gradients[:3] == gradients[3:], gradients[0])
"""))
    assert all(each[:2] == [True, True] for each in found)
    assert found[0][2] != [0.0, 0.0, 0.0]


@pytest.mark.parametrize("daemons", (1, 2))
def test_lines_behind_a_collective_of_a_program_run_before_the_other_rank_comes(start_daemon, tmp_path, daemons):
    one_lane = ("--lanes", "1")
    started = start_daemons(start_daemon, daemons, *one_lane) if daemons > 1 else [start_daemon(*one_lane)]
    found = told(start([daemon.unix for daemon in started], 2, STORE.format(path=str(tmp_path / "s")) + """
@tt.compile
def step(x, y):
    total = x.clone()
    dist.all_reduce(total)
    z = y * 3 + x  # nothing of the collective
    return total, z.sum(), z

x, y = tt.arange(3.0) * (R + 1), tt.ones(3)
step(x, y)[0].tolist()
if R == 0:
    total, early, z = step(x, y)
    read = [early.item(), (z * 2).tolist()]
    said("rank 0 has read")
else:
    hear("rank 0 has read")
    total, early, z = step(x, y)
    read = []
tell(read, (total + z).tolist())
"""))
    assert found[0][0] == [12.0, [6.0, 8.0, 10.0]]
    assert [each[1] for each in found] == [[3.0, 7.0, 11.0], [3.0, 8.0, 13.0]]


def test_a_collective_runs_even_when_its_result_is_not_used(start_daemon):
    found = told(start(start_daemon().unix, 2, """
@tt.compile
def step(x):
    dist.all_reduce(x * 2)  # rank 1 uses it
    dist.all_reduce(x * 2)
    return x + 1
@tt.compile
def other(x):
    a, b = x * 2, x * 2
    dist.all_reduce(a)
    dist.all_reduce(b)
    return a + b
for call in range(3):
    y = (other if R else step)(tt.ones(2) * (R + 1))
tell(y.tolist(), [line.count("all_reduce(") for line in [str((other if R else step).program)]])
"""))
    assert found == [[[2.0, 2.0], [2]], [[12.0, 12.0], [2]]]


def test_a_loop_of_rounds_on_the_daemon(start_daemon):
    found = told(start(addresses(start_daemon, 2), 2, """
w = tt.zeros(2)
@tt.compile
def step(x):
    total = x.clone()
    dist.all_reduce(total)
    w.add_(total)
    return w.sum()
data = tt.arange(20.0).reshape(10, 2) * (R + 1)
sums = list(step.repeat(10, data=data))
tell(sums, w.tolist(), step._entries)
"""))
    x = np.arange(20.0).reshape(10, 2) * 3
    assert found == [[np.cumsum(x, 0).sum(1).tolist(), x.sum(0).tolist(), 1]] * 2


def test_a_group_that_was_left_is_an_error_and_a_new_world_is_another_program(start_daemon):
    found = told(start(start_daemon().unix, 2, """
part = dist.new_group([0, 1])
@tt.compile
def step(x, group=None):
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y
a = [step(tt.ones(2)).tolist(), step(tt.ones(2), part).tolist(), step(tt.ones(2), part).tolist()]
dist.destroy_process_group(part)
try:
    step(tt.ones(2), part).tolist()
except ValueError as error:
    a.append(str(error))
dist.destroy_process_group()
try:
    step(tt.ones(2))
except ValueError as error:
    a.append(str(error))
dist.init_process_group(rank=1 - R, world_size=N, init_method="tcp://again:1")
tell(a, step(tt.ones(2) * (dist.get_rank() + 1)).tolist(), step._entries)
"""))
    for (one, two, three, left, none), again, _ in found:
        assert one == two == three == [2.0, 2.0] and again == [3.0, 3.0]
        assert "has been destroyed" in left
        assert "not been initialized" in none


# ---------------------------------------------------------------- what goes wrong


def test_a_rank_that_fails_in_a_program_is_the_same_error_on_all(start_daemon):
    found = told(start(addresses(start_daemon, 2), 2, """
@tt.compile
def step(x, index):
    y = x[index]  # out of range on rank 1 in the second call
    dist.all_reduce(y)
    z = x.clone()
    dist.all_reduce(z)
    return y, z
x = tt.arange(3.0)
step(x, tt.tensor([0, 1]))
bad = tt.tensor([0, 7 if R else 1])
y, z = step(x, bad)
try:
    y.tolist()
    text = ""
except (RuntimeError, IndexError) as error:
    text = str(error)
after = step(x, tt.tensor([2, 2]))[0].tolist()
tell(text, after)
"""))
    for rank, (text, after) in enumerate(found):
        assert "out of" in text and (rank == 1 or "rank 1" in text), text
        assert after == [4.0, 4.0]
    assert "in the program: <string>" in found[0][0]


def test_different_programs_are_an_error_with_both_lines(start_daemon):
    found = told(start(start_daemon().unix, 2, """
@tt.compile
def step(x):
    y = (x if R == 0 else tt.cat([x, x])).clone()
    dist.all_reduce(y)
    z = x.clone()
    dist.all_reduce(z)
    return y, z
texts = []
for call in range(2):
    y, z = step(tt.ones(2))
    try:
        y.tolist()
    except RuntimeError as error:
        texts.append(str(error))
    texts.append(z.tolist())
tell(texts)
"""))
    for (one, z, two, again), in found:
        assert "float32[2]" in one and "float32[4]" in one and "float32[4]" in two
        assert z == again == [2.0, 2.0]


def test_an_interrupt_ends_a_loop_and_the_group(start_daemon, tmp_path):
    daemon = start_daemon()
    path = str(tmp_path / "s")
    code = STORE.format(path=path) + """
w = tt.zeros(2)
@tt.compile
def step(x):
    total = x.clone()
    dist.all_reduce(total)
    w.add_(total)
    return w.sum()
data = tt.ones(60, 2)
"""
    first = start_rank(daemon.unix, 0, 2, code + """
done = []
try:
    for loss in step.repeat(60, data=data):
        done.append(loss)
        print("issued", len(done), flush=True)
except KeyboardInterrupt:
    s.cancel()
said("rank 0 goes on")
tell(w.tolist(), len(done))
""")
    second = start_rank(daemon.unix, 1, 2, code + """
for loss in step.repeat(2, data=data):
    pass
print("two rounds", flush=True)
hear("rank 0 goes on")
try:
    for loss in step.repeat(58, data=data):
        pass
    text = ""
except RuntimeError as error:
    text = str(error)
tell(text, w.tolist())
""")
    wait_line(second, "two rounds")
    wait_line(first, "issued 1")
    wait_in_collective(daemon, 0, 3)
    wait_asleep(first)
    first.send_signal(signal.SIGINT)
    (w, done), (other, theirs) = told([first, second])
    assert "rank 0 was interrupted" in other
    assert w == theirs == [4.0, 4.0] and done <= 2


def test_what_cannot_be_captured_is_refused_by_name(start_daemon, tmp_path):
    (tmp_path / "scripted.py").write_text(
        "import teletensor.distributed as dist\ndef summed(x):\n    dist.all_reduce(x)\n    return x\n")
    found = told(start(start_daemon().unix, 2, f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from scripted import summed as scripted
path = {str(tmp_path)!r} + "/f.tt"
texts = []
def refused(run):
    try:
        run()
    except Exception as error:
        texts.append(type(error).__name__ + ": " + str(error))
    else:
        texts.append("nothing")
x = tt.ones(2)
refused(lambda: tt.compile(lambda x: dist.barrier())(x))
refused(lambda: tt.compile(lambda x: dist.irecv(x, 1 - R))(x))
refused(lambda: tt.compile(lambda x: dist.new_group([0, 1]))(x))
def summed(x):
    y = x.clone()
    dist.all_reduce(y)
    return y
refused(lambda: tt.jit.save(tt.jit.trace(summed, x), path))
refused(lambda: tt.jit.script(scripted)(x))
model = tt.nn.parallel.DistributedDataParallel(tt.nn.Linear(2, 1), find_unused_parameters=True)
refused(lambda: tt.compile(lambda x: model(x).sum())(x))
dist.barrier()
tell(texts)
"""))
    for (barrier, irecv, group, saved, script, unused), in found:
        assert "cannot call a barrier" in barrier, barrier
        assert "irecv" in irecv
        assert "cannot make a group" in group, group
        assert "all_reduce" in saved and "group" in saved, saved
        assert "jit.script cannot call collectives" in script and "scripted.py:3" in script, script
        assert "find_unused_parameters" in unused
