"""Faults of the box that take long, or need their own daemon (docs/faults.md)."""

import concurrent.futures
import contextlib
import os
import re
import resource
import subprocess
import sys

import grpc
import numpy as np
import pytest
from support.daemon import SANITIZED, resident, wait_until
from support.faults import Faults
from support.http import ask
from support.proxy import Proxy
from support.raw import Raw, messages

pytestmark = pytest.mark.usefixtures("invariants")

MIB = 1 << 20


def test_guessed_handles(start_daemon, tt):
    """Guessed handles, sequential, random, of another session or released: none of them works, and each ends
    only the session of its guesser. A handle is a distance from the next id, so guesses are made as
    distances and as ids."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s, s.as_current():
        held = [tt.full((4,), float(i)) for i in range(100)]
        s.synchronize()
        random = np.random.default_rng(1)
        own, released = 8, 3  # the guesser has ids 1 to 8, of which the third is released
        guesses = [int(g) for g in random.integers(-(1 << 63), 1 << 63, 40)] + list(range(-60, 1))
        guesses += [own + int(g) for g in random.integers(1, 1 << 20, 100)] + [own + g for g in range(1, 60)]
        guesses += [own + 1 - released, *(own + 1 - i for i in range(own + 1, own + 60))]
        with Raw(daemon.unix) as raw:
            for guess in guesses:
                session, program = raw.session(), raw.program_pb
                session.run(*[session.constant([-1.0])] * own, session.fetch(1))
                assert np.frombuffer(session.fetched().data, np.float32).tolist() == [-1.0]
                session.run(session.command(release=program.Release(handles=[own + 1 - released])))
                session.run(session.command(fetch=program.Fetch(handle=guess % (1 << 64))))
                read = []
                with pytest.raises(grpc.RpcError) as refused:
                    while True:
                        read += session.progress().fetched
                assert not read, (guess, read)
                assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), guess
                session.close()
        assert [h[0].item() for h in held] == [float(i) for i in range(100)]


@pytest.mark.skipif(SANITIZED, reason="UBSan looks at an object through a pipe: without one it is none")
def test_no_more_descriptors(start_daemon, tt):
    """Existing sessions continue to work; a new client gets an error or waits, and connects once descriptors
    are free."""
    daemon = start_daemon("--lease", "0")
    with tt.connect(daemon.unix) as s, s.as_current():
        x = tt.ones(10)
        assert x.sum().item() == 10.0
        used = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        room, crowd = 6, [Raw(daemon.unix) for _ in range(20)]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used + room, before[1]))
        came = 0
        for raw in crowd:
            call = raw.channel.unary_unary("/teletensor.v1.Compute/Describe")
            with contextlib.suppress(grpc.RpcError):
                call(b"", timeout=0.5)
                came += 1
        assert came <= room  # each has a descriptor of its own
        assert (x + 1).sum().item() == 20.0
        for raw in crowd:
            raw.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)

        def comes():
            with Raw(daemon.unix) as raw, contextlib.suppress(grpc.RpcError):
                return bool(raw.describe().server_version)
        wait_until(comes, what="room for another")
        assert (x + 2).sum().item() == 30.0


def test_the_system_has_no_memory(start_daemon, tt):
    """The system has less memory than the daemon was configured for: an allocation that does not fit is out
    of memory as if a budget had refused it."""
    daemon = start_daemon("--host-memory", "4GiB")
    large = np.arange(4 << 20, dtype=np.float32)
    with tt.connect(daemon.unix) as session:
        x = tt.ones(1000)
        assert x.sum().item() == 1000.0
        with open(f"/proc/{daemon.pid}/statm", encoding="ascii") as file:
            reserved = int(file.read().split()[0]) * resource.getpagesize()
        before = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (reserved + 24 * MIB, before[1]))
        for _ in range(3):
            for make in (lambda: tt.ones(16 << 20), lambda: tt.tensor(np.zeros(16 << 20, np.float32)),
                         lambda: x.repeat(16 << 10).sort()[0]):
                with pytest.raises(tt.OutOfMemoryError):
                    make()
                    session.synchronize()
            assert (x + 1).sum().item() == 2000.0
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, before)
        np.testing.assert_array_equal((tt.tensor(large) * 2).numpy(), large * 2)


def test_a_thousand_idle_sessions(start_daemon, tt):
    """The cost of each idle session; one session above the maximum is refused, and the rest are not
    affected."""
    most = 1000
    daemon = start_daemon("--max-sessions", str(most + 1), "--user-sessions", "0", "--lease", "600")
    with tt.connect(daemon.unix):
        x = tt.arange(10)
        assert x.sum().item() == 45
        before = resident(daemon.pid)
        for first in range(0, most, 50):
            with Raw(daemon.unix) as raw:
                for number in range(first, first + 50):
                    idle = raw.session(session_name=f"idle-{number}", take_over=True)
                    idle.run(idle.constant([float(number)]), idle.fetch(1))
                    assert np.frombuffer(idle.fetched().data, np.float32) == number
            assert (x * 2).sum().item() == 90
        grown = resident(daemon.pid) - before
        with Raw(daemon.unix) as raw:
            assert len(raw.sessions()) == most + 1
            with pytest.raises(grpc.RpcError) as raised:
                raw.hello(session_name="one more", take_over=True)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert SANITIZED or grown / most < 80 << 10  # 57 KiB were seen
        assert (x * 2).sum().item() == 90


def test_nobody_learns_what_others_have(start_daemon, tt):
    """Equal bytes are sent, stored and counted each time: a client cannot observe whether another session
    already has them."""
    daemon = start_daemon()
    data = np.random.default_rng(3).integers(0, 256, 4 << 20, np.uint8)
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), Raw(daemon.unix) as raw, tt.connect(proxy.address) as first, \
            tt.connect(proxy.address) as second:
        held = []
        for session in (first, second, second):
            sent, used = proxy.sent, sum(raw.used().values())
            with session.as_current():
                held.append(tt.tensor(data))
                session.synchronize()
            assert proxy.sent - sent > data.nbytes
            assert sum(raw.used().values()) - used >= data.nbytes
        for tensor in held:
            np.testing.assert_array_equal(tensor.numpy(), data)


def test_threads_that_write_one_tensor(start_daemon, tt):
    """The threads of a session share one stream: each write happens once, and a gradient uses the values
    with which its forward was computed, whichever thread has written since (docs/differences.md)."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as session:
        w = tt.ones((), dtype=tt.float64)
        w.requires_grad_()
        count = tt.zeros(100, dtype=tt.int64)

        def work(number):
            wrong = 0
            with session.as_current():
                for i in range(100):
                    y = w * w
                    with tt.no_grad():
                        w.add_(0.5)
                        count.add_(1)
                    if i % 10 == number:
                        (gradient,) = tt.autograd.grad(y, w)
                        wrong += gradient.item() ** 2 != 4 * y.item()
            return wrong
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(work, range(4))) == 0
        assert count.tolist() == [400] * 100 and w.item() == 201.0


def sent_by_clients():
    """The messages that a client can send, including the messages in their fields, by name."""
    services = [service for module in messages() for service in module.DESCRIPTOR.services_by_name.values()]
    todo = [method.input_type for service in services for method in service.methods]
    found = {}
    while todo:
        message = todo.pop()
        if message.name not in found:
            found[message.name] = message
            todo += [field.message_type for field in message.fields if field.message_type is not None]
    return found


def test_the_daemon_calls_nobody(start_daemon, tt, tmp_path):
    """No message of a client has a field for an address, and nothing that clients can ask for makes the daemon
    connect to the network."""
    sent = sent_by_clients()
    assert {"HelloRequest", "AttachRequest", "Command", "MoveRequest"} <= sent.keys(), sorted(sent)
    for name, message in sent.items():
        for field in message.fields:
            assert not re.search(r"ur[il]$|hostname|address|endpoint|_path|proxy", field.name), (name, field.name)
    calls = tmp_path / "calls"
    environment = {**Faults(tmp_path).environment, "TT_CALLS": str(calls)}
    daemon = start_daemon("--restart", "60", env=environment)
    with tt.connect(daemon.tcp, name="http://192.0.2.1/name", token=daemon.token) as session:
        x = tt.arange(1 << 20)
        session.keep("http://192.0.2.1/kept", x)
        session.snapshot()
        np.testing.assert_array_equal(x.numpy(), np.arange(1 << 20))
    for path in ("/metrics", "/readyz", "/http://192.0.2.1/", "/?url=http://192.0.2.1/"):
        for headers in ({}, {"Host": "192.0.2.1"}, {"X-Forwarded-Host": "192.0.2.1", "Referer": "http://192.0.2.1/"}):
            ask(daemon.http, path, headers=headers)
    assert not calls.exists()
    host, port = daemon.tcp.split(":")  # would it be noted?
    subprocess.run([sys.executable, "-c", f"import socket; socket.create_connection(({host!r}, {port}))"],
                   env={**os.environ, **environment}, check=True, timeout=60)
    assert calls.read_text(encoding="ascii") == "connect\n"
