"""One program that drives the ranks of a mesh, on one daemon and on several."""

import copy
import dataclasses
import gc
import re
import signal

import numpy as np
import pytest
import teletensor as tt
import teletensor.distributed as dist
from support.clients import client, finish, wait_asleep, wait_line
from support.daemon import ROOT, Daemon
from support.daemons import start_daemons
from support.invariants import hold
from support.snippets import check, snippets

RANDOM = np.random.default_rng(3)


@pytest.fixture(scope="module")
def daemons():
    """Two daemons that are peers; nothing of the tests remains on them afterwards."""
    running = start_daemons(Daemon, 2)
    yield running
    gc.collect()
    for daemon in running:
        hold(daemon)
    problems = [p for daemon in running if (p := daemon.stop())]
    assert not problems, "\n".join(problems)


@pytest.fixture
def mesh(daemons):
    """Four ranks on two daemons."""
    with dist.connect_mesh([daemons[0].unix, daemons[1].unix, f"{daemons[0].unix}/cpu", daemons[1].unix]) as made:
        yield made


def lists(values):
    return [each.tolist() for each in values]


def test_its_ranks(mesh):
    assert len(mesh) == 4 and [rank.index for rank in mesh] == [0, 1, 2, 3] and mesh[-1] is mesh[3]
    assert len({rank.session.address for rank in mesh}) == 2 and repr(mesh).startswith("<mesh (dp=4), 4 ranks on ")
    assert repr(mesh[1]) == f"<rank 1 of mesh (dp=4): cpu at {mesh[1].session.address}>"
    ranks = mesh.run(lambda: (dist.get_rank(), dist.get_world_size(), mesh["dp"].get_local_rank(),
                              mesh["dp"].get_coordinate(), tt.current_session()))
    assert list(ranks) == [(i, 4, i, [i], mesh[i].session) for i in range(4)]
    mesh.close()
    assert repr(mesh) == "<mesh (dp=4), closed>" and all(rank.session.closed for rank in mesh)
    with pytest.raises(tt.SessionLostError, match="closed"):
        mesh.run(lambda: None)


def test_run_calls_collectives_rank_by_rank_and_waits_for_nothing(mesh):
    def f(x, power):
        y = x ** power + dist.get_rank()
        dist.all_reduce(y)
        dist.barrier()
        parts = [tt.zeros(3) for _ in range(4)]
        dist.all_gather(parts, x)
        left = tt.empty(3)
        dist.send(x, (dist.get_rank() + 1) % 4)
        dist.recv(left, (dist.get_rank() - 1) % 4)
        return y, tt.stack(parts), left

    data = RANDOM.standard_normal((12,)).astype(np.float32)
    rows = data.reshape(4, 3)
    total = (rows.astype(np.float64) ** 2).sum(0) + 6
    for mode in (mesh.run, mesh.spawn):
        found = mode(f, mesh.shard(data), 2)
        for rank, (y, parts, left) in enumerate(found):
            np.testing.assert_allclose(y.numpy(), total, rtol=1e-5)
            assert parts.tolist() == rows.tolist() and left.tolist() == rows[rank - 1].tolist()


def test_a_read_that_needs_a_later_rank_raises_at_its_line(mesh):
    def f():
        x = tt.ones(2)
        before = x.sum().item()  # needs no other rank
        dist.all_reduce(x)
        return before, x.sum().item()

    with pytest.raises(RuntimeError, match=r"rank 0.*rank 1 only 0.*mesh\.spawn"):
        mesh.run(f)
    assert list(mesh.spawn(f)) == [(2.0, 8.0)] * 4

    def receives():
        x = tt.zeros(2)
        if dist.get_rank() == 0:
            dist.recv(x, 3)
            return x.tolist()
        if dist.get_rank() == 3:
            dist.send(x, 0)

    with pytest.raises(RuntimeError, match="receives from rank 3, which has issued only 0 sends"):
        mesh.run(receives)
    assert mesh.spawn(receives)[0] == [0, 0]
    x = mesh.run(lambda: tt.ones(2))
    with mesh[1].as_current():
        dist.all_reduce(x[1])
    with pytest.raises(RuntimeError, match="rank 0 only"):
        x[1].tolist()
    mesh.begin_again()
    assert x[1].tolist() == [1, 1]  # the collective has not happened


def test_threads_of_other_ranks_are_stopped_whatever_they_do(mesh):
    def f():
        if dist.get_rank() == 3:
            raise ZeroDivisionError("nothing")
        while dist.get_rank() == 0:
            pass  # does not wait or issue commands
        x = tt.ones(1)
        while dist.get_rank() == 1:
            x += 1
        while True:
            dist.all_reduce(x)
            x.item()

    with pytest.raises(ZeroDivisionError, match="rank 3: nothing"):
        mesh.spawn(f)
    assert list(mesh.spawn(lambda: dist.all_reduce(x := tt.ones(1)) or x.item())) == [4] * 4


def test_ranks_on_devices(start_daemon):
    daemon = start_daemon("--sim-devices", "2")

    def f(x):
        x = x + tt.ones(2)
        dist.all_reduce(x)
        return x

    with dist.connect_mesh([f"{daemon.unix}/sim:0", f"{daemon.unix}/sim:1", daemon.unix]) as mesh:
        data = mesh.shard(np.arange(6.0))
        for rank, each in zip(mesh, mesh.run(f, data), strict=True):
            assert each.device == rank.device and each.tolist() == [9, 12]
        assert [str(each.weight.device) for each in mesh.replicate(tt.nn.Linear(2, 2))] == ["sim:0", "sim:1", "cpu"]
        with mesh[0].as_current():
            w = tt.ones(2, requires_grad=True)
        y = (w * 3).to(mesh[1]).to(mesh[2]).to(mesh[0])
        (y * y).sum().backward()
        assert y.device == mesh[0].device and w.grad.tolist() == [18, 18] and w.grad.device == mesh[0].device
        with pytest.raises(NotImplementedError, match="sim:0, sim:1, cpu"):
            mesh.spawn(f, data)
    with dist.connect_mesh([f"{daemon.unix}/sim:1"] * 2) as mesh:
        assert list(mesh.spawn(lambda: (f(tt.ones(2)).tolist(), str(tt.ones(1).device)))) == [([4, 4], "sim:1")] * 2


def test_commands_that_find_no_room_before_a_later_rank_is_issued(mesh):
    def endless():
        while True:
            dist.all_reduce(tt.ones(1))

    with pytest.raises(RuntimeError, match="rank 1 only 0"):
        mesh.run(endless)
    assert lists(mesh.run(lambda: tt.ones(1))) == [[1]] * 4


def test_groups_of_a_mesh_of_two_dimensions(daemons):
    with dist.connect_mesh([daemons[0].unix] * 6, ("dp", "tp"), (2, 3)) as mesh:
        def f():
            x = tt.tensor([float(dist.get_rank())])
            y, z = x.clone(), x.clone()
            dist.all_reduce(y, group=mesh["tp"].get_group())
            dist.all_reduce(z, group=mesh["dp"].get_group())
            return tt.cat([y, z])

        assert lists(mesh.run(f)) == [[3, 3], [3, 5], [3, 7], [12, 3], [12, 5], [12, 7]]
        assert repr(mesh).startswith("<mesh (dp=2, tp=3)")


def test_arithmetic_of_an_object_on_each_rank(mesh):
    """In the code of a rank an operator uses the rank's own object; elsewhere it says how to name one."""
    w = mesh.shard(np.arange(8.0))
    found = mesh.run(lambda: ((tt.ones(2) + w) * 2 - w / 2 + -w).sum().item())
    assert list(found) == [float(sum(2 * (1 + v) - v / 2 - v for v in (2 * r, 2 * r + 1))) for r in range(4)]
    with pytest.raises(RuntimeError, match="this is the code of none"):
        tt.ones(2) @ w


def test_bad_arguments(daemons, mesh):
    for addresses, more in (("a", {}), ([], {}), (["a", "b"], {"names": ("x", "y")}), (["a", "b"], {"shape": (3,)}),
                            (["a", "b"], {"names": ("x", "x"), "shape": (1, 2)})):
        with pytest.raises(ValueError, match="connect_mesh"):
            dist.connect_mesh(addresses, **more)
    with pytest.raises(RuntimeError, match="not on this daemon"):
        dist.connect_mesh([f"{daemons[0].unix}/cuda:0"])
    with pytest.raises(ValueError, match="do not split equally"):
        mesh.shard(np.zeros(7))
    with pytest.raises(TypeError, match="shard: expects a tensor or array with a dimension to divide, not float"):
        mesh.shard(3.0)
    with pytest.raises(TypeError, match="a dimension to divide"):
        mesh.shard(tt.tensor(3.0))
    with pytest.raises(RuntimeError, match="on each of 4 ranks.* code of none"):
        mesh.replicate(tt.nn.Linear(1, 1)).parameters()
    with pytest.raises(ValueError, match="rank 2 of a mesh of 4, not rank 0 of 2"):
        mesh.run(lambda: dist.init_process_group(rank=0, world_size=2) if dist.get_rank() == 2 else None)
    mesh.run(lambda: (dist.init_process_group("gloo"), dist.destroy_process_group()))
    assert list(mesh.run(dist.get_world_size)) == [4] * 4


def network():
    return tt.nn.Sequential(tt.nn.Linear(5, 16), tt.nn.Tanh(), tt.nn.Linear(16, 2))


def trained_alone(x, y, steps, start):
    net = network()
    net.load_state_dict(start)
    optimizer = tt.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(tt.tensor(x)) - tt.tensor(y)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.tolist() for p in net.parameters()]


def test_a_training_equals_that_of_one_session_with_the_whole_batch(mesh):
    x, y = (RANDOM.standard_normal((24, n)).astype(np.float32) for n in (5, 2))
    with mesh[0].as_current():
        net = network()
    start = {name: each.numpy() for name, each in net.state_dict().items()}
    own_losses, own = trained_alone(x, y, 6, {name: tt.tensor(each) for name, each in start.items()})
    nets, optimizers = mesh.replicate(net, tt.optim.Adam(net.parameters(), lr=0.05))
    assert nets[0] is net
    data = mesh.shard((x, y))

    @mesh.compile
    def gradients(x, y):
        optimizers.zero_grad()
        loss = (nets(x) - y).square().mean()
        loss.backward()
        return loss.detach()

    @mesh.compile
    def step():
        optimizers.step()

    def average():
        for each in nets.parameters():
            dist.all_reduce(each.grad, dist.ReduceOp.AVG)

    for loss in own_losses:
        found = gradients(*data)
        mesh.run(average)
        step()
        assert np.mean([each.item() for each in found]) == pytest.approx(loss, rel=1e-4)
    for net in nets:
        for p, q in zip(net.parameters(), own, strict=True):
            np.testing.assert_allclose(p.tolist(), q, rtol=2e-3, atol=2e-4)
    bits = [[p.detach().numpy().tobytes() for p in net.parameters()] for net in nets]
    assert bits[0] == bits[1] == bits[2] == bits[3]


def test_repeat_issues_all_ranks_before_it_reads(mesh):
    counts = mesh.run(lambda: tt.zeros(2))

    @mesh.compile
    def count(by):
        counts.here.add_(by)
        return counts.here.sum()

    found = [list(each) for each in count.repeat(9, mesh.run(lambda: tt.full((2,), dist.get_rank() + 1.0)))]
    assert found == [[2.0 * i * (rank + 1) for rank in range(4)] for i in range(1, 10)]
    rows = mesh.shard(np.arange(24, dtype=np.float32).reshape(12, 2))
    doubled = mesh.compile(lambda row: row * 2)
    for i, each in enumerate(doubled.repeat(3, data=rows)):
        assert lists(each) == (np.arange(24).reshape(4, 3, 2) * 2)[:, i].tolist()
    # in the code of a rank the call runs only on that rank
    assert lists(mesh.run(lambda: doubled(tt.ones(1) * dist.get_rank()))) == [[0], [2], [4], [6]]


def test_captured_functions_with_collectives(mesh):
    """One captured step averages gradients: the bits of the same lines by mesh.run, also in rounds."""
    data = RANDOM.standard_normal((8, 3)).astype(np.float32)
    xs, ys = mesh.shard((data, data[:, :1] * 2))
    first = tt.nn.Linear(3, 1)

    def made():
        own = copy.deepcopy(first)
        net, optimizer = mesh.replicate(own, tt.optim.Adam(own.parameters(), lr=0.1))

        def step(x, y):
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            optimizer.step()
            return loss.detach()
        return net, step
    (net, step), (other, captured) = made(), made()
    captured = mesh.compile(captured)
    wanted = [lists(mesh.run(step, xs, ys)) for _ in range(9)]
    found = [lists(captured(xs, ys)) for _ in range(3)]
    found += [list(losses) for losses in captured.repeat(6, xs, ys)]
    assert found == wanted
    for own, theirs in zip(mesh.run(lambda: [p.tolist() for p in net.parameters()]),
                         mesh.run(lambda: [p.tolist() for p in other.parameters()]), strict=True):
        assert own == theirs


def test_data_parallel_modules_in_run_and_in_threads(mesh):
    net = network()
    x = mesh.run(lambda: tt.full((3, 5), 0.1 * dist.get_rank()))
    nets = mesh.replicate(net)
    parallel = mesh.run(lambda net: tt.nn.parallel.DistributedDataParallel(net, init_sync=False), nets)

    def backward(net, x):
        net.zero_grad()
        net(x).square().mean().backward()
        return [p.grad for p in net.parameters()]

    by_run = [lists(each) for each in mesh.run(backward, parallel, x)]
    alone = network()
    alone.load_state_dict(net.state_dict())
    whole = [p.tolist() for p in backward(alone, tt.cat([tt.full((3, 5), 0.1 * i) for i in range(4)]))]
    for each in by_run:
        assert each == by_run[0]
        for p, q in zip(each, whole, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-6)

    def program(net, x):
        dist.init_process_group("gloo")
        net = tt.nn.parallel.DistributedDataParallel(net)
        found = [each.tolist() for each in backward(net, x)]
        dist.destroy_process_group()
        return found

    assert list(mesh.spawn(program, nets, x)) == by_run


def test_replicate_and_copies(mesh):
    array = RANDOM.standard_normal((3, 2)).astype(np.float32)
    with mesh[2].as_current():
        x = tt.tensor(array)
    for each in mesh.replicate(x):
        assert each.tolist() == array.tolist()
    with mesh[0].as_current():
        net = tt.nn.Sequential(tt.nn.Linear(2, 2), tt.nn.BatchNorm1d(2))
        optimizer = tt.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        net(x.to(mesh[0])).square().sum().backward()
        optimizer.step()
    other, others = mesh[3].copy((net, optimizer))
    assert all(p is q for p, q in zip(other.parameters(), others.param_groups[0]["params"], strict=True))
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert p.tolist() == q.tolist() and tt.is_tensor(q) and q.requires_grad
        assert optimizer.state[p]["momentum_buffer"].tolist() == others.state[q]["momentum_buffer"].tolist()


def test_errors_of_one_rank(mesh):
    def f(at):
        x = tt.arange(3.0)
        y = x[tt.tensor([9 if dist.get_rank() == at else 0])] + x
        dist.all_reduce(y)
        return y

    mesh.run(f, 2)
    with pytest.raises(IndexError, match="rank 2"):
        mesh.synchronize()
    mesh.synchronize()  # raised once, although it is an error of all ranks
    for mode in (mesh.run, mesh.spawn):
        def fails(waits):
            x = tt.ones(1)
            dist.all_reduce(x)
            if dist.get_rank() == 1:
                raise ZeroDivisionError("nothing")
            return x.item() + f(-1).sum().item() if waits else x

        with pytest.raises(ZeroDivisionError, match="rank 1: nothing"):
            mode(fails, mode == mesh.spawn)
        assert lists(mesh.run(lambda: f(-1)))[0] == [0, 4, 8]


PROGRAM = """
dist = tt.distributed
mesh = dist.connect_mesh(sys.argv[1:] or {addresses!r}, name="m")
"""


def test_another_program_takes_it_over_by_its_name(daemons):
    addresses = [daemons[0].unix, daemons[1].unix, daemons[0].unix]
    start = PROGRAM.format(addresses=addresses)
    first = client(start + """
assert not mesh.taken_over
net = mesh.replicate(tt.nn.Linear(2, 2))
mesh.keep("net", net)
mesh.run(lambda: dist.all_reduce(tt.ones(2)))
print(net[0].weight.tolist(), flush=True)
mesh.synchronize()
mesh.run(lambda: dist.all_reduce(tt.ones(2)) if dist.get_rank() != 1 else None)  # waits for ever
os._exit(1)
""", daemons[0].unix)
    _, weights, _ = finish(first)
    second = client(start + """
assert mesh.taken_over
print([each["net/weight"].tolist() for each in mesh.kept()])
def total():
    x = tt.ones(2)
    dist.all_reduce(x)
    return x
found = mesh.run(total)
print([each.tolist() for each in found])
try:
    dist.connect_mesh(["""  + repr(addresses[0]) + """], name="m")
except ValueError as error:
    print(error)
mesh.close()
""", daemons[0].unix)
    status, out, err = finish(second)
    assert status == 0, err
    kept, sums, refusal = out.splitlines()
    assert kept == str([eval(weights)] * 3) and sums == str([[3.0, 3.0]] * 3)
    assert refusal == "connect_mesh: this program has already connected the mesh 'm'"


@pytest.mark.parametrize("mode", ["run", "spawn"])
def test_ctrl_c_stops_all_ranks(daemons, mode):
    program = client(f"""
dist = tt.distributed
mesh = dist.connect_mesh({[daemon.unix for daemon in daemons]!r})
x = mesh.run(lambda: tt.zeros(3))
def step(x):
    x += 1
    dist.all_reduce(x, dist.ReduceOp.AVG)
def forever(x):
    while True:
        step(x)
        x.tolist()
        print("works", flush=True) if dist.get_rank() == 0 else None
def total():
    x = tt.ones(2)
    dist.all_reduce(x)
    return x
try:
    if {mode!r} == "spawn":
        mesh.spawn(forever, x)
    while True:
        mesh.run(step, x)
        print("works", x[1].tolist(), flush=True)
except KeyboardInterrupt:
    found = mesh.run(total)
    print([each.tolist() for each in found], [len(each.tolist()) for each in x], flush=True)
mesh.close()
""", daemons[0].unix)
    wait_line(program, "works")
    if mode == "spawn":  # the main thread waits for the threads of the ranks
        wait_asleep(program)
    program.send_signal(signal.SIGINT)
    status, out, err = finish(program)
    assert status == 0 and out.splitlines()[-1] == "[[2.0, 2.0], [2.0, 2.0]] [3, 3]", err


@pytest.mark.parametrize("title", ["mesh.py", "pipeline.py"])
def test_the_programs_of_the_page(title, daemons, tmp_path, monkeypatch):
    (program,) = (each for each in snippets(ROOT / "docs/distributed.md") if each.title == title)
    monkeypatch.setenv("MESH", ",".join(daemon.unix for daemon in daemons))
    printed = re.search(r"print\(.*#\s*(.*)", program.code)[1] + "\n"
    check(dataclasses.replace(program, output=printed), tmp_path)
