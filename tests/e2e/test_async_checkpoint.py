"""distributed.checkpoint.async_save: a thread writes what the ranks had at the call."""

import pytest
from support.clients import client, finish, wait_line
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

# While `go` is not set, no file of a checkpoint is completed.
HELD = """
import os, threading
from teletensor.distributed import checkpoint
go, real = threading.Event(), os.fsync
def held(fd):
    go.wait()
    real(fd)
os.fsync = held
def loaded(folder, like):
    like = {name: tt.zeros_like(value) for name, value in like.items()}
    checkpoint.load(like, checkpoint_id=folder)
    return {name: value.tolist() for name, value in like.items()}
"""


def test_the_checkpoint_has_the_values_of_the_call(start_daemon, tmp_path):
    """Sharded parameters, buffers, the optimizer and other values change while the files are written."""
    found = told(start(start_daemon().unix, 2, HELD + f"folder = {str(tmp_path / 'saved')!r}" + """
from teletensor.distributed.checkpoint import state_dict as states
from teletensor.distributed.fsdp import fully_shard
tt.manual_seed(1)
net = tt.nn.Sequential(tt.nn.Linear(5, 7), tt.nn.BatchNorm1d(7), tt.nn.Linear(7, 3))
fully_shard(net)
optimizer = tt.optim.Adam(net.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    net(tt.arange(30.0).reshape(6, 5).cos()).square().mean().backward()
    optimizer.step()
def whole():
    both = [net.state_dict(), states.get_optimizer_state_dict(net, optimizer)["state"]]
    return [{k: v.full_tensor().tolist() if hasattr(v, "full_tensor") else tt.as_tensor(v).tolist()
             for k, v in each.items() if not isinstance(v, dict)} for each in both]
step()
numbers = {"bf16": tt.arange(4.0).bfloat16(), "big": tt.ones(1 << 18), "text": "now", "list": [1, 2]}
before = whole()
saving = checkpoint.async_save({"net": net, "optimizer": optimizer, "numbers": numbers}, checkpoint_id=folder)
assert not saving.done()
for _ in range(3):
    step()
numbers["bf16"].zero_()
numbers["big"].zero_()
numbers["list"].append(3)
after = whole()
go.set()
assert saving.result() is None
empty = {"bf16": tt.zeros(4).bfloat16(), "big": tt.zeros(1 << 18), "text": "", "list": []}
checkpoint.load({"net": net, "optimizer": optimizer, "numbers": empty}, checkpoint_id=folder)
assert whole() == before != after
tell(empty["bf16"].tolist(), empty["big"].sum().item(), empty["text"], empty["list"])
"""))
    assert found == [[[0.0, 1.0, 2.0, 3.0], 262144.0, "now", [1, 2]]] * 2


def test_one_rank_may_wait_for_it_between_collectives(start_daemon, tmp_path):
    """Rank 1 has issued a collective that its later commands wait for before rank 0 waits for the files."""
    found = told(start(start_daemon().unix, 2, HELD + f"folder = {str(tmp_path)!r}" + """
x = tt.ones(3) * (R + 1)
saving = checkpoint.async_save({"x": x}, checkpoint_id=folder)
if R == 0:
    go.set()
    saving.result()
dist.all_reduce(x)
y = x + 1
go.set()
values = y.tolist()
saving.result()
tell(values, loaded(folder, {"x": x}))
"""))
    assert found == [[[4.0] * 3, {"x": [1.0] * 3}]] * 2


def test_saves_follow_each_other(start_daemon, tmp_path):
    """Each save removes the files of earlier ones, so the next one begins only then."""
    found = told(start(start_daemon().unix, 2, HELD + f"folder = {str(tmp_path)!r}" + """
x = tt.zeros(3)
savings = []
for i in range(3):
    x += 1
    savings.append(checkpoint.async_save({"x": x}, checkpoint_id=folder))
group = dist.new_group([0])
dist.barrier()
assert not any(each.done() for each in savings)
go.set()
last = loaded(folder, {"x": x})
assert all(each.done() for each in savings)
go.clear()
saving = checkpoint.async_save({"x": x + 1}, checkpoint_id=folder)
threading.Timer(0.1, go.set).start()
checkpoint.save({"x": x + 2}, checkpoint_id=folder)
assert saving.done()
dist.barrier()
tell(last, loaded(folder, {"x": x}), len(os.listdir(folder)))
"""))
    assert found == [[{"x": [3.0] * 3}, {"x": [5.0] * 3}, 3]] * 2


def test_what_goes_wrong(start_daemon, tmp_path):
    (tmp_path / "file").touch()
    texts = told(start(start_daemon().unix, 2, HELD + f"folder = {str(tmp_path)!r}" + """
go.set()
texts = []
def tried(*args, **kwargs):
    try:
        saving = checkpoint.async_save(*args, **kwargs)
    except Exception as e:
        texts.append(f"at once: {type(e).__name__}: {e}")
    else:
        texts.append(f"later: {type(saving.exception()).__name__}: {saving.exception()}")
tried({"x": 1})
tried({"x": 1}, checkpoint_id=folder, planner="own")
tried({"x": 1}, checkpoint_id=folder, async_stager="own")
tried({"x": 1}, checkpoint_id=folder, use_collectives=False)
tried({"x": object() if R else 1}, checkpoint_id=folder)
tried({"x": tt.ones(2) / 0 if R else tt.ones(2), **({"y": 1} if R else {})}, checkpoint_id=folder)
tried({"x": tt.ones(2 + R)}, checkpoint_id=folder)
tried({"x": 1}, checkpoint_id=folder if R == 0 else folder + "/file/folder")
tried({"x": 1}, checkpoint_id=folder)
x = tt.ones(2)
dist.all_reduce(x)
tell(texts, x.tolist(), len(s._before_close))
"""))
    assert texts[0] == texts[1]
    found, sums, groups = texts[0]
    assert sums == [2.0, 2.0] and groups == 1  # the world
    starts = [
        "at once: ValueError: checkpoint_id is missing",
        "at once: NotImplementedError: async_save: planner='own' is not supported",
        "at once: NotImplementedError: async_save: async_stager='own' is not supported",
        "at once: NotImplementedError: async_save: use_collectives=False is not supported",
        "at once: CheckpointException: async_save: rank 1: TypeError: objects travel without pickle",
        "later: CheckpointException: async_save: rank 0: ValueError: rank 1 has other names than rank 0",
        "later: CheckpointException: async_save: rank 0: ValueError: x is {'shape': [2]",
        "later: CheckpointException: async_save: rank 1: NotADirectoryError: ",
        "later: NoneType: None",
    ]
    for text, begin in zip(found, starts, strict=True):
        assert text.startswith(begin), (text, begin)


def test_a_rank_that_is_killed_meanwhile(start_daemon, tmp_path):
    daemon = start_daemon("--lease", "0")
    world = start(daemon.unix, 2, HELD + f"folder = {str(tmp_path)!r}" + """
saving = checkpoint.async_save({"x": tt.ones(2)}, checkpoint_id=folder)
print("saves", flush=True)
if R == 0:
    go.set()
    tell(type(saving.exception()).__name__, str(saving.exception()), os.listdir(folder).count("index.json"))
else:
    time.sleep(600)
""")
    for process in world:
        wait_line(process, "saves")
    world[1].kill()
    finish(world[1])
    ((kind, text, indices),) = told(world[:1])
    assert kind == "RankLostError" and "rank 1" in text and "checkpoint" in text and indices == 0


def test_the_end_of_a_program_waits_for_it(start_daemon, tmp_path):
    """In a program without a world, too."""
    daemon = start_daemon()
    told(start(daemon.unix, 2, HELD + f"""
checkpoint.async_save({{"x": tt.ones(2) * 3}}, checkpoint_id={str(tmp_path / 'world')!r})
threading.Timer(0.1, go.set).start()
tell(R)
"""))
    status, _, err = finish(client(f"""
    from teletensor.distributed import checkpoint
    checkpoint.async_save({{"x": tt.ones(2) * 4}}, checkpoint_id={str(tmp_path / 'alone')!r})
    """, daemon.unix))
    assert status == 0, err
    status, out, err = finish(client(f"""
    from teletensor.distributed import checkpoint
    for folder in {[str(tmp_path / 'world'), str(tmp_path / 'alone')]!r}:
        state = {{"x": tt.zeros(2)}}
        checkpoint.load(state, checkpoint_id=folder)
        print(state["x"].tolist())
    """, daemon.unix))
    assert status == 0 and out.split("\n")[:2] == ["[3.0, 3.0]", "[4.0, 4.0]"], err
