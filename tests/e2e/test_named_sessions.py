"""Named sessions: after the restart of a kernel its tensors are still in the session."""

import contextlib
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import grpc
import numpy as np
import pytest
from support.clients import client, finish, wait_line
from support.daemon import HANG, wait_until
from support.raw import SERVICE, Raw


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60")


TRAIN = """
    import teletensor as tt
    def step(w, m):
        x = tt.linspace(-1, 1, 64).reshape(16, 4)
        loss = ((x @ w) ** 2).mean()
        loss.backward()
        with tt.no_grad():
            m.mul_(0.9).add_(w.grad)
            w -= 0.1 * m
            w.grad.zero_()
    def new():
        w = tt.ones(4, 3, requires_grad=True)
        m = tt.zeros(4, 3)
        return w, m
"""


def python(code, daemon, **options):
    return client(textwrap.dedent(TRAIN) + textwrap.dedent(code), daemon.unix, **options)


def test_a_kernel_is_killed_and_the_next_one_goes_on(daemon, tt):
    """Train 10 steps, kill -9, take over, train 10 more: as 20 steps in one process."""
    whole = python("""
        w, m = new()
        for _ in range(20): step(w, m)
        print(w.tolist(), flush=True)
    """, daemon)
    _, wanted, _ = finish(whole)
    first = python("""
        s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp")
        with s.as_current():
            w, m = new()
            s.keep("w", w)
            s.keep("opt", {"m": m})
            for _ in range(10): step(w, m)
            s.synchronize()
            print("half", flush=True)
            time.sleep(600)
    """, daemon)
    wait_line(first, "half")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = python("""
        s2 = tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp", fresh=True)
        with s2:
            kept = s2.kept()
            assert s2.taken_over and sorted(kept) == ["opt/m", "w"], kept
            w, m = kept["w"], kept["opt/m"]
            assert w.requires_grad and w.is_leaf and w.grad is not None
            for _ in range(10): step(w, m)
            print(w.tolist(), flush=True)
    """, daemon)
    status, out, err = finish(second)
    assert status == 0, err
    assert out == wanted
    with Raw(daemon.unix) as raw:
        wait_until(lambda: "exp" not in [s.name for s in raw.sessions()], what="ended")


def test_the_end_of_a_program_detaches_a_named_session(daemon, tt):
    first = python("""
        s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp")
        with s.as_current():
            t = tt.arange(5.0)
            s.keep("t", t)
            other = tt.ones(1000, 1000)
            for _ in range(50): t += 1
    """, daemon)
    assert finish(first)[0] == 0
    with Raw(daemon.unix) as raw:
        wait_until(lambda: [s.attached for s in raw.sessions()] == [False])
        with tt.connect(daemon.unix, name="exp", fresh=True) as s:
            assert s.kept()["t"].tolist() == [50.0, 51.0, 52.0, 53.0, 54.0]
            s.synchronize()
            wait_until(lambda: raw.used()["cpu"] < 4000, what="unnamed tensors gone")
        wait_until(lambda: not raw.sessions())


def test_a_fresh_default_session_replaces_the_earlier_one(daemon):
    code = """
import os
import teletensor as tt
address = os.environ["TT_TEST_ADDRESS"]
a = tt.connect(address, name="exp")
a.keep("t", tt.ones(3))
b = tt.connect(address, name="exp", fresh=True)
assert tt.current_session() is b
assert (tt.ones(2) + 1).sum().item() == 4.0
assert b.kept()["t"].tolist() == [1.0, 1.0, 1.0]
# a default session of another name stays
tt.connect(address, name="other")
c = tt.connect(address, name="other", fresh=True)
assert tt.current_session() is b
c.close()
b.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TT_TEST_ADDRESS": daemon.unix},
                          capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr


def test_views_gradients_and_shared_cells_come_back(daemon, tt):
    a = tt.connect(daemon.unix, name="n")
    with a.as_current():
        base = tt.zeros(4, 6)
        view = base[1:3, ::2]
        leaf = tt.ones(3, requires_grad=True)
        (leaf * 2).sum().backward()
        a.keep("all", {"base": base, "view": view, "t": base.t(), "d": base.detach(),
                       "leaf": leaf, "hidden": tt.arange(10.0)[3:5], "y": leaf * 3})
        a.synchronize()
    with tt.connect(daemon.unix, name="n", fresh=True) as b:
        kept = {n.removeprefix("all/"): t for n, t in b.kept().items()}
        view, base = kept["view"], kept["base"]
        assert view.shape == (2, 3) and view.stride() == (6, 2) and view._base is not None
        with tt.no_grad():
            view += 5.0
        assert base.sum().item() == 30.0
        assert kept["t"].sum().item() == 30.0 and kept["d"].sum().item() == 30.0
        assert kept["hidden"].tolist() == [3.0, 4.0]
        assert kept["leaf"].grad.tolist() == [2.0, 2.0, 2.0]
        assert kept["y"].tolist() == [3.0, 3.0, 3.0] and kept["y"].is_leaf
        (kept["leaf"] * kept["leaf"]).sum().backward()
        assert kept["leaf"].grad.tolist() == [4.0, 4.0, 4.0]
        with pytest.raises(tt.SessionLostError) as lost, a.as_current():
            leaf.exp().tolist()
        assert lost.value.reason == "taken" and "another client" in str(lost.value)
        del kept, view, base
        b.synchronize()
    with contextlib.suppress(tt.SessionLostError):
        a.close()


def test_keep_replaces_and_drops(daemon, tt):
    a = tt.connect(daemon.unix, name="n")
    with a.as_current():
        net = tt.nn.Linear(3, 2)
        tt.keep("net", net)
        tt.keep("one", tt.ones(2))
        tt.keep("one", tt.zeros(2))
        tt.keep("gone", [tt.ones(2), tt.ones(3)])
        tt.keep("gone", None)
        assert sorted(tt.kept()) == ["net/bias", "net/weight", "one"]
        weight = net.weight.tolist()
        with pytest.raises(ValueError, match="printable"):
            tt.keep("a\nb", tt.ones(1))
        with pytest.raises(TypeError):
            tt.keep("x", 3)
    a.detach()
    assert a.closed
    with tt.connect(daemon.unix, name="n", fresh=True) as b:
        assert sorted(b.kept()) == ["net/bias", "net/weight", "one"]
        assert b.kept()["one"].tolist() == [0.0, 0.0]
        fresh = tt.nn.Linear(3, 2)
        fresh.load_state_dict({"weight": b.kept()["net/weight"], "bias": b.kept()["net/bias"]})
        assert fresh.weight.tolist() == weight
    with tt.connect(daemon.unix, name="n", fresh=True) as c:
        assert not c.taken_over and not c.kept()


def test_taken_over_in_the_middle_of_work(daemon, tt):
    """Commands that the old client had sent run to their end; the commands of the new client run after
    them."""
    a = tt.connect(daemon.unix, name="n")
    with a.as_current():
        x = tt.zeros(200_000)
        a.keep("x", x)
        for _ in range(3000):
            x += 1.0
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.sessions()[-1].completed_upto > 100)
    b = tt.connect(daemon.unix, name="n", fresh=True)
    with b:
        y = b.kept()["x"]
        value = y[0].item()
        assert 0 < value <= 3000
        y += 1.0
        assert y[0].item() == value + 1 and y[-1].item() == value + 1
    with contextlib.suppress(tt.SessionLostError):
        a.close()


def test_a_late_error_of_the_old_client_is_told_to_the_new_one(daemon, tt):
    a = tt.connect(daemon.unix, name="n")
    with a.as_current():
        x = tt.zeros(3)
        a.keep("x", x)
        x += 1.0
        x[tt.tensor([9])] = 7.0  # out of range
        x += 1.0
    a.detach()
    with tt.connect(daemon.unix, name="n", fresh=True) as b:
        with pytest.raises(IndexError):
            b.kept()["x"].tolist()
        assert b.kept()["x"].tolist() == [1.0, 1.0, 1.0]


def test_what_the_client_before_has_mapped(daemon, tt):
    """The old process keeps its mapped array as long as it likes; the session gets the memory back when the
    process ends."""
    before = python(
        """
        with tt.connect(os.environ["TT_TEST_ADDRESS"], name="n"):
            seen = tt.full((1 << 20,), 7.0).numpy()
            print("mapped")
            try:
                while True:
                    tt.ones(2).prod().item()
            except tt.SessionLostError:
                print("still", seen.min())
                time.sleep(600)
        """,
        daemon,
    )
    try:
        wait_line(before, "mapped")
        with tt.connect(daemon.unix, name="n", fresh=True) as s:
            wait_line(before, "still 7.0")
            assert s.memory()[0]["used"] >= 4 << 20
            before.kill()
            before.wait()
            wait_until(lambda: s.memory()[0]["used"] == 0, what="its memory is back")
    finally:
        before.kill()
        finish(before)


def test_two_take_it_at_once(daemon, tt):
    """Repeated take-overs: at any moment one client has the session, no client hangs, and the tensor is
    complete."""
    first = tt.connect(daemon.unix, name="n")
    with first.as_current():
        first.keep("x", tt.zeros(10))
        first.synchronize()
    done, errors = [], []

    def fight():
        try:
            for _ in range(10):
                while True:
                    try:
                        s = tt.connect(daemon.unix, name="n", fresh=True)
                        break
                    except tt.RefusedError as refused:
                        assert "just now" in str(refused)
                        time.sleep(0.01)
                try:
                    with s.as_current():
                        x = s.kept()["x"]
                        for _ in range(100):  # frames in flight when the other client connects
                            x += 1.0
                        values = x.tolist()
                        assert values == [values[0]] * 10
                    s.detach()
                except tt.SessionLostError as lost:
                    assert lost.reason in ("taken", "fenced"), lost
                done.append(1)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=fight) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG)
    assert not errors, errors
    assert len(done) == 20
    with tt.connect(daemon.unix, name="n", fresh=True) as last:
        assert sum(last.kept()["x"].tolist()) > 0
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not raw.sessions(), what="never two of one name")


def test_interrupt_from_another_client(daemon, tt):
    running = python("""
        s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="loop")
        with s.as_current():
            from support.busy import occupy
            x = tt.ones(1000, 1000)
            y = occupy(tt)
            print("issued", flush=True)
            try:
                y.sum().item()
                print("whole")
            except tt.InterruptedOpError:
                print("interrupted")
            assert x.sum().item() == 1e6
        s.close()
    """, daemon)
    wait_line(running, "issued")
    with Raw(daemon.unix) as raw:
        wait_until(lambda: any(s.name == "loop" and s.queued > 0 for s in raw.sessions()),
                   what="the loop has come")
    tt.interrupt("loop", daemon.unix)
    status, out, err = finish(running)
    assert status == 0 and "interrupted" in out, (out, err)
    with pytest.raises(RuntimeError, match="no session"):
        tt.interrupt("nothing", daemon.unix)


def test_by_hand(daemon):
    """Hello with take_over: the old token is invalid, and command numbers continue."""
    with Raw(daemon.unix) as raw:
        s = raw.session(session_name="n", take_over=True)
        assert not s.reply.taken_over
        s.run(s.constant([1.0]), s.constant([2.0]))
        keep = raw.program_pb.Command(keep=raw.program_pb.Keep(name="a", handle=1))
        s.run(keep)
        wait_until(lambda: raw.sessions()[0].completed_upto == 3)
        t = raw.session(session_name="n", take_over=True)
        assert t.reply.taken_over and (t.reply.next_seq, t.reply.next_id) == (4, 3)
        assert [(n.name, n.id) for n in t.reply.inventory.names] == [("a", 2)]
        with pytest.raises(grpc.RpcError) as gone:
            raw.upload(s.token, [{"bytes": 4, "data": b"abcd"}])
        assert gone.value.code() == grpc.StatusCode.ABORTED
        with pytest.raises(grpc.RpcError):
            s.attach()
        t.seq, t.next_id = 4, 3
        t.run(t.fetch(2))
        assert np.frombuffer(t.fetched().data, np.float32).tolist() == [2.0]
        u = raw.session(session_name="m", take_over=True)  # another name
        assert not u.reply.taken_over
        assert raw.unary(SERVICE + "Interrupt", raw.session_pb.InterruptRequest(session_name="m"),
                         raw.session_pb.InterruptReply) is not None


def test_nobody_in_particular_takes_nothing(start_daemon, tt):
    """Where every user may connect without a token, names of sessions find nothing."""
    daemon = start_daemon("--lease", "60", anonymous="what callers without a name take over")
    with tt.connect(daemon.tcp, name="mine") as a:
        a.keep("secret", tt.ones(3))
        a.synchronize()
        with tt.connect(daemon.tcp, name="mine", fresh=True) as b:
            assert not b.taken_over and not b.kept()
        with pytest.raises(RuntimeError, match="no session"):
            tt.interrupt("mine", daemon.tcp)
        assert a.kept()["secret"].tolist() == [1.0, 1.0, 1.0]


def test_programs_of_the_client_before_are_gone(daemon, tt):
    """After a take-over the numbers of captured programs begin again."""
    first = client("""
        s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp")
        with s.as_current():
            f = tt.compile(lambda x: x * 3)
            x = tt.ones(2)
            s.keep("x", x)
            print(f(x).tolist(), flush=True)
            time.sleep(600)
    """, daemon.unix)
    wait_line(first, "[3.0, 3.0]")
    first.kill()
    finish(first)
    with tt.connect(daemon.unix, name="exp", fresh=True) as s:
        assert s.taken_over and s.status()["limits"]["programs"]["used"] == 0
        f = tt.compile(lambda x: x * 5)
        assert f(s.kept()["x"]).tolist() == [5.0, 5.0]


def test_a_cell_that_connects_by_name_again_has_the_same_session(daemon, tt, each_transport):
    a = tt.connect(daemon.unix, name="exp")
    with a.as_current():
        x = tt.ones(3)
    for address in (daemon.unix, daemon.socket):
        assert tt.connect(address, name="exp") is a
    assert x.sum().item() == 3.0 and not a.taken_over
    with tt.connect(daemon.unix, name="other") as other, tt.connect(daemon.unix) as unnamed:
        assert len({a.id, other.id, unnamed.id}) == 3
    with tt.connect(daemon.unix, name="exp", fresh=True) as b:
        assert b is not a and b.taken_over and tt.connect(daemon.unix, name="exp") is b
        wait_until(lambda: a.state.startswith("lost"))
        assert "this process, by connecting to it again" in a.state
        with pytest.raises(tt.SessionLostError, match="this process"):
            x.sum().item()
    c = tt.connect(daemon.unix, name="exp")  # a and b are over
    assert c not in (a, b) and not c.taken_over
    c.detach()
    with tt.connect(daemon.unix, name="exp") as d:
        assert d is not c and d.taken_over
    a.close()


def test_threads_that_connect_by_one_name(daemon, tt, each_transport):
    found = []
    threads = [threading.Thread(target=lambda: found.append(tt.connect(daemon.unix, name="exp")))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
    found[0].close()


def test_who_has_taken_a_session_over(daemon, tt, each_transport, monkeypatch):
    a = tt.connect(daemon.unix, name="exp")
    monkeypatch.setenv("JPY_SESSION_NAME", "/a/räumen.ipynb")  # as Jupyter sets it
    other = python('s2 = tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp"); s2.close()', daemon)
    assert finish(other)[0] == 0
    wait_until(lambda: a.state.startswith("lost"))
    with pytest.raises(tt.SessionLostError) as lost, a.as_current():
        tt.ones(2).prod().item()
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert lost.value.reason == "taken"
    assert re.search(rf"taken over the session: {user} on {re.escape(socket.gethostname())}, "
                     rf"pid {other.pid}, räumen.ipynb, at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
                     str(lost.value)), lost.value
    a.close()


@pytest.mark.parametrize("told, shown", [
    ({}, "over the session, at "),
    ({"program": "job"}, "over the session: job, at "),
    ({"user": 'a"\n\x1b[31m' + "b" * 100, "pid": 7}, "over the session: a??" + "?[31m" + "b" * 56 + ", pid 7, at ")])
def test_a_client_that_describes_itself_as_it_likes(daemon, told, shown):
    with Raw(daemon.unix) as raw:
        raw.session(session_name="n", take_over=True, instance_id=b"1" * 16)
        s = raw.session(session_name="m", take_over=True, instance_id=b"1" * 16)
        pb = raw.session_pb
        request = pb.HelloRequest(protocol_min=2, protocol_max=2, instance_id=b"2" * 16, attach_counter=1,
                                  ops=[pb.Op(name="neg", revision=1)], session_name="m", take_over=True,
                                  client=pb.ClientDescription(**told))
        raw.unary(SERVICE + "Hello", request, pb.HelloReply)
        with pytest.raises(grpc.RpcError) as gone:
            s.attach()
        assert shown in gone.value.details(), gone.value.details()
