"""A program's view of its queue: track(), queued(), waits by line, and the hint about reads in a loop."""

import logging
import sys
import types

import pytest
from support.clients import client, finish
from support.daemon import wait_until

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture
def tt(start_daemon):
    import teletensor

    with teletensor.connect(start_daemon("--lanes", "1").unix):
        yield teletensor


@pytest.fixture
def bars(monkeypatch):
    """Bars as tqdm would draw them: a list of what each has shown."""
    from teletensor._connection import progress_bar as _progress_bar
    from teletensor._tools import track as _track

    made = []

    class Bar:
        def __init__(self, total, desc, unit):
            self.total, self.n, self.shown, self.closed = total, 0, [], False
            made.append(self)

        def set_postfix_str(self, text, refresh):
            self.text = text

        def update(self, more):
            self.n += more
            self.shown.append((self.n, self.text))

        def close(self):
            self.closed = True
    tqdm = types.ModuleType("tqdm")
    tqdm.auto = types.ModuleType("tqdm.auto")
    tqdm.auto.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", tqdm)
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm.auto)
    monkeypatch.setattr(_track, "_display", lambda: _progress_bar._Terminal(sys.stderr))
    monkeypatch.setattr(_track, "_PAUSE", 0.001)
    return made


def test_a_bar_follows_the_daemon(tt, bars):
    x = tt.ones(1000, 1000)
    for number in tt.track(range(20), "steps"):
        x = x @ x * 0.001
        if number == 19:
            left = tt.current_session().queued()
    assert left.commands > 0 and left.seconds >= 0
    [bar] = bars
    assert bar.total == 20 and bar.n == 20 and bar.closed
    assert any("queued" in text for _, text in bar.shown), "the program was ahead"
    assert tt.current_session().queued().commands == 0
    counts = [n for n, _ in bar.shown]
    assert counts == sorted(counts) and bar.shown[-1] == (20, "")


def test_loops_that_end_early(tt, bars):
    for number in tt.track(iter(range(100))):
        tt.ones(3) + 1
        if number == 5:
            break
    with pytest.raises(KeyError):
        for _ in tt.track([1, 2, 3]):
            raise KeyError
    assert list(tt.track([])) == []
    for bar, total in zip(bars, (None, 3, 0), strict=True):
        wait_until(lambda bar=bar: bar.closed)
        assert bar.total == total


def test_without_tqdm(tt, bars, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    for _ in tt.track(range(4), "epochs"):
        tt.ones(3) + 1
    assert not bars and "epochs [##############################] 4 of 4, " in capsys.readouterr().err


def test_in_a_pipe_there_is_none(shared_daemon):
    program = client("for i in tt.track(range(3)): print(i)", shared_daemon.unix)
    assert finish(program) == (0, "0\n1\n2\n", "")


def test_what_is_queued(tt, monkeypatch):
    s = tt.current_session()
    tt.ones(3).sum().item()
    s.synchronize()  # what releases the two tensors is a command, too
    assert s.queued().commands == 0 and s.queued().seconds == 0
    x = tt.ones(1000, 1000)
    for _ in range(100):
        x = x @ x * 0.001
    assert 0 < s.queued().commands <= 400
    wait_until(lambda: s.queued().seconds > 0, what="the pace is known")
    s.synchronize()
    assert s.queued() == (0, 0.0)


def test_waits_by_line(tt):
    x = tt.ones(3).exp()  # the client does not know its value
    with tt.current_session().profile() as p:
        for _ in range(5):
            x.sum().item()
        x.tolist()
    table = p.table(by="wait")
    lines = [line for line in table.splitlines() if "test_track.py" in line]
    assert [line.split("test_waits_by_line")[1].split()[0] for line in sorted(lines)] == ["1", "5", "1"], table
    for by in ("op", "line"):
        assert p.table(by).count(" waits at ") == 3 and "in 5 waits at " in p.table(by)
    with pytest.raises(ValueError, match="wait"):
        p.table(by="color")


def test_reads_in_a_loop_are_told_once(shared_daemon):
    program = client("""
        x = tt.arange(2000)  # too large for the values that the client keeps
        total = 0
        for v in x[:200]:
            total += int(v)
        for i in range(200):
            total += x[i].item()
        print(total)
    """, shared_daemon.unix)
    status, out, err = finish(program)
    assert status == 0 and out == "39800\n"
    [line] = err.splitlines()
    assert "reads values one by one" in line and "<string>:" in line and ".tolist()" in line


def test_what_is_no_such_loop_is_not_told(tt, caplog, monkeypatch):
    from teletensor._connection import notices as _notices

    monkeypatch.setattr(_notices, "_hinted", False)
    w = tt.ones(3, requires_grad=True)
    with caplog.at_level(logging.WARNING, "teletensor"):
        for _ in range(200):  # a training step
            loss = (w * w).sum() + (w + 1).mean()
            loss.backward()
            with tt.no_grad():
                w -= 0.01 * w.grad
            w.grad = None
            loss.item()
        for v in tt.arange(100.0):  # one read for all
            v.item()
        large = tt.zeros(2000)
        for k in range(63):
            large[k].item()
        large.tolist()
        assert not caplog.records
        for k in range(64):
            large[k].item()
    assert len(caplog.records) == 1
