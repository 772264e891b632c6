"""Worlds of several processes on one daemon: collectives compared with NumPy, and failures of one rank."""

import signal

import numpy as np
import pytest
from support.clients import finish, wait_asleep, wait_line
from support.daemons import start_daemons
from support.ranks import start, start_rank, told, wait_in_collective

pytestmark = pytest.mark.usefixtures("invariants")


@pytest.mark.parametrize("ranks, daemons", ((2, 1), (3, 1), (5, 1), (2, 2), (5, 3)))
def test_collectives(start_daemon, ranks, daemons):
    one_lane = ("--lanes", "1")  # a session that waits does not hold the lane
    started = start_daemons(start_daemon, daemons, *one_lane) if daemons > 1 else [start_daemon(*one_lane)]
    operands = [np.arange(6.0).reshape(2, 3) * (rank + 1) + rank for rank in range(ranks)]
    found = told(start([daemon.unix for daemon in started], ranks, """
x = tt.arange(6.0).reshape(2, 3) * (R + 1) + R
y = x.clone(); dist.all_reduce(y); total = y.tolist()
y = x.clone(); dist.all_reduce(y, dist.ReduceOp.AVG); mean = y.tolist()
y = x.clone(); dist.all_reduce(y, dist.ReduceOp.MAX); most = y.tolist()
y = x.clone(); dist.all_reduce(y, dist.ReduceOp.PRODUCT); product = y.tolist()
y = x.clone(); dist.broadcast(y, 1); root = y.tolist()
y = x.clone(); dist.reduce(y, N - 1); last = y.tolist()
rows = [tt.zeros(2, 3) for _ in range(N)]; dist.all_gather(rows, x); gathered = [r.tolist() for r in rows]
y = tt.zeros(2, 3); dist.reduce_scatter(y, [x * i for i in range(N)]); scattered = y.tolist()
rows = [tt.zeros(2, 3) for _ in range(N)] if R == 0 else None
dist.gather(x, rows); first = [r.tolist() for r in rows or []]
y = tt.zeros(2, 3); dist.scatter(y, [x + i for i in range(N)] if R == 1 else None, src=1); part = y.tolist()
out = [tt.zeros(2, 3) for _ in range(N)]; dist.all_to_all(out, [x * 10 + i for i in range(N)])
exchanged = [r.tolist() for r in out]
objects = [None] * N; dist.all_gather_object(objects, {"rank": R, "text": "ä" * R})
dist.barrier()
tell(total, mean, most, product, root, last, gathered, scattered, first, part, exchanged, objects)
"""))
    total = sum(operands)
    for rank, values in enumerate(found):
        sums, mean, most, product, root, last, gathered, scattered, first, part, exchanged, objects = values
        np.testing.assert_allclose(sums, total)
        np.testing.assert_allclose(mean, total / ranks, rtol=1e-6)
        np.testing.assert_allclose(most, np.max(operands, 0))
        np.testing.assert_allclose(product, np.prod(operands, 0), rtol=1e-6)
        np.testing.assert_allclose(root, operands[1])
        np.testing.assert_allclose(last, total if rank == ranks - 1 else operands[rank])
        np.testing.assert_allclose(gathered, operands)
        np.testing.assert_allclose(scattered, total * rank)
        np.testing.assert_allclose(first, operands if rank == 0 else [])
        np.testing.assert_allclose(part, operands[1] + rank)
        np.testing.assert_allclose(exchanged, [operand * 10 + rank for operand in operands])
        assert objects == [{"rank": each, "text": "ä" * each} for each in range(ranks)]


def test_other_calls_on_other_ranks_are_one_error(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
x = tt.ones(4 if R == 0 else 5)
try:
    dist.all_reduce(x); x.tolist()
except RuntimeError as e:
    text = str(e)
y = tt.ones(3); dist.all_reduce(y)  # the group goes on
tell(text, y.tolist())
"""))
    for text, values in found:
        first, second = "rank 0 is in all_reduce(sum, float32[4])", "rank 1 in all_reduce(sum, float32[5])"
        assert f"{first} at <string>:18, {second} at <string>:18" in text, text
        assert values == [2.0, 2.0, 2.0]


def test_one_rank_fails_and_all_hear_of_it(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 3, """
x = tt.ones(3)
if R == 1:
    x = x[tt.tensor([0, 1, 7])]  # out of range
try:
    dist.all_reduce(x); x.tolist()
    text = ""
except IndexError as e:
    text = str(e)
tt.current_session().clear_errors()
y = tt.ones(3); dist.all_reduce(y)
tell(text, y.tolist())
"""))
    for rank, (text, values) in enumerate(found):
        assert "out of" in text and "7" in text, (rank, text)
        assert rank == 1 or "rank 1 in all_reduce(sum, float32[3])" in text, text
        assert values == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("how, why", (
    ("s.close()", "has ended its session"),
    ("dist.destroy_process_group()", "has left the group"),
    ("print('there', flush=True); time.sleep(600)", "has had no client for"),
))
def test_a_rank_that_ends_is_named(start_daemon, how, why):
    daemon = start_daemon("--rank-grace", "0.3")
    processes = start(daemon.unix, 2, f"""
if R == 1:
    {how}
    sys.exit()
x = tt.ones(3)
for i in range(2):  # the group stays ended
    try:
        dist.all_reduce(x); x.tolist()
    except tt.RankLostError as e:
        text = str(e)
    tt.current_session().clear_errors()
    x = tt.ones(3)
dist.destroy_process_group()
tell(text, x.sum().item())
""")
    if "sleep" in how:
        wait_line(processes[1], "there")
        processes[1].kill()
    text, alive = told(processes[:1])[0]
    assert f"rank 1 {why}" in text and alive == 3.0


def test_ctrl_c_ends_the_wait_of_all(start_daemon):
    daemon = start_daemon()
    processes = start(daemon.unix, 3, """
try:
    if R < 2:
        x = tt.ones(3); dist.all_reduce(x)
        print("waits", flush=True)
        x.tolist()
    else:
        time.sleep(600)
    text = ""
except KeyboardInterrupt:
    s.cancel()
    text = "interrupted"
except tt.RankLostError as e:
    text = str(e)
tell(text, tt.ones(2).sum().item())
""")
    wait_line(processes[1], "waits")
    wait_asleep(processes[1])
    processes[1].send_signal(signal.SIGINT)
    assert told(processes[1:2]) == [["interrupted", 2.0]]
    text, alive = told(processes[:1])[0]
    assert "rank 1 was interrupted" in text and alive == 2.0
    processes[2].kill()


def test_a_restart_while_a_rank_waits_for_a_tensor_ends_the_group_and_nothing_else(start_daemon, tmp_path):
    daemon = start_daemon("--lease", "120", "--restart", "60", "--drain", "2")
    begun = tmp_path / "begun"
    processes = start(daemon.unix, 2, f"""
kept, text = tt.arange(3.0), ""
print("here", flush=True)
try:
    if R == 0:
        x = kept + 1; dist.recv(x, 1)
        print("waits", flush=True)
        x.tolist()
    else:
        while not os.path.exists({str(begun)!r}):
            time.sleep(0.05)
        dist.barrier()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
dist.destroy_process_group()
dist.init_process_group(rank=R, world_size=N, init_method="tcp://test:1")
dist.all_reduce(kept)
tell(text, kept.tolist())
""")
    wait_line(processes[1], "here")
    wait_line(processes[0], "waits")
    wait_in_collective(daemon, 0)
    daemon.drain()
    daemon.restart()
    begun.touch()
    (first, values), (second, same) = told(processes)
    assert values == same == [0.0, 2.0, 4.0]
    assert "has a daemon that shuts down" in first
    assert "has left the group, or the daemon has restarted" in second


def test_a_rank_that_does_not_come(start_daemon):
    daemon = start_daemon()
    status, _, err = finish(start_rank(daemon.unix, 0, 3, "pass", timeout=1))
    assert status == 1
    assert "RankLostError" in err and "rank 1 (has not joined), rank 2 (has not joined)" in err


def test_groups_of_some_ranks(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 3, """
pair, rest = dist.new_group([2, 0]), dist.new_group([1])
x = tt.ones(2) * (R + 1)
dist.all_reduce(x, group=pair)
ranks = [dist.get_rank(pair), dist.get_world_size(pair), dist.get_rank(rest)]
if R != 1:
    y = tt.full((1,), float(R)); dist.broadcast(y, src=2, group=pair)
    ranks += [dist.get_global_rank(pair, 1), y.item()]
dist.barrier()
tell(x.tolist(), ranks)
"""))
    assert found == [[[4.0, 4.0], [0, 2, -1, 2, 2.0]], [[2.0, 2.0], [-1, -1, 0]], [[4.0, 4.0], [1, 2, -1, 2, 2.0]]]


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float64", "int64", "int8", "bool", "complex64"))
def test_dtypes(start_daemon, dtype):
    daemon = start_daemon()
    found = told(start(daemon.unix, 4, f"""
x = (tt.arange(5) % 2 + R).to(tt.{dtype})
y = x.clone(); dist.all_reduce(y)
rows = [tt.empty_like(x) for _ in range(N)]; dist.all_gather(rows, x)
tell(str(y.dtype), y.to(tt.complex64).real.tolist(), tt.stack(rows).to(tt.complex64).real.tolist())
"""))
    rows = [[float(i % 2 + rank) for i in range(5)] for rank in range(4)]
    if dtype == "bool":
        rows = [[float(value != 0) for value in row] for row in rows]
    total = np.minimum(np.sum(rows, 0), 1) if dtype == "bool" else np.sum(rows, 0)
    for name, values, gathered in found:
        assert name == f"teletensor.{dtype}"
        np.testing.assert_array_equal(values, total)
        np.testing.assert_array_equal(gathered, rows)


def test_bits_are_those_of_the_tree(start_daemon):
    """The sum is ((0 + 1) + (2 + 3)) + 4 in float32, whatever the order in which ranks call."""
    daemon = start_daemon()
    rng = np.random.default_rng(3)
    data = (rng.standard_normal((5, 100_003)) * 10.0 ** rng.integers(-6, 6, (5, 100_003))).astype(np.float32)
    found = told(start(daemon.unix, 5, """
rng = np.random.default_rng(3)
data = (rng.standard_normal((5, 100_003)) * 10.0 ** rng.integers(-6, 6, (5, 100_003))).astype(np.float32)
x = tt.from_numpy(data[R])
dist.all_reduce(x)
tell(x.numpy().tobytes().hex())
"""))
    wanted = ((data[0] + data[1]) + (data[2] + data[3])) + data[4]
    for (text,) in found:
        np.testing.assert_array_equal(np.frombuffer(bytes.fromhex(text), np.float32), wanted)


def test_training_of_several_equals_one_with_the_whole_batch(start_daemon, tt):
    daemon = start_daemon("--lease", "60", "--restart", "60", "--snapshot-every", "0.2")
    code = """
tt.manual_seed(R)  # rank 0's parameters count
net = tt.nn.Sequential(tt.nn.Linear(6, 16), tt.nn.ReLU(), tt.nn.Linear(16, 3))
first = [p.tolist() for p in net.parameters()] if R == 0 else None
net = tt.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001)
step = tt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data = tt.arange(4 * N * 6.0).reshape(4 * N, 6).sin()
part = slice(4 * R, 4 * R + 4)
for i in range(5):
    step.zero_grad()
    loss = (net(data[part]) - 1).square().mean()
    loss.backward()
    step.step()
tell(first, [p.tolist() for p in net.parameters()])
"""
    found = told(start(daemon.unix, 3, code))
    first, values = found[0]
    assert found[1][1] == values and found[2][1] == values
    with tt.connect(daemon.unix) as session, session.as_current():
        net = tt.nn.Sequential(tt.nn.Linear(6, 16), tt.nn.ReLU(), tt.nn.Linear(16, 3))
        with tt.no_grad():
            for parameter, value in zip(net.parameters(), first, strict=True):
                parameter.copy_(tt.tensor(value))
        step = tt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        data = tt.arange(72.0).reshape(12, 6).sin()
        for _ in range(5):
            step.zero_grad()
            (net(data) - 1).square().mean().backward()
            step.step()
        for parameter, value in zip(net.parameters(), values, strict=True):
            np.testing.assert_allclose(value, parameter.tolist(), rtol=1e-4, atol=1e-6)


def test_parameters_that_a_backward_does_not_reach(start_daemon):
    daemon = start_daemon()
    code = """
class Net(tt.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (tt.nn.Linear(2, 2) for _ in range(3))
    def forward(self, x):
        return self.a(x) + (self.b(x) if R == 1 else 0)
net = tt.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters={find})
try:
    net(tt.ones(1, 2)).sum().backward()
    text = ""
except RuntimeError as e:
    text = str(e)
tell(text, [None if p.grad is None else p.grad.flatten().tolist() for p in net.parameters()])
"""
    for text, gradients in told(start(daemon.unix, 2, code.replace("{find}", "True"))):
        assert text == ""
        assert gradients == [[1.0] * 4, [1.0] * 2, [0.5] * 4, [0.5] * 2, None, None]
    found = told(start(daemon.unix, 2, code.replace("{find}", "False"), name="test:2"))
    assert "has not reached 4 parameters" in found[0][0] and "b.weight" in found[0][0]
    assert "has not reached 2 parameters" in found[1][0] and "c.weight" in found[1][0]


def test_no_sync_and_different_modules(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Linear(2, 1, bias=False))
with net.no_sync():
    net(tt.ones(1, 2) * (R + 1)).sum().backward()
own = net.module.weight.grad.tolist()
net(tt.ones(1, 2) * (R + 1)).sum().backward()
try:
    tt.nn.parallel.DistributedDataParallel(tt.nn.Linear(2, 1 + R))
    text = ""
except RuntimeError as e:
    text = str(e)
tell(own, net.module.weight.grad.tolist(), text)
"""))
    for rank, (own, both, text) in enumerate(found):
        assert own == [[rank + 1.0] * 2] and both == [[3.0, 3.0]]
        assert "rank 0 has weight teletensor.float32[1, 2] where rank 1 has weight teletensor.float32[2, 2]" in text


def test_sync_batch_norm(start_daemon, tt):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
net = tt.nn.SyncBatchNorm(3)
data = tt.arange(30.0).reshape(5, 3, 2).cos()
x = (data[:2] if R == 0 else data[2:]).clone().requires_grad_()
y = net(x)
(y * y * tt.arange(3.0).view(1, 3, 1)).sum().backward()
tell(y.tolist(), x.grad.tolist(), net.running_mean.tolist(), net.running_var.tolist())
"""))
    with tt.connect(daemon.unix) as session, session.as_current():
        net = tt.nn.BatchNorm1d(3)
        x = tt.arange(30.0).reshape(5, 3, 2).cos().requires_grad_()
        y = net(x)
        (y * y * tt.arange(3.0).view(1, 3, 1)).sum().backward()
        for at, wanted in enumerate((y, x.grad)):
            joined = np.concatenate([np.array(values[at]) for values in found])
            np.testing.assert_allclose(joined, wanted.tolist(), rtol=1e-4, atol=1e-5)
        for values in found:
            np.testing.assert_allclose(values[2], net.running_mean.tolist(), rtol=1e-5)
            np.testing.assert_allclose(values[3], net.running_var.tolist(), rtol=1e-5)
