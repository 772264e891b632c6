"""distributed.checkpoint: the state of sharded modules in a folder, for any number of ranks."""

import json

import numpy as np
import pytest
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

CODE = """
import os
from teletensor.distributed import checkpoint
from teletensor.distributed.checkpoint import state_dict as states
from teletensor.distributed.fsdp import fully_shard
nn = tt.nn
def made(seed, shard=True):
    tt.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    if shard:
        fully_shard(net[2], shard_placement_fn=columns if N == 1 else None)
        fully_shard(net)
    return net, tt.optim.Adam(net.parameters(), lr=0.05 * seed)
def columns(parameter):
    class Placement:
        dim = 1
    return Placement() if parameter.dim() == 2 else None
x = tt.arange(6 * 5.0).reshape(6, 5).cos()
def step(net, optimizer):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
def state(net, optimizer, seen):
    return {"model": states.get_model_state_dict(net), "optim": states.get_optimizer_state_dict(net, optimizer),
            "seen": seen, "notes": {"lr": [0.1, (2, "x")], "none": {}}}
def put(net, optimizer, loaded):
    states.set_state_dict(net, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
def whole(net):
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).tolist() for k, v in net.state_dict().items()}
def begun(seed, shard=True):
    net, optimizer = made(seed, shard)
    step(net, optimizer)
    return net, optimizer
"""


def test_any_number_of_ranks_takes_it_up(start_daemon, tmp_path):
    daemon = start_daemon()
    folder = tmp_path / "saved"
    code = CODE + f"folder = {str(folder)!r}\n"

    def world(ranks, lines):
        return told(start(daemon.unix, ranks, code + lines, f"w:{ranks}"))

    first = world(3, """
net, optimizer = begun(1)
for _ in range(2):
    checkpoint.save(state(net, optimizer, R), checkpoint_id=folder)
    step(net, optimizer)
checkpoint.save(state(net, optimizer, R), checkpoint_id=folder)
before = whole(net)
step(net, optimizer)
tell(before, whole(net))
""")
    names = sorted(each.name for each in folder.iterdir())
    assert names[-1] == "index.json" and [name.split(".")[1:] for name in names[:-1]] == [
        [str(rank), "safetensors"] for rank in range(3)]
    for ranks in (1, 2, 4):
        for seen, notes, before, after in world(ranks, """
net, optimizer = begun(2)
loaded = state(net, optimizer, 7)
checkpoint.load(loaded, checkpoint_id=folder)
put(net, optimizer, loaded)
before = whole(net)
step(net, optimizer)
tell(loaded["seen"], loaded["notes"], before, whole(net))
"""):
            assert seen == 0 and notes == {"lr": [0.1, [2, "x"]], "none": {}}
            assert before == first[0][0]
            for name, value in first[0][1].items():
                np.testing.assert_allclose(after[name], value, 1e-5, 1e-6, err_msg=name)
    # A program without ranks reads whole tensors.
    ((plain,),) = told(start(daemon.unix, 1, code + """
dist.destroy_process_group()
net, optimizer = begun(3, False)
loaded = {"model": net.state_dict()}
checkpoint.load(loaded, checkpoint_id=folder)
tell(whole(net))
"""))
    assert plain == first[0][0]


def test_what_goes_wrong_changes_nothing(start_daemon, tmp_path):
    daemon = start_daemon()
    texts = told(start(daemon.unix, 2, CODE + f"folder = {str(tmp_path)!r}\n" + """
net, optimizer = begun(1)
good = state(net, optimizer, 1)
texts = []
def tried(line):
    try:
        texts.append(str(eval(line)))
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
tried("checkpoint.save(good)")
tried("checkpoint.load(good, checkpoint_id=folder)")
tried("checkpoint.save(good, checkpoint_id=folder)")
files = sorted(os.listdir(folder))
tried("checkpoint.save({**good, **({'own': 1} if R else {})}, checkpoint_id=folder)")
tried("checkpoint.save({**good, 'seen': tt.ones(2 + R)}, checkpoint_id=folder)")
tried("checkpoint.save({**good, 'seen': object()} if R else good, checkpoint_id=folder)")
tried("checkpoint.save({'a': {'b': 1}, 'a.b': 2}, checkpoint_id=folder)")
before = whole(net)
with tt.no_grad():
    for p in net.parameters():
        p.zero_()
zeros = whole(net)
tried("checkpoint.load({'model': {**net.state_dict(), 'extra': tt.ones(2)}}, checkpoint_id=folder)")
tried("checkpoint.load({'model': {**net.state_dict(), '1.running_mean': tt.ones(2)}}, checkpoint_id=folder)")
tried("checkpoint.load({'model': {**net.state_dict(), '1.running_mean': 3}}, checkpoint_id=folder)")
dist.barrier()
gone = [name for name in files if name.split(".")[1] == "1"][0]
dist.barrier()
if R == 0:
    os.rename(os.path.join(folder, gone), os.path.join(folder, "away"))
dist.barrier()
tried("checkpoint.load({'model': net.state_dict()}, checkpoint_id=folder)")
assert whole(net) == zeros
dist.barrier()
if R == 0:
    os.rename(os.path.join(folder, "away"), os.path.join(folder, gone))
dist.barrier()
tried("checkpoint.load({'model': net.state_dict()}, checkpoint_id=folder)")
assert whole(net) == before
tell(texts)
"""))
    assert texts[0] == texts[1]
    starts = [
        "ValueError: checkpoint_id is missing: give the path of a folder",
        "CheckpointException: load: rank 0: FileNotFoundError: ",
        "None",
        "CheckpointException: save: rank 0: ValueError: rank 1 has other names than rank 0, or another order: ['own']",
        "CheckpointException: save: rank 0: ValueError: seen is {'shape': [2], 'dtype': 'float32', ",
        "CheckpointException: save: rank 1: TypeError: objects travel without pickle",
        "CheckpointException: save: rank 0: ValueError: two values of the state_dict have the name 'a.b'",
        "CheckpointException: load: rank 0: KeyError: ",
        "CheckpointException: load: rank 0: ValueError: model.1.running_mean is float32 of (7,) in the",
        "CheckpointException: load: rank 0: ValueError: model.1.running_mean is a tensor in the checkpoint, not a int",
        "CheckpointException: load: rank 1: FileNotFoundError: ",
        "None",
    ]
    for text, begin in zip(texts[0][0], starts, strict=True):
        assert text.startswith(begin), (text, begin)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["entries"]["seen"] == {"object": 1}
