"""Collectives that other ranks have not called yet: later lines run, and only lines that read the result
wait."""

import signal

import pytest
from support.clients import wait_asleep, wait_line
from support.daemons import start_daemons
from support.ranks import start, start_rank, told

pytestmark = pytest.mark.usefixtures("invariants")

# A rank reports with `said` that it has reached a line.
STORE = 'store = dist.FileStore({path!r}, N); said = lambda key: store.set(key, "yes"); hear = store.get\n'


@pytest.mark.parametrize("daemons", (1, 2))
def test_later_lines_run_before_the_other_rank_comes(start_daemon, tmp_path, daemons):
    one_lane = ("--lanes", "1")
    started = start_daemons(start_daemon, daemons, *one_lane) if daemons > 1 else [start_daemon(*one_lane)]
    found = told(start([daemon.unix for daemon in started], 2, STORE.format(path=str(tmp_path / "s")) + """
x, y = tt.arange(3.0) * (R + 1), tt.ones(3)
total = tt.zeros(6).reshape(2, 3)
if R == 0:
    dist.all_reduce(x)
    dist.all_gather_into_tensor(total, y)
    y *= 2  # the other rank gets the ones
    read = [y.sum().item(), (y @ y).item()]
    said("rank 0 has read")
else:
    hear("rank 0 has read")
    dist.all_reduce(x)
    dist.all_gather_into_tensor(total, y)
    read = []
tell(read, x.tolist(), total.tolist())
"""))
    assert found[0][0] == [6.0, 12.0]
    for _, x, total in found:
        assert x == [0.0, 3.0, 6.0]
        assert total == [[1.0] * 3, [1.0] * 3]


def test_groups_that_meet_in_different_orders(start_daemon):
    found = told(start(start_daemon().unix, 2, """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
a, b = tt.ones(2), tt.ones(2) * 10
for group, x in ((first, a), (second, b)) if R == 0 else ((second, b), (first, a)):
    dist.all_reduce(x, group=group)
tell(a.tolist(), b.tolist())
"""))
    assert found == [[[2.0, 2.0], [20.0, 20.0]]] * 2


def test_a_tensor_keeps_its_value_when_its_collective_fails(start_daemon, tmp_path):
    found = told(start(start_daemon().unix, 2, STORE.format(path=str(tmp_path / "s")) + """
x, y = tt.arange(3.0), tt.ones(2)
if R == 0:
    dist.all_reduce(x)
    y += 1
    before = y.tolist()
    said("rank 0 has read")
else:
    hear("rank 0 has read")
    dist.all_reduce(y)  # of another shape
    before = []
try:
    x.tolist(), y.tolist()
    text = ""
except RuntimeError as error:
    text = str(error)
z = tt.ones(1)
dist.all_reduce(z)
tell(before, text, x.tolist(), y.tolist(), z.tolist())
"""))
    for rank, (before, text, x, y, z) in enumerate(found):
        assert before == ([2.0, 2.0] if rank == 0 else [])
        assert "rank 0 is in all_reduce(sum, float32[3])" in text and "float32[2]" in text, text
        assert x == [0.0, 1.0, 2.0] and y == ([2.0, 2.0] if rank == 0 else [1.0, 1.0])
        assert z == [2.0]


def test_an_interrupt_ends_what_is_open(start_daemon, tmp_path):
    daemon = start_daemon()
    path = str(tmp_path / "s")
    first = start_rank(daemon.unix, 0, 2, STORE.format(path=path) + """
x, y = tt.ones(2), tt.arange(2.0)
try:
    dist.all_reduce(x)
    y += 1
    print("issued", y.tolist(), flush=True)
    x.tolist()
except KeyboardInterrupt:
    s.cancel()
said("rank 0 goes on")
tell(x.tolist(), y.tolist())
""")
    second = start_rank(daemon.unix, 1, 2, STORE.format(path=path) + """
hear("rank 0 goes on")
x = tt.ones(2)
try:
    dist.all_reduce(x)
    x.tolist()
    text = ""
except RuntimeError as error:
    text = str(error)
tell(text)
""")
    wait_line(first, "issued [1.0, 2.0]")
    wait_asleep(first)
    first.send_signal(signal.SIGINT)
    (x, y), (other,) = told([first, second])
    assert "rank 0 was interrupted" in other
    assert x == [1.0, 1.0] and y == [1.0, 2.0]


def test_a_program_may_end_while_a_collective_is_open(start_daemon):
    daemon = start_daemon()
    first = start_rank(daemon.unix, 0, 2, "dist.all_reduce(tt.ones(2)); (tt.ones(2) * 1).tolist(); tell()")
    second = start_rank(daemon.unix, 1, 2, """
x = tt.ones(2)
dist.all_reduce(x)
tell(x.tolist())
""")
    assert told([first, second]) == [[], [[2.0, 2.0]]]
