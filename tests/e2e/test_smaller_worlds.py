"""shrink_group, and barriers with a timeout of their own."""

import pytest
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")


def test_the_rest_of_a_world_trains_on(start_daemon):
    """Rank 1 ends in the middle; the others find out, shrink the world and continue."""
    found = told(start(start_daemon().unix, 3, """
x = tt.ones(2) * (R + 1)
dist.all_reduce(x)
total = x.tolist()
if R == 1:
    tell(total)
    s.close()
    raise SystemExit
try:
    dist.barrier()
    text = ""
except tt.RankLostError as e:
    text = str(e)
made = dist.shrink_group([1])
assert made is dist.group.WORLD and dist.get_world_size() == 2 and dist.get_process_group_ranks(None) == [0, 1]
y = tt.ones(1) * 10 ** dist.get_rank()
dist.all_reduce(y)
z = tt.full((1,), 7.0 if dist.get_rank() else 0.0)
dist.broadcast(z, 1)
store = dist.distributed_c10d._get_default_store()
store.set(f"k{dist.get_rank()}", "v")
store.wait(["k0", "k1"])
tell(total, text, dist.get_rank(), y.item(), z.item())
"""))
    assert found[1] == [[6.0, 6.0]]
    for new, (total, text, rank, y, z) in zip((0, 1), (found[0], found[2]), strict=True):
        assert total == [6.0, 6.0] and "rank 1" in text and (rank, y, z) == (new, 11.0, 7.0)


def test_a_group_shrinks_and_the_world_stays(start_daemon):
    for rank, (size, total, texts) in enumerate(told(start(start_daemon().unix, 3, """
texts = []
for line in ("dist.shrink_group((1,))", "dist.shrink_group([])", "dist.shrink_group([3])", "dist.shrink_group([1, 1])",
             "dist.shrink_group([0, 1, 2])", "dist.shrink_group([R])", "dist.shrink_group([1], shrink_flags=5)"):
    try:
        texts.append(str(eval(line)))
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
group = dist.new_group([2, 0, 1])
small = dist.shrink_group([0], group) if R else group
x = tt.ones(1) * (R + 1)
if R:
    dist.all_reduce(x, group=small)
tell(small.size(), x.item(), texts)
dist.barrier()
"""))):
        assert (size, total) == ((2, 5.0) if rank else (3, 1.0))
        assert [text.split(":")[0] for text in texts] == [
            "TypeError", *["ValueError"] * 4, "RuntimeError", "ValueError"], texts


def test_a_barrier_with_a_timeout(start_daemon):
    """A barrier with a timeout of its own leaves the world whole."""
    for rank, (texts, total) in enumerate(told(start(start_daemon().unix, 2, """
import datetime
store = dist.distributed_c10d._get_default_store()
texts = []
if R:
    store.wait(["late"])
try:
    dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=200), wait_all_ranks=True)
except tt.RankLostError as e:
    texts.append(str(e))
store.set("late", "yes")
x = tt.ones(1)
dist.all_reduce(x)
dist.monitored_barrier(timeout=100)
total = x.item()
tell(texts, total)
"""))):
        assert total == 2
        own = [f"rank {1 - rank}"]
        assert len(texts) == len(own), texts
        for text, missing in zip(texts, own, strict=True):
            assert "timeout" in text and missing in text, text
