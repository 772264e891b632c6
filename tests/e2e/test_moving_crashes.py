"""Either daemon ends at any step of a move that changes a file, or the disk is full: the session is complete
on one daemon."""

import threading

import pytest
from support.daemon import wait_until
from support.faults import Disk
from support.moving import OTHER, Pair, linked, moved, refusal

pytestmark = pytest.mark.usefixtures("invariants")


@pytest.fixture
def disks(tmp_path):
    """The steps of the daemons a and b."""
    made = {}
    for name in OTHER:
        (tmp_path / name).mkdir()
        made[name] = Disk(tmp_path / name)
    return made


@pytest.fixture
def pair(start_daemon, disks):
    def start(*flags):
        return start_daemon(*flags, env=disks[flags[flags.index("--peer-name") + 1]].environment)

    made = Pair(start, "--snapshot-every", "0")
    yield made
    made.link.close()


def said(daemon, event):
    return daemon.log.count(f"event={event} ")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_kill_at_any_change_of_a_file_leaves_one_owner(pair, disks, tt, side):
    """A kill before the n-th write, sync, renaming or removal of a file in a move, for each n."""
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        x, total, kills, outcomes = tt.ones(1000), 1.0, 0, []
        s.keep("x", x)
        while True:
            s.snapshot()
            wait_until(lambda: linked(pair), what="a connection between the daemons")
            source = "a" if s.address == pair.a.unix else "b"
            victim = source if side == "source" else OTHER[source]
            daemon, owner = getattr(pair, victim), getattr(pair, source)
            complete = said(owner, "move_committed")
            disks[victim].kill("/sessions", kills + 1)
            mover = threading.Thread(target=lambda here=source: outcomes.append(moved(pair, here)))
            mover.start()
            wait_until(lambda d=daemon, o=owner, n=complete: not d.alive() or said(o, "move_committed") > n,
                       what="the kill, or the end of the move")
            disks[victim].good()
            killed = not daemon.alive()
            if killed:
                kills += 1
                pair.crash(victim)
            mover.join()
            x += 1
            total += 1
            assert x.sum().item() == 1000 * total
            assert s.kept()["x"].sum().item() == 1000 * total
            wait_until(lambda: sum(pair.counts()) == 1, what="one session")
            if not killed:
                break
        s.close()
    assert kills > 8 and outcomes[-1] and not all(outcomes)
    for daemon in (pair.a, pair.b):
        wait_until(lambda folder=daemon.state: {path.suffix for path in folder.iterdir()} <= {"", ".moved"},
                   what="the removal of the session's file")


@pytest.mark.parametrize(("error", "text"), [("enospc", "No space left"), ("eio", "Input/output error")])
def test_a_disk_that_takes_nothing_leaves_the_session_where_it_was(pair, disks, tt, error, text):
    with tt.connect(pair.a.unix, name="exp").as_current() as s:
        x = tt.ones(300_000)
        s.snapshot()

        def kept():
            return sorted(path.name for path in pair.b.state.iterdir())

        before = kept()
        for part, after in ((".arriving", 0), (".arriving", 100_000), (".arrival", 0)):
            disks["b"].full(part, after=after, error=error)
            why = refusal(pair)
            assert '"b" refuses the session' in why and text in why, part
            wait_until(lambda: kept() == before, what="the removal of what has come")
        disks["b"].good()
        for part in (".session", ".moved"):
            disks["a"].full(part, error=error)
            assert text in refusal(pair), part
            assert x.sum().item() == 300_000 and s.address == pair.a.unix
        disks["a"].good()
        wait_until(lambda: kept() == before, what="the removal of what has come")
        assert moved(pair, "a")
        assert x.sum().item() == 300_000 and s.address == pair.b.unix
        s.close()


def test_a_token_waits_for_room_on_the_disk(start_daemon, disks, new_token, tt):
    """The session already belongs to the target: it arrives once the token can be stored."""
    def start(*flags):
        name = flags[flags.index("--peer-name") + 1]
        return start_daemon(*flags, env=disks[name].environment)

    pair = Pair(start)
    try:
        ann = new_token(pair.a, "ann")
        with tt.connect(pair.a.tcp, name="exp", token=ann).as_current() as s:
            x = tt.ones(3)
            s.synchronize()
            disks["b"].full("tokens")
            assert moved(pair, "a")
            wait_until(lambda: "event=session_not_arrived" in pair.b.log, what="the full disk")
            disks["b"].good()
            assert x.sum().item() == 3.0 and s.address == pair.b.tcp
            s.close()
        pair.b.may_say = ("session_not_arrived",)
    finally:
        pair.link.close()
