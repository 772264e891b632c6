"""Names other than ops that programs written for PyTorch use: result types, memory formats, older
constructors, constants, DLPack."""

import math
import pickle

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def session(shared_daemon, tt):
    with tt.connect(shared_daemon.unix) as s:
        yield s


def test_results_print_as_pytorch_s(tt):
    found = tt.tensor([[1, 3], [2, 0]]).max(1)
    assert repr(found) == (
        "teletensor.return_types.max(\nvalues=tensor([3, 2]),\nindices=tensor([1, 0]))")
    values, indices = found
    assert values is found.values and indices is found.indices and isinstance(found, tuple)
    for result, kind in (
        (tt.tensor([2.0, 1.0]).sort(), "sort"),
        (tt.linalg.slogdet(tt.eye(2)), "linalg_slogdet"),
        (tt.slogdet(tt.eye(2)), "slogdet"),
        (tt.histogram(tt.arange(3.0), 2), "histogram"),
    ):
        assert type(result) is getattr(tt.return_types, kind)


def test_channels_last(tt):
    x = tt.arange(24.0).reshape(1, 2, 3, 4)
    last = x.to(memory_format=tt.channels_last)
    assert last.stride() == (24, 1, 8, 2) and tt.equal(x, last)
    assert last.is_contiguous(memory_format=tt.channels_last) and not last.is_contiguous()
    assert last.contiguous(memory_format=tt.channels_last) is last
    assert last.contiguous().stride() == x.stride() and last.clone().stride() == last.stride()
    assert last.clone(memory_format=tt.contiguous_format).stride() == x.stride()
    assert tt.empty(2, 3, 4, 5, memory_format=tt.channels_last).stride() == (60, 1, 15, 3)
    assert tt.zeros_like(x, memory_format=tt.channels_last).stride() == last.stride()
    net = tt.nn.Conv2d(2, 3, 3).to(memory_format=tt.channels_last)
    assert net.weight.stride() == (18, 1, 6, 2) and net.bias.is_contiguous()
    w = net.weight.detach().clone(memory_format=tt.contiguous_format)
    assert tt.allclose(net(last), tt.nn.functional.conv2d(x, w, net.bias))
    net(last).sum().backward()
    assert net.weight.grad.shape == net.weight.shape
    y = x.clone().requires_grad_()
    (y.contiguous(memory_format=tt.channels_last) * last).sum().backward()
    assert tt.equal(y.grad, x)
    assert pickle.loads(pickle.dumps(tt.channels_last)) is tt.channels_last
    with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last format"):
        tt.ones(2, 3).contiguous(memory_format=tt.channels_last)
    with pytest.raises(TypeError, match="memory_format"):
        tt.ones(2, 3).clone(memory_format="channels_last")


def test_older_constructors(tt):
    assert tt.LongTensor([1, 2]).dtype == tt.int64 and tt.FloatTensor([1, 2]).dtype == tt.float32
    assert tt.DoubleTensor(2, 3).shape == (2, 3) and tt.ByteTensor().shape == (0,)
    assert tt.FloatTensor(tt.ones(2, 3).shape).shape == (2, 3)
    assert isinstance(tt.ones(2), tt.FloatTensor) and not isinstance(tt.ones(2), tt.LongTensor)
    assert not isinstance(1.0, tt.FloatTensor)
    assert tt.ones(2).type(tt.LongTensor).dtype == tt.int64
    with pytest.raises(TypeError, match="expected"):
        tt.FloatTensor(tt.arange(3))


def test_constants(tt):
    assert (tt.pi, tt.e, tt.inf, tt.newaxis) == (math.pi, math.e, math.inf, None) and math.isnan(tt.nan)


def test_dlpack(tt):
    x = tt.arange(6).reshape(2, 3)
    assert np.from_dlpack(x).tolist() == x.tolist()
    assert tt.utils.dlpack.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="require gradient"):
        tt.ones(2, requires_grad=True).__dlpack__()


def test_shapes_are_sizes(tt):
    assert type(tt.broadcast_shapes((2,), (3, 1))) is tt.Size
    assert isinstance(tt.gradient(tt.arange(4.0)), tuple)


def test_views_in_place(tt):
    x = tt.arange(6.0)
    first, other = x[1:3], x
    x.resize_(2, 3).t_()
    assert other is x and x.tolist() == [[0, 3], [1, 4], [2, 5]] and x.stride() == (1, 3)
    first.fill_(7)
    assert x.tolist() == [[0, 3], [7, 4], [7, 5]]  # the memory is the same
    x[0, 0] = 9
    assert x.unsqueeze_(0).transpose_(0, 2).squeeze_(1 if x.shape[1] == 1 else 2).shape == (2, 3)
    assert x.tolist() == [[9, 7, 7], [3, 4, 5]]
    assert x.as_strided_((2,), (3,), 0).tolist() == [9, 3] and x.resize_as_(tt.ones(1)).tolist() == [9]
    grown = tt.tensor([[1, 2], [3, 4]]).t().resize_(5)
    assert grown.tolist() == [1, 2, 3, 4, 0]  # as they lay in memory
    assert tt.zeros(0, dtype=tt.int64).set_(grown, 1, (2,)).tolist() == [2, 3]


def test_views_in_place_and_gradients(tt):
    w = tt.ones(2, 3, requires_grad=True)
    y = w * 2
    y.t_()
    assert not y.is_leaf and y.shape == (3, 2)
    (y * tt.arange(6.0).reshape(3, 2)).sum().backward()
    assert w.grad.tolist() == [[0, 4, 8], [2, 6, 10]]
    h = w * 3
    squares = h * h
    h.detach_()
    assert h.is_leaf and not h.requires_grad and not w.detach().requires_grad_().detach_().requires_grad
    squares.sum().backward()  # what was computed before still has its history
    assert w.grad[0, 0] == 18
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        w.t_()
    with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
        y.resize_(6)
    with pytest.raises(RuntimeError, match=r"write x = x.t\(\)"):
        tt.compile(lambda a: a.t_() * 2)(tt.ones(2, 3))
    assert tt.vmap(lambda a: (a * 2).unsqueeze_(0))(tt.ones(2, 3)).shape == (2, 1, 3)


def test_positive_is_the_tensor_itself(tt):
    x = tt.ones(2, requires_grad=True)
    assert +x is x and x.positive() is x and tt.positive(x) is x
    with pytest.raises(NotImplementedError, match="on a bool tensor is not supported"):
        +tt.ones(2, dtype=tt.bool)


def test_the_matrix_product_with_a_number_is_refused(tt):
    x = tt.ones(3)
    for product in (lambda: x @ 2, lambda: 2 @ x, lambda: x @ 1.5, lambda: x @ [1, 2, 3]):
        with pytest.raises(TypeError, match="unsupported operand type"):
            product()
    assert (x @ x).item() == 3


def test_a_dim_is_an_integer(tt):
    x = tt.ones(3)
    for use in (lambda: tt.diag_embed(x, dim1=0.5), lambda: x.size(0.0), lambda: x.stride("0")):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer|must be int, not float"):
            use()


def test_triangles_of_any_size_are_counted_at_once(tt):
    with pytest.raises(RuntimeError, match="too large to address"):
        tt.tril_indices(2**31, 2**31)


def test_a_name_that_is_not_there(tt):
    for space, name in ((tt, "fx"), (tt, "hash_tensor"), (tt.nn, "Container"), (tt.nn.functional, "grouped_mm"),
                        (tt.linalg, "polar"), (tt.utils, "tensorboard")):
        assert not hasattr(space, name) and getattr(space, name, 1) == 1
        with pytest.raises(AttributeError, match=f"{space.__name__}' has no attribute '{name}': docs/names") as found:
            getattr(space, name)
        assert found.value.name == name and found.value.obj is space
    for name in ("complex32", "chalf"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': .*; use complex64"):
            getattr(tt, name)
    for space, name in ((tt, "_foreach_nothing"), (tt.backends, "nothing"), (tt.backends.mps, "nothing"),
                        (tt.xpu, "nothing")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': docs/names"):
            getattr(space, name)
    with pytest.raises(AttributeError, match="has no attribute '__nothing__'$"):
        _ = tt.__nothing__
    with pytest.raises(ImportError, match="cannot import name 'hash_tensor'"):
        from teletensor import hash_tensor  # noqa: F401


def test_kinds_of_devices_that_no_daemon_has(tt):
    for space in (tt.xpu, tt.mps, tt.mtia, tt.backends.mps):
        assert space.is_available() is False
    assert tt.xpu.device_count() == tt.mps.device_count() == 0 and not tt.backends.mps.is_built()
