"""Published tensors: visibility to other sessions, permissions and accounting."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.daemon import wait_until

FLOAT32 = 9  # of program.proto's DType


@pytest.fixture
def pair(shared_daemon):
    """(tt, the publisher's session, another session of the same user)."""
    import teletensor as tt

    with tt.connect(shared_daemon.unix) as a, tt.connect(shared_daemon.unix) as b:
        yield tt, a, b


def used(session):
    return session.memory()[0]["used"]


def test_what_either_writes_the_other_sees(pair):
    tt, a, b = pair
    with a.as_current():
        w = tt.arange(6.0).reshape(2, 3)
        tt.publish("w", w, writable=True)
    with b.as_current():
        v = tt.published("w")
        assert v.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] and v.is_leaf and not v.requires_grad
        v[1].mul_(10)
        v.t()[0].add_(1)
        b.synchronize()
    assert w.tolist() == [[1.0, 1.0, 2.0], [31.0, 40.0, 50.0]]
    with a.as_current():
        w.copy_(tt.zeros(2, 3))
        w.clamp_(min=0.5)
        tt.cumsum(w, 1, out=w)
        a.synchronize()
    assert v.tolist() == [[0.5, 1.0, 1.5]] * 2


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_no_update_is_lost(pair, device):
    """Each instruction on a published tensor is atomic: two sessions that add at the same time give the
    right sum."""
    tt, a, b = pair
    n = 400
    with a.as_current():
        w = tt.zeros(70_000, device=device)
        tt.publish("count", w, writable=True)
    with b.as_current():
        v = tt.published("count")

    def count(session, x):
        with session.as_current():
            for _ in range(n):
                x += 1
            session.synchronize()

    threads = [threading.Thread(target=count, args=args) for args in ((a, w), (b, v))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (w.numpy() == 2 * n).all() and (v.numpy() == 2 * n).all()


def test_a_read_is_one_state_of_the_tensor(pair):
    """While another session writes whole states, every value read is one of them."""
    tt, a, b = pair
    with a.as_current():
        w = tt.zeros(200_000)
        tt.publish("state", w, writable=True)
    with b.as_current():
        v = tt.published("state")
    stop = threading.Event()

    def write():
        with b.as_current():
            while not stop.is_set():
                v.add_(1)
                b.synchronize()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            got = w.numpy()
            assert (got == got[0]).all()
    finally:
        stop.set()
        writer.join()


def test_a_long_kernel_on_a_published_tensor_stops_no_lane(start_daemon, tt):
    """While one session factorizes the tensor on one of two lanes, and another one waits to write it, a
    third one computes, reads the tensor's list and reads a tensor of its own."""
    daemon = start_daemon("--lanes", "2")
    n, ended, reads = 1200, threading.Event(), 0
    values = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    with tt.connect(daemon.unix) as a, tt.connect(daemon.unix) as b, tt.connect(daemon.unix) as c:
        with a.as_current():
            w = tt.tensor(values)
            tt.publish("w", w, writable=True)
        with b.as_current():
            v = tt.published("w")
        singular = []

        def factorize():
            with a.as_current():
                singular.append(tt.linalg.svdvals(w).numpy())
            ended.set()

        def write():
            with b.as_current():
                while not ended.is_set():
                    for factor in (2, 0.5):
                        v.mul_(factor)
                        b.synchronize()

        with c.as_current():
            x = tt.ones(3)
            threads = [threading.Thread(target=each) for each in (write, factorize)]
            for thread in threads:
                thread.start()
            while not ended.is_set():
                assert (x + 1).sum().item() == 6.0
                reads += 1
        for thread in threads:
            thread.join()
    assert reads > 20, reads  # a kernel that stops the lanes permits a few before and after it
    expected = np.linalg.svd(values.astype(np.float64), compute_uv=False)
    factor = round(singular[0][0] / expected[0])  # one of the two states
    assert factor in (1, 2)
    np.testing.assert_allclose(singular[0], expected * factor, rtol=1e-3, atol=1e-2)


def test_read_only(pair):
    tt, a, b = pair
    with a.as_current():
        w = tt.ones(3)
        tt.publish("fixed", w)
    with b.as_current():
        v = tt.published("fixed")
        for write in (lambda: v.add_(1), lambda: v[0].zero_(), lambda: v.detach().fill_(2),
                      lambda: tt.nn.init.zeros_(v), lambda: setattr(tt.zeros(3), "grad", v)):
            with pytest.raises(RuntimeError, match="read-only"):
                write()
        with pytest.raises(RuntimeError, match="read-only"):
            tt.publish("again", v)

        @tt.compile
        def step(x):
            x.add_(1)
            return x.sum()

        with pytest.raises(RuntimeError, match="read-only"):
            step(v)
        assert (v * 2).tolist() == [2.0] * 3  # the session continues
    with a.as_current():
        w += 1  # the publisher may
        a.synchronize()
    assert v.tolist() == [2.0] * 3


def test_freed_with_its_last_holder(start_daemon):
    import teletensor as tt

    daemon = start_daemon()

    def device_used():
        with tt.connect(daemon.unix) as probe, probe:
            return probe.memory()[0]["device_used"]

    size = 4 << 20
    with tt.connect(daemon.unix) as b:
        with tt.connect(daemon.unix) as a:
            with a.as_current():
                w = tt.full((size // 4,), 3.0)
                tt.publish("w", w, writable=True)
            before = used(b)
            with b.as_current():
                v = tt.published("w")
                again = tt.published("w")
            assert used(b) == before, "charged once, to the publisher"
            assert used(a) >= size
        # The publisher has ended; the tensor and its name stay while a session uses the tensor.
        with b.as_current():
            v += 1
            assert again[0].item() == 4.0
            third = tt.published("w")
            assert third[-1].item() == 4.0
            assert device_used() >= size
            del v, again, third
            b.synchronize()
            wait_until(lambda: device_used() < size, what="its memory is back")
            with pytest.raises(KeyError, match="'w'"):
                tt.published("w")


def test_a_published_temporary_stays_until_it_is_withdrawn(pair):
    tt, a, b = pair
    with a.as_current():
        tt.publish("temporary", tt.ones(2) * 3)
        p = tt.nn.Parameter(tt.zeros(3))
        tt.publish("parameter", p)
        p.data = tt.ones(3)  # the name stays with the memory that was published
        del p
        a.synchronize()
    with b.as_current():
        for _ in range(2):  # no other session holds it in between
            assert tt.published("temporary").tolist() == [3.0, 3.0]
            assert tt.published("parameter").tolist() == [0.0] * 3
            b.synchronize()
    with a.as_current():
        tt.publish("temporary", tt.ones(1))  # the earlier tensor goes, this one stays
        assert tt.published("temporary").tolist() == [1.0]
        tt.publish("temporary", None)
        tt.publish("parameter", None)
    with b.as_current():
        for name in ("temporary", "parameter"):
            with pytest.raises(KeyError):
                tt.published(name)


def test_a_withdrawn_or_refused_tensor_is_not_held(pair):
    tt, a, b = pair
    size = 4 << 20
    with a.as_current():
        tt.publish("big", tt.zeros(size // 4))
        assert used(a) >= size
        tt.publish("big", tt.zeros(1))
        assert used(a) < size
        tt.publish("big", tt.zeros(size // 4))
        tt.publish("big", None)
        assert used(a) < size
        tt.publish("big", tt.zeros(1))
    with b.as_current():
        with pytest.raises(RuntimeError, match="another session of"):
            tt.publish("big", tt.zeros(size // 4))
        assert used(b) < size


@pytest.mark.parametrize("refused", ["by the client", "by the daemon"])
def test_several_are_published_all_or_none(pair, refused):
    tt, a, b = pair
    with b.as_current():
        tt.publish("part/taken", tt.zeros(1))
    with a.as_current():
        earlier, changed = tt.ones(2), tt.ones(3)
        tt.publish("part/first", earlier, writable=True, users=["bob"])
        by_client = refused == "by the client"
        bad = tt.ones(4, 4)[1:] if by_client else tt.ones(1)
        with pytest.raises(RuntimeError, match="part of another" if by_client else "another session of"):
            tt.publish("part", {"first": changed, "second": changed, "taken": bad, "fourth": tt.ones(5)})
        a.synchronize()  # the error was raised once
        assert a.errors() == []
        rows = {row["name"]: row for row in tt.published() if row["name"].startswith("part/")}
        assert sorted(rows) == ["part/first", "part/taken"]
        assert rows["part/first"]["users"] == ["bob"] and rows["part/first"]["writable"]
        with pytest.raises(KeyError):
            tt.publish("part/second", None)
    with b.as_current():
        seen = tt.published("part/first")
        seen += 1
        b.synchronize()
        assert tt.published("part/taken").tolist() == [0.0]
        tt.publish("part/taken", None)
    assert earlier.tolist() == [2.0, 2.0] and changed.tolist() == [1.0] * 3
    with a.as_current():
        tt.publish("part", {"first": changed, "second": changed})  # the names are free for it
        assert sorted(tt.published("part")) == ["first", "second"]
        tt.publish("part", None)


def test_an_error_of_an_earlier_line_publishes_nothing(pair):
    tt, a, b = pair
    with a.as_current():
        x = tt.ones(2, 2)
        tt.index_select(x, 0, tt.tensor([7]))
        with pytest.raises(IndexError):
            tt.publish("some", {"x": x})
        assert "some/x" not in {row["name"] for row in tt.published()}
        tt.publish("some", {"x": x})
        tt.publish("some", None)


def test_the_list(pair):
    tt, a, b = pair
    with a.as_current():
        tt.publish("list/x", tt.zeros(2, 3, dtype=tt.bfloat16), users=["bob", "carol"], writable=True)
        tt.publish("list/y", tt.tensor(1))
    with b.as_current():
        rows = {row["name"]: row for row in tt.published() if row["name"].startswith("list/")}
    x, y = rows["list/x"], rows["list/y"]
    assert x["dtype"] is tt.bfloat16 and x["shape"] == (2, 3) and x["device"] == "cpu" and x["bytes"] == 12
    assert x["users"] == ["bob", "carol"] and x["writable"] and x["user"] == y["user"] != ""
    assert y["dtype"] is tt.int64 and y["shape"] == () and y["users"] == [] and not y["writable"]
    with a.as_current():
        tt.publish("list", None)
        assert not [row for row in a.published() if row["name"].startswith("list/")]


def test_names(pair, start_daemon):
    tt, a, b = pair
    with a.as_current():
        w, u = tt.ones(2), tt.zeros(2)
        tt.publish("n", w)
        tt.publish("n", u)  # the same session: another tensor takes the name
        assert tt.published("n").tolist() == [0.0, 0.0]
    with b.as_current():
        mine = tt.ones(1)
        with pytest.raises(RuntimeError, match="another session of"):
            tt.publish("n", mine)
        mine += 1  # nothing has happened to it
        assert mine.tolist() == [2.0]
        held = tt.published("n")
    with a.as_current():
        tt.publish("n", None)
        with pytest.raises(KeyError):
            tt.published("n")
        with pytest.raises(KeyError):
            tt.publish("n", None)
    assert held.tolist() == [0.0, 0.0]
    with b.as_current():
        tt.publish("n", mine)  # the name is free
        model = tt.nn.Linear(2, 1)
        tt.publish("model", model, writable=True)
    with a.as_current():
        found = tt.published("model")
        assert sorted(found) == ["bias", "weight"] and tuple(found["weight"].shape) == (1, 2)
        with pytest.raises(RuntimeError, match="part of another"):
            tt.publish("view", tt.ones(4, 4)[1:])
        with pytest.raises(TypeError):
            tt.publish("what", 3)
        for bad in ("", "x" * 201, "a\n"):
            with pytest.raises(ValueError):
                tt.publish(bad, w)


def test_a_failed_write_did_not_happen(pair):
    """The write fails before its first store, only in the session that issued it; other sessions see no
    error."""
    tt, a, b = pair
    with a.as_current():
        w = tt.arange(4)
        tt.publish("ints", w, writable=True)
    with b.as_current():
        v = tt.published("ints")
        v.add_(1)
        v.floor_divide_(tt.tensor([1, 1, 0, 1]))  # by zero
        v.add_(100)  # depends on it
        with pytest.raises(RuntimeError, match="zero"):
            b.synchronize()
    assert w.tolist() == [1, 2, 3, 4]
    with a.as_current():
        w.mul_(2)
        a.synchronize()
    with b.as_current():
        assert v.tolist() == [2, 4, 6, 8]  # the undone write leaves the tensor as it is now
        v.add_(1)
        b.synchronize()
    assert w.tolist() == [3, 5, 7, 9]


def test_a_killed_client_leaves_it_whole(start_daemon):
    import teletensor as tt
    from support.clients import client, wait_line

    daemon = start_daemon("--lease", "0")
    with tt.connect(daemon.unix):
        w = tt.zeros(100_000)
        tt.publish("w", w, writable=True)
        for _ in range(3):
            other = client("""
                w = tt.published("w")
                print("begun", flush=True)
                while True:
                    w += 1
            """, daemon.unix)
            wait_line(other, "begun")
            other.kill()
            other.communicate()
            got = w.numpy()
            assert (got == got[0]).all()
        wait_until(lambda: len(sessions(daemon)) == 1, what="the killed clients' sessions end")
        w.zero_()
        assert w.sum().item() == 0


def sessions(daemon):
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", "sessions", "--json", "--address",
                           daemon.unix], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_tape_is_each_sessions_own(pair):
    tt, a, b = pair
    with a.as_current():
        w = tt.full((3,), 2.0, requires_grad=True)
        tt.publish("p", w, writable=True)
    with b.as_current():
        v = tt.published("p").requires_grad_()
        y = (v * v * v).sum()
        with tt.no_grad():
            v += 10  # its own write: backward has what it saved
        y.backward()
        assert v.grad.tolist() == [12.0] * 3
        assert v.tolist() == [12.0] * 3
        # If a gradient is the published tensor itself, .grad is a copy.
        x = tt.ones(3, requires_grad=True)
        (x * v).sum().backward()
        x.grad.zero_()
        b.synchronize()
    assert w.tolist() == [12.0] * 3 and w.grad is None
    with a.as_current():
        tt.optim.SGD([w], lr=1.0).step()  # no gradient, no write
        (w * 3).sum().backward()
        tt.optim.SGD([w], lr=1.0).step()
        a.synchronize()
    assert v.tolist() == [9.0] * 3


def test_captured_functions_write_it(pair):
    tt, a, b = pair
    with a.as_current():
        w = tt.ones(4)
        tt.publish("c", w, writable=True)
    with b.as_current():
        v = tt.published("c")

        @tt.compile
        def step(x, by):
            x.mul_(by)
            x.add_(1)
            return x.sum()

        for _ in range(3):
            total = step(v, 2.0)
        assert total.item() == 4 * 15
        b.synchronize()
    assert w.tolist() == [15.0] * 4


def test_two_names_for_one_storage(pair):
    tt, a, b = pair
    with a.as_current():
        w = tt.arange(9.0).reshape(3, 3)
        tt.publish("first", w, writable=True)
        tt.publish("second", w, writable=True)
    with b.as_current():
        x, y = tt.published("first"), tt.published("second")
        x.add_(y.t())  # overlaps what it writes
        b.synchronize()
    want = np.arange(9.0).reshape(3, 3)
    assert (w.numpy() == want + want.T).all()


def test_kept_in_a_session_that_is_taken_over(start_daemon):
    import teletensor as tt

    daemon = start_daemon("--lease", "60")
    with tt.connect(daemon.unix) as a:
        with a.as_current():
            w, r = tt.zeros(2), tt.ones(2)
            tt.publish("w", w, writable=True)
            tt.publish("r", r)
        s = tt.connect(daemon.unix, name="exp")
        with s.as_current():
            s.keep("w", tt.published("w"))
            s.keep("r", tt.published("r"))
            s.synchronize()
        s.detach()
        s = tt.connect(daemon.unix, name="exp", fresh=True)
        with s.as_current():
            s.kept()["w"].add_(1)
            with pytest.raises(RuntimeError, match="read-only"):
                s.kept()["r"].add_(1)
            s.synchronize()
        assert w.tolist() == [1.0, 1.0]
        s.close()


def test_users_and_rights(start_daemon):
    """A user cannot use tensors of another user, unless this was granted."""
    import teletensor as tt

    daemon = start_daemon()

    def token(user):
        made = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, "--address",
                               daemon.unix], capture_output=True, text=True, check=True)
        return made.stdout.strip()

    alice, bob, carol = (tt.connect(daemon.tcp, token=token(u)) for u in ("alice", "bob", "carol"))
    with alice, bob, carol:
        with alice.as_current():
            w = tt.ones(2)
            tt.publish("own", w)
            tt.publish("for bob", w, users=["bob"], writable=True)
            tt.publish("for all", w, users="*")
        for session, names in ((bob, ["for bob", "for all"]), (carol, ["for all"])):
            with session.as_current():
                for name in ("own", "for bob", "for all"):
                    with pytest.raises(KeyError):
                        tt.published(name)
                    if name in names:
                        assert tt.published("alice/" + name).tolist() == [1.0, 1.0]
                    else:
                        with pytest.raises(KeyError, match="alice"):
                            tt.published("alice/" + name)
        for session, names in ((bob, ["for all", "for bob"]), (carol, ["for all"])):
            rows = session.published()
            assert [row["name"] for row in rows] == names and {row["user"] for row in rows} == {"alice"}
        # A client that invents a publication gets nothing: knowing a number gives no right.
        known = {row["name"]: row["id"] for row in alice._admin().publications()}
        with carol.as_current():
            for number in {*range(1, 8), *(each + more for each in known.values() for more in (-1, 0, 1))}:
                for writable in (False, True):
                    forged = carol._core.published(number, FLOAT32, "cpu", [2], writable)
                    if (number, writable) == (known["for all"], False):
                        assert forged.tolist() == [1.0, 1.0]
                        continue
                    with pytest.raises(RuntimeError, match="no longer published"):
                        forged.tolist()
        with bob.as_current():
            tt.published("alice/for bob").add_(1)
            bob.synchronize()
        assert w.tolist() == [2.0, 2.0]

        def listed(who):
            shown = subprocess.run(
                [sys.executable, "-m", "teletensor.cli", "memory", "--published", "--json", "--address",
                 daemon.tcp], capture_output=True, text=True, check=True,
                env={**os.environ, "TELETENSOR_TOKEN": who})
            return sorted(f"{p['user']}/{p['name']}" for p in json.loads(shown.stdout))

        assert listed(token("bob")) == ["alice/for all", "alice/for bob"]
        assert listed(token("carol")) == ["alice/for all"]


def test_anonymous_callers_share_nothing(start_daemon):
    import teletensor as tt

    daemon = start_daemon(anonymous="what such callers share")
    with tt.connect(daemon.tcp) as nobody:
        with nobody.as_current():
            w = tt.ones(2)
            with pytest.raises(RuntimeError, match="needs an authenticated user"):
                tt.publish("w", w)
            with pytest.raises(KeyError):
                tt.published("w")
            assert (w + 1).tolist() == [2.0, 2.0]
    with tt.connect(daemon.unix) as owner, tt.connect(daemon.tcp) as nobody:
        with owner.as_current():
            tt.publish("for all", tt.ones(2), users="*")
        assert [row["name"] for row in owner.published()] == ["for all"]
        assert nobody.published() == []
        with pytest.raises(KeyError):
            nobody.published(owner.published()[0]["user"] + "/for all")
        listed = subprocess.run([sys.executable, "-m", "teletensor.cli", "memory", "--published", "--json",
                                 "--address", daemon.tcp], capture_output=True, text=True, check=True)
        assert json.loads(listed.stdout) == []
