"""Small things that PyTorch's own tests lean on: constructors, spellings of sizes and dtypes, indices, kinds
of errors. Each line is evaluated with both libraries: the results, or the kinds of the errors, are equal."""

import importlib

import numpy as np  # noqa: F401 (the lines use it)
import pytest

LINES = """
t.Tensor([[[True]]])
t.Tensor([1, 2]), t.Tensor(2, 3).shape, t.Tensor(t.Size([2])).shape, t.Tensor().shape
t.Tensor(np.ones(3)), t.Tensor((1, 2)), t.Tensor([[1, 2], [3, 4]])
t.Tensor([1, 2], device="cpu")
t.Tensor(t.tensor([1, 2]))
t.Tensor(3.0)
t.tensor([1, 2]).new([1, 2]), t.ones(2).new(2, 3).shape, t.ones(2).new().shape
t.ones(t.tensor(3)), t.zeros(np.int64(3)), t.ones((t.tensor(2), 3)).shape
t.ones(2.0)
t.zeros(size=(2, 3)), t.randn(size=(4,)).shape
t.zeros(2, size=(3,))
t.zeros(2, dtype=int).dtype, t.zeros(2, dtype=bool).dtype, t.ones(2, dtype=complex).dtype
t.randn(2, dtype=float).dtype, t.ones(3).to(int).dtype, t.arange(3, dtype=float).dtype
t.ones(3).sum(dtype=float).dtype, t.tensor([1, 2], dtype=float)
t.zeros(3).layout is t.strided, t.zeros(3, layout=t.strided, pin_memory=False)
t.ones(3) + np.ones(3)
np.sin(t.ones(3)), np.add(t.ones(3), np.ones(3))
np.float32(2) * t.ones(3), t.ones(3) * np.float64(2), t.ones(2) + np.int64(2), np.float32(3) - t.ones(2)
np.sin(t.ones(3, requires_grad=True))
t.ones(2, 2).type(t.Tensor)
t.broadcast_shapes((1, -1), (2, 3))
t.ones(3).flip()
t.nonzero(t.ones(3), out=t.empty(0))
t.nonzero(t.ones(3), out=t.empty(0, dtype=t.int64))
t.nonzero(t.ones(3), as_tuple=True, out=t.empty(0, dtype=t.int64))
t.ones(3).resize_([8, 8, 2**29, 2**29])
t.unravel_index(t.tensor(0.5), (2, 2))
t.take_along_dim(t.ones(2, 2), t.zeros(2, 2, dtype=t.int32), 0)
t.sort(t.arange(5.0), out=(t.zeros(20)[::2], t.zeros(20, dtype=t.int64)[::2]))
t.zeros(2, 2).scatter_reduce(0, t.zeros(0, dtype=t.int64), t.ones(2, 2), "amin")
t.zeros(2, 2).scatter(0, t.zeros(0, dtype=t.int64), t.ones(2, 2))
t.zeros(2, 2).scatter_add_(0, t.zeros(0, dtype=t.int64), t.ones(2, 2))
t.ones(4, 3).T.ravel().is_contiguous(), t.ones(4)[::2].ravel().stride()
t.zeros(5, 2).__setitem__((slice(None), [1]), t.zeros(5, 1, dtype=t.int32))
t.zeros(3).__setitem__(t.tensor([True, False, True]), t.tensor([1]))
written(t.zeros(4, 4), (range(4), range(4)), t.ones(1, 4))
written(t.zeros(3), t.tensor(1, dtype=t.uint8), t.ones(1, 3))
t.tensor(2.0)[t.tensor(1, dtype=t.uint8)], t.tensor(2.0)[t.tensor(0, dtype=t.uint8)]
t.autograd.grad((t.ones(2, requires_grad=True) * 2).sum(), [])
"foo" in t.ones(2)
t.randint(3, size=(2,)).shape, t.randint(0, 3, (2,)).shape, t.randint(5, (3,)).shape
t.full((2,), 1.0, out=t.zeros(2, dtype=t.int64))
t.zeros(2, out=t.empty(0, dtype=t.int64)), t.arange(3, out=t.empty(0)), t.range(0, 2, out=t.empty(0))
t.zeros(2, dtype=t.float64, out=t.empty(0))
t.logspace(1, 2, 3, out=t.empty(0)), t.logsumexp(t.ones(2, 2), 1, out=t.empty(0))
t.meshgrid(t.ones(2), t.ones(2, dtype=t.float64), indexing="ij")
t.hann_window(4, layout=t.strided), t.kaiser_window(3, dtype=float)
t.normal(t.zeros(2), t.tensor([1.0, -1.0]))
t.zeros(3, dtype=t.int8).random_(126, None).ge(126).all(), t.zeros(3).random_(1)
t.tensor(looped())
filled(t, lambda x: t.range(0, 3, out=x)), filled(t, lambda x: t.arange(0, 4, out=x))
filled(t, lambda x: t.linspace(0, 3, 4, out=x)), filled(t, lambda x: t.logspace(0, 3, 4, out=x))
filled(t, lambda x: t.full((4,), 2.0, out=x)), t.arange(4, out=t.zeros(2, 2)).shape
isinstance(t.autograd.Variable(t.ones(2), requires_grad=True), t.autograd.Variable)
t.ones(2, requires_grad=True).numpy(force=True).tolist(), t.fft.fftfreq(4, out=t.empty(0))
t.fft.fftn(t.ones(2, 3), s=3, dim=1).abs()
within(t)
t.optim.LBFGS([t.zeros(2, requires_grad=True)], tolerance_grad=-1.0).step(lambda: t.tensor(10.0))
"""


def looped():
    """A list that contains itself."""
    held = [0]
    held.append(held)
    return held


def filled(t, fill):
    """What `fill` makes of a part of a matrix, and the matrix."""
    x = t.zeros(2, 3)
    return fill(x.narrow(1, 1, 2)), x


def within(t):
    with t.device("cpu") as place:
        return place.type, t.ones(2).device.type


def written(x, index, value):
    x[index] = value
    return x


def plain(x):
    """What both libraries say alike."""
    if isinstance(x, (tuple, list)):
        return [plain(each) for each in x]
    if hasattr(x, "detach"):
        return str(x.dtype).partition(".")[2], list(x.shape), x.detach().numpy().tolist()
    return str(x).partition(".")[2] if str(x).startswith(("torch.", "teletensor.")) else x


def outcome(t, line):
    try:
        return plain(eval(line, {**globals(), "t": t}))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("line", LINES.strip().split("\n"))
def test_both_say_the_same(tt, line):
    import torch

    assert outcome(tt, line) == outcome(torch, line)


def test_copies_take_the_gradient_along(tt):
    import copy

    x = tt.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    twin = copy.deepcopy([x, x])
    assert twin[0] is twin[1] and twin[0].grad.tolist() == [2.0, 2.0, 2.0]
    twin[0].grad.zero_()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_bfloat16_number_reaches_torch(tt):
    assert tt.to_torch(tt.tensor(1.5, dtype=tt.bfloat16)).item() == 1.5


@pytest.mark.parametrize("name, options", [
    ("StepLR", {"step_size": 2}), ("MultiStepLR", {"milestones": [1, 3]}), ("ExponentialLR", {"gamma": 0.5}),
    ("LinearLR", {}), ("PolynomialLR", {"power": 0.9}), ("ConstantLR", {"total_iters": 2}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.1}), ("MultiplicativeLR", {"lr_lambda": lambda e: 0.5}),
    ("LambdaLR", {"lr_lambda": lambda e: 0.5**e}),
])
@pytest.mark.parametrize("last_epoch", [0, 1, 2, 4])
def test_schedules_go_on_from_an_epoch(tt, name, options, last_epoch):
    import torch

    def rates(t):
        parameter = t.zeros(1, requires_grad=True)
        optimizer = t.optim.SGD([{"params": [parameter], "lr": 0.4, "initial_lr": 0.5}], lr=0.4)
        schedule = getattr(t.optim.lr_scheduler, name)(optimizer, last_epoch=last_epoch, **options)
        found = [schedule.get_last_lr()[0]]
        for _ in range(3):
            optimizer.step()
            schedule.step()
            found.append(schedule.get_last_lr()[0])
        return found

    assert rates(tt) == pytest.approx(rates(torch), rel=1e-12)


def test_hooks_of_every_optimizer(tt):
    import torch

    def calls(t):
        said = []
        x = t.ones(2, requires_grad=True)
        optimizer = t.optim.SGD([x], lr=0.5)
        module = importlib.import_module(f"{t.__name__}.optim.optimizer")
        shared = [module.register_optimizer_step_pre_hook(lambda *_: said.append("all before")),
                  module.register_optimizer_step_post_hook(lambda *_: said.append("all after"))]
        optimizer.step()
        own = [optimizer.register_step_pre_hook(lambda *_: said.append("before")),
               optimizer.register_step_post_hook(lambda *_: said.append("after"))]
        optimizer.step()
        for handle in shared:
            handle.remove()
        optimizer.step()
        own[0].remove()
        t.optim.Adam([x]).step()
        return said

    assert calls(tt) == calls(torch)


def test_what_a_program_keeps_in_an_optimizers_state(tt):
    import torch

    for t in (tt, torch):
        x = t.ones(2, requires_grad=True)
        optimizer = t.optim.SGD([x], lr=0.5)
        optimizer.state["seen"] = 3
        saved = optimizer.state_dict()
        assert saved["state"] == {"seen": 3}
        other = t.optim.SGD([x], lr=0.5)
        other.load_state_dict(saved)
        assert other.state["seen"] == 3
