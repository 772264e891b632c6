"""distributed.tensor.distribute_module: modules that compute with DTensors. Values, gradients and parts beside
PyTorch's are in tests/peers/test_tensor_parallel_torch.py."""

import numpy as np
import pytest
from support.ranks import check_refused, close, start, told, tried

pytestmark = pytest.mark.usefixtures("invariants")

BEGIN = """
import copy
from teletensor.distributed import checkpoint
from teletensor.distributed.checkpoint import state_dict as states
from teletensor.distributed.device_mesh import init_device_mesh
from teletensor.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
nn, F = tt.nn, tt.nn.functional
x = tt.arange(24.0).reshape(6, 4).cos()
full = states.StateDictOptions(full_state_dict=True)
def made(seed):
    tt.manual_seed(seed + R * 10)  # the parameters of rank 0 count
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
def trained(net):
    optimizer, norms = tt.optim.Adam(net.parameters(), lr=0.05), []
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1).item())
        optimizer.step()
    return norms, optimizer
def whole(net):
    return {k: v.tolist() for k, v in states.get_model_state_dict(net, options=full).items()}
"""


def test_with_divided_samples_and_parameters(start_daemon, tmp_path):
    """Four ranks: two parts of the samples, and two parts of the layers' parameters. The training is that of one
    process, and so is its checkpoint."""
    daemon = start_daemon()
    code = BEGIN + f"folder = {str(tmp_path)!r}"
    ((norms, alone),) = told(start(daemon.unix, 1, code + """
net = made(1)
norms, _ = trained(net)
tell(norms, whole(net))
"""))
    for found, values, shapes in told(start(daemon.unix, 4, code + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
plan = {"1": {"weight": Shard(0), "bias": Shard(0)}, "3": {"weight": Shard(1)}}
def partition(name, module, on):
    for key, placement in plan.get(name, {}).items():
        value = distribute_tensor(getattr(module, key), on, [Replicate(), placement])
        module.register_parameter(key, nn.Parameter(value))
net = distribute_module(
    made(1), mesh, partition,
    lambda module, inputs, on: (distribute_tensor(inputs[0], on, [Shard(0), Replicate()]),),
    lambda module, output, on: output.full_tensor())
norms, optimizer = trained(net)
twin = copy.deepcopy(net)
assert twin(x).tolist() == net(x).tolist() and twin[1].weight is not net[1].weight
checkpoint.save({"net": net, "optimizer": optimizer}, checkpoint_id=folder)
tell(norms, whole(net), [list(p.shape) for p in net.parameters()])
""")):
        np.testing.assert_allclose(found, norms, 1e-5)
        close(values, alone)
        assert shapes == [[4], [4], [3, 4], [3], [2, 3], [2]]
    ((loaded,),) = told(start(daemon.unix, 1, code + """
net = made(2)
checkpoint.load({"net": net}, checkpoint_id=folder)
tell(whole(net))
"""))
    close(loaded, alone)


def test_functions_of_dtensors(start_daemon):
    """Each function has the values and the gradient of the function of the whole tensor, for each layout."""
    for wrong in told(start(start_daemon().unix, 3, BEGIN + """
mesh = init_device_mesh("cpu", (3,))
lines = ["F.relu(v)", "v.relu()", "v.tanh()", "tt.sigmoid(v)", "F.gelu(v, approximate='tanh')", "F.leaky_relu(v, 0.3)",
         "F.softmax(v, -1)", "v.softmax(0)", "tt.softmax(v, 1, tt.float64)", "F.log_softmax(v, 0, dtype=tt.float64)",
         "nn.GELU()(v)", "nn.Softmax(1)(v)", "F.layer_norm(v, [4])", "F.layer_norm(v, [7, 4])", "(v * 2 + v).exp()",
         "F.linear(v, w)", "F.linear(v, w, b)", "F.elu(v)", "F.silu(v).square()"]
w, b = tt.arange(20.0).reshape(5, 4).sin(), tt.arange(5.0)
wrong = []
for line in lines:
    for placement in (Replicate(), Shard(0), Shard(1), Partial()):
        whole = tt.arange(28.0).reshape(7, 4).sin()
        plain = whole.clone().requires_grad_()
        wanted = eval(line, {**globals(), "v": plain})
        wanted.square().sum().backward()
        if isinstance(placement, Partial):
            leaf = (whole / 3).requires_grad_()
            v = DTensor.from_local(leaf, mesh, [placement])
        else:
            v = distribute_tensor(whole, mesh, [placement]).requires_grad_()
        out = eval(line, {**globals(), "v": v})
        got = out.full_tensor()
        got.square().sum().backward()
        gradient = leaf.grad if isinstance(placement, Partial) else v.grad.full_tensor()
        if out.dtype != wanted.dtype or not tt.allclose(got, wanted, 1e-5, 1e-5) or not tt.allclose(
                gradient, plain.grad, 1e-4, 1e-5):
            wrong.append([line, str(placement)])
tell(wrong)
""")):
        assert wrong == [[]]


REFUSED = {
    "distribute_module(net, mesh)": "RuntimeError: distribute_module should only be called once on a module",
    "net(x)": "RuntimeError: LayerNorm of distribute_module got mixed Tensor and DTensor",
    "net[1](x)": "RuntimeError: Linear of distribute_module got mixed Tensor and DTensor",
    "net(v)": "nothing",
    "F.linear(x, v)": "RuntimeError: DTensor: linear got mixed Tensor and DTensor",
    "v @ v": "TypeError: ",
    "v.matmul(v)": "NotImplementedError: DTensor: matmul has no rule",
    "F.dropout(v)": "NotImplementedError: DTensor: dropout has no rule",
    "tt.cat([v, v])": "NotImplementedError: DTensor: cat has no rule",
    "tt.exp(v, out=v)": "NotImplementedError: DTensor: exp has no rule for out=",
    "F.softmax(v)": "NotImplementedError: DTensor: softmax needs its dim",
    "F.softmax(v, 2)": "IndexError: softmax: dim 2 is not one of the 2 of the input",
    "F.layer_norm(v, [3])": "RuntimeError: ",
    "F.linear(v, tt.ones(3, 5))": "RuntimeError: ",
    "nn.Parameter(DTensor.from_local(x, mesh, [Partial()]))": "RuntimeError: Parameter: a DTensor that is Partial",
    "nn.Parameter(distribute_tensor(x, plane, [Shard(0), Shard(1)]))":
        "NotImplementedError: Parameter: [Shard(dim=0), Shard(dim=1)] divides a parameter by several",
    "distribute_module(nn.Linear(4, 4), mesh, input_fn=lambda x: x)": "ValueError: input_fn should take in 3 arguments",
}


def test_what_is_refused(start_daemon):
    for texts, sums in told(start(start_daemon().unix, 2, BEGIN + """
mesh, plane = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
net = distribute_module(made(1), mesh)
v = distribute_tensor(x, mesh, [Shard(0)])
""" + tried(REFUSED) + """
y = tt.ones(2)
dist.all_reduce(y)
tell(texts, y.tolist())
""")):
        assert sums == [2.0, 2.0]
        check_refused(REFUSED, texts)
