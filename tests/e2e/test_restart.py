"""The daemon is restarted and restores its sessions."""

import contextlib
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
from support.busy import factorize_published, occupy
from support.clients import client, read_line, wait_line
from support.daemon import HANG, wait_until
from support.http import ask
from support.invariants import serves
from support.raw import Raw
from support.training import digest, trainer

pytestmark = pytest.mark.usefixtures("invariants")

FLAGS = ("--lease", "120", "--restart", "60", "--drain", "60")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(*FLAGS)


def test_named_tensors_are_there_after_a_restart(daemon, tt):
    """After a restart views share memory, gradients and flags are kept, a program can be called, and the
    quota is unchanged."""
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        base = tt.arange(12, dtype=tt.float32).reshape(3, 4).clone()
        w = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (w * w).sum().backward()
        s.keep("base", base)
        s.keep("row", base[1])
        s.keep("w", w)
        s.keep("half", tt.tensor([1.5, float("nan"), -0.0], dtype=tt.bfloat16))
        s.keep("big", tt.ones(1000, 1000))
        s.synchronize()
        s.detach()
    daemon.drain()
    files = list(daemon.state.glob("*.session"))
    assert len(files) == 1 and files[0].stat().st_mode & 0o777 == 0o600
    daemon.restart()
    with tt.connect(daemon.unix, name="exp", fresh=True).as_current() as s:
        assert s.taken_over
        kept = s.kept()
        assert kept["base"].tolist() == np.arange(12.0).reshape(3, 4).tolist()
        kept["base"][1, 2] = 50.0
        assert kept["row"].tolist() == [4.0, 5.0, 50.0, 7.0]
        assert kept["w"].requires_grad and kept["w"].grad.tolist() == [2.0, 4.0, 6.0]
        half = kept["half"].to(tt.float32).numpy()
        assert half[0] == 1.5 and np.isnan(half[1]) and np.signbit(half[2])
        assert kept["big"].sum().item() == 1_000_000
        s.close()
    wait_until(lambda: not list(daemon.state.glob("*.session")), what="the file of an ended session")


def test_three_training_clients_do_not_notice(daemon, tmp_path):
    """The daemon is restarted repeatedly while three clients train: the bits of losses and weights equal
    those of uninterrupted runs."""
    rounds, go_on = 400, tmp_path / "go_on"
    wanted = [digest(trainer(daemon, seed, rounds)) for seed in (1, 2, 3)]
    clients = [trainer(daemon, seed, rounds, go_on=go_on) for seed in (1, 2, 3)]
    for process in clients:
        wait_line(process, "begun")
    for _ in range(3):
        daemon.drain()
        assert "event=session_lost" not in daemon.log, daemon.log
        daemon.restart()
        assert "event=session_not_restored" not in daemon.log, daemon.log
    go_on.touch()
    assert [digest(process) for process in clients] == wanted
    assert daemon.log.count("event=session_restored") == 3, daemon.log


def test_a_session_that_is_older_than_its_client_says_so(daemon, tt, monkeypatch):
    """kill -9 after work that the client knows to have happened: an error, never a wrong value."""
    monkeypatch.setenv("TELETENSOR_REPLAY", "0")
    s = tt.connect(daemon.unix, name="exp")
    with s.as_current():
        w = tt.zeros(3)
        s.keep("w", w)
        s.synchronize()
        daemon.drain()
        daemon.restart()
        w += 1.0
        assert w.tolist() == [1.0, 1.0, 1.0]
        daemon.crash()
        with pytest.raises(tt.SessionLostError, match="command") as lost:
            w.sum().item()  # a read that waits
        assert lost.value.reason == "rollback"
    t = tt.connect(daemon.unix, name="exp", fresh=True)
    with t.as_current():
        assert t.taken_over and t.kept()["w"].tolist() == [0.0, 0.0, 0.0]
        t.close()


def test_a_damaged_file_costs_its_session_alone(daemon, tt):
    for name in ("good", "bad"):
        with tt.connect(daemon.unix, name=name).as_current() as s:
            s.keep("w", tt.arange(100_000))
            s.synchronize()
            s.detach()
            if name == "good":
                daemon.drain()
                good = set(daemon.state.glob("*.session"))
                daemon.restart()
    daemon.drain()
    (bad,) = set(daemon.state.glob("*.session")) - good
    data = bytearray(bad.read_bytes())
    data[-200] ^= 1
    bad.write_bytes(data)
    daemon.may_say = ("event=session_not_restored",)
    daemon.restart()
    with pytest.raises(tt.RefusedError, match=re.escape(bad.name) + ".*damaged"):
        tt.connect(daemon.unix, name="bad")
    with tt.connect(daemon.unix, name="good") as s:
        assert s.taken_over and s.kept()["w"][-1].item() == 99_999
        s.close()
    bad.unlink()
    with tt.connect(daemon.unix, name="bad", fresh=True) as s:
        assert not s.taken_over


def test_what_is_not_written_in_time_is_lost_by_name(start_daemon, tt):
    """A second signal ends the wait for running work; idle sessions have been written by then."""
    daemon = start_daemon(*FLAGS[:4], "--drain", "300", "--lanes", "1")
    with tt.connect(daemon.unix, name="rest").as_current() as rest:
        rest.keep("w", tt.ones(10))
        rest.synchronize()
        rest.detach()
    busy = tt.connect(daemon.unix, name="busy")
    with busy.as_current(), Raw(daemon.unix) as raw:
        x = occupy(tt)
        wait_until(lambda: any(s.name == "busy" and s.queued for s in raw.sessions()))
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: 'event=snapshot session="rest"' in daemon.log)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(HANG) == 0
        assert 'event=session_lost session="busy"' in daemon.log
        assert 'session_lost session="rest"' not in daemon.log
        daemon.restart()
        with pytest.raises(tt.SessionLostError):
            x.sum().item()
    with tt.connect(daemon.unix, name="rest", fresh=True) as s:
        assert s.taken_over and s.kept()["w"].tolist() == [1.0] * 10
        s.close()
    with tt.connect(daemon.unix, name="busy", fresh=True) as s:
        assert not s.taken_over


def test_sessions_at_rest_are_written_while_every_lane_is_inside_a_kernel(start_daemon, tt):
    """A factorization cannot be interrupted, and the health probe waits for a lane as well: the daemon waits
    for neither before it writes idle sessions. Readiness is false at once, and the process ends without the
    kernels."""
    daemon = start_daemon(*FLAGS[:4], "--drain", "300", "--lanes", "2")
    with tt.connect(daemon.unix, name="rest").as_current() as rest:
        rest.keep("w", tt.ones(10))
        rest.synchronize()
        rest.detach()
    n = 5000
    busy = [tt.connect(daemon.unix, name=f"busy{i}") for i in range(2)]
    factors = []
    for session in busy:
        with session.as_current():  # a captured function does not wait for its factorization
            factors.append(tt.compile(tt.linalg.svd)(tt.rand(n, n)))

    def inside():
        """Both kernels run: the memory of their results and of LAPACK's workspace is in use."""
        used = {s.name: s.memory[0].used for s in raw.sessions()}
        return all(used[s.name] > 6 * n * n * 4 for s in busy)

    with Raw(daemon.unix) as raw:
        wait_until(inside, what="both lanes are inside LAPACK")
        assert ask(daemon.http, "/readyz").status == 200
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: 'event=snapshot session="rest"' in daemon.log, what="the session at rest is written")
        reply = ask(daemon.http, "/readyz")
        assert reply.status == 503 and "shuts down" in reply.text
        assert not serves(raw)
    assert len(list(daemon.state.glob("*.session"))) == 1
    daemon.process.send_signal(signal.SIGTERM)  # the rest of the 300 s is not waited for
    assert daemon.process.wait(60) == 0
    daemon.restart()
    with tt.connect(daemon.unix, name="rest") as s:
        assert s.taken_over and s.kept()["w"].tolist() == [1.0] * 10
        s.close()
    del factors


def test_a_kernel_on_a_published_tensor_does_not_take_the_time_of_a_shutdown(start_daemon, tt):
    """One session factorizes the published tensor, another one waits to write it. The writer of the files waits
    for them only for a part of the time, so that the other sessions are whole."""
    daemon = start_daemon(*FLAGS[:4], "--drain", "8", "--lanes", "3")
    with contextlib.ExitStack() as sessions:
        busy, writer, reader = (sessions.enter_context(tt.connect(daemon.unix, name=name))
                                for name in ("busy", "writer", "reader"))
        with reader.as_current():
            reader.keep("own", tt.full((3,), 7.0))
        views, held = factorize_published(tt, busy, (writer, reader), 5000)
        with writer.as_current():
            for _ in range(3):
                views[0].mul_(2.0)
        daemon.drain()
        assert "sessions use it, and there is no time left to wait for them" in daemon.log
        daemon.restart()
        assert reader.kept()["own"].tolist() == [7.0] * 3  # the work of the other two had not ended
        del held


def test_an_http_peer_that_trickles_does_not_delay_the_end(start_daemon, tt):
    """An HTTP request without a token whose header lines never end, and one whose answer is never read."""
    daemon = start_daemon(*FLAGS)
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        s.keep("w", tt.ones(10))
        s.synchronize()
        s.detach()
    host, port = daemon.http.split(":")
    lazy = socket.create_connection((host, int(port)))
    lazy.sendall(b"GET /chart.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
    trickling = socket.create_connection((host, int(port)))
    trickling.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    lines = []

    def trickle():
        with contextlib.suppress(OSError):
            while True:
                trickling.sendall(b"X-More: 1\r\n")
                lines.append(1)
                time.sleep(0.05)

    peer = threading.Thread(target=trickle)
    peer.start()
    wait_until(lambda: len(lines) > 3, what="the request is under way")
    daemon.drain()
    peer.join(60)
    assert not peer.is_alive()  # its connection was ended by the daemon
    lazy.close()
    trickling.close()
    assert 'event=snapshot session="exp"' in daemon.log and len(list(daemon.state.glob("*.session"))) == 1
    daemon.restart()
    with tt.connect(daemon.unix, name="exp") as s:
        assert s.taken_over and s.kept()["w"].tolist() == [1.0] * 10
        s.close()


STOPPED = {
    "reading": "ok = all(((x + i).numpy() == i + 1).all() for i in range(100))",
    "downloading": "ok = ((tt.ones(16 << 20) * 3).numpy() == 3).all()",
    "uploading": "ok = tt.tensor(np.full(16 << 20, 2, np.float32)).sum().item() == 1 << 25",
    "computing": "for _ in range(300): x = x * 1.0\nok = x.sum().item() == 8192",
}


@pytest.mark.parametrize("transport", ["native", "grpcio"])
@pytest.mark.parametrize("work", STOPPED.values(), ids=STOPPED)
def test_a_stopped_client_does_not_delay_the_end_and_continues_later(daemon, tt, monkeypatch, work, transport):
    """SIGSTOP reaches the client in the middle of its work, and SIGCONT when the daemon has been restarted."""
    with tt.connect(daemon.unix, name="rest").as_current() as rest:
        rest.keep("w", tt.ones(10))
        rest.synchronize()
        rest.detach()
    monkeypatch.setenv("TELETENSOR_TRANSPORT", transport)
    process = client("x = tt.ones(8192)\nwhile True:\n    " + work.replace("\n", "\n    ") + "\n    print(ok)",
                     daemon.unix)
    try:
        for _ in range(3):
            assert read_line(process) == "True\n"
        process.send_signal(signal.SIGSTOP)
        daemon.drain()
        assert len(list(daemon.state.glob("*.session"))) == 2, daemon.log
        daemon.restart()
        process.send_signal(signal.SIGCONT)
        for _ in range(5):
            assert read_line(process) == "True\n", process.stderr.read()
    finally:
        process.kill()
        process.wait()


def test_the_disk_is_full(start_daemon, tt):
    """Tensors that do not fit are lost individually; the rest is kept."""
    import resource

    daemon = start_daemon(*FLAGS)
    numbers = np.random.default_rng(1).standard_normal(1_000_000, dtype=np.float32)
    for name, data in (("small", numbers[:10]), ("large", numbers)):
        with tt.connect(daemon.unix, name=name).as_current() as s:
            s.keep("w", tt.tensor(data))
            s.synchronize()
            s.detach()
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    daemon.drain()
    assert 'event=tensors_lost session="large"' in daemon.log and "File too large" in daemon.log
    assert "event=session_lost" not in daemon.log
    assert [f.suffix for f in daemon.state.iterdir() if f.name != "lock"] == [".session"] * 2
    daemon.restart()
    with tt.connect(daemon.unix, name="small") as s:
        assert s.taken_over and s.kept()["w"].tolist() == numbers[:10].tolist()
        s.close()
    with tt.connect(daemon.unix, name="large") as s:
        assert s.taken_over
        with pytest.raises(RuntimeError, match="no room for it on the disk"):
            s.kept()["w"].tolist()
        s.close()


def test_a_terminal_that_is_closed(start_daemon, tt):
    """SIGHUP ends the daemon in an orderly way."""
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the daemon would not listen to it
    daemon = start_daemon(*FLAGS[:4])
    signal.signal(signal.SIGHUP, ours)
    with tt.connect(daemon.unix):
        x = tt.arange(1000)
        assert x.sum().item() == 499_500
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.process.wait(HANG) == 0
        daemon.restart()
        assert x.sum().item() == 499_500


def test_shapes_and_dtypes_are_told_after_a_restart(daemon, tt):
    with tt.connect(daemon.unix, name="exp") as s:
        kept = [tt.ones(300, 200), tt.zeros(70, 1000, dtype=tt.int64)]
        s.synchronize()
        daemon.drain()
        daemon.restart()
        found = [(t["shape"], t["dtype"]) for t in s.memory()[0]["tensors"]]
        assert found == [([70, 1000], "int64"), ([300, 200], "float32")]
        del kept
