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


FRESH = """
from teletensor.distributed import checkpoint
from teletensor.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
nn, DDP = tt.nn, tt.nn.parallel.DistributedDataParallel
OPTIMIZERS = {
    "adamw": lambda p: tt.optim.AdamW(p, lr=0.01), "sgd": lambda p: tt.optim.SGD(p, lr=0.1),
    "momentum": lambda p: tt.optim.SGD(p, lr=0.1, momentum=0.9), "rprop": lambda p: tt.optim.Rprop(p),
    "tensor lr": lambda p: tt.optim.Adam(p, lr=tt.tensor(0.01)), "asgd": lambda p: tt.optim.ASGD(p),
    "adagrad": lambda p: tt.optim.Adagrad(p), "nadam": lambda p: tt.optim.NAdam(p),
}
def made(name, wrap=lambda m: m):
    net = wrap(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    return net, OPTIMIZERS[name](net.parameters())
def step(net, optimizer):
    optimizer.zero_grad()
    net(tt.arange(12.0).reshape(4, 3).sin()).square().mean().backward()
    optimizer.step()
def values(net):
    return [p.tolist() for p in net.parameters()]
class App(checkpoint.stateful.Stateful):
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def state_dict(self):
        model, optim = get_state_dict(self.net, self.optimizer)
        return {"model": model, "optim": optim}
    def load_state_dict(self, state):
        set_state_dict(self.net, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
"""


def test_a_fresh_optimizer_resumes(start_daemon, tmp_path):
    daemon = start_daemon()
    told(start(daemon.unix, 2, FRESH + f"folder = {str(tmp_path)!r}\n" + """
for i, name in enumerate(OPTIMIZERS):
    for wrap in (lambda m: m, DDP):
        net, optimizer = made(name, wrap)
        if wrap is not DDP:
            with tt.no_grad():
                for p in net.parameters():
                    dist.broadcast(p, 0)
        for _ in range(2):
            step(net, optimizer)
        fresh, blank = made(name, wrap)
        before = values(fresh)
        model, optim = get_state_dict(fresh, blank)
        assert values(fresh) == before and all(p.grad is None for p in fresh.parameters())
        assert float(blank.param_groups[0]["lr"]) == float(optimizer.param_groups[0]["lr"])
        checkpoint.save({"app": App(net, optimizer)}, checkpoint_id=f"{folder}/app{i}")
        checkpoint.load({"app": App(fresh, blank)}, checkpoint_id=f"{folder}/app{i}")
        assert values(fresh) == values(net), name
        step(net, optimizer), step(fresh, blank)
        assert values(fresh) == values(net), name
        # Modules and optimizers are Stateful too.
        checkpoint.save({"net": net, "optimizer": optimizer}, checkpoint_id=f"{folder}/own{i}")
        third, empty = made(name, wrap)
        checkpoint.load({"net": third, "optimizer": empty}, checkpoint_id=f"{folder}/own{i}")
        step(net, optimizer), step(third, empty)
        assert values(third) == values(net), name
tell(True)
"""))


def test_names_do_not_tell_of_the_wrapper_and_submodules_select(start_daemon, tmp_path):
    daemon = start_daemon()
    told(start(daemon.unix, 2, FRESH + f"folder = {str(tmp_path)!r}\n" + """
net, optimizer = made("adamw", DDP)
step(net, optimizer)
model, optim = get_state_dict(net, optimizer)
assert list(model) == list(net.module.state_dict()) and list(optim["state"]) == [
    name for name, _ in net.module.named_parameters()], (list(model), list(optim["state"]))
checkpoint.save({"model": model, "optim": optim}, checkpoint_id=folder)
plain, blank = made("adamw")  # without DistributedDataParallel
model, optim = get_state_dict(plain, blank)
checkpoint.load({"model": model, "optim": optim}, checkpoint_id=folder)
set_state_dict(plain, blank, model_state_dict=model, optim_state_dict=optim)
assert values(plain) == values(net)
model, optim = get_state_dict(net, optimizer, submodules={net.module[2]})
assert list(model) == list(optim["state"]) == optim["param_groups"][0]["params"] == ["2.weight", "2.bias"]
options = checkpoint.state_dict.StateDictOptions(keep_submodule_prefixes=False)
model, optim = get_state_dict(net, optimizer, submodules={net.module[2]}, options=options)
assert list(model) == list(optim["state"]) == ["weight", "bias"]
try:
    get_state_dict(net, optimizer, submodules={nn.Linear(2, 2)})
    raise AssertionError
except ValueError as e:
    assert "submodules has a module that is not one of the model's" in str(e)
tell(True)
"""))


def test_sharded_modules_and_optimizers_are_saved_themselves(start_daemon, tmp_path):
    daemon = start_daemon()
    told(start(daemon.unix, 2, CODE + f"folder = {str(tmp_path)!r}\n" + """
net, optimizer = begun(1)
checkpoint.save({"net": net, "optimizer": optimizer, "empty": {}}, checkpoint_id=folder)
fresh, blank = made(1)
other = {"net": fresh, "optimizer": blank, "none": {}}  # an empty dict asks for nothing
checkpoint.load(other, checkpoint_id=folder)
assert whole(fresh) == whole(net) and other["none"] == {}
step(net, optimizer), step(fresh, blank)
assert whole(fresh) == whole(net)
tell(True)
"""))
