"""copy.copy, copy.deepcopy and pickles of tensors, devices, dtypes and sizes."""

import copy
import pickle

import pytest


def test_a_shallow_copy_shares_the_memory(tt):
    x = tt.arange(6.0).reshape(2, 3).t()
    y = copy.copy(x)
    assert y is not x and type(y) is tt.Tensor and y.shape == (3, 2) and y.stride() == x.stride()
    y[0, 1] = 40
    assert x[0, 1].item() == 40 and not y.requires_grad


def test_a_shallow_copy_is_a_leaf(tt):
    w = tt.ones(2, requires_grad=True)
    w.grad = tt.ones(2)
    for x in (w, w * 2):
        y = copy.copy(x)
        assert y.is_leaf and y.requires_grad and y.grad is None and tt.equal(y, x)
    (copy.copy(w) * 3).sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]
    with tt.inference_mode():
        frozen = copy.copy(tt.ones(2))
    assert frozen.tolist() == [1.0, 1.0]


def test_copies_of_other_classes(tt):
    class Own(tt.Tensor):
        def __init__(self, data, unit):
            super().__init__(data)

    for make in (copy.copy, copy.deepcopy):
        p = make(tt.nn.Parameter(tt.ones(2)))
        assert type(p) is tt.nn.Parameter and p.requires_grad and p.tolist() == [1.0, 1.0]
        assert not make(tt.nn.Parameter(tt.ones(2), requires_grad=False)).requires_grad
        own = make(Own(tt.ones(2), "m"))
        assert type(own) is Own and own.tolist() == [1.0, 1.0] and not own.requires_grad
        b = make(tt.nn.Buffer(tt.ones(2), persistent=False))
        assert type(b) is tt.nn.Buffer and b.tolist() == [1.0, 1.0]
        lazy = make(tt.nn.UninitializedParameter())
        assert type(lazy) is tt.nn.UninitializedParameter and lazy.requires_grad


def test_a_shallow_copy_of_a_module_shares_its_parameters(tt):
    net = tt.nn.Linear(2, 2)
    other = copy.copy(net)
    assert other.weight is net.weight


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, *(
    lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in range(6))])
def test_devices_dtypes_and_sizes(tt, make):
    for device in ("cpu", "sim:1", "cuda:3"):
        made = make(tt.device(device))
        assert made == tt.device(device) and type(made) is tt.device
    for dtype in (tt.float32, tt.bfloat16, tt.bool, tt.complex128):
        assert make(dtype) is dtype
    size = make(tt.ones(2, 3).shape)
    assert type(size) is tt.Size and size == (2, 3) and size.numel() == 6
    assert make({"device": tt.device("cpu"), "dtype": tt.int8}) == {"device": tt.device("cpu"), "dtype": tt.int8}


def test_matplotlib_plots_a_tensor(tt):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    try:
        (line,) = axes.plot(tt.arange(3.0), tt.tensor([1.0, 4.0, 9.0]))
        assert line.get_ydata().tolist() == [1.0, 4.0, 9.0]
        (line,) = axes.plot(tt.tensor([1.0, 4.0, 9.0]), "o")
        assert line.get_ydata(orig=False).tolist() == [1.0, 4.0, 9.0]
        figure.canvas.draw()
    finally:
        pyplot.close(figure)
