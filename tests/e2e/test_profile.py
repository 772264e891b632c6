"""Session.profile(): the work that ran, its times, and the line of the program."""

import json

import numpy as np
import pytest
from support.busy import held


@pytest.fixture
def session(shared_daemon, tt):
    with tt.connect(shared_daemon.unix) as session:
        yield session


def test_spans_name_op_and_line_and_lie_inside_the_block(session, tt):
    a = tt.randn(300, 300)
    before = a @ a
    session.synchronize()
    with session.profile() as p:
        b = a @ a  # the product
        c = b.sort().values
        c.sum().item()
    (tt.ones(3) * 1).tolist()
    assert [s.op for s in p.spans if s.op in ("matmul", "sort")] == ["matmul", "sort"]
    product = next(s for s in p.spans if s.op == "matmul")
    assert "test_profile.py" in product.line and product.seconds > 0
    assert product.steps == 1 and product.lane >= 1
    late = 0.5 * p._trip / 1e9 + 1e-6  # the error of the clocks' difference
    for span in p.spans:
        assert -late <= span.begin <= p.seconds + late
        assert span.seconds <= p.seconds + late
    assert p.dropped == 0
    assert before.shape == (300, 300)


def test_waits_and_frames(session, tt):
    with session.profile() as p:
        x = tt.ones(10)
        for _ in range(3):
            x = x + 1
            x.sum().item()
    assert len([w for w in p.waits if "test_profile.py" in w.line]) >= 3
    assert p.frames and all(f.first <= f.last and f.bytes > 0 for f in p.frames)
    late = 0.5 * p._trip / 1e9 + 1e-6
    assert all(f.arrived >= f.sent - late for f in p.frames)
    ran = {s.command for s in p.spans}
    covered = {n for f in p.frames for n in range(f.first, f.last + 1)}
    assert ran <= covered  # all work that ran came in a frame of the block


def test_a_loop_is_one_span_of_several_commands(session, tt):
    x = tt.randn(200_000)
    y = x
    session.synchronize()
    with session.profile() as p:
        with held(tt, session):  # all commands have arrived when the lane starts
            first = session._core.last_seq + 1
            for _ in range(50):
                y = ((x * 2 + 1) * x - 3) * 0.5
            last = session._core.last_seq
        session.synchronize()
    spans = [s for s in p.spans if first <= s.command <= last]
    assert any(s.steps > 1 for s in spans)
    assert sum(s.steps for s in spans if s.op != "transfer") <= 250
    assert np.allclose(y.numpy(), ((x.numpy() * 2 + 1) * x.numpy() - 3) * 0.5, atol=1e-5)


def test_a_programs_steps(session, tt):
    @tt.compile
    def f(x):
        return (x @ x).relu().sum()

    x = tt.randn(50, 50)
    f(x).item()
    with session.profile() as p:
        f(x).item()
    assert "matmul" in [s.op for s in p.spans]


def test_table_and_trace(session, tt, tmp_path):
    with session.profile() as p:
        x = tt.randn(100, 100)
        (x @ x).exp().sum().item()
    table = p.table()
    assert "matmul" in table and "share" in table and "the program waited" in table
    assert "test_profile.py" in p.table(by="line")
    assert "and" in p.table(most=1)
    with pytest.raises(ValueError, match='by must be "op", "line" or "wait"'):
        p.table(by="color")
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"X", "M", "b", "e"} == {e["ph"] for e in events}
    assert any(e["ph"] == "X" and e["name"] == "matmul" and e["args"]["line"] for e in events)
    assert {e["cat"] for e in events if e["ph"] == "b"} == {"network", "queue"}
    ends = sum(e["ph"] == "e" for e in events)
    assert ends == sum(e["ph"] == "b" for e in events)
    assert all(e["ts"] >= -p._trip / 1e3 and e.get("dur", 0) >= 0 for e in events if "ts" in e)


def test_nothing_is_recorded_outside_and_each_profile_is_its_own(session, tt):
    with session.profile() as first:
        tt.ones(5).exp().sum().item()
    tt.ones(5).cos().sum().item()
    with session.profile() as second:
        tt.ones(5).sin().sum().item()
    assert "exp" in {s.op for s in first.spans}
    assert {s.op for s in second.spans} & {"exp", "cos"} == set()
    with pytest.raises(RuntimeError, match="one block"), first:
        pass


def test_an_error_in_the_block_goes_on_and_the_profile_is_there(session, tt):
    with pytest.raises(ZeroDivisionError), session.profile() as p:
        tt.ones(5).exp().sum().item()
        raise ZeroDivisionError
    assert "exp" in {s.op for s in p.spans}


def test_more_than_it_holds_is_counted(session, tt):
    x = tt.ones(64, 65, requires_grad=True)  # too many elements to be run together with other repetitions
    with session.profile() as p:
        for _ in range(140_000):
            y = x.exp()
        del y
    assert p.dropped > 0 and len(p.spans) == 1 << 17
    assert "no room" in p.table()


def test_another_sessions_work_is_not_in_it(shared_daemon, session, tt):
    with tt.connect(shared_daemon.unix) as other:
        with session.profile() as p:
            with other.as_current():
                tt.ones(5).erf().sum().item()
            with session.as_current():
                tt.ones(5).exp().sum().item()
    ops = {s.op for s in p.spans}
    assert "exp" in ops and "erf" not in ops
