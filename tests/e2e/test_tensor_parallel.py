"""distributed.tensor.parallel: checkpoints and norms of divided parameters are those of the whole ones. Values and
gradients beside PyTorch's are in tests/peers/test_tensor_parallel_torch.py."""

import numpy as np
import pytest
from support.ranks import close, start, told

pytestmark = pytest.mark.usefixtures("invariants")

BEGIN = """
from teletensor.distributed import checkpoint
from teletensor.distributed.checkpoint import state_dict as states
from teletensor.distributed.device_mesh import init_device_mesh
from teletensor.distributed.fsdp import fully_shard
from teletensor.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
nn = tt.nn
x = tt.arange(24.0).reshape(6, 4).cos()
def made(seed):
    tt.manual_seed(seed)
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
def divided(seed, mesh):
    return parallelize_module(made(seed), mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
def step(net, optimizer, limit=0.1):
    optimizer.zero_grad()
    net(x).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), limit)
    optimizer.step()
    return norm.item()
def trained(net):
    optimizer = tt.optim.Adam(net.parameters(), lr=0.05)
    return [step(net, optimizer) for _ in range(3)], optimizer
full = states.StateDictOptions(full_state_dict=True)
def whole(net):
    return {k: v.tolist() for k, v in states.get_model_state_dict(net, options=full).items()}
"""


def test_it_trains_saves_and_clips_as_one_process(start_daemon, tmp_path):
    """Three ranks divide 6 features; two of four ranks divide them, and the other two have the same parts."""
    daemon = start_daemon()
    code = BEGIN + f"folder = {str(tmp_path)!r}"
    ((norms, alone, after),) = told(start(daemon.unix, 1, code + """
net = made(1)
norms, optimizer = trained(net)
before = whole(net)
step(net, optimizer)
tell(norms, before, whole(net))
"""))
    for ranks, shape in ((3, "(3,)"), (4, "(2, 2)")):
        for found, values, marked in told(start(daemon.unix, ranks, code + f"""
mesh = init_device_mesh("cpu", {shape})
mesh = mesh if mesh.ndim == 1 else init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
net = divided(1, mesh)
norms, optimizer = trained(net)
checkpoint.save({{"net": net, "optimizer": optimizer}}, checkpoint_id=folder)
weight = net[1].weight
assert weight.full_tensor().shape == (6, 4) and weight.shape == (6 // mesh.size(), 4)
tell(norms, whole(net), type(net.state_dict()["1.weight"]).__name__)
""")):
            np.testing.assert_allclose(found, norms, 1e-5)
            close(values, alone)
            assert marked == "ShardedParameter"
        # Another number of ranks, and a program without ranks, continue from the checkpoint.
        load = """
optimizer = tt.optim.Adam(net.parameters(), lr=0.05)
checkpoint.load({"net": net, "optimizer": optimizer}, checkpoint_id=folder)
before = whole(net)
step(net, optimizer)
tell(before, whole(net))
"""
        for found in (told(start(daemon.unix, 2, code + '\nnet = divided(2, init_device_mesh("cpu", (2,)))' + load)),
                      told(start(daemon.unix, 1, code + "\nnet = made(2)" + load))):
            for before, now in found:
                close(before, alone)
                close(now, after)


def test_with_fully_shard(start_daemon, tmp_path):
    """Two ranks divide the features, and two divide each of these parts: the numbers are those of one
    process."""
    daemon = start_daemon()
    code = BEGIN + f"folder = {str(tmp_path)!r}"
    ((norms, alone, first),) = told(start(daemon.unix, 1, code + """
net = made(1)
first = whole(net)
norms, optimizer = trained(net)
tell(norms, whole(net), first)
"""))
    for found, values, error, loaded, shape in told(start(daemon.unix, 4, code + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
net = fully_shard(divided(1, mesh["tp"]), mesh=mesh["dp"])
first = states.get_model_state_dict(net, options=full)
norms, optimizer = trained(net)
weight = net[1].weight
assert weight.shape[0] in (1, 2)  # of the 3 of each part
error = ""
try:
    checkpoint.save({"net": net}, checkpoint_id=folder)
except checkpoint.CheckpointException as e:
    error = str(e)
after = whole(net)
states.set_model_state_dict(net, first, options=full)
tell(norms, after, error, whole(net), list(weight.full_tensor().shape))
""")):
        np.testing.assert_allclose(found, norms, 1e-5)
        close(values, alone)
        close(loaded, first)
        assert "NotImplementedError: 1.weight is divided by parallelize_module and by fully_shard" in error
        assert shape == [6, 4]


def test_copies_and_refusals(start_daemon):
    for texts in told(start(start_daemon().unix, 2, BEGIN + """
import copy
mesh = init_device_mesh("cpu", (2,))
net = divided(1, mesh)
twin = copy.deepcopy(net)
assert twin[1].weight.tolist() == net[1].weight.tolist() and twin[1].weight is not net[1].weight
assert twin[1].weight.full_tensor().tolist() == net[1].weight.full_tensor().tolist()
assert twin(x).tolist() == net(x).tolist()
assert twin.state_dict()["1.weight"].sharding.full_shape == (6, 4)
assert list(net.state_dict(keep_vars=True).values())[2] is net[1].weight
twin.load_state_dict(divided(2, mesh).state_dict())
assert twin[3].weight.full_tensor().tolist() != net[3].weight.full_tensor().tolist()
try:
    parallelize_module(net[1], mesh, RowwiseParallel())
    text = ""
except ValueError as e:
    text = str(e)
tell(text)
""")):
        assert texts == ["parallelize_module: parameter weight is divided among ranks already"]
