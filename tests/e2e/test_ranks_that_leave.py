"""Ranks that end early: messages between the other ranks still arrive."""

import pytest
from support.clients import finish
from support.daemons import start_daemons
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

ENDS = ("s.close()", "pass", "dist.destroy_process_group()")


# A chain: each rank receives from the previous rank, and is finished when it has sent.
CHAIN = """
x = tt.zeros(1000)
dist.all_reduce(x)
if R > 0:
    dist.recv(x, R - 1)
if R < N - 1:
    while R > 0 and not os.path.exists("{left}"):  # rank 0 has ended by then
        time.sleep(0.01)
    dist.send(x + 1, R + 1)
    tell("sent")
else:
    tell(x.sum().item())
{end}
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("count", (1, 3))
def test_a_chain_of_transfers_outlives_its_first_rank(start_daemon, tmp_path, count, end):
    addresses = [daemon.unix for daemon in start_daemons(start_daemon, 3)] if count == 3 else start_daemon().unix
    processes = start(addresses, 4, CHAIN.format(left=tmp_path / "left", end=end))
    (first,) = told(processes[:1])
    (tmp_path / "left").touch()
    assert [first, *told(processes[1:])] == [["sent"]] * 3 + [[3000.0]]


def test_transfers_outlive_the_daemon_of_a_rank_that_has_ended(start_daemon, tmp_path):
    daemons = start_daemons(start_daemon, 3, "--peer-patience", "1")
    processes = start([daemon.unix for daemon in daemons], 3, CHAIN.format(left=tmp_path / "left", end="pass"))
    told(processes[:1])
    finish(processes[0])
    daemons[0].drain()
    start_daemon.running.remove(daemons[0])
    (tmp_path / "left").touch()
    assert told(processes[1:]) == [["sent"], [2000.0]]


@pytest.mark.parametrize("count", (1, 2))
def test_a_transfer_with_a_rank_that_has_left_is_an_error(start_daemon, count):
    addresses = [daemon.unix for daemon in start_daemons(start_daemon, 2)] if count == 2 else start_daemon().unix
    found = told(start(addresses, 3, """
if R == 0:
    dist.destroy_process_group()
    tell("left")
else:
    texts = []
    for call in (lambda y: dist.recv(y, 0), lambda y: (dist.send(y, 0), dist.destroy_process_group())[:0]):
        y = tt.ones(2)
        if R == 1 and texts:
            dist.send(y, 2)  # ranks 1 and 2 still reach each other
        elif texts:
            dist.recv(y, 1)
            assert y.tolist() == [1, 1]
        try:
            call(y)
            s.synchronize()
        except tt.RankLostError as e:
            texts.append(str(e))
        s.clear_errors()
    tell(texts, tt.ones(3).sum().item())
"""))
    assert found[0] == ["left"]
    for texts, alive in found[1:]:
        assert len(texts) == 2 and all("rank 0 has left the group" in text for text in texts), texts
        assert alive == 3.0


def test_a_killed_rank_ends_the_transfers_that_wait_for_it(start_daemon):
    daemon = start_daemon("--rank-grace", "0.3")
    processes = start(daemon.unix, 3, """
x = tt.zeros(2)
if R == 2:
    dist.barrier()
    os.kill(os.getpid(), 9)
dist.barrier()
try:
    dist.recv(x, 2); x.tolist()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
if R == 0:
    dist.send(x + 4, 1)
else:
    dist.recv(x, 0)
tell(text, x.tolist())
""")
    (first, _), (second, values) = told(processes[:2])
    assert "rank 2 has had no client for" in first and "rank 2 has had no client for" in second
    assert values == [4.0, 4.0]
    finish(processes[2])
