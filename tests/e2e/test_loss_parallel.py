"""distributed.tensor.parallel.loss_parallel: the cross entropy of scores whose classes are divided. Values and
gradients beside PyTorch's are in tests/peers/test_tensor_parallel_torch.py."""

import numpy as np
import pytest
from support.ranks import check_refused, start, told, tried

pytestmark = pytest.mark.usefixtures("invariants")

BEGIN = """
from teletensor.distributed.device_mesh import init_device_mesh
from teletensor.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from teletensor.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
F = tt.nn.functional
def scores(*shape):
    return tt.arange(float(np.prod(shape))).reshape(shape).mul(1.7).sin()
"""


def test_with_divided_samples_and_classes(start_daemon):
    """Four ranks: two parts of the samples, each with two parts of the classes."""
    for loss, wanted, gradient, same in told(start(start_daemon().unix, 4, BEGIN + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
classes = tt.tensor([0, 4, -100, 2, 1, 3])
x = distribute_tensor(scores(6, 5).requires_grad_(), mesh, [Shard(0), Shard(1)])
with loss_parallel():
    loss = F.cross_entropy(x, distribute_tensor(classes, mesh, [Shard(0), Replicate()]), reduction="sum")
assert loss.placements == (Partial(), Replicate())
loss.backward()
plain = scores(6, 5).requires_grad_()
wanted = F.cross_entropy(plain, classes, reduction="sum")
wanted.backward()
tell(loss.item(), wanted.item(), x.grad.full_tensor().tolist(), plain.grad.tolist())
""")):
        np.testing.assert_allclose(loss, wanted, 1e-6)
        np.testing.assert_allclose(gradient, same, 1e-5, 1e-6)


def test_after_a_divided_layer(start_daemon):
    """The classes of a ColwiseParallel layer, a class of a loss, half precision, and more ranks than
    parts."""
    found = told(start(start_daemon().unix, 3, BEGIN + """
mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("tp",))
tt.manual_seed(1)
layer, whole = tt.nn.Linear(4, 4), tt.nn.Linear(4, 4)  # parts of 2, 2 and 0 classes
whole.load_state_dict(layer.state_dict())
dist.broadcast(whole.weight.data, 0), dist.broadcast(whole.bias.data, 0)
layer = parallelize_module(layer, mesh, ColwiseParallel(use_local_output=False))
x, classes = scores(5, 4), tt.tensor([3, 0, 1, 2, 0])
loss_fn = tt.nn.CrossEntropyLoss(tt.tensor([1.0, 2.0, 0.5, 3.0]))
with loss_parallel():
    loss = loss_fn(layer(x), classes)
loss.backward()
wanted = loss_fn(whole(x), classes)
wanted.backward()
own = slice(min(2 * R, 4), min(2 * R + 2, 4))
small = distribute_tensor(scores(5, 4).half(), mesh, [Shard(1)])
with loss_parallel():
    half = F.cross_entropy(small, classes)
tell([loss.item(), layer.weight.grad.tolist(), layer.bias.grad.tolist(), half.item()],
     [wanted.item(), whole.weight.grad[own].tolist(), whole.bias.grad[own].tolist(),
      F.cross_entropy(scores(5, 4).half(), classes).item()], str(half.dtype))
"""))
    for ours, wanted, dtype in found:
        assert dtype == "teletensor.float16"
        for a, b, close in zip(ours, wanted, (1e-6, 1e-5, 1e-5, 1e-3), strict=True):
            np.testing.assert_allclose(a, b, close, 1e-6)


REFUSED = {
    "F.cross_entropy(x, rows)": "NotImplementedError: DTensor: cross_entropy has no rule: use to_local()",
    "F.dropout(x)": "NotImplementedError: DTensor: dropout has no rule: use to_local()",
    "parallel(scores(2, 6), rows)": "nothing",
    "parallel(x, rows)": "nothing",
    "parallel(x, rows, label_smoothing=0.1)": "NotImplementedError: loss_parallel() does not support label_smoothing",
    "parallel(x, scores(2, 6))": "NotImplementedError: loss_parallel() does not support class probabilities",
    "parallel(placed(Shard(0)), rows)": "ValueError: loss_parallel() requires exactly one mesh dim to shard",
    "parallel(placed(Replicate()), rows)": "ValueError: loss_parallel() requires exactly one mesh dim to shard",
    "parallel(x, distribute_tensor(rows, mesh, [Shard(0)]))": "RuntimeError: Expected (Replicate(),) but got",
    "parallel(x, rows, weight=distribute_tensor(tt.ones(6), mesh, [Shard(0)]))": "RuntimeError: Expected (Replicate",
    "parallel(x, tt.tensor([1, 2, 3]))": "ValueError: loss_parallel(): the target is (3,), and must be (2,)",
    "parallel(x, tt.tensor([[1, 2], [3, 4]]))": "ValueError: loss_parallel(): the target is (2, 2), and must be (2,)",
    "parallel(x, rows.int())": "RuntimeError: expected target dtype to be Long or Byte",
    "parallel(x, rows.byte(), None, None, 1, None, 'sum')": "nothing",
    "parallel(x, rows, size_average=False)": "NotImplementedError: loss_parallel() needs reduction",
    "parallel(x, rows, reduction='max')": "ValueError: max is not a valid value for reduction",
    "parallel(scores(2, 6), distribute_tensor(rows, mesh))": "TypeError: loss_parallel(): the input must be a",
    "parallel(x, rows, weight=tt.ones(5)).item()": "RuntimeError: gather: index ",
    "parallel(x, tt.tensor([1, 6])).item()": "RuntimeError: gather: index ",
    "parallel(x, tt.tensor([1, -1])).item()": "RuntimeError: gather: index ",
    "parallel(x, tt.tensor([-100, -100])).item()": "nothing",  # NaN, as without ranks
    "parallel(x, rows, weight=[1.0] * 6)": "TypeError: ",
}


def test_what_is_refused(start_daemon):
    found = told(start(start_daemon().unix, 2, BEGIN + """
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
rows = tt.tensor([1, 5])
def placed(placement):
    return distribute_tensor(scores(2, 6), mesh, [placement])
x = placed(Shard(1))
def parallel(*args, **kwargs):
    with loss_parallel():
        return F.cross_entropy(*args, **kwargs)
""" + tried(REFUSED) + """
y = tt.ones(2)
dist.all_reduce(y)
tell(texts, y.tolist())
"""))
    for texts, sums in found:
        assert sums == [2.0, 2.0]
        check_refused(REFUSED, texts)
