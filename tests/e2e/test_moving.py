"""Sessions that move from daemon to daemon: nothing is lost, whatever fails during the move."""

import contextlib
import json
import signal
import subprocess
import threading

import numpy as np
import pytest
from support.clients import client, finish, wait_asleep, wait_line
from support.daemon import wait_until
from support.moving import (
    OTHER,
    Pair,
    admin,
    begins,
    cli,
    linked,
    moved,
    number_of,
    refusal,
    run,
    sessions,
)
from support.training import digest, trainer
from teletensor._connection.transport import CallError, Transport, open_transport
from teletensor._tools.admin import Admin

pytestmark = pytest.mark.usefixtures("invariants")


@pytest.fixture
def pair(start_daemon):
    made = Pair(start_daemon)
    yield made
    made.link.close()


def test_a_session_moves_and_its_program_goes_on(pair, tt, each_transport, caplog):
    """A move in the middle of a step keeps names, flags, the tape, kept tensors and unread answers."""
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        base = tt.arange(12, dtype=tt.float32).reshape(3, 4).clone()
        w = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
        big = tt.from_numpy(np.arange(1 << 20, dtype=np.float32))
        s.keep("row", base[1])
        loss = (w * w).sum()
        tt.manual_seed(7)
        wanted = tt.randn(5).tolist()
        tt.manual_seed(7)
        status, out, err = pair.move("exp", "a")
        assert status == 0, err
        assert pair.b.unix in out and "has moved to b" in out
        loss.backward()
        assert w.grad.tolist() == [2.0, 4.0, 6.0]
        base[1, 2] = 50.0
        assert s.kept()["row"].tolist() == [4.0, 5.0, 50.0, 7.0]
        assert tt.randn(5).tolist() == wanted
        assert (big + 1).numpy()[-1] == 1 << 20
        assert tt.from_numpy(np.ones(1 << 20, dtype=np.float32)).sum().item() == 1 << 20
        assert s.address == pair.b.unix and pair.counts() == (0, 1)
        wait_until(lambda: not list(pair.a.state.glob("*.session")), what="the end of the session's file at the source")
        assert sum("has moved from" in each.getMessage() for each in caplog.records) == 1
        s.close()
    wait_until(lambda: pair.counts() == (0, 0), what="the end of the session")


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_bytes_on_their_way_follow_the_session(pair, tt, each_transport, way):
    """Uploads and downloads of a thread, by streams or by shared memory, while another one moves the session there and
    back."""
    data = np.arange(1 << 20, dtype=np.float32)
    over, rounds, wrong = threading.Event(), [], []

    def copies(session):
        with session.as_current():
            try:
                while not over.is_set():
                    if not (tt.tensor(data).numpy() == data).all():
                        raise AssertionError("other bytes")
                    rounds.append(1)
            except Exception as error:
                wrong.append(error)

    with tt.connect(getattr(pair.a, way), name="exp", token=pair.a.token if way == "tcp" else None) as s:
        program = threading.Thread(target=copies, args=(s,))
        program.start()
        for i in range(4):
            before, source = len(rounds), "ab"[i % 2]
            wait_until(lambda n=before: len(rounds) > n or wrong, what="a round")
            assert not wrong, wrong
            assert moved(pair, source)
            wait_until(lambda here=OTHER[source]: len(sessions(getattr(pair, here))) == 1, what="its arrival")
        over.set()
        program.join()
        assert not wrong, wrong
        assert s.address == getattr(pair.a, way)
        s.close()


def test_who_asks_for_the_name_is_sent_on(pair, tt):
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        s.keep("x", tt.ones(3) * 2)
        s.synchronize()
        s.detach()
    assert pair.move("exp", "a")[0] == 0
    with tt.connect(pair.a.unix, name="exp", fresh=True).as_current() as s:
        assert s.address == pair.b.unix and s.kept()["x"].tolist() == [2.0, 2.0, 2.0]
        assert pair.move("exp", "b")[0] == 0  # back
        assert s.kept()["x"].sum().item() == 6.0 and s.address == pair.a.unix
        s.close()


def test_a_client_waits_for_a_session_that_arrives(pair, tt, monkeypatch):
    """The source may report the end of a move a moment before the target has restored the session."""
    arrives = CallError(14, 'session "exp" is being moved to this daemon just now', "arriving")
    answers, answer_to = [arrives] * 15, Transport._answer_to

    def answer(transport, hello):
        if answers:
            raise answers.pop()
        return answer_to(transport, hello)
    monkeypatch.setattr(Transport, "_answer_to", answer)
    with tt.connect(pair.a.unix, name="exp", fresh=True) as s:
        assert tt.ones(3).sum().item() == 3.0
        s.close()
    answers.extend([arrives] * 1000)
    with contextlib.closing(open_transport(pair.a.unix, timeout=0.3)) as transport, \
            pytest.raises(tt.RefusedError, match='refused: session "exp" is being moved to this daemon'):
        transport.hello(b"client", "exp", 0)


def test_a_training_that_moves_ten_times_has_the_same_bits(pair, tmp_path):
    """Moves with cuts of the link in each move, and with the source and the target killed in turn."""
    rounds, go_on = 2000, tmp_path / "go_on"
    wanted = digest(trainer(pair.a, 1, rounds))
    process = trainer(pair.a, 1, rounds, go_on=go_on)
    wait_line(process, "begun")
    where = "a"
    for i in range(10):
        pair.link.cut_after_frames(1 + i)
        wait_until(lambda here=where: begins(pair, here), what="a connection between the daemons")
        if i in (3, 6):
            pair.crash(where if i == 3 else OTHER[where])
            pair.wait_connected()
        where = OTHER[where]
        wait_until(lambda here=where: len(sessions(getattr(pair, here))) == 1, what="the session's arrival")
    go_on.touch()
    assert digest(process) == wanted


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_kill_between_any_two_messages_leaves_one_owner(pair, tt, victim):
    """The link ends after the n-th frame of a move, and one of the two daemons is killed and started
    again."""
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        x, total, outcomes = tt.ones(300_000), 1.0, set()
        for n in (1, 2, 3, 4, 6, 8, 10, 13, 17):
            s.snapshot()
            source = "a" if s.address == pair.a.unix else "b"
            pair.link.refuse()
            pair.link.cut_after_frames(n)
            mover = threading.Thread(target=lambda here=source: outcomes.add(moved(pair, here)))
            mover.start()
            wait_until(lambda ends=mover: pair.link.frame_limit is None or not ends.is_alive(), what="the cut")
            pair.link.cut()
            pair.crash(victim)
            pair.link.accept()
            mover.join()
            x += 1
            total += 1
            assert x.sum().item() == 300_000 * total
            wait_until(lambda: sum(pair.counts()) == 1, what="one session")
            pair.wait_connected()
        s.close()
    assert outcomes <= {True, False}, outcomes


def test_refusals_change_nothing(start_daemon, tt):
    pair = Pair(start_daemon, own=lambda name: ("--move-from", "a", "--user-memory", "8MiB") if name == "b" else ())
    try:
        with tt.connect(pair.a.unix, name="exp").as_current() as s:
            x = tt.ones(1000)
            assert "not one of this daemon's peers (--peers): b" in refusal(pair, to="c")
            assert "is this daemon itself" in refusal(pair, to="a")
            y = tt.ones(4 << 20)
            assert "limit user_memory" in refusal(pair)
            del y
            shared = tt.ones(3)
            s.publish("shared", shared)
            s.synchronize()
            assert "published tensors" in refusal(pair)
            s.publish("shared", None)
            del shared
            with tt.connect(pair.b.unix, name="exp") as taken:
                assert "has a session \"exp\" there already" in refusal(pair)
                assert "takes no sessions from \"b\" (--move-from)" in refusal(pair, source="b")
                taken.close()
            pair.link.swallow()
            pair.link.restore()
            assert x.sum().item() == 1000 and s.address == pair.a.unix
            s.close()
        with tt.connect(pair.a.tcp, name="anon", token=pair.a.token) as s:
            assert pair.move(str(number_of(pair.a, "anon")), "a")[0] == 0
            assert s.address == pair.b.tcp
            s.close()
    finally:
        pair.link.close()


def test_a_users_token_goes_along(start_daemon, new_token, tt):
    """The token moves as a hash, with the role of a user. Another user cannot move the session."""
    from teletensor._connection.credentials import credentials_of

    pair = Pair(start_daemon)
    try:
        ann, bob = (new_token(pair.a, user, "admin" if user == "ann" else "user") for user in ("ann", "bob"))
        with tt.connect(pair.a.tcp, name="exp", token=ann).as_current() as s:
            x = tt.ones(3)
            number = number_of(pair.a, "exp")
            connection = open_transport(pair.a.tcp, credentials_of(pair.a.tcp, bob))
            with pytest.raises(CallError, match="there is no session"):
                Admin(connection).move(number, "b")
            connection.close()
            with admin(pair.a) as asked:
                asked.move(number, "b")
            assert x.sum().item() == 3.0 and s.address == pair.b.tcp
            with admin(pair.b) as asked:
                assert [(t["user"], t["role"]) for t in asked.tokens()] == [("ann", "user")]
            s.close()
    finally:
        pair.link.close()


def test_a_token_is_good_where_its_session_may_arrive(start_daemon, new_token, tt):
    """The link ends after each frame of a move: the client may connect before the target learns that the
    move is committed."""
    pair = Pair(start_daemon)
    try:
        for n in (*range(14, 22), 1000):  # the last messages of a move, and no cut
            ann = new_token(pair.a, f"ann{n}", "user")
            wait_until(lambda: linked(pair), what="a connection between the daemons")
            with tt.connect(pair.a.tcp, name="exp", token=ann).as_current() as s:
                x, outcome = tt.ones(3), []
                s.synchronize()
                pair.link.refuse()
                pair.link.cut_after_frames(n)
                mover = threading.Thread(target=lambda to=outcome: to.append(moved(pair, "a")))
                mover.start()
                wait_until(lambda ends=mover: pair.link.frame_limit is None or not ends.is_alive(), what="the cut")
                mover.join(0.2)
                read = threading.Thread(target=lambda x=x: x.tolist())
                read.start()
                read.join(0.2)
                pair.link.accept()
                for each in (mover, read):
                    each.join(60)
                assert x.sum().item() == 3.0 and not read.is_alive()
                assert s.address == (pair.b.tcp if outcome[0] else pair.a.tcp)
                s.close()
        with admin(pair.b) as asked:
            assert {t["role"] for t in asked.tokens()} == {"user"}
    finally:
        pair.link.close()


def test_a_session_with_a_group_stays(pair, tt):
    import teletensor.distributed as dist

    other = client("""
        import teletensor.distributed as dist
        dist.init_process_group("gloo", init_method="tcp://x:1", rank=1, world_size=2)
        dist.all_reduce(tt.ones(2))
        dist.barrier()
        dist.destroy_process_group()
    """, pair.a.unix)
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        dist.init_process_group("gloo", init_method="tcp://x:1", rank=0, world_size=2)
        dist.all_reduce(x := tt.ones(2))
        assert x.tolist() == [2.0, 2.0]
        number = number_of(pair.a, "exp")
        with admin(pair.a) as asked, pytest.raises(CallError, match="process group"):
            asked.move(number, "b")
        dist.barrier()
        dist.destroy_process_group()
        assert finish(other)[0] == 0
        s.synchronize()
        with admin(pair.a) as asked:
            asked.move(number, "b")
        assert x.sum().item() == 4.0 and s.address == pair.b.unix
        s.close()


def test_a_move_waits_for_the_connection(pair, tt):
    """A move waits for a connection as long as its command says, and only while the command runs."""
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        x = tt.ones(3)
        s.synchronize()
        pair.link.refuse()
        pair.link.cut()
        wait_until(lambda: not linked(pair), what="the cut")
        words = ("move", "exp", "--to", "b", "--address", pair.a.unix, "--timeout", "600")
        assert 'no connection to the daemon "b" just now' in refusal(pair)
        assert 'no connection to the daemon "b" after 1 s' in refusal(pair, timeout=1.0)
        asked = pair.a.log.count("event=move_asked")
        gone = subprocess.Popen(["env", "--default-signal=INT", *cli(*words)], stderr=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        wait_until(lambda: pair.a.log.count("event=move_asked") > asked, what="the request of a move")
        wait_asleep(gone)
        gone.send_signal(signal.SIGINT)
        assert finish(gone)[0] != 0
        assert x.sum().item() == 3.0 and s.address == pair.a.unix
        wait_until(lambda: "event=move_not_wanted" in pair.a.log, what="the end of the request")
        waits = subprocess.Popen(cli(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: pair.a.log.count("event=move_asked") > asked + 1, what="the request of a move")
        pair.link.accept()
        status, out, err = finish(waits)
        assert status == 0 and "has moved to b" in out, err
        assert x.sum().item() == 3.0 and s.address == pair.b.unix
        s.close()


def test_an_administrator_empties_a_daemon(pair, tt):
    open_ones = [tt.connect(pair.a.unix, name=f"s{i}") for i in range(3)]
    tensors = []
    for i, s in enumerate(open_ones):
        with s.as_current():
            tensors.append(tt.ones(10) * i)
    with open_ones[1].as_current():
        held = tt.ones(3)
        open_ones[1].publish("held", held)
        open_ones[1].synchronize()
    status, out, err = run("drain", "--to", "b", "--address", pair.a.unix)
    assert status == 1, err
    assert "sessions moved to b: 2; staying here: 1" in out and "published tensors" in out
    with pytest.raises(tt.RefusedError, match="being emptied"):
        tt.connect(pair.a.unix)
    with open_ones[1].as_current():
        open_ones[1].publish("held", None)
        del held
        open_ones[1].synchronize()
    status, out, err = run("drain", "--to", "b", "--json", "--address", pair.a.unix)
    assert status == 0, err
    assert [s["name"] for s in json.loads(out)["moved"]] == ["s1"]
    wait_until(lambda: pair.counts() == (0, 3), what="the other daemon has all sessions")
    for i, s in enumerate(open_ones):
        with s.as_current():
            assert tensors[i].sum().item() == 10 * i
        s.close()
    assert run("drain", "--cancel", "--address", pair.a.unix)[0] == 0
    tt.connect(pair.a.unix).close()


def test_ctrl_c_of_the_command_leaves_one_owner(pair, tt):
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        x = tt.ones(1000)
        s.synchronize()
        pair.link.pause()
        drain = subprocess.Popen(["env", "--default-signal=INT", *cli("drain", "--to", "b", "--address",
                                                                      pair.a.unix)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: "event=move_offered" in pair.a.log, what="the offer")
        wait_asleep(drain)
        drain.send_signal(signal.SIGINT)
        status, out, err = finish(drain)
        assert status != 0 and "Traceback" not in err
        assert "drain --cancel" in out
        pair.link.go_on()
        assert (x + 1).sum().item() == 2000
        wait_until(lambda: sum(pair.counts()) == 1, what="one session")
        assert run("drain", "--cancel", "--address", pair.a.unix)[0] == 0
        s.close()


def test_where_a_client_follows():
    from teletensor._connection.credentials import credentials_of

    far = credentials_of("box1.example:7420", "secret")
    assert far.at("box2.example:7420").tls and far.at("box2.example:7420").token == "secret"
    for address in ("127.0.0.1:7420", "localhost:1", "tls://127.0.0.1:7420", "unix:/run/x.sock"):
        with pytest.raises(ValueError, match="address of this machine"):
            far.at(address)
    near = credentials_of("127.0.0.1:7420", "secret")
    assert not near.at("127.0.0.1:7421").tls and near.at("box2.example:7420").tls
    assert near.at("tls://127.0.0.1:7421").tls and not near.at("unix:/run/x.sock").tls
