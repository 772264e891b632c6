"""Limits around a group: memory, descriptors, a jumping system clock, unknown callers, certificates,
programs that start twice."""

import contextlib
import functools
import os
import resource
import socket
import subprocess
import sys
import textwrap

import pytest
from support.clients import client, finish, wait_asleep, wait_line
from support.daemon import wait_until
from support.daemons import start_daemons
from support.faults import Calendar
from support.proxy import Proxy
from support.ranks import BEGIN, groups, start, start_rank, told

pytestmark = pytest.mark.usefixtures("invariants")

DAY = 86400


def addresses(daemons):
    return [daemon.unix for daemon in daemons]


def test_each_allocation_of_a_step_fails(start_daemon):
    """Rank 1 has less memory in each round. If its operand or its result has no room, both ranks raise its
    error, and the next step is right. A step that fails after the last collective is an error of rank 1
    alone."""
    daemons = start_daemons(start_daemon, 2, own=lambda name: ("--session-memory", "8MiB") if name == "b" else ())
    found = told(start(addresses(daemons), 2, """
base = tt.ones(256, 256) * (R + 1)  # 256 KiB
def step():
    y = base.sin() @ base; dist.all_reduce(y)
    z = y.cos() + y; dist.all_reduce(z)
    return z.sum().item()
right, texts = step(), []
for room in range(0, 1600, 100):  # KiB
    try:
        held = tt.zeros((8 << 20) - s.memory()[0]["used"] - room * 1024, dtype=tt.uint8) if R else None
        s.synchronize()
    except tt.OutOfMemoryError:
        s.clear_errors()
    try:
        texts.append("" if step() == right else "WRONG")
    except tt.OutOfMemoryError as e:
        texts.append(str(e))
    s.clear_errors()
    held = None
    again = step()
    if again != right:
        texts[-1] = "WRONG afterwards"
tell(texts)
"""))
    (others,), (own,) = found
    for at_rank_0, text in zip(others, own, strict=True):
        assert "WRONG" not in at_rank_0 + text
        assert not at_rank_0 or (text and "rank 1 in all_reduce(sum, float32[256, 256]) at <string>:" in at_rank_0)
    assert sum(bool(text) for text in others) >= 3 and not own[-1], found


def test_ranks_with_more_than_the_memory(start_daemon, tmp_path):
    """Both ranks have tensors of four times their quota: unused tensors are spilled to the disk, also while
    collectives wait."""
    daemon = start_daemon("--host-memory", "128MiB", "--session-memory", "32MiB", "--disk-memory", "1GiB",
                          "--disk-dir", str(tmp_path / "disk"))
    found = told(start(daemon.unix, 2, """
held = [tt.full((1 << 20,), float(i)) * (R + 1) for i in range(32)]  # 128 MiB
for x in held:
    dist.all_reduce(x)
    x[0].item()  # one is open at a time: what is open stays in memory
tell([(x.min().item(), x.max().item()) for x in held])
"""))
    assert found == [[[[3.0 * i] * 2 for i in range(32)]]] * 2


def test_a_rank_that_runs_ahead_leaves_memory_to_the_others(start_daemon):
    """Rank 0 never waits for a result. Rank 1 begins later, and finds room for its own tensors."""
    daemon = start_daemon("--host-memory", "64MiB")
    found = told(start(daemon.unix, 2, """
if R == 1:
    used, before = s._admin().memory()[0]["used"], None
    while used != before:
        time.sleep(0.3)
        used, before = s._admin().memory()[0]["used"], used
    assert (tt.ones(1 << 22) + 1).sum().item() == 2 << 22
for i in range(100):
    y = tt.full((1 << 18,), float(R))
    dist.all_reduce(y)
tell([y.min().item(), y.max().item()])
"""))
    assert found == [[[1.0, 1.0]]] * 2


def test_sums_have_memory_where_tensors_fill_it(start_daemon, tmp_path):
    """Tensors are spilled only when an instruction lacks room, so the partial sums of a group have separate
    memory."""
    def own(name):
        return "--host-memory", "96MiB", "--disk-memory", "1GiB", "--disk-dir", str(tmp_path / name)
    daemons = start_daemons(start_daemon, 2, own=own)
    found = told(start(addresses(daemons), 2, """
held = [tt.full((1 << 20,), float(i)) * (R + 1) for i in range(40)]  # 160 MiB
seen = []
for i in range(8):
    y = tt.full((1 << 20,), float(i + R))
    dist.all_reduce(y)
    seen.append((y.min().item(), y.max().item()))
    held.append(y)
tell(seen)
"""))
    assert found == [[[[2.0 * i + 1] * 2 for i in range(8)]]] * 2


def test_no_descriptors_are_left(start_daemon):
    """The link is cut, and the connecting daemon has no descriptor for a new connection. It waits, and
    continues later."""
    proxies = []

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    daemons = start_daemons(start_daemon, 2, "--peer-patience", "600", through=through)
    processes = start(addresses(daemons), 2, """
x = tt.ones(3); dist.all_reduce(x)
print("summed", x.tolist(), flush=True)
for i in range(20):
    dist.all_reduce(x)
    x = x / 2 + i
    x.tolist()
    time.sleep(0.05)
tell(x.tolist())
""")
    wait_line(processes[0], "summed")
    soft, hard = resource.prlimit(daemons[0].pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemons[0].pid, resource.RLIMIT_NOFILE, (3, hard))
    for proxy in proxies:
        proxy.cut()
    wait_until(lambda: "event=peer_unreachable" in daemons[0].log, what="a connection fails")
    resource.prlimit(daemons[0].pid, resource.RLIMIT_NOFILE, (soft, hard))
    first, second = told(processes)
    assert first == second
    for proxy in proxies:
        proxy.close()


@pytest.mark.parametrize("jump", (400 * DAY, -3600))
def test_the_calendar_jumps(start_daemon, tmp_path, monkeypatch, jump):
    """The system clock jumps forward and back: no collective times out, no peer is lost, and no store is
    removed."""
    calendar = Calendar(tmp_path)
    daemons = start_daemons(functools.partial(start_daemon, env=calendar.environment), 2)
    monkeypatch.setenv("TELETENSOR_STORE", daemons[0].unix)
    processes = start(addresses(daemons), 2, """
x = tt.ones(3); dist.all_reduce(x)
store = dist.distributed_c10d._get_default_store()
store.set(f"rank {R}", "here")
print("summed", x.tolist(), flush=True)
if R == 1:
    store.wait(["go"])
dist.all_reduce(x)
if R == 0:
    print("waits", flush=True)
    store.set("go", "")
tell(x.tolist(), store.get("rank 0").decode())
""", timeout=3600)
    for process in processes:
        wait_line(process, "summed")
    calendar.jump(jump)
    wait_line(processes[0], "waits")
    assert told(processes) == [[[4.0] * 3, "here"]] * 2
    calendar.jump(0)
    assert all("event=peer_lost" not in daemon.log for daemon in daemons)


def test_a_thousand_groups_leave_nothing(start_daemon):
    daemon = start_daemon()
    found = told(start(daemon.unix, 2, """
def make():
    group = dist.new_group([0, 1])
    x = tt.ones(4); dist.all_reduce(x, group=group)
    assert x.tolist() == [2.0] * 4
    dist.destroy_process_group(group)
for _ in range(20):
    make()
dist.barrier()
before = s.memory()[0]["used"]
for _ in range(1000):
    make()
dist.barrier()
tell(before, s.memory()[0]["used"], len(s._admin().groups()), len(s._before_close))
"""))
    for before, after, listed, kept in found:
        assert after <= before and listed == 1 and kept == 1, found


def test_strangers_at_the_address_of_peers(start_daemon):
    """Bytes that are not HTTP/2, incomplete requests, and many silent connections arrive while a world
    computes."""
    daemons = start_daemons(start_daemon, 2)
    processes = start(addresses(daemons), 2, """
print("here", flush=True)
x = tt.ones(20_000)
for i in range(60):
    dist.all_reduce(x, dist.ReduceOp.AVG)
tell(x.sum().item())
""")
    for process in processes:
        wait_line(process, "here")
    host, port = daemons[1].peers.rsplit(":", 1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for i in range(300):
            stranger = stack.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                stranger.sendall((preface[:i % 25], os.urandom(40), preface + os.urandom(9 + i))[i % 3])
        assert told(processes) == [[20_000.0]] * 2
    assert all("event=peer_lost" not in daemon.log for daemon in daemons)


# ---------------------------------------------------------------- certificates


def issue(folder, *names):
    for name in names:
        subprocess.run([sys.executable, "-m", "teletensor.cli", "cert", "--peer", name, "--output", str(folder)],
                       check=True, capture_output=True, timeout=120)


def test_certificates_that_are_renewed_and_expire(start_daemon, tmp_path):
    """A renewed certificate is used for the next connection. An expired one is refused, and the daemons
    connect again when it is valid."""
    proxies, calendar = [], Calendar(tmp_path)
    issue(tmp_path, "a", "b")

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address

    def own(name):
        return ("--peer-cert", tmp_path / f"{name}.pem", "--peer-key", tmp_path / f"{name}.key",
                "--peer-ca", tmp_path / "ca.pem")
    begin = functools.partial(start_daemon, env=calendar.environment)
    first, second = start_daemons(begin, 2, through=through, own=own)
    code = "x = tt.ones(2) * (R + 1); dist.all_reduce(x); tell(x.tolist())"
    assert told(start([first.unix, second.unix], 2, code)) == [[[3.0, 3.0]]] * 2

    def meet_again():
        times = first.log.count('event=peer_connected peer="b"')
        for proxy in proxies:
            proxy.cut()
        wait_until(lambda: first.log.count('event=peer_connected peer="b"') > times)
    old = (tmp_path / "a.pem").read_bytes()
    for name in ("a", "b"):
        (tmp_path / f"{name}.pem").unlink()
        (tmp_path / f"{name}.key").unlink()
    issue(tmp_path, "a", "b")
    assert (tmp_path / "a.pem").read_bytes() != old
    meet_again()
    assert told(start([first.unix, second.unix], 2, code)) == [[[3.0, 3.0]]] * 2
    calendar.jump(40 * 365 * DAY)
    for proxy in proxies:
        proxy.cut()
    wait_until(lambda: "event=peer_unreachable" in first.log, what="the certificate has expired")
    calendar.jump(0)
    meet_again()
    assert told(start([first.unix, second.unix], 2, code)) == [[[3.0, 3.0]]] * 2
    for proxy in proxies:
        proxy.close()


def test_the_end_of_a_world_is_that_of_its_groups(start_daemon):
    """A session is in 64 groups at most, and the groups of successive worlds have the same names and other ranks."""
    gone = "Invalid process group specified or has been destroyed."
    assert told(start(start_daemon().unix, 3, """
for i in range(40):
    some = dist.new_group([0, 1] if i % 2 else [0, 1, 2])
    halves = dist.new_subgroups(1) if i % 3 else dist.split_group(split_ranks=[[0, 2], [1]])
    x = tt.ones(2)
    if R < 2:
        dist.all_reduce(x, group=some)
        x.tolist() if i % 5 else None
    elif not i % 2:
        dist.all_reduce(x, group=some)
    dist.destroy_process_group()
    dist.init_process_group(rank=R, world_size=N, init_method="tcp://test:1")
try:
    dist.all_reduce(x, group=some)
    text = ""
except ValueError as e:
    text = str(e)
tell(x.tolist(), text, len(s._before_close))
""")) == [[[2.0] * 2, gone, 1]] * 2 + [[[1.0] * 2, "", 1]]  # rank 2 is not in the last group


# ---------------------------------------------------------------- programs that are started twice


def test_a_second_program_of_a_rank_replaces_it(start_daemon):
    """A program is started again while the earlier one waits: the earlier program gets an error, and the new
    world computes."""
    daemon = start_daemon()
    early = start_rank(daemon.unix, 1, 2, "tell(0)")
    wait_until(lambda: groups(daemon), what="the earlier program joins")
    code = "x = tt.ones(2); dist.all_reduce(x); tell(x.tolist())"
    late = start_rank(daemon.unix, 1, 2, code)
    status, _, err = finish(early)
    assert status == 1 and "RankLostError" in err and "rank 1 has been replaced: " in err, err
    assert told([start_rank(daemon.unix, 0, 2, code), late]) == [[[2.0, 2.0]]] * 2


def test_a_rank_is_taken_over_in_the_middle_of_a_collective(start_daemon):
    """The program of a rank is killed while it waits for rank 0, and another program takes the session over
    by its name: the session's tensors remain, and a new world of both ranks computes."""
    daemon = start_daemon("--lease", "60", "--rank-grace", "60")
    begin = """
s.close()
s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="rank 1")
s.__enter__()
"""
    world = textwrap.dedent(BEGIN).format(rank=1, ranks=2, name="test:1", timeout=600)
    first = client(begin + world + """
kept = tt.arange(3.0)
s.keep("kept", kept)
x = tt.ones(2)
dist.all_reduce(x)
print("waits", flush=True)
x.tolist()
""", daemon.unix)
    zero = start_rank(daemon.unix, 0, 2, """
print("here", flush=True)
while not os.path.exists(os.environ["TT_GO"]):
    time.sleep(0.05)
x, text = tt.ones(2), ""
try:
    dist.all_reduce(x); x.tolist()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
dist.destroy_process_group()
dist.init_process_group(rank=R, world_size=N, init_method="tcp://test:2")
y = tt.ones(2); dist.all_reduce(y)
tell(text, y.tolist())
""")
    wait_line(first, "waits")
    wait_asleep(first)
    first.kill()
    finish(first)
    second = client(begin + """
kept = s.kept()["kept"].tolist()
print("taken", kept, flush=True)
""" + textwrap.dedent(BEGIN).format(rank=1, ranks=2, name="test:2", timeout=600) + """
y = tt.ones(2); dist.all_reduce(y)
tell(kept, y.tolist())
""", daemon.unix)
    open(os.environ["TT_GO"], "w").close()  # the session is taken over when its collective has ended
    wait_line(second, "taken")
    (text, values), (kept, same) = told([zero, second])
    assert values == same == [2.0, 2.0] and kept == [0.0, 1.0, 2.0]
    assert text == "" or "rank 1" in text


@pytest.fixture(autouse=True)
def go(tmp_path, monkeypatch):
    monkeypatch.setenv("TT_GO", str(tmp_path / "go"))
