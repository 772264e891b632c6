"""Tensors of the device meta: shapes, dtypes, strides and history without data and without a daemon."""

import copy
import io
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from teletensor.jit import script as tt_script

NO_DATA = "Cannot copy out of meta tensor; no data!"


def test_they_need_no_daemon():
    code = """
import teletensor as tt
from teletensor._sessions.session import open_session
with tt.device("meta"):
    net = tt.nn.Sequential(tt.nn.Linear(4, 5), tt.nn.ReLU(), tt.nn.LSTM(5, 3))
    x = tt.randn(2, 4)
out, _ = net(x)
out.sum().backward()
tt.optim.AdamW(net.parameters()).step()
print(out.shape, net[0].weight.grad.shape, tt.zeros(1 << 30, 1 << 20, device="meta").numel() == 1 << 50)
print(tt.tensor([[1, 2]], device="meta"), open_session())
tt.set_default_device("meta")
with tt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
    tt.ones(3, requires_grad=True).exp().sum().backward()
print(tt.arange(3), open_session())
"""
    environment = {**os.environ, "TELETENSOR_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.splitlines() == [
        "teletensor.Size([2, 3]) teletensor.Size([5, 4]) True",
        "tensor(..., device='meta', size=(1, 2), dtype=teletensor.int64) None",
        "tensor(..., device='meta', size=(3,), dtype=teletensor.int64) None"], done.stderr


def test_a_child_of_a_fork_has_them_too():
    code = """
import os, teletensor as tt
x = tt.ones(3, device="meta", requires_grad=True)
if os.fork() == 0:
    (x * 2).sum().backward()
    print(x.grad.shape, flush=True)
    os._exit(0)
os.wait()
(x * 2).sum().backward()
print(x.grad.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "teletensor.Size([3])\n" * 2


def test_what_a_tensor_shows(tt):
    x = tt.empty(3, 4, device="meta")
    assert x.is_meta and not x.is_cpu and not x.is_cuda and not tt.ones(1).is_meta
    assert (x.shape, x.dtype, x.stride(), x.nbytes) == ((3, 4), tt.float32, (4, 1), 48)
    assert x.t().stride() == (1, 4) and x.type() == "teletensor.meta.FloatTensor" and len(x) == 3
    assert str(x.device) == "meta" and x.device.index is None and x.device == tt.device("meta:0")
    assert repr(x.device) == "device(type='meta')" and hash(x.device) == hash(tt.device("meta"))
    assert repr(x) == "tensor(..., device='meta', size=(3, 4))" == f"{x}"
    assert repr(x.long()) == "tensor(..., device='meta', size=(3, 4), dtype=teletensor.int64)"
    assert repr(x.requires_grad_()) == "tensor(..., device='meta', size=(3, 4), requires_grad=True)"
    assert repr(x * 2) == "tensor(..., device='meta', size=(3, 4), grad_fn=<MulBackward0>)"
    assert repr(tt.nn.Parameter(tt.ones((), device="meta"))) == (
        "Parameter containing:\ntensor(..., device='meta', size=(), requires_grad=True)")
    assert f"{tt.ones((), device='meta')}" == "tensor(..., device='meta', size=())"
    for name in ("meta:x", "meta:", "metal"):
        with pytest.raises(RuntimeError, match="is not on this daemon|is on no daemon"):
            tt.device(name)


def test_values_cannot_be_read(tt):
    x, one = tt.ones(3, device="meta"), tt.ones((), device="meta")
    for read in (one.item, one.__float__, one.__int__, one.__bool__, lambda: 1.0 in x, lambda: tt.equal(x, x),
                 lambda: tt.full((), 3, device="meta").item(), lambda: tt.tensor([7], device="meta")[0].item()):
        with pytest.raises(RuntimeError, match=r"Tensor.item\(\) cannot be called on meta tensors"):
            read()
    for read in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert meta device type tensor to numpy"):
            read()
    with pytest.raises(BufferError, match="Cannot pack tensors on meta"):
        np.from_dlpack(x)
    for read in (x.tolist, one.tolist, x.cpu, lambda: x.to("cpu"), lambda: x.to("cuda:0"), lambda: x.to(tt.ones(1)),
                 lambda: tt.tensor(x, device="cpu"), lambda: tt.ones(3).copy_(x)):
        with pytest.raises(NotImplementedError, match=NO_DATA):
            read()


@pytest.mark.parametrize("use", [
    lambda tt, x: x.nonzero(), lambda tt, x: x.masked_select(x > 0), lambda tt, x: x[x > 0], lambda tt, x: x.unique(),
    lambda tt, x: tt.where(x), lambda tt, x: tt.bincount(x.long()), lambda tt, x: tt.nn.functional.one_hot(x.long()),
    lambda tt, x: tt.repeat_interleave(x.long())])
def test_sizes_that_depend_on_values(tt, use):
    with pytest.raises(NotImplementedError, match="size of the result depends on the values of a tensor of the device"):
        use(tt, tt.ones(3, device="meta"))


def test_moves_to_meta_keep_layout_and_history(tt):
    x = tt.ones(3, 4, dtype=tt.float64).t().requires_grad_()
    y = x.to("meta")
    assert y.is_meta and y.stride() == (1, 4) and y.dtype == tt.float64 and y.requires_grad and not y.is_leaf
    with pytest.raises(NotImplementedError, match=NO_DATA):
        y.sum().backward()
    assert x.grad is None and not x.detach().to("meta").requires_grad
    with tt.no_grad():
        assert not x.to("meta").requires_grad
    z = tt.ones(2, 3, 4)[:, ::2].to("meta", tt.float16)
    assert z.stride() == (8, 4, 1) and z.dtype == tt.float16 and z.to("meta") is z
    assert tt.as_tensor(x, device="meta").shape == (4, 3) and tt.tensor(x.detach(), device="meta").is_meta


def test_new_tensors_like_others(tt):
    real, meta = tt.ones(2, 3), tt.ones(3, 4, device="meta").t()
    for make in (tt.zeros_like, tt.ones_like, tt.empty_like, tt.rand_like, tt.randn_like,
                 lambda x, **more: tt.full_like(x, 2, **more), lambda x, **more: tt.randint_like(x, 3, **more)):
        assert make(real, device="meta").is_meta and make(meta).is_meta and make(meta).stride() == (1, 4)
        assert make(meta, device="cpu").is_cpu and make(meta, device="cpu").stride() == (1, 4)
    assert tt.zeros_like(meta, device="cpu").tolist() == [[0] * 3] * 4
    assert meta.new_zeros(2).is_meta and meta.new_tensor([1]).is_meta and real.new_ones(2, device="meta").is_meta
    assert meta.new_full((1,), 5, device="cpu").tolist() == [5]


def test_the_default_device(tt):
    with tt.device("meta"):
        made = [tt.ones(2), tt.tensor([1, 2.0]), tt.tensor(3), tt.arange(3), tt.full((2,), 1), tt.eye(2), tt.Tensor(3),
                tt.linspace(0, 1, 3), tt.randperm(3), tt.rand(2, 2), tt.as_tensor([1]), tt.Tensor([1, 2]),
                tt.zeros([2])]
        assert all(x.is_meta for x in made) and tt.ones(2, device="cpu").tolist() == [1, 1]
        assert tt.from_numpy(np.ones(2)).tolist() == [1, 1]
        with tt.device("cpu"):
            assert tt.ones(1).item() == 1
        assert tt.get_default_device() == tt.device("meta")
    assert tt.ones(1).item() == 1 and tt.get_default_device() == tt.device("cpu")


def test_random_numbers_are_not_consumed(tt):
    tt.manual_seed(3)
    expected = tt.rand(2).tolist()
    tt.manual_seed(3)
    with tt.device("meta"):
        tt.nn.Linear(5, 5), tt.randn(4), tt.randperm(3), tt.nn.functional.dropout(tt.ones(3))
    assert tt.rand(2).tolist() == expected


def test_tensors_of_two_devices(tt):
    meta, real, number = tt.ones(3, 4, device="meta"), tt.ones(3, 4), tt.tensor(2.0)
    for use, named in ((lambda: meta + real, "meta and cpu"), (lambda: real + meta, "cpu and meta"),
                       (lambda: meta @ real.t(), "meta and cpu"), (lambda: tt.cat([real, meta]), "cpu and meta"),
                       (lambda: tt.nn.functional.linear(meta, real), "meta and cpu"),
                       (lambda: real + meta.sum(), "cpu and meta"), (lambda: number.add_(meta.sum()), "cpu and meta"),
                       (lambda: meta.add_(real), "meta and cpu"), (lambda: real.add_(meta), "cpu and meta"),
                       (lambda: real[tt.tensor([0], device="meta")], "cpu and meta"),
                       (lambda: tt.where(meta > 0, real, number), "meta and cpu"),
                       (lambda: tt.func.jvp(lambda x: x * 2, (meta,), (real,)), "meta and cpu"),
                       (lambda: tt.vmap(lambda x: x + meta[0])(real), "cpu and meta"),
                       (lambda: meta.sum(0).requires_grad_().backward(real[0]), "meta and cpu")):
        with pytest.raises(RuntimeError, match=f"same device, but found at least two devices, {named}!"):
            use()
    assert real.sum().item() == 12 and number.item() == 2
    with pytest.raises(RuntimeError, match="an output is on the device meta and an input on cpu"):
        tt.autograd.grad(meta.clone().requires_grad_().sum(), tt.ones(2, requires_grad=True))
    # numbers on the CPU
    for result in (meta + number, number * meta, meta.add_(number), tt.where(meta > 0, number, 1.0),
                   tt.lerp(meta, meta, number), meta.clamp(number)):
        assert result.is_meta and result.shape == (3, 4) and result.dtype == tt.float32
    assert (meta.long() + tt.tensor(1.5)).dtype == tt.float32  # a number does not raise the precision
    scale = tt.tensor(2.0, requires_grad=True)
    scaled = meta * scale
    assert scaled.requires_grad
    with pytest.raises(NotImplementedError, match=NO_DATA):
        scaled.sum().backward()
    # indices on the CPU
    assert meta[tt.tensor([0, 2])].shape == (2, 4) and meta[[0, 1], [1, 2]].shape == (2,) and meta[[]].shape == (0, 4)
    assert meta[tt.tensor([True, False, True])].shape == (2, 4)


def test_writes(tt):
    meta, real = tt.empty(3, 4, device="meta"), tt.ones(3, 4)
    before = meta._version
    assert meta.copy_(real) is meta and meta.copy_(real[0]).shape == (3, 4) and meta._version == before + 2
    with pytest.raises(RuntimeError, match="does not broadcast"):
        meta.copy_(tt.ones(5))
    meta[0], meta[1], meta[:, 2], meta[tt.tensor([0, 1])] = 1.0, real[0], tt.tensor(3.0), real[:2].to("meta")
    for place, value in ((0, meta[0]), ((slice(None), 1), meta[:, 1])):
        with pytest.raises(NotImplementedError, match=NO_DATA):
            real[place] = value
    assert real.sum().item() == 12
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        real.data = meta
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        meta.data = real
    with pytest.raises(RuntimeError, match="device type 'meta' to a tensor with device type 'cpu'"):
        real.requires_grad_().grad = meta
    with pytest.raises(RuntimeError, match="device type 'cpu' to a tensor with device type 'meta'"):
        meta.grad = real.detach()


def test_copies_pickles_and_files(tt):
    x = tt.ones(3, 4, device="meta").t().requires_grad_()
    x.tag = "kept"
    twin = copy.deepcopy(x)
    assert twin.is_meta and twin.stride() == (1, 4) and twin.requires_grad and twin.tag == "kept"
    tt.allow_pickle()
    try:
        twin = pickle.loads(pickle.dumps(tt.nn.Linear(2, 3, device="meta", dtype=tt.float64)))
        assert twin.weight.is_meta and twin.weight.dtype == tt.float64 and twin.weight.requires_grad
        y = pickle.loads(pickle.dumps(x))
        assert (y.stride(), y.shape, y.tag) == ((1, 4), (4, 3), "kept")
    finally:
        tt.allow_pickle(False)


def through_file(tt, obj, **options):
    file = io.BytesIO()
    tt.save(obj, file)
    file.seek(0)
    return tt.load(file, **options)


def test_files(tt):
    assert all(x.is_meta for x in through_file(tt, tt.nn.Linear(2, 3).state_dict(), map_location="meta").values())
    state = tt.nn.BatchNorm1d(3, device="meta").double().state_dict()
    loaded = through_file(tt, state, map_location="cpu")
    assert list(loaded) == list(state) and loaded._metadata == state._metadata
    for name, x in loaded.items():
        assert x.is_meta and (x.shape, x.dtype) == (state[name].shape, state[name].dtype)
    mixed = through_file(tt, {"a": [tt.ones(3, 4, device="meta").t(), tt.ones(2)], "b": 3})
    assert mixed["a"][0].stride() == (1, 4) and mixed["a"][1].tolist() == [1, 1] and mixed["b"] == 3
    assert through_file(tt, tt.empty(0, 3, device="meta").half()).shape == (0, 3)
    for wrong in ([[7], [1]], ["float3", [7], [1]], ["float32", [7], [2e3]], ["float32", [-7], [1]],
                  ["float32", [7], [1, 1]], ["float32", [2, 1 << 60], [2, 1]], ["float32", [2], [1 << 60]],
                  ["float32", [1] * 13, [1] * 13]):
        header = json.dumps({"__metadata__": {"teletensor.tree": json.dumps({"$meta": wrong})}}).encode()
        with pytest.raises(ValueError, match="tree in the metadata is damaged|shape or strides that no tensor"):
            tt.load(io.BytesIO(len(header).to_bytes(8, "little") + header))


@pytest.fixture
def net(tt):
    class Net(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = tt.nn.Linear(2, 3), tt.nn.BatchNorm1d(3)
            self.second = tt.nn.Linear(3, 1, bias=False)

        def forward(self, x):
            return self.second(self.norm(self.first(x)))

    return Net


def test_modules_without_data(tt, net):
    with tt.device("meta"):
        empty = net()
    assert all(x.is_meta for x in [*empty.parameters(), *empty.buffers()])
    empty(tt.ones(4, 2, device="meta")).sum().backward()
    assert empty.first.weight.grad.is_meta
    with pytest.raises(NotImplementedError, match=r"no data! Please use teletensor.nn.Module.to_empty\(\) instead of"):
        empty.to("cpu")
    assert empty.double().first.weight.dtype == tt.float64 and empty.float() is empty
    held = empty.first.weight
    assert empty.to_empty(device="cpu") is empty and held is not empty.first.weight
    assert type(empty.first.weight) is tt.nn.Parameter and empty.first.weight.requires_grad
    assert empty.norm.num_batches_tracked.dtype == tt.int64 and not empty.norm.running_mean.requires_grad
    assert empty.first.weight.grad.is_cpu
    source = net()
    empty.load_state_dict(source.state_dict())
    empty.zero_grad()
    x = tt.rand(4, 2)
    assert tt.equal(empty(x), source(x))
    assert all(x.is_meta for x in [*source.to("meta").parameters(), *source.buffers()])
    outer = tt.nn.Sequential(net().to("meta"), tt.nn.Linear(1, 1, device="meta"))
    outer.to_empty(device="cpu", recurse=False)
    assert outer[1].weight.is_meta


def test_load_state_dict(tt, net):
    source = net()
    state = source.state_dict()
    with tt.device("meta"):
        empty = net()
    with pytest.warns(UserWarning) as told:
        empty.load_state_dict(state)
    assert len(told) == len(state) and str(told[0].message).startswith(
        "for first.weight: copying from a non-meta parameter in the checkpoint to a meta parameter")
    assert empty.first.weight.is_meta
    assert empty.load_state_dict(state, assign=True) == ([], [])
    assert all(x.is_cpu for x in [*empty.parameters(), *empty.buffers()]) and empty.first.weight.requires_grad
    x = tt.rand(4, 2)
    assert tt.equal(empty(x), source(x))
    with pytest.raises(RuntimeError, match=r"first.weight has no data in the checkpoint"):
        source.load_state_dict(net().to("meta").state_dict())


def test_skip_init_and_init(tt):
    made = tt.nn.utils.skip_init(tt.nn.Linear, 2, 3)
    assert made.weight.is_cpu and made(tt.ones(1, 2)).shape == (1, 3)
    assert tt.nn.utils.skip_init(tt.nn.Linear, 2, 3, device="meta").weight.is_meta
    x = tt.empty(4, 4, device="meta")
    init = tt.nn.init
    for fill in (init.normal_, init.uniform_, init.zeros_, init.ones_, init.eye_, init.xavier_uniform_,
                 init.orthogonal_, init.kaiming_normal_, init.trunc_normal_, lambda t: init.constant_(t, 2),
                 lambda t: init.sparse_(t, 0.1)):
        assert fill(x) is x and x.shape == (4, 4)


def test_lazy_modules(tt):
    x = tt.ones(3, 4)
    made = tt.nn.LazyLinear(2, device="meta")
    assert made(x.to("meta")).shape == (3, 2) and made.weight.is_meta
    assert tt.nn.LazyLinear(2).to("meta")(x.to("meta")).is_meta
    assert tt.nn.LazyLinear(2, device="meta").to_empty(device="cpu")(x).shape == (3, 2)
    norm = tt.nn.Sequential(tt.nn.LazyBatchNorm1d(device="meta")).to_empty(device="cpu").double()
    assert norm(x.double()).dtype == tt.float64 and norm[0].running_mean.shape == (4,)


@tt_script
def scripted(x):
    if x.size(0) > 2:
        return x * 2
    return x


def test_captured_functions_run_as_they_are(tt):
    meta, real, net = tt.ones(3, 4, device="meta"), tt.ones(3, 4), tt.nn.Linear(4, 2, device="meta")
    captured = tt.compile(lambda x: (x * 2).sum(0))
    assert captured(meta).is_meta and captured(real).tolist() == [6] * 4 and captured(meta).is_meta
    assert tt.jit.trace(lambda x: x.sin(), (meta,))(meta).is_meta
    assert scripted(meta).is_meta and scripted(real).sum().item() == 24 and scripted(meta).shape == (3, 4)
    optimizer = tt.optim.AdamW(net.parameters())

    @tt.compile
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert all(step(meta).is_meta for _ in range(4)) and net.weight.grad.is_meta


def test_gradients_cannot_be_streamed(tt):
    x = tt.ones(3, device="meta", requires_grad=True)
    with pytest.raises(NotImplementedError, match=NO_DATA):
        list((x * 2).sum().backward_stream([x]))


def test_autocast_leaves_them(tt):
    x = tt.ones(3, 3, device="meta")
    with tt.autocast("cpu", tt.bfloat16):
        assert (x @ x).dtype == tt.float32 and (tt.ones(3, 3) @ tt.ones(3, 3)).dtype == tt.bfloat16


def test_functions_and_checkpoints(tt):
    class Scaled(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = tt.ones(3, 4, device="meta", requires_grad=True)
    Scaled.apply(x).sum().backward()
    tt.utils.checkpoint.checkpoint(lambda x: (x @ x.t()).relu(), x, use_reentrant=False).sum().backward()
    assert x.grad.is_meta and x.grad.shape == (3, 4)
    seen = []
    with tt.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t.device.type), t)[1], lambda t: t):
        total = (x * x).sum()
        (tt.ones(2, requires_grad=True) * 2).exp()
    (x * x).sum()
    total.backward()
    assert seen == ["meta", "meta", "cpu"]
    with tt.autograd.graph.save_on_cpu(), pytest.raises(NotImplementedError, match=NO_DATA):
        (x * x).sum()


def test_parameters_without_data_are_not_sharded(start_daemon, tt, tmp_path):
    with tt.connect(start_daemon().unix):
        tt.distributed.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            with pytest.raises(NotImplementedError, match="parameter weight is on the device meta.*to_empty"):
                tt.distributed.fsdp.fully_shard(tt.nn.Linear(2, 2, device="meta"))
        finally:
            tt.distributed.destroy_process_group()


def test_transforms(tt):
    x = tt.ones(3, 4, device="meta")
    assert tt.vmap(lambda a: a.sum())(x).shape == (3,)
    assert tt.func.grad(lambda a: a.sin().sum())(x).shape == (3, 4)
    assert tt.func.jacrev(lambda a: a.sin())(x[0]).shape == (4, 4)
    assert [a.shape for a in tt.func.jvp(lambda a: a.sin(), (x,), (x,))] == [(3, 4)] * 2
    assert tt.func.hessian(lambda a: (a ** 3).sum())(x[0]).is_meta
    y = x.clone().requires_grad_()
    seen = []
    (y * 2).register_hook(lambda g: seen.append(g.is_meta))
    z = y * 3
    z.register_hook(lambda g: seen.append((g.is_meta, tuple(g.shape))))
    z.sum().backward()
    assert seen == [(True, (3, 4))]
    grad, = tt.autograd.grad((y ** 3).sum(), y, create_graph=True)
    assert grad.requires_grad and tt.autograd.grad(grad.sum(), y)[0].is_meta


def test_the_daemon_knows_none_of_them(tt):
    session = tt.current_session()
    session.synchronize()
    used, seq = session._core.held, session._core.last_seq
    x = tt.ones(1 << 40, device="meta") + 1
    assert (session._core.held, session._core.last_seq) == (used, seq)
    for use in (lambda: session.keep("x", x), lambda: tt.publish("x", x)):
        with pytest.raises(NotImplementedError, match=NO_DATA):
            use()
