"""Attacks by users with a session who compute, publish, snapshot, stop and die. Each function attacks a daemon
once, calls served() in the middle, and asserts what must hold."""

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import grpc
import numpy as np
from support.clients import client, wait_line
from support.daemon import resident, wait_until
from support.http import ask
from support.raw import Raw

from attacks.errors import ErrorFlood
from attacks.http import ATTACKS as HTTP_ATTACKS, AttackOfAnotherProcess
from attacks.streams import SilentUploads

MIB = 1 << 20
HOSTILE = (0, 1, -1, 2, 2**31, 2**33, 2**61, 2**63 - 1, -2**63)


def random_calls(daemon, served):
    """300 sessions send commands with random ops, operands, attributes and flags. Each command runs or is
    refused, at the cost of its own session; what still runs ends with its session."""
    dice = random.Random(2)
    ran = 0
    with Raw(daemon.unix) as raw:
        ops = [op.name for op in raw.describe().ops]
        assert len(ops) > 300

        def command(session):
            return session.command(
                op=dice.randrange(1, len(ops) + 1), inplace=dice.random() < 0.2, record=dice.random() < 0.2,
                arguments=[2 * dice.randrange(1, 5) for _ in range(dice.randrange(1, 3))],
                attributes=[dice.randrange(64) for _ in range(max(0, dice.randrange(-4, 4)))],
                integers=[dice.choice(HOSTILE) for _ in range(dice.randrange(4))])

        for _ in range(10):
            sessions = [raw.session(ops=ops, session_name=f"random{i}") for i in range(30)]
            for session in sessions:
                session.run(*[session.constant(np.ones(shape)) for shape in ((3, 4), (4,), (1,), (0, 4))])
                session.run(command(session))
            served()
            left = [session for session in raw.sessions() if session.name.startswith("random")]
            ran += sum(session.completed_upto == 5 for session in left)
            for session in left:
                raw.kill(session.id)
            for session in sessions:
                session.close()
    assert 0 < ran < 300  # fuzz/kernel_fuzz.cc runs each op


def published_under_svd(daemon, served):
    """A session factorizes a published tensor while another one writes to it: no lane waits for a lock."""
    import teletensor as tt

    values = np.random.default_rng(0).standard_normal((900, 900)).astype(np.float32)
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(tt.connect(daemon.unix))) for _ in range(3)]
        with sessions[0].as_current():
            w = tt.tensor(values)
            tt.publish("attacked", w, writable=True)
            sessions[0].synchronize()
        stop = threading.Event()

        def act(session, step):
            with session.as_current():
                v = tt.published("attacked")
                while not stop.is_set():
                    step(v)

        def factorize(v):
            tt.linalg.svdvals(v).sum().item()

        def write(v):
            v.mul_(2.0)
            v.mul_(0.5).sum().item()

        with ThreadPoolExecutor() as pool:
            work = [pool.submit(act, *each) for each in ((sessions[1], factorize), (sessions[2], write))]
            try:
                served()
                served()
            finally:
                stop.set()
            for each in work:
                each.result()
        with sessions[0].as_current():
            assert (w.numpy() == values).all()
            tt.publish("attacked", None)
            sessions[0].synchronize()


def long_programs(daemon, served):
    """Thirteen functions of 10,000 steps, in a session with 64 MiB: they are charged to it, or refused, and
    take a bounded part of the daemon's memory."""
    import teletensor as tt

    def made(i):
        def f(x):
            for _ in range(10_000):
                x = x * (i + 2.0)
            return x
        return tt.compile(f)

    before = resident(daemon.pid)
    with closing(tt.connect(daemon.unix, memory=64 * MIB)) as session, session.as_current():
        x = tt.ones(4)
        try:
            for i in range(13):
                f = made(i)
                f(x)
                f(x).tolist()
        except (tt.OutOfMemoryError, RuntimeError) as error:
            print(f"refused: {str(error).splitlines()[0]}")
        served()
        assert resident(daemon.pid) - before < 512 * MIB


def error_flood(daemon, served):
    """100,000 failures that the program does not raise: each is reported, and memory is bounded (the test's bound)."""
    with ErrorFlood(daemon.unix) as flood:
        flood.flood(100_000)
        served()
        assert flood.errors >= 100_000


def snapshots_without_end(daemon, served):
    """Eight sessions ask for snapshots without end, and 2,000 calls arrive at once on one session. The calls
    beyond 256 are refused, the others are answered."""
    import teletensor as tt

    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(tt.connect(daemon.unix))) for _ in range(8)]
        stop = threading.Event()

        def loop(session):
            while not stop.is_set():
                session.snapshot()

        with ThreadPoolExecutor() as pool, Raw(daemon.unix) as raw:
            loops = [pool.submit(loop, session) for session in sessions]
            pb = raw.admin_pb
            call = raw.channel.unary_unary("/teletensor.v1.Admin/Snapshot", pb.SnapshotRequest.SerializeToString,
                                           pb.SnapshotReply.FromString)
            calls = [call.future(pb.SnapshotRequest(session=sessions[0].id), timeout=240) for _ in range(2000)]
            try:
                served()
                codes = [each.code() for each in calls]
            finally:
                stop.set()
            for each in loops:
                each.result()
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert codes.count(grpc.StatusCode.OK) >= 1


def silent_uploads(daemon, served):
    """1,100 uploads of one user that send nothing hold the user's share of the streams only."""
    with SilentUploads(daemon.tcp, daemon.token) as attack:
        served()
        wait_until(lambda: len(attack.refusals) >= attack.calls - 1024, what="all calls have arrived")
        served()


def runs_without_reading(daemon, served):
    """20 sessions fetch 2,000 values of 4 KB each and read none: the daemon holds a bounded part of them."""
    before = resident(daemon.pid)
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(daemon.unix)) for _ in range(4)]
        sessions = [raw.session() for raw in raws for _ in range(5)]
        for session in sessions:
            session.run(session.constant(np.ones(1000)))
            for _ in range(100):
                session.run(*[session.fetch(1)] * 20)
        served()
        assert resident(daemon.pid) - before < 20 * 16 * MIB + 420 * MIB
        for session in sessions:
            session.end()


def clients_that_die(daemon, served):
    """Three times three processes with four sessions each compute, upload and publish, and are killed. Their
    sessions, memory and descriptors are back afterwards, which the invariants check."""
    work = """
        sessions = [tt.connect(os.environ["TT_TEST_ADDRESS"]) for _ in range(3)]
        held = []
        for each in sessions:
            with each.as_current():
                held.append(tt.ones(500, 500))
        print("at work", flush=True)
        while True:
            for each in sessions:
                with each.as_current():
                    held.append(tt.tensor(np.ones(300_000, np.float32)) @ tt.ones(300_000))
    """
    for _ in range(3):
        processes = [client(work, daemon.unix) for _ in range(3)]
        try:
            for process in processes:
                wait_line(process, "at work")
            served()
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def a_stopped_client(daemon, served):
    """A process that maps a large array is stopped: other sessions are not delayed."""
    process = client("""
        x = tt.tensor(np.ones(20_000_000, np.float32))
        print("maps", x.sum().item(), flush=True)
        while True:
            (x + 1).numpy()
    """, daemon.unix)
    try:
        wait_line(process, "maps")
        process.send_signal(signal.SIGSTOP)
        served()
    finally:
        process.kill()
        process.communicate()


def http_storms(daemon, served):
    """Each attack of attacks/http.py: monitors are served, and memory is bounded."""
    before = resident(daemon.pid)
    for name in HTTP_ATTACKS:
        with AttackOfAnotherProcess(daemon.http, name, "127.0.0.1") as attack:
            wait_until(lambda attack=attack: attack.pieces > 0, what="the attack has begun")
            served()
            assert ask(daemon.http, "/readyz").status == 200, name
            assert resident(daemon.pid) - before < 512 * MIB, name


ATTACKS = (random_calls, published_under_svd, long_programs, error_flood, snapshots_without_end, silent_uploads,
           runs_without_reading, clients_that_die, a_stopped_client, http_storms)
