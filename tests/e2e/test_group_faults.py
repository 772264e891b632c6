"""Faults of distributed training, with the invariants checked on every daemon afterwards: links that are cut
or silent, programs and daemons that are killed or stopped, calls that do not match, interrupts."""

import random
import signal

import pytest
from support.clients import finish, wait_asleep, wait_line, wait_stopped
from support.daemon import wait_until
from support.daemons import start_daemons
from support.proxy import Proxy
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

# A little training; a line for each step.
TRAINING = """
tt.manual_seed(R)
net = tt.nn.parallel.DistributedDataParallel(tt.nn.Sequential(tt.nn.Linear(6, 40), tt.nn.ReLU(), tt.nn.Linear(40, 3)),
                                             bucket_cap_mb=0.0005)
step, text = tt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), ""
try:
    for i in range({steps}):
        step.zero_grad()
        data = tt.arange(8 * 6.0).reshape(8, 6).sin() * (R + 1) + i
        (net(data) - 1).square().mean().backward()
        step.step()
        if {synchronous}:
            net.module[0].weight.sum().item()
            print("step", i, flush=True)
        {then}
    result = [p.detach().numpy().tobytes().hex() for p in net.parameters()]
except tt.RankLostError as e:
    text, result = str(e), []
s.clear_errors()
tell(text, result, tt.ones(3).sum().item())
"""


def training(steps=12, synchronous=False, then="pass"):
    """Starts trainings; `then` is a statement at the end of each step i."""
    return TRAINING.format(steps=steps, synchronous=synchronous, then=then)


def addresses(daemons):
    return [daemon.unix for daemon in daemons]


# ---------------------------------------------------------------- the network


def test_a_link_that_is_cut_at_each_kind_of_byte(start_daemon):
    """The link is cut in the TCP handshake, in a hello, in the headers, texts and data of frames, and
    between them."""
    dice, proxies = random.Random(11), []

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    daemons = start_daemons(start_daemon, 2, through=through)
    code = """
x = tt.arange(30_000.0) * (R + 1)
for i in range(6):
    y = x + i
    dist.all_reduce(y)
tell(y.sum().item())
"""
    wanted = told(start(addresses(daemons), 2, code))
    for low, high in ((1, 400), (400, 3_000), (3_000, 40_000)):
        cuts = [dice.randrange(low, high) for _ in range(8)]

        def draw(cuts=cuts):
            return cuts.pop() if cuts else 1 << 60  # afterwards the connection stays
        proxies[0].cut_each(draw, both=True)
        proxies[0].cut()
        assert told(start(addresses(daemons), 2, code)) == wanted
        proxies[0].cut_each(None)


@pytest.mark.parametrize("back", (True, False))
def test_a_silent_network(start_daemon, tmp_path, back):
    """All packets are dropped. If the network works again within --peer-patience, results are the same;
    otherwise the error names the daemon."""
    proxies, silent = [], tmp_path / "silent"

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    daemons = start_daemons(start_daemon, 2, "--peer-patience", "600" if back else "1", through=through)
    processes = start(addresses(daemons), 2, f"""
x, text = tt.ones(3), ""
dist.all_reduce(x)
print("summed", x.tolist(), flush=True)
while not os.path.exists({str(silent)!r}):
    time.sleep(0.05)
try:
    dist.all_reduce(x)
    values = x.tolist()
except tt.RankLostError as e:
    text, values = str(e), []
s.clear_errors()
tell(text, values, tt.ones(3).sum().item())
""")
    for process in processes:
        wait_line(process, "summed")
    for proxy in proxies:
        proxy.swallow()
    silent.touch()
    if back:
        wait_until(lambda: "event=peer_disconnected" in daemons[0].log, what="gRPC's pings miss the peer")
        for proxy in proxies:
            proxy.restore()
    for rank, (text, values, alive) in enumerate(told(processes)):
        assert alive == 3.0
        if back:
            assert (text, values) == ("", [4.0] * 3)
        else:
            assert f"rank {1 - rank} has lost its daemon" in text and values == [], text
    for proxy in proxies:
        proxy.close()


# ---------------------------------------------------------------- programs and daemons that die or stop


@pytest.mark.parametrize("victim, line", (("program 0", 0), ("program 2", 5), ("daemon a", 3), ("daemon c", 0)))
def test_a_kill_at_some_step(start_daemon, victim, line):
    """The other ranks get an error that names the lost rank; their sessions still work."""
    daemons = start_daemons(start_daemon, 3, "--rank-grace", "0.3", "--peer-patience", "1")
    processes = start(addresses(daemons), 3, training(1_000_000, synchronous=True))
    kind, which = victim.split()
    gone = int(which) if kind == "program" else "abc".index(which)
    wait_line(processes[gone], f"step {line}")
    if kind == "program":
        processes[gone].kill()
    else:
        daemons[gone].kill()
        start_daemon.running.remove(daemons[gone])
        processes[gone].kill()
    finish(processes[gone])
    for text, result, alive in told([p for i, p in enumerate(processes) if i != gone]):
        assert alive == 3.0 and result == []
        why = "has had no client for" if kind == "program" else "has lost its daemon"
        assert f"rank {gone} {why}" in text, text


def test_a_program_that_is_stopped_is_waited_for(start_daemon):
    """SIGSTOP and SIGCONT of a program do not change the bits."""
    daemons = start_daemons(start_daemon, 2)
    wanted = told(start(addresses(daemons), 2, training(15, synchronous=True)))
    stop = "if R == 1 and i == 3: os.kill(os.getpid(), signal.SIGSTOP)"
    processes = start(addresses(daemons), 2, training(15, synchronous=True, then=stop))
    wait_stopped(processes[1])
    wait_asleep(processes[0])
    processes[1].send_signal(signal.SIGCONT)
    assert told(processes) == wanted


def test_a_daemon_that_is_stopped_is_waited_for(start_daemon):
    daemons = start_daemons(start_daemon, 2, "--peer-patience", "600")
    wanted = told(start(addresses(daemons), 2, training(15, synchronous=True)))
    stop = f"if R == 1 and i == 3: os.kill({daemons[1].pid}, signal.SIGSTOP)"
    processes = start(addresses(daemons), 2, training(15, synchronous=True, then=stop))
    wait_stopped(daemons[1])
    wait_asleep(processes[0])
    daemons[1].process.send_signal(signal.SIGCONT)
    assert told(processes) == wanted


# ---------------------------------------------------------------- other calls on other ranks


SUM = "dist.all_reduce(tt.ones(2))"
# For each kind of mismatch: the call of rank 0, the call of rank 1, and words of the error for both.
MISMATCHES = {
    "op": (SUM, "dist.broadcast(tt.ones(2), src=0)", "all_reduce(sum, float32[2])", "broadcast("),
    "dtype": (SUM, "dist.all_reduce(tt.ones(2, dtype=tt.float64))", "float32[2]", "float64[2]"),
    "shape": (SUM, "dist.all_reduce(tt.ones(3))", "float32[2]", "float32[3]"),
    "root": ("dist.broadcast(tt.ones(2), src=0)", "dist.broadcast(tt.ones(2), src=1)", "src=0", "src=1"),
    "reduction": (SUM, "dist.all_reduce(tt.ones(2), dist.ReduceOp.AVG)", "sum", "avg"),
    "length": ("dist.reduce_scatter_tensor(tt.ones(2), tt.ones(4))",
               "dist.reduce_scatter_tensor(tt.ones(3), tt.ones(6))", "sizes=[2, 2]", "sizes=[3, 3]"),
    "sizes": ("dist.all_to_all_single(tt.ones(3), tt.ones(4), [1, 2], [2, 2])",
              "dist.all_to_all_single(tt.ones(4), tt.ones(4), [2, 2], [2, 2])",
              "receives=[1, 2]", "sends=[2, 2]"),
}


@pytest.mark.parametrize("daemons", (1, 2))
def test_calls_that_do_not_fit_together(start_daemon, daemons):
    """Each mismatch is one error on both ranks, with both calls; nothing else is lost."""
    started = start_daemons(start_daemon, daemons) if daemons > 1 else [start_daemon()]
    found = told(start(addresses(started), 2, f"""
texts = []
for lines in {[list(pair[:2]) for pair in MISMATCHES.values()]!r}:
    try:
        exec(lines[R])
        s.synchronize()
        texts.append("nothing")
    except RuntimeError as e:
        texts.append(str(e))
    s.clear_errors()
    y = tt.ones(3)
    dist.all_reduce(y)
    if y.tolist() != [2.0] * 3:
        texts[-1] += " LOST"
tell(texts)
"""))
    for (texts,) in found:
        for name, text in zip(MISMATCHES, texts, strict=True):
            first, second = MISMATCHES[name][2:]
            assert "rank 0 is in" in text and ", rank 1 in" in text and "LOST" not in text, (name, text)
            assert first in text and second in text, (name, text)


def test_two_ranks_of_a_daemon_come_after_another_call_of_another_daemon(start_daemon, monkeypatch):
    """The daemon has to drop the operands that its ranks have deposited, at the moment when it begins to add
    them."""
    first, second = start_daemons(start_daemon, 2)
    monkeypatch.setenv("TELETENSOR_STORE", first.unix)
    for _ in range(3):
        processes = start([first.unix, first.unix, second.unix], 3, """
x, y = tt.ones(3000), tt.ones(1)
dist.barrier()
store = dist.distributed_c10d._get_default_store()
if R == 2:
    dist.broadcast(x, src=2)
    store.set("rank 2", "has called")
else:
    store.wait(["rank 2"])
    dist.all_reduce(x)
try:
    s.synchronize(); text = "nothing"
except RuntimeError as e:
    text = str(e)
s.clear_errors()
dist.all_reduce(y)
tell(text, y.tolist())
""")
        for text, values in told(processes):
            assert "rank 2 in broadcast(src=2, float32[3000])" in text and values == [3.0], text


def test_groups_in_another_order_and_a_call_too_many(start_daemon):
    """A different order of groups is no error. A call that the other rank does not make ends by its
    timeout."""
    found = told(start(start_daemon().unix, 2, """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
dist.barrier()
alone = dist.new_group([0, 1], timeout=5)  # which both have to join within that time
x, y, text = tt.ones(2), tt.ones(2), ""
for group, z in ((first, x), (second, y)) if R else ((second, y), (first, x)):
    dist.all_reduce(z, group=group)
x.tolist(), y.tolist()
try:
    if R == 0:
        dist.all_reduce(x, group=alone); x.tolist()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
dist.all_reduce(y)
tell(text, x.tolist(), y.tolist())
"""))
    assert "timeout in " in found[0][0] and "rank 1" in found[0][0], found
    assert [rest for _, *rest in found] == [[[2.0] * 2, [4.0] * 2]] * 2 and found[1][0] == ""


def test_a_changed_timeout_holds_for_later_collectives(start_daemon):
    """The timeout of the world becomes shorter, that of a group longer than rank 1 needs to call."""
    found = told(start(start_daemon().unix, 2, """
import datetime, warnings
patient = dist.new_group([0, 1], timeout=60)
dist.barrier(group=patient)
patient.set_timeout(0.5)
dist.set_timeout(600, patient)
x, y, text = tt.ones(2), tt.ones(2), ""
if R == 1:
    time.sleep(2)
dist.all_reduce(x, group=patient); x.tolist()
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))
try:
    if R == 0:
        dist.all_reduce(y); y.tolist()
except tt.RankLostError as e:
    text = str(e)
s.clear_errors()
dist.barrier(group=patient)
tell(text, x.tolist(), y.tolist(), [each.category.__name__ for each in warned])
"""))
    assert "timeout in all_reduce" in found[0][0] and "rank 1" in found[0][0] and found[1][0] == "", found
    assert [rest for _, *rest in found] == [[[2.0] * 2, [1.0] * 2, ["FutureWarning"]]] * 2


# ---------------------------------------------------------------- interrupts

STAGES = {
    "a group that forms": "dist.new_group([0, 1]) if R == 1 else time.sleep(600); dist.all_reduce(x); x.tolist()",
    "a barrier": "dist.barrier() if R == 1 else time.sleep(600)",
    "a receive": "(dist.recv(x, 0), x.tolist()) if R == 1 else time.sleep(600)",
    "objects": "dist.all_gather_object([None] * 2, 1) if R == 1 else time.sleep(600)",
    "a chain": "[dist.all_reduce(x) for _ in range(50)] if R == 1 else time.sleep(600); x.tolist()",
}


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_in(start_daemon, stage):
    """The line ends with KeyboardInterrupt; the session and its tensors remain, and the other rank gets an
    error."""
    daemons = start_daemons(start_daemon, 2)
    processes = start(addresses(daemons), 2, f"""
kept, x = tt.arange(3.0), tt.ones(2)
dist.barrier()
print("here", flush=True)
try:
    {STAGES[stage]}
    text = "nothing"
except KeyboardInterrupt:
    s.cancel()
    text = "interrupted"
tell(text, kept.tolist())
""")
    for process in processes:
        wait_line(process, "here")
    wait_asleep(processes[1])
    processes[1].send_signal(signal.SIGINT)
    assert told(processes[1:]) == [["interrupted", [0.0, 1.0, 2.0]]]
    wait_asleep(processes[0])
    processes[0].send_signal(signal.SIGINT)
    assert told(processes[:1]) == [["interrupted", [0.0, 1.0, 2.0]]]
