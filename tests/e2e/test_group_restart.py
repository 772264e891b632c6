"""Daemons that are restarted (SIGTERM, the same state directory) under their groups: ranks wait, with the same bits."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients import finish, wait_line
from support.daemons import start_daemons
from support.ranks import start, told, wait_in_collective

pytestmark = pytest.mark.usefixtures("invariants")

FLAGS = ("--lease", "240", "--restart", "240", "--drain", "60", "--rank-grace", "240")

# A training that prints a line for some of its steps. It does not end before a given file exists.
TRAINING = """
tt.manual_seed(R)
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.ReLU(), tt.nn.Linear(40, 3)),
                                             bucket_cap_mb=0.0005)
step = tt.optim.Adam(net.parameters(), lr=0.05)
for i in range({steps}):
    step.zero_grad()
    data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
    (net(data) - 1).square().mean().backward()
    step.step()
    if {synchronous}:
        net.module[0].weight.sum().item()
    if i % {every} == 0:
        print("step", i, flush=True)
    while i == {steps} - {every} and not os.path.exists("GO_ON"):
        time.sleep(0.01)
tell([p.detach().numpy().tobytes().hex() for p in net.parameters()])
"""

# Every kind of collective, and transfers, with a line for each round.
MIXED = """
total, right, left = tt.zeros(300), (R + 1) % N, (R - 1) % N
for i in range({steps}):
    x = (tt.arange(300.0) + R).sin() * (i + 1)
    y = x.clone()
    dist.all_reduce(y)
    z = [tt.empty(300) for _ in range(N)]
    dist.all_gather(z, x)
    dist.send(x + i, right, tag=i % 2)
    got = tt.empty(300)
    dist.recv(got, left, tag=i % 2)
    dist.broadcast(x, i % N)
    if i % 7 == R:
        x.sum().item()  # ranks wait at different places
    total += y + z[left] + got + x
    if i % {every} == 0:
        print("step", i, flush=True)
    while i == {steps} - {every} and not os.path.exists("GO_ON"):
        time.sleep(0.01)
tell(total.numpy().tobytes().hex())
"""

PROGRAMS = {
    "steps with a read": TRAINING.format(steps=60, synchronous=True, every=10),
    "steps without a read": TRAINING.format(steps=600, synchronous=False, every=100),
    "mixed": MIXED.format(steps=200, every=30),
}


def restart(daemon, ranks):
    daemon.drain()
    for rank in ranks:
        assert not rank.poll(), rank.stderr.read()
    assert "event=session_lost" not in daemon.log, daemon.log
    assert "event=groups_at_rest" in daemon.log, daemon.log
    daemon.restart()


def start_ranks(addresses, count, program, go_on):
    return start(addresses, count, PROGRAMS[program].replace("GO_ON", str(go_on)))


def wanted_of(addresses, count, program, go_on):
    """The results of the ranks without a restart."""
    go_on.touch()
    found = told(start_ranks(addresses, count, program, go_on))
    go_on.unlink()
    return found


def start_together(start_daemon, count, *flags):
    return start_daemons(start_daemon, count, *FLAGS, *flags)


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_ranks_in_one_daemon(start_daemon, tmp_path, program):
    daemon, go_on = start_daemon(*FLAGS), tmp_path / "go_on"
    wanted = wanted_of(daemon.unix, 3, program, go_on)
    ranks = start_ranks(daemon.unix, 3, program, go_on)
    for times in range(3):
        wait_line(ranks[times], "step")
        restart(daemon, ranks)
    go_on.touch()
    assert told(ranks) == wanted


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_daemon_in_turn(start_daemon, tmp_path, program):
    daemons, go_on = start_together(start_daemon, 3), tmp_path / "go_on"
    addresses = [daemon.unix for daemon in daemons]
    wanted = wanted_of(addresses, 4, program, go_on)
    ranks = start_ranks(addresses, 4, program, go_on)
    for times, daemon in enumerate(daemons):
        wait_line(ranks[times], "step")
        restart(daemon, ranks)
    go_on.touch()
    assert told(ranks) == wanted


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_daemons_at_once(start_daemon, tmp_path, program, count):
    """Each of them starts again as soon as it has ended."""
    daemons, go_on = start_together(start_daemon, 3), tmp_path / "go_on"
    addresses = [daemon.unix for daemon in daemons]
    wanted = wanted_of(addresses, 4, program, go_on)
    ranks = start_ranks(addresses, 4, program, go_on)
    for times in range(3):
        wait_line(ranks[times], "step")
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(restart, daemons[:count], [ranks] * count))
    go_on.touch()
    assert told(ranks) == wanted


SILENT = """
x = tt.ones(3)
dist.all_reduce(x)
x.tolist()
print("step", flush=True)
while R == 2 and not os.path.exists("GO_ON"):
    time.sleep(0.01)
dist.all_reduce(x)
tell(x.tolist())
"""


def test_a_program_that_sends_nothing_for_a_while(start_daemon, tmp_path):
    """Rank 2 is attached and idle while rank 0, on the same daemon, waits for it."""
    daemons, go_on = start_together(start_daemon, 2), tmp_path / "go_on"
    ranks = start([daemon.unix for daemon in daemons], 3, SILENT.replace("GO_ON", str(go_on)))
    for rank in ranks:
        wait_line(rank, "step")
    wait_in_collective(daemons[0], 0, number=2)
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart, daemons[0], ranks)
        time.sleep(6)  # longer than half of the default of --drain
        go_on.touch()
        restarted.result()
    assert told(ranks) == [[[9.0, 9.0, 9.0]]] * 3


WAITS = """
kept, text = tt.arange(3.0), ""
x = kept + 1; dist.all_reduce(x); x.tolist()
print("step", flush=True)
try:
    for i in range(10_000_000):
        dist.all_reduce(x); x.sum().item()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
tell(text, kept.tolist())
"""


def test_a_daemon_that_does_not_come_back(start_daemon):
    daemons = start_together(start_daemon, 2, "--peer-patience", "1")
    first, second = start([daemon.unix for daemon in daemons], 2, WAITS)
    wait_line(first, "step")
    daemons[1].drain()
    start_daemon.running.remove(daemons[1])
    (text, values), = told([first])
    assert "rank 1 has lost its daemon: b: no connection for 1000 ms" in text
    assert values == [0.0, 1.0, 2.0]
    second.kill()
    finish(second)


def test_a_session_that_could_not_be_kept_ends_its_group(start_daemon):
    """One of the session files is missing, as on a full disk, and the other sessions are restored."""
    daemons = start_together(start_daemon, 2)
    ranks = start([daemon.unix for daemon in daemons], 3, WAITS)
    for rank in ranks:
        wait_line(rank, "step")
    daemons[0].drain()
    lost = max(daemons[0].state.glob("*.session"), key=lambda file: file.name)
    lost.unlink()
    daemons[0].restart()
    ends = [finish(rank) for rank in ranks]
    assert sorted(status for status, _, _ in ends) == [0, 0, 1], ends
    for status, out, err in ends:
        if status == 0:
            assert "has lost its session, which could not be kept over a restart of its daemon" in out
        else:
            assert "SessionLostError" in err
