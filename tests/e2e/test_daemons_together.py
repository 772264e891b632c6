"""Worlds whose processes are clients of several daemons: results, and failures of daemons and their
connections."""

import functools
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.clients import finish, wait_asleep, wait_line
from support.daemon import wait_until
from support.daemons import start_daemons
from support.http import scrape
from support.proxy import Proxy
from support.ranks import groups, start, start_rank, told

pytestmark = pytest.mark.usefixtures("invariants")

TRAINING = """
tt.manual_seed(R)
net = tt.nn.Sequential(tt.nn.Linear(6, 200), tt.nn.BatchNorm1d(200), tt.nn.ReLU(), tt.nn.Linear(200, 3))
net = tt.nn.parallel.DistributedDataParallel(tt.nn.SyncBatchNorm.convert_sync_batchnorm(net), bucket_cap_mb=0.001)
step = tt.optim.Adam(net.parameters())
for i in range(20):
    step.zero_grad()
    data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
    (net(data) - 1).square().mean().backward()
    step.step()
tell([p.detach().numpy().tobytes().hex() for p in net.parameters()])
"""


def addresses(daemons):
    return [daemon.unix for daemon in daemons]


def test_a_training_has_the_same_bits_wherever_its_ranks_are(start_daemon):
    alone, pair = start_daemon(), start_daemons(start_daemon, 2)
    found = [told(start(where, 3, TRAINING)) for where in (alone.unix, addresses(pair), addresses(pair[:1]))]
    assert found[0] == found[1] == found[2]
    assert found[0][0] == found[0][1] == found[0][2]


def test_transfers_between_daemons(start_daemon):
    daemons = start_daemons(start_daemon, 2)
    found = told(start(addresses(daemons), 3, """
right, left = (R + 1) % N, (R - 1) % N
x = tt.arange(200_000.0) + R
dist.send(x, right)
y = tt.empty(200_000); source = dist.recv(y, left)
box = [{"from": R}]
if R == 0:
    dist.send_object_list(box, 1)
elif R == 1:
    dist.recv_object_list(box, 0)
dist.barrier()  # a rank that ends before ends the transfers of the others
tell((y - left).sum().item(), y[7].item(), source, box)
"""))
    total = float(np.arange(200_000, dtype=np.float32).astype(np.float64).sum())
    for rank, (sums, seventh, source, box) in enumerate(found):
        left = (rank - 1) % 3
        assert abs(sums - total) < total * 1e-6 and seventh == 7 + left and source == left
        assert box == [{"from": 0 if rank < 2 else 2}]


def test_errors_name_ranks_of_all_daemons(start_daemon):
    daemons = start_daemons(start_daemon, 2)
    found = told(start(addresses(daemons), 2, """
x = tt.ones(4 if R == 0 else 5)
try:
    dist.all_reduce(x); x.tolist()
except RuntimeError as e:
    text = str(e)
z = tt.ones(3)
if R == 1:
    z = z[tt.tensor([0, 1, 7])]
try:
    dist.all_reduce(z); z.tolist()
except IndexError as e:
    other = str(e)
s.clear_errors()
y = tt.ones(3); dist.all_reduce(y)  # the group goes on
tell(text, other, y.tolist())
"""))
    for text, other, values in found:
        assert "rank 0 is in all_reduce(sum, float32[4]) at" in text and "rank 1 in all_reduce(sum, float32[5])" in text
        assert "out of" in other
        assert values == [2.0, 2.0, 2.0]
    assert "rank 1 in all_reduce(sum, float32[3])" in found[0][1]


@pytest.mark.parametrize("how, why", (
    ("s.close()", "rank 1 has ended its session"),
    ("dist.destroy_process_group()", "rank 1 has left the group"),
    ("os.kill(os.getpid(), 9)", "rank 1 has had no client for"),
))
def test_a_rank_of_another_daemon_that_ends_is_named(start_daemon, how, why):
    daemons = start_daemons(start_daemon, 2, "--rank-grace", "0.3")
    text, alive = told(start(addresses(daemons), 2, f"""
x = tt.ones(3); dist.all_reduce(x)  # well for both, though rank 1 ends right behind it
assert x.tolist() == [2, 2, 2]
if R == 1:
    {how}
    sys.exit()
try:
    dist.all_reduce(x); x.tolist()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
tell(text, tt.ones(3).sum().item())
""")[:1])[0]
    assert why in text and alive == 3.0


WAITS = """
kept, text = tt.arange(3.0), ""
print("here", flush=True)
try:
    if R == 0:
        x = kept + 1; dist.all_reduce(x)
        print("waits", flush=True)
        x.tolist()
    else:
        time.sleep(600)
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
tell(text, kept.tolist())
"""


@pytest.mark.parametrize("how, why", (
    ("kill", "has lost its daemon: b: "), ("stop", "has lost its daemon: b: "),
    ("drain", "has lost its daemon: b: "), ("end", "has a daemon that shuts down")))
def test_a_daemon_that_is_gone_ends_the_group(start_daemon, how, why):
    """The peers of a daemon that keeps its sessions wait for the next one; they do not wait after "end"."""
    forgets = "the group is not to wait for another daemon" if how == "end" else ""
    daemons = start_daemons(functools.partial(start_daemon, forgets=forgets), 2, "--peer-patience", "1")
    first, second = start(addresses(daemons), 2, WAITS)
    wait_line(second, "here")
    wait_line(first, "waits")
    wait_asleep(first)
    if how == "stop":
        daemons[1].process.send_signal(signal.SIGSTOP)
    else:
        daemons[1].kill() if how == "kill" else daemons[1].drain()
        start_daemon.running.remove(daemons[1])
    (text, values), = told([first])
    assert f"rank 1 {why}" in text
    assert values == [0.0, 1.0, 2.0]
    if how == "stop":
        daemons[1].process.send_signal(signal.SIGCONT)
    second.kill()
    finish(second)


def test_daemons_meet_again_after_a_restart(start_daemon):
    daemons = start_daemons(start_daemon, 2, "--peer-patience", "1")
    code = "x = tt.ones(2) * (R + 1); dist.all_reduce(x); tell(x.tolist())"
    assert told(start(addresses(daemons), 2, code)) == [[[3.0, 3.0]]] * 2
    daemons[0].crash()  # the daemon that opens the connection
    assert told(start(addresses(daemons), 2, code)) == [[[3.0, 3.0]]] * 2


def test_cuts_between_daemons_change_nothing(start_daemon):
    """The connection is cut repeatedly at a random byte; no rank has an error, and the bits are the same."""
    dice, proxies = random.Random(5), []

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    alone = start_daemon()
    daemons = start_daemons(start_daemon, 3, through=through)
    wanted = told(start(alone.unix, 3, TRAINING))
    for proxy in proxies:
        proxy.cut_each(lambda: dice.randrange(2_000, 60_000), both=True)
    assert told(start(addresses(daemons), 3, TRAINING)) == wanted
    assert sum(proxy.connections for proxy in proxies) > 20
    for proxy in proxies:
        proxy.close()


def test_a_rank_that_does_not_come_to_another_daemon(start_daemon):
    daemons = start_daemons(start_daemon, 2)
    status, _, err = finish(start_rank(daemons[0].unix, 0, 3, "pass", timeout=1))
    assert status == 1
    assert "RankLostError" in err and "timeout in joining, waits for rank 1, rank 2" in err


def test_two_processes_with_one_rank_are_told(start_daemon):
    daemons = start_daemons(start_daemon, 2)
    processes = [start_rank(daemon.unix, 0, 2, "pass") for daemon in daemons]
    for process in processes:
        status, _, err = finish(process)
        assert status == 1
        assert "is in a, and rank 0 of 2" in err or "is in b, and rank 0 of 2" in err


def test_groups_are_listed(start_daemon, tmp_path):
    daemons, seen = start_daemons(start_daemon, 2), tmp_path / "seen"
    first = start_rank(daemons[0].unix, 0, 2, f"""
x = tt.ones(1); dist.all_reduce(x); x.tolist()
print("summed", flush=True)
while not os.path.exists({str(seen)!r}):
    time.sleep(0.05)
""")
    wait_until(lambda: len(groups(daemons[0])) == 1)
    (found,), (members,) = groups(daemons[0]), [group["members"] for group in groups(daemons[0])]
    assert (found["state"], found["ranks"]) == ("forming", 2)
    assert [(m["rank"], m["daemon"], m["waits"]) for m in members] == [(0, "", True)]
    second = start_rank(daemons[1].unix, 1, 2, """
x = tt.ones(1); dist.all_reduce(x); x.tolist()
dist.all_reduce(x)
print("waits", flush=True)
x.tolist()
""")
    wait_line(first, "summed")
    wait_line(second, "waits")
    wait_until(lambda: groups(daemons[1])[0]["members"][1]["waits"])
    (found,) = groups(daemons[1])
    assert found["state"] == "running" and found["collectives"] >= 2
    assert [(m["rank"], m["daemon"]) for m in found["members"]] == [(0, "a"), (1, "")]
    (found,) = groups(daemons[0])
    assert [(m["rank"], m["daemon"], m["waits"]) for m in found["members"]] == [(0, "", False), (1, "b", False)]
    command = [sys.executable, "-m", "teletensor.cli", "groups", "--address", daemons[1].unix]
    (state,) = {line for line in scrape(daemons[1]).splitlines() if 'state="running"' in line}
    assert state == 'teletensor_groups{state="running"} 1'
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 of 2" in table and "0: daemon a" in table and "waits" in table
    seen.touch()
    finish(first)
    finish(second)


def test_many_worlds_at_once(start_daemon):
    daemons = start_daemons(start_daemon, 2)
    code = """
for i in range(30):
    x = tt.full((2000,), float(i + R)); dist.all_reduce(x)
    assert x.tolist() == [2.0 * i + 1] * 2000
tell(R)
"""
    worlds = [start(addresses(daemons), 2, code, name=f"test:{i}") for i in range(4)]
    assert [told(world) for world in worlds] == [[[0], [1]]] * 4
