"""Daemons that are restarted while a rank waits in a collective that another rank has not called: it stays open."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients import finish, wait_asleep, wait_line
from support.daemon import HANG, wait_until
from support.daemons import start_daemons
from support.proxy import Proxy
from support.ranks import groups, start, told

pytestmark = pytest.mark.usefixtures("invariants")

FLAGS = ("--lease", "240", "--restart", "240", "--rank-grace", "240")
# For groups that continue: their daemons wait a moment for the late rank, and for each other as long as it takes.
PATIENT = ("--drain", "240", "--drain-ranks", "2")

# Rank 1 waits before its round 2, when its earlier collectives have ended, until the file exists.
HEAD = """
def idle(i):
    if R == 1 and i == 2:
        tt.synchronize()
        print("idles", flush=True)
        while not os.path.exists("GO_ON"):
            time.sleep(0.01)
"""

# Rank 0 has as many commands in its queue as fit.
FULL = """
x = tt.zeros(2)
for i in range(4):
    idle(i)
    dist.all_reduce(x)
    for _ in range(5000):
        x += R + 1
        x *= 0.5
tell(x.tolist())
"""

# In each of these programs rank 0 has something in its queue that reads the result.
PROGRAMS = {
    "reads": """
x, y = tt.arange(3.0) + R, tt.ones(3)
for i in range(4):
    idle(i)
    dist.all_reduce(x)
    y += i  # runs meanwhile
    x /= 2
    print("step", x.tolist(), flush=True)
tell(x.tolist(), y.tolist())
""",
    "many": """
pair, rest = dist.new_group([2, 0]), dist.new_group([1])
total, x = tt.zeros(N, 3), tt.arange(3.0) * (R + 1)
noise = tt.zeros(3)
for i in range(4):
    idle(i)
    parts = [tt.empty(3) for _ in range(N)]
    dist.all_reduce(x)
    dist.all_gather(parts, x[:3] * (i + 1))
    half = tt.tensor([0.5, 0.25, 0.125]) * x
    noise += tt.nn.functional.dropout(tt.ones(3), 0.5) * half
    dist.broadcast(half, 1)
    if R != 1:
        dist.all_reduce(half, group=pair)
    total[R] += parts[0] - parts[1] + half
    z = x.view(3, 1).expand(3, 2).sum(1)
    x = z.sin()
tell(total.tolist(), x.tolist(), noise.tolist())
""",
    "an error": """
x, texts = tt.arange(3) + R, []
for i in range(4):
    idle(i)
    dist.all_reduce(x)
    y = x.index_select(0, x[:1] + 5)
    y += 1
    try:
        y.tolist()
    except IndexError as error:
        texts.append(str(error))
tell(texts, x.tolist())
""",
    "captured": """
tt.manual_seed(R)
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.BatchNorm1d(40), tt.nn.ReLU(),
                                             tt.nn.Dropout(0.5), tt.nn.Linear(40, 3)), bucket_cap_mb=0.0005)
optimizer = tt.optim.Adam(net.parameters(), lr=0.05)
@tt.compile
def step(data):
    optimizer.zero_grad()
    loss = (net(data) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss
for i in range(5):
    idle(i)
    loss = step(tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i)
    print("step", loss.item(), flush=True)
tell([p.detach().numpy().tobytes().hex() for p in net.parameters()])
""",
    "training": """
tt.manual_seed(R)
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.ReLU(), tt.nn.Linear(40, 3)),
                                             bucket_cap_mb=0.0005)
step = tt.optim.Adam(net.parameters(), lr=0.05)
for i in range(5):
    idle(i)
    step.zero_grad()
    data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
    loss = (net(data) - 1).square().mean()
    loss.backward()
    step.step()
    print("step", loss.item(), flush=True)
tell([p.detach().numpy().tobytes().hex() for p in net.parameters()])
""",
}


def start_ranks(address, program, go_on, count=3, timeout=600):
    return start(address, count, (HEAD + PROGRAMS.get(program, program)).replace("GO_ON", str(go_on)),
                 timeout=timeout)


def wait_in_collective(daemon, rank):
    """Waits until the rank waits in a collective of the whole world, and does not continue for a while: it may
    wait for the messages of an earlier one for a moment."""
    seen = 0

    def waits():
        nonlocal seen
        world = max(groups(daemon), key=lambda group: group["ranks"], default={"members": []})
        waiting = any(member["waits"] for member in world["members"] if member["rank"] == rank)
        seen = seen + 1 if waiting else 0
        return seen >= 20
    wait_until(waits, what=f"rank {rank} waits")


def restart(daemon):
    daemon.drain()
    assert "event=session_lost" not in daemon.log, daemon.log
    assert "event=groups_held" in daemon.log, daemon.log
    daemon.restart()


def restart_one_of_several(daemon):
    """The daemon may have nothing open, or the group may already be at rest because of another daemon."""
    daemon.drain()
    assert "event=session_lost" not in daemon.log, daemon.log
    assert "event=groups_held" in daemon.log or "event=groups_at_rest" in daemon.log, daemon.log
    daemon.restart()


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_ranks_in_one_daemon(start_daemon, tmp_path, program):
    daemon, go_on = start_daemon(*FLAGS, *PATIENT), tmp_path / "go_on"
    go_on.touch()
    wanted = told(start_ranks(daemon.unix, program, go_on))
    go_on.unlink()
    ranks = start_ranks(daemon.unix, program, go_on)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemon, 0)
    for _ in range(2):
        restart(daemon)
        wait_in_collective(daemon, 0)
    go_on.touch()
    assert told(ranks) == wanted


def start_two(start_daemon, *flags):
    daemons = start_daemons(start_daemon, 2, *FLAGS, *flags)
    return daemons, [daemon.unix for daemon in daemons]


@pytest.mark.parametrize("program", PROGRAMS)
def test_ranks_in_two_daemons(start_daemon, tmp_path, program):
    """Rank 1 is alone on its daemon and idle. Each daemon is restarted, and then both at once."""
    (daemons, addresses), go_on = start_two(start_daemon, *PATIENT), tmp_path / "go_on"
    go_on.touch()
    wanted = told(start_ranks(addresses, program, go_on))
    go_on.unlink()
    ranks = start_ranks(addresses, program, go_on)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemons[0], 0)
    restart(daemons[0])
    wait_in_collective(daemons[0], 0)
    restart_one_of_several(daemons[1])
    wait_in_collective(daemons[0], 0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(restart_one_of_several, daemons))
    wait_in_collective(daemons[0], 0)
    go_on.touch()
    assert told(ranks) == wanted


def test_a_daemon_that_cannot_answer_for_a_while(start_daemon, tmp_path):
    """Both daemons end at the same moment, and one of them is stopped until the other one waits for its vote."""
    (daemons, addresses), go_on = start_two(start_daemon, *PATIENT), tmp_path / "go_on"
    go_on.touch()
    wanted = told(start_ranks(addresses, "reads", go_on))
    go_on.unlink()
    ranks = start_ranks(addresses, "reads", go_on)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemons[0], 0)
    daemons[1].process.send_signal(signal.SIGSTOP)
    for daemon in daemons:
        daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "event=groups_open" in daemons[0].log, what="the first one waits for a vote")
    daemons[1].process.send_signal(signal.SIGCONT)
    for daemon in daemons:
        assert daemon.process.wait(HANG) == 0, daemon.log
        assert "event=session_lost" not in daemon.log, daemon.log
        daemon.restart()
    wait_in_collective(daemons[0], 0)
    go_on.touch()
    assert told(ranks) == wanted


# Rank R waits before each round i until the file GO_ON.i exists, if i is odd for rank 1, even for rank 0.
TURNS = """
tt.manual_seed(R)
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.ReLU(), tt.nn.Linear(40, 3)),
                                             bucket_cap_mb=0.0005)
step = tt.optim.Adam(net.parameters(), lr=0.05)
for i in range(10):
    if i % 2 == R:
        tt.synchronize()
        print("idles", i, flush=True)
        while not os.path.exists(f"GO_ON.{i}"):
            time.sleep(0.01)
    step.zero_grad()
    data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
    loss = (net(data) - 1).square().mean()
    loss.backward()
    step.step()
    loss.item()
tell([p.detach().numpy().tobytes().hex() for p in net.parameters()])
"""


def test_ten_restarts_in_turn(start_daemon, tmp_path):
    """In each step of a training one rank is late, and one of the daemons is restarted."""
    (daemons, addresses), go_on = start_two(start_daemon, *PATIENT), tmp_path / "go_on"
    files = [tmp_path / f"go_on.{i}" for i in range(10)]
    for file in files:
        file.touch()
    wanted = told(start_ranks(addresses, TURNS, go_on, count=2))
    for file in files:
        file.unlink()
    ranks = start_ranks(addresses, TURNS, go_on, count=2)
    for i, file in enumerate(files):
        wait_line(ranks[i % 2], f"idles {i}")
        wait_in_collective(daemons[1 - i % 2], 1 - i % 2)
        restart_one_of_several(daemons[i // 2 % 2])
        file.touch()
    assert told(ranks) == wanted


def test_a_receive_ends_the_group(start_daemon, tmp_path):
    """No image contains a receive that waits, so the group of a daemon with one ends."""
    (daemons, addresses), go_on = start_two(start_daemon, "--drain", "3"), tmp_path / "go_on"
    ranks = start_ranks(addresses, """
x, text = tt.arange(3.0), ""
if R == 1:
    idle(2)
try:
    dist.send(x, 0) if R == 1 else dist.recv(x, 1)
    x.tolist()
    dist.barrier()
except tt.RankLostError as error:
    text = str(error)
tell(text)
""", go_on, count=2)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemons[0], 0)
    daemons[0].drain()
    daemons[0].restart()
    go_on.touch()
    for (text,) in told(ranks):
        assert "rank 0 has a daemon that shuts down" in text, text


def test_a_full_queue(start_daemon, tmp_path):
    daemon, go_on = start_daemon(*FLAGS, *PATIENT), tmp_path / "go_on"
    go_on.touch()
    wanted = told(start_ranks(daemon.unix, FULL, go_on, count=2))
    go_on.unlink()
    ranks = start_ranks(daemon.unix, FULL, go_on, count=2)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemon, 0)
    wait_asleep(ranks[0])
    restart(daemon)
    go_on.touch()
    assert told(ranks) == wanted


def test_a_rank_that_never_comes(start_daemon, tmp_path):
    """Rank 0 gets the error after the group's timeout, which begins again after the restart."""
    daemon = start_daemon(*FLAGS, "--drain", "6")
    ranks = start_ranks(daemon.unix, """
idle(2)
x = tt.arange(3.0)
try:
    dist.all_reduce(x)
    x.tolist()
except tt.RankLostError as error:
    text = str(error)
tell(text, x.tolist())
""", tmp_path / "never", count=2, timeout=15)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemon, 0)
    restart(daemon)
    (text, x), = told(ranks[:1])
    assert "timeout" in text and "rank 1" in text, text
    assert x == [0.0, 1.0, 2.0]
    ranks[1].kill()
    finish(ranks[1])


def test_an_interrupt_after_the_restart(start_daemon, tmp_path):
    daemon, go_on = start_daemon(*FLAGS, *PATIENT), tmp_path / "go_on"
    ranks = start_ranks(daemon.unix, """
idle(2)
x, text = tt.arange(3.0), ""
try:
    dist.all_reduce(x)
    x += 1
    x.tolist()
except KeyboardInterrupt:
    s.cancel()
except tt.RankLostError as error:
    text = str(error)
tell(text, x.tolist())
""", go_on, count=2)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemon, 0)
    restart(daemon)
    wait_in_collective(daemon, 0)
    wait_asleep(ranks[0])
    ranks[0].send_signal(signal.SIGINT)
    assert told(ranks[:1]) == [["", [0.0, 1.0, 2.0]]]
    go_on.touch()
    (text, x), = told(ranks[1:])
    assert "rank 0 was interrupted" in text and x == [0.0, 1.0, 2.0]


# Each rank tells the error that ended the group, or "", and whether its session still works.
LOSES = """
x, text = tt.arange(3.0) + R, ""
try:
    for i in range(4):
        idle(i)
        dist.all_reduce(x)
        x /= 2
    x.tolist()
except (tt.RankLostError, tt.SessionLostError) as error:
    text = f"{type(error).__name__}: {error}"
try:
    s.clear_errors()
    alive = tt.ones(3).sum().item()
except tt.SessionLostError:
    alive = 0.0
tell(text, alive)
"""


@pytest.mark.parametrize("after", (0, 0.001, 0.003, 0.01, 0.03))
def test_the_other_daemon_is_killed_during_a_drain(start_daemon, tmp_path, after):
    """The daemons vote whether the collective can stay open. If one of them ends in between, the group ends with
    an error that names its rank, and no session of the drained daemon is lost."""
    (daemons, addresses), go_on = start_two(start_daemon, "--drain", "6", "--peer-patience", "1"), tmp_path / "go_on"
    ranks = start_ranks(addresses, LOSES, go_on)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemons[0], 0)
    daemons[0].process.send_signal(signal.SIGTERM)
    time.sleep(after)
    daemons[1].kill()
    assert daemons[0].process.wait(HANG) == 0, daemons[0].log
    assert "event=session_lost" not in daemons[0].log, daemons[0].log
    for daemon in daemons:
        daemon.restart()
    go_on.touch()
    first, second, third = told(ranks)
    for text, alive in (first, third):
        assert text.startswith("RankLostError: ") and "rank 1" in text and alive == 3.0, text
    assert second[0].startswith(("RankLostError: ", "SessionLostError: ")), second


@pytest.mark.parametrize("after", (0, 0.003, 0.03))
def test_the_link_is_cut_during_a_drain(start_daemon, tmp_path, after):
    """The daemons connect again and vote again; the collective stays open with the same results."""
    proxies = []

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    daemons, go_on = start_daemons(start_daemon, 2, *FLAGS, *PATIENT, through=through), tmp_path / "go_on"
    addresses = [daemon.unix for daemon in daemons]
    go_on.touch()
    wanted = told(start_ranks(addresses, "reads", go_on))
    go_on.unlink()
    ranks = start_ranks(addresses, "reads", go_on)
    wait_line(ranks[1], "idles")
    wait_in_collective(daemons[0], 0)
    daemons[0].process.send_signal(signal.SIGTERM)
    time.sleep(after)
    for proxy in proxies:
        proxy.cut()
    assert daemons[0].process.wait(HANG) == 0, daemons[0].log
    assert "event=session_lost" not in daemons[0].log, daemons[0].log
    daemons[0].restart()
    wait_in_collective(daemons[0], 0)
    go_on.touch()
    assert told(ranks) == wanted
    for proxy in proxies:
        proxy.close()
