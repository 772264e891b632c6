"""The worked examples that must run exactly as given, through the daemon."""

import math

import numpy as np
import pytest
from support import sin2


def test_1_autodiff_table(tt):
    x1 = tt.tensor(2.0, requires_grad=True)
    x2 = tt.tensor(5.0, requires_grad=True)
    y = tt.log(x1) + x1 * x2 - tt.sin(x2)
    assert y.item() == pytest.approx(11.652, abs=5e-4)
    y.backward()
    assert x1.grad.item() == pytest.approx(5.5, abs=1e-6)
    assert x2.grad.item() == pytest.approx(1.716, abs=5e-4)
    assert x2.grad.item() == pytest.approx(2 - math.cos(5), abs=1e-6)


X = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
Y = [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]


def test_2_gradient_of_a_cubed_difference(tt):
    x = tt.tensor(X, requires_grad=True)
    y = tt.tensor(Y, requires_grad=True)
    ((x - y) ** 3).sum().backward()
    assert x.grad.tolist() == [[12.0, 0.0, 12.0], [12.0, 0.0, 12.0]]
    assert y.grad.tolist() == [[-12.0, 0.0, -12.0], [-12.0, 0.0, -12.0]]


def test_3_strides(tt):
    a = tt.arange(16).reshape(2, 2, 4)
    assert a.stride() == (8, 4, 1)
    assert a.is_contiguous()
    t = a.transpose(0, 2)
    assert tuple(t.shape) == (4, 2, 2)
    assert t.stride() == (1, 4, 8)
    assert not t.is_contiguous()
    assert tt.shares_storage(a, t)
    view = a.reshape(4, 4)
    assert tt.shares_storage(a, view)
    copy = t.reshape(16)
    assert not tt.shares_storage(a, copy)
    assert copy.tolist() == np.arange(16).reshape(2, 2, 4).transpose(2, 1, 0).ravel().tolist()
    c = t.contiguous()
    assert c.is_contiguous() and not tt.shares_storage(c, t)
    assert tt.shares_storage(a.contiguous(), a)
    assert a[1].storage_offset() == 8 and a[1, 1, 2:].storage_offset() == 14
    a[0, 0, 0] = 100
    assert view[0, 0].item() == 100 and t[0, 0, 0].item() == 100 and copy[0].item() == 0


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_4_elementwise_and_products_on_either_device(tt, device):
    x, y = tt.tensor(X).to(device), tt.tensor(Y).to(device)
    z = x + y
    assert str(z.device) == device
    assert z.tolist() == [[4.0] * 3] * 2
    assert (x @ y.t()).tolist() == [[10.0, 14.0], [14.0, 10.0]]
    assert (x * y).sum().item() == 20.0


def test_4_errors_name_both_sides_at_the_line(tt):
    a, b = tt.ones(2, 3), tt.ones(2, 3).to("sim:0")
    with pytest.raises(RuntimeError, match=r"cpu.*sim:0|sim:0.*cpu"):
        a + b
    with pytest.raises(RuntimeError, match=r"cpu.*sim:0|sim:0.*cpu"):
        a @ b.t()
    with pytest.raises(RuntimeError, match=r"2, ?3.*4|3.*4"):
        a + tt.ones(4)
    with pytest.raises(RuntimeError, match="scalar"):
        tt.ones(3, requires_grad=True).exp().backward()
    with pytest.raises((RuntimeError, ValueError), match=r"3.*4|4.*3"):
        tt.nn.MSELoss()(tt.ones(2, 3), tt.ones(2, 4))


def test_4_a_device_that_is_not_there(tt):
    with pytest.raises(RuntimeError, match=r"cuda(.|\n)*cpu"):
        tt.ones(2).to("cuda")
    with pytest.raises(RuntimeError, match=r"cuda(.|\n)*cpu"):
        tt.empty((2, 2), device="cuda:0")
    assert not tt.cuda.is_available()


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_5_sin2_network(tt, momentum, device):
    losses = sin2.train(tt, momentum, device)
    wanted = sin2.stored()[str(momentum)]
    assert np.abs(np.array(losses) - wanted).max() <= 1e-5
    assert losses[0] > losses[-1]


def test_5_module_form_with_random_weights(tt):
    """uniform(-1, 1) weights drawn by the daemon: the loss falls below 0.2."""
    tt.manual_seed(0)
    model = tt.nn.Sequential(tt.nn.Linear(1, 10), tt.nn.Sigmoid(), tt.nn.Linear(10, 1))
    for p in model.parameters():
        tt.nn.init.uniform_(p, -1, 1)
    optimizer = tt.optim.SGD(model.parameters(), lr=0.001)
    xs, ys = (tt.tensor(a) for a in sin2.data())
    losses = []
    for _ in range(5):
        total = tt.zeros(())
        for x, y in zip(xs, ys):
            loss = tt.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(xs)
        losses.append(total.item())
    assert losses[-1] < 0.2 and losses[-1] <= losses[0]


def test_6_module_habits(tt):
    class Block(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tt.nn.Sequential(tt.nn.Linear(3, 4), tt.nn.ReLU(), tt.nn.Dropout(0.5))
            self.scale = tt.nn.Parameter(tt.ones(4))

        def forward(self, x):
            return self.inner(x) * self.scale

    class Net(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()
            self.head = tt.nn.Linear(4, 2, bias=False)

        def forward(self, x):
            return self.head(self.block(x))

    net = Net()
    names = [n for n, _ in net.named_parameters()]
    assert names == ["block.scale", "block.inner.0.weight", "block.inner.0.bias", "head.weight"]
    assert len(list(net.parameters())) == 4
    assert net.training and net.block.inner[2].training
    net.eval()
    assert not net.training and not net.block.inner[2].training
    x = tt.randn(5, 3)
    assert net(x).tolist() == net(x).tolist()  # no dropout when evaluating
    net.train()
    text = repr(net)
    for part in ("Net(", "(block): Block(", "(inner): Sequential(", "(0): Linear(in_features=3, out_features=4, "
                 "bias=True)", "(1): ReLU()", "(2): Dropout(p=0.5", "(head): Linear("):
        assert part in text, text
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    out = net(x)
    assert out.requires_grad and not out.detach().requires_grad
    assert tt.shares_storage(out, out.detach())
    net.to("sim:0")
    assert {str(p.device) for p in net.parameters()} == {"sim:0"}
    assert str(net(x.to("sim:0")).device) == "sim:0"
    assert all(p.is_leaf for p in net.parameters())


def test_7_ndarray_habits(tt):
    full = tt.empty((500, 200), device="sim:0").fill_(1).numpy()
    assert full.shape == (500, 200) and full.dtype == np.float32 and (full == 1).all()
    assert str(tt.device("cpu")) == "cpu" and str(tt.device("sim:1")) == "sim:1"
    assert repr(tt.device("sim:0")) == "device(type='sim', index=0)"
    assert repr(tt.device("cpu")) == "device(type='cpu')"
    assert str(tt.empty(2, device=tt.device("sim", 1)).device) == "sim:1"
